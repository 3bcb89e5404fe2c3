"""Rank the photos of a folder for a sentence: python examples/search_photos.py FOLDER "two dogs in the snow"."""

import sys
from pathlib import Path

from maxmatch import SetEncoder

model = SetEncoder.from_pretrained("maxmatch-small")
photos = sorted(path for path in Path(sys.argv[1]).iterdir() if path.suffix.lower() in (".jpg", ".jpeg", ".png"))
scores = model.similarity(model.encode_texts([sys.argv[2]]), model.encode_images(photos))[0]
for place in scores.argsort(descending=True)[:10].tolist():
    print(f"{scores[place]:.3f}  {photos[place]}")
