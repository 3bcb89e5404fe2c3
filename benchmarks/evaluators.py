"""`python -m benchmarks.evaluators [cpu] [cuda] [--images N]`: our evaluator, the bare product and other libraries.

Generated vectors of COCO 5K's size (5,000 images, five captions each): single vectors of width 512 by cosine, and sets
of K = 4 by the matching. Ours measures everything in one pass: R@K, ranks, mAP, mAP@R, nDCG, MRR, precision, coverage,
both ways. Others get the finished scores of some queries; what each query adds to their time is scaled to all of them,
after their figures were compared with ours. Libraries that are not installed are left out
(`pip install maxmatch[peers]`).
"""

import argparse
import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from benchmarks.reference import random_sets
from benchmarks.timing import Row, Work, describe_machine, print_rows, rows_against
from maxmatch.evaluation import RetrievalResult, evaluate_embeddings

_CAPTIONS, _WIDTH, _SIZE = 5, 512, 4
_QUERIES = {"i2t": 40, "t2i": 200}  # that the others get
_GOAL = 1.2
Peer = Callable[[np.ndarray, np.ndarray], float]
"""From the scores of some queries and which answers are true to R@10, or mAP, from 0 to 1."""


def made_vectors(images: int, size: int, device: str) -> tuple[Tensor, Tensor]:
    """Captions near their image, so that ranks are neither all first nor at chance level."""
    pictures = random_sets(images, size, _WIDTH, 1, device)
    texts = random_sets(images * _CAPTIONS, size, _WIDTH, 2, device)
    near = 0.12 if size == 1 else 0.05
    return pictures, normalize(texts + near * pictures.repeat_interleave(_CAPTIONS, 0), dim=-1)


def ours(images: Tensor, texts: Tensor, similarity: str) -> RetrievalResult:
    """All measures of both directions."""
    groups = torch.arange(len(images))
    return evaluate_embeddings(images, texts, groups, groups.repeat_interleave(_CAPTIONS), similarity)


def product(a: Tensor, b: Tensor, out: Tensor) -> None:
    """The inner products of all vectors, some rows at a time."""
    for start in range(0, len(a), len(out)):
        part = a[start : start + len(out)]
        torch.mm(part, b.T, out=out[: len(part)])


# Others, each as its documentation says; VSE++ and CLIP_benchmark by their published formulas.


def vse(scores: np.ndarray, true: np.ndarray) -> float:
    """A full sort of each row, and a search for each true answer in it."""
    ranks = []
    for row, right in zip(scores, true, strict=True):
        order = np.argsort(row)[::-1]
        ranks.append(min(int(np.where(order == one)[0][0]) for one in np.flatnonzero(right)))
    return float((np.array(ranks) < 10).mean())


def clip_benchmark(scores: np.ndarray, true: np.ndarray) -> float:
    """The ten best of each row as one-hot vectors, times the matrix of true pairs."""
    matrix, pairs = torch.from_numpy(scores), torch.from_numpy(true)
    first = torch.topk(matrix, 10, dim=1).indices
    chosen = torch.nn.functional.one_hot(first, matrix.shape[1])
    return float(((chosen * pairs[:, None]).sum((1, 2)) > 0).double().mean())


def torchmetrics(scores: np.ndarray, true: np.ndarray) -> float:
    from torchmetrics.retrieval import RetrievalHitRate

    metric = RetrievalHitRate(top_k=10)
    queries = torch.arange(len(scores))[:, None].expand(scores.shape)
    metric.update(torch.from_numpy(scores).flatten(), torch.from_numpy(true).flatten(), queries.flatten())
    return float(metric.compute())


def _as_runs(scores: np.ndarray, true: np.ndarray) -> tuple[dict[str, dict[str, int]], dict[str, dict[str, float]]]:
    names = [f"d{number}" for number in range(scores.shape[1])]
    qrels = {f"q{q}": {names[d]: 1 for d in np.flatnonzero(row)} for q, row in enumerate(true)}
    return qrels, {f"q{q}": dict(zip(names, row, strict=True)) for q, row in enumerate(scores.tolist())}


def pytrec_eval(scores: np.ndarray, true: np.ndarray) -> float:
    import pytrec_eval as library

    qrels, run = _as_runs(scores, true)
    found = library.RelevanceEvaluator(qrels, {"success.10"}).evaluate(run)
    return float(np.mean([one["success_10"] for one in found.values()]))


def ir_measures(scores: np.ndarray, true: np.ndarray) -> float:
    import ir_measures as library

    qrels, run = _as_runs(scores, true)
    measure = library.parse_measure("Success@10")
    return float(library.calc_aggregate([measure], qrels, run)[measure])


def ranx(scores: np.ndarray, true: np.ndarray) -> float:
    import ranx as library

    qrels, run = _as_runs(scores, true)
    return float(library.evaluate(library.Qrels(qrels), library.Run(run), "hit_rate@10", make_comparable=True))


