"""Training: one loop that reads as prose, and its parts."""
