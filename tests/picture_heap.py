"""A folder of files as people have them: pictures, and what cannot be read, each with its reason."""

import struct
import zlib

import numpy as np
from PIL import Image

HEAP = 100
"""Files, where shards are made of them."""


def png(width, height, data=b""):
    """A PNG that says it is this large, whatever it holds."""

    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(data)) + chunk(b"IEND", b"")


def write_heap(folder, count, seed=0, size=40):
    """`count` files in folders; of every 50 six are bad. The names of the good ones; of the others, with a word of the
    reason.
    """
    generator = np.random.default_rng(seed)
    good, bad = [], {}
    for number in range(count):
        name = f"{number % 7}/{number:05d}"
        path = folder / f"{name}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        picture = Image.fromarray(generator.integers(0, 256, (size, size + number % 9, 3), dtype=np.uint8))
        kind = number % 50
        if kind == 3:
            path.write_bytes(b"")
            bad[f"{name}.jpg"] = "empty"
        elif kind == 11:
            path.write_bytes(png(30_000, 30_000))
            bad[f"{name}.jpg"] = "900000000 pixels"
        elif kind == 19:
            path.write_text("dear diary")
            bad[f"{name}.jpg"] = "not a readable picture"
        elif kind == 27:
            picture.save(path)
            path.write_bytes(path.read_bytes()[:300])
            bad[f"{name}.jpg"] = "not a readable picture"
        elif kind == 35:
            path.with_suffix(".txt").write_text("notes")
            bad[f"{name}.txt"] = "not a picture"
        elif kind == 43:
            path.symlink_to(folder / "nowhere.jpg")
            bad[f"{name}.jpg"] = "no such file"
        else:
            picture.save(path)
            good.append(f"{name}.jpg")
    return sorted(good), bad