def mteb(scores: np.ndarray, true: np.ndarray) -> float:
    from mteb._evaluators.retrieval_metrics import calculate_retrieval_scores

    qrels, run = _as_runs(scores, true)
    best = {query: dict(sorted(row.items(), key=lambda one: -one[1])[:1000]) for query, row in run.items()}
    found: Any = calculate_retrieval_scores(best, qrels, [10])
    return float(found.hit_rate["HitRate@10"])


PEERS: dict[str, tuple[str | None, Peer]] = {
    "VSE++'s formula, R@K": (None, vse),
    "CLIP_benchmark's formula, R@10": (None, clip_benchmark),
    "torchmetrics, hit rate@10": ("torchmetrics", torchmetrics),
    "pytrec_eval, success@10": ("pytrec_eval", pytrec_eval),
    "ir-measures, success@10": ("ir_measures", ir_measures),
    "ranx, hit rate@10": ("ranx", ranx),
    "mteb, all of its measures": ("mteb", mteb),
}


def peer_rows(images: Tensor, texts: Tensor, found: RetrievalResult, whole_ms: float) -> list[Row]:
    """The time of each peer for all queries both ways, scaled from some of them, as a multiple of ours."""
    parts = {}
    for way, count in _QUERIES.items():
        asking, asked = (images, texts) if way == "i2t" else (texts, images)
        places = torch.linspace(0, len(asking) - 1, min(count, len(asking))).long()
        per = (1, _CAPTIONS) if way == "i2t" else (_CAPTIONS, 1)
        true = (places[:, None] // per[0] == torch.arange(len(asked)) // per[1]).numpy()
        scores = (asking[places, 0] @ asked[:, 0].T).double().cpu().numpy()
        expected = float((found.ranks[way][places.numpy()] <= 10).mean())
        parts[way] = scores, true, expected, len(asking) / len(places)
    rows = []
    for name, (module, peer) in PEERS.items():
        if module is not None and find_spec(module) is None:
            print(f"  {name}: {module} is not installed")
            continue
        total = 0.0
        for way, (scores, true, expected, times) in parts.items():
            peer(scores[:2], true[:2])  # compiled, imported
            fixed, _ = _timed(peer, scores[:2], true[:2])
            took, value = _timed(peer, scores, true)
            total += fixed + (took - fixed) / (len(scores) - 2) * (times * len(scores) - 2)
            assert abs(value - expected) < 1e-6, (name, way, value, expected)
        rows.append(Row(name, total, total / whole_ms, note="the same figures; scaled from some queries"))
    return rows


def _timed(peer: Peer, scores: np.ndarray, true: np.ndarray) -> tuple[float, float]:
    """Milliseconds, and the figure."""
    begin = time.perf_counter()
    value = peer(scores, true)
    return (time.perf_counter() - begin) * 1e3, value


def timed_vectors(device: str, images: int) -> None:
    """Ours against the product, for single vectors; then the others against ours."""
    single = made_vectors(images, 1, device)
    found = ours(*single, "cosine")
    a, b = (side[:, 0].contiguous() for side in single)
    out = torch.empty(min(len(a), 2048), len(b), device=device)
    work = partial(ours, *single, "cosine")
    named: dict[str, tuple[Work, float | None]] = {"evaluate_embeddings, cosine: all measures, both ways": (work, None)}
    rows = rows_against(partial(product, a, b, out), named, "bare product, one vector", 3)
    print_rows(f"{device}, {images:,} images × {len(b):,} captions, D = {_WIDTH}, float32", rows)
    if device == "cpu":
        print_rows("others, from finished scores, as multiples of all of ours", peer_rows(*single, found, rows[1].ms))


def timed_sets(device: str, images: int) -> None:
    """Ours against the product of all vectors, for sets."""
    sets = made_vectors(images, _SIZE, device)
    a, b = (side.reshape(-1, _WIDTH) for side in sets)
    out = torch.empty(min(len(a), 2048), len(b), device=device)
    work = partial(ours, *sets, "maxmatch")
    named: dict[str, tuple[Work, float | None]] = {"evaluate_embeddings, maxmatch: all measures": (work, _GOAL)}
    rows = rows_against(partial(product, a, b, out), named, f"bare product, K = {_SIZE}", 3)
    print_rows(f"{device}, {images:,} images × {len(sets[1]):,} captions, K = {_SIZE}, D = {_WIDTH}, float32", rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("devices", nargs="*", choices=["cpu", "cuda"], help="default: cpu, and cuda if there is a GPU")
    parser.add_argument("--images", type=int, default=5000)
    parser.add_argument("--only", choices=["vectors", "sets"])
    arguments = parser.parse_args()
    print(describe_machine())
    for chosen in arguments.devices or (["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]):
        if arguments.only != "sets":
            timed_vectors(chosen, arguments.images)
        if arguments.only != "vectors":
            timed_sets(chosen, arguments.images)
