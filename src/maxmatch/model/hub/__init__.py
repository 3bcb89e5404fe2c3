"""Models of the Hugging Face Hub: CLIP, SigLIP, models of open_clip, and their preprocessing."""
