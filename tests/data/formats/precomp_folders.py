"""Folders of precomputed features as other programs write them."""

import numpy as np

from maxmatch.data.dataset import IMAGE, TEXT


def put(folder, prefix, array, texts, ids=None, end="\n"):
    """A split as other programs write it."""
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / f"{prefix}_ims.npy", array)
    (folder / f"{prefix}_caps.txt").write_bytes("".join(text + end for text in texts).encode())
    if ids is not None:
        (folder / f"{prefix}_ids.txt").write_text("".join(f"{name}\n" for name in ids))
    return folder


def per_image(part):
    return np.bincount(part[TEXT].groups).tolist()


def same_rows(part, array):
    return [row.tolist() for row in part[IMAGE].values] == [row.tolist() for row in array]
