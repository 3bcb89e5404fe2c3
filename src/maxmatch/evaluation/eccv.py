"""ECCV Caption and CxC: COCO's test set with the answers that its captions miss, through the package `eccv_caption`.

Both know items by COCO's ids of images and captions, which Karpathy's JSON keeps. Equal scores stand in the order of
the data: whoever measures collapsed models looks at the ties of the plain figures first.
"""

import contextlib
import io
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from maxmatch.evaluation.retrieval import LEVELS
from maxmatch.evaluation.scores import Scores
from maxmatch.matching.scoring import first_largest

INSTALL = "ECCV Caption and CxC need the package eccv_caption: pip install 'maxmatch[eccv]'"


class NotCoco(ValueError):
    """Items that are not those of COCO's test set."""


def load_metrics() -> Any:
    """The package's own measures with their answers. ImportError with the cure where it is not installed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a faster JSON, which changes nothing
        try:
            from eccv_caption import Metrics
        except ImportError as error:
            raise ImportError(INSTALL) from error
        return Metrics()


def extended(
    scores: Scores, image_ids: Sequence[str], caption_ids: Sequence[str], metrics: Any = None
) -> dict[str, float]:
    """The figures of CxC (recalls, RSUM) and ECCV Caption (R@1, mAP@R, R-precision) both ways, in per cent.

    metrics: what `load_metrics` gave, to read its files once for several models. NotCoco for items of other data.
    """
    metrics = load_metrics() if metrics is None else metrics
    images, captions = _numbers(image_ids, "image"), _numbers(caption_ids, "caption")
    answers = {"CxC": metrics.cxc_gts, "ECCV Caption": metrics.eccv_gts}
    for name, known in answers.items():
        for way, ids in (("i2t", images), ("t2i", captions)):
            _check_all_there(name, known[way], ids, "image" if way == "i2t" else "caption")
    depth = max(
        LEVELS[-1], *(len(some) for known in answers.values() for way in known.values() for some in way.values())
    )
    retrieved = best_answers(scores, images, captions, depth)
    found = {
        f"cxc_{way}_r{level}": 100 * float(value)
        for level in LEVELS
        for way, value in metrics.cxc_recalls(retrieved, "all", K=level).items()
    }
    found["cxc_rsum"] = sum(found.values())
    with contextlib.redirect_stderr(io.StringIO()):  # a bar that cannot be turned off
        measured = metrics.eccv_metrics(retrieved, "all")
    for name in ("eccv_r1", "eccv_map_at_r", "eccv_rprecision"):
        short = name.removeprefix("eccv_")
        found |= {f"eccv_{way}_{short}": 100 * float(value) for way, value in measured[name].items()}
    return found


def best_answers(
    scores: Scores, images: np.ndarray, captions: np.ndarray, depth: int
) -> dict[str, dict[int, list[int]]]:
    """Of each image the ids of its best captions, best first, and of each caption those of its best images."""
    forth = []
    values = places = None  # of each caption the best images so far
    for block in scores.blocks():
        part = scores.rows(block)
        forth.append(first_largest(part, min(depth, part.shape[1]))[1])
        more, where = first_largest(part.T, min(depth, part.shape[0]))
        where = where + block.start
        if values is not None and places is not None:
            more, where = torch.cat([values, more], 1), torch.cat([places, where], 1)
            order = more.sort(dim=1, descending=True, stable=True).indices[:, :depth]
            more, where = more.gather(1, order), where.gather(1, order)
        values, places = more, where
    assert places is not None
    return {
        "i2t": dict(zip(images.tolist(), captions[torch.cat(forth).cpu().numpy()].tolist(), strict=True)),
        "t2i": dict(zip(captions.tolist(), images[places.cpu().numpy()].tolist(), strict=True)),
    }


def _numbers(ids: Sequence[str], what: str) -> np.ndarray:
    for name in ids:
        if not (name.isascii() and name.isdigit()):
            raise NotCoco(f"{what} {name!r} has no id of COCO. {_CURE}")
    return np.array([int(name) for name in ids])


_CURE = "CxC and ECCV Caption are measured on COCO's test split, read from Karpathy's dataset_coco.json."


def _check_all_there(name: str, known: Mapping[int, Sequence[int]], ids: np.ndarray, what: str) -> None:
    missing = known.keys() - set(ids.tolist())
    if missing:
        raise NotCoco(f"{len(missing):,} of the {len(known):,} {what}s that {name} asks about are not here. {_CURE}")
