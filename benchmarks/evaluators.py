"""`python -m benchmarks.evaluators [cpu] [cuda] [--images N]`: our evaluator, the bare product and other libraries.

Generated vectors of COCO 5K's size (5,000 images, five captions each): single vectors of width 512 by cosine, and sets
of K = 4 by the matching. Ours measures everything in one pass: R@K, ranks, mAP, mAP@R, nDCG, MRR, precision, coverage,
both ways. Others get the finished scores of some queries; what each query adds to their time is scaled to all of them,
after their figures were compared with ours. Libraries that are not installed are left out
(`pip install maxmatch[peers]`). On a GPU the figures of a part are first compared with the CPU's, and what is bound by
memory, single vectors and bfloat16, is also compared with the product and one read of its result.
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
_GOALS = {"cpu": 1.2, "cuda": 1.3}
_COMPARED = 400  # images whose figures on a GPU are compared with the CPU's
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


def product(a: Tensor, b: Tensor, out: Tensor, read: bool = False) -> None:
    """The inner products of all vectors, some rows at a time. read: and their largest."""
    for start in range(0, len(a), len(out)):
        part = a[start : start + len(out)]
        made = torch.mm(part, b.T, out=out[: len(part)])
        if read:
            made.amax()


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


def compare_with_cpu(images: Tensor, texts: Tensor, similarity: str) -> None:
    """The figures of some images and their captions are the same on both, but for pairs that rounding orders."""
    few = images[:_COMPARED], texts[: _COMPARED * _CAPTIONS]
    here, there = ours(*few, similarity), ours(few[0].cpu(), few[1].cpu(), similarity)
    apart = abs(here.figures["rsum"] - there.figures["rsum"])
    most = 0.5 if images.dtype == torch.float32 else 5.0
    assert apart <= most, (similarity, images.dtype, here.figures["rsum"], there.figures["rsum"])
    print(f"\n{similarity}, {images.dtype}: RSUM of {_COMPARED} images {apart:.2f} from the CPU's")


def timed(device: str, images: int, size: int, dtype: torch.dtype) -> tuple[RetrievalResult, float]:
    """Ours against the product of all vectors; on a GPU also against the product and one read. What ours found, and its
    milliseconds.
    """
    one = size == 1
    similarity = "cosine" if one else "maxmatch"
    made = made_vectors(images, size, device)
    sets = made[0].to(dtype), made[1].to(dtype)
    if device == "cuda":
        compare_with_cpu(*sets, similarity)
    a, b = (side.reshape(-1, _WIDTH) for side in sets)
    out = torch.empty(min(len(a), 2048), len(b), device=device, dtype=dtype)
    found, work = ours(*sets, similarity), partial(ours, *sets, similarity)
    bound_by_memory = one or dtype != torch.float32
    goal = None if bound_by_memory else _GOALS[device]
    named: dict[str, tuple[Work, float | None]] = {f"evaluate_embeddings, {similarity}: all, both ways": (work, goal)}
    if device == "cuda" and bound_by_memory:
        named["the product and one read of it"] = partial(product, a, b, out, True), None
    rows = rows_against(partial(product, a, b, out), named, f"bare product, K = {size}", 5)
    print_rows(f"{device}, {images:,} images × {len(sets[1]):,} captions, K = {size}, D = {_WIDTH}, {dtype}", rows)
    return found, rows[1].ms


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("devices", nargs="*", choices=["cpu", "cuda"], help="default: cpu, and cuda if there is a GPU")
    parser.add_argument("--images", type=int, default=5000)
    parser.add_argument("--only", choices=["vectors", "sets"])
    arguments = parser.parse_args()
    print(describe_machine())
    for chosen in arguments.devices or (["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]):
        kinds = [torch.float32] if chosen == "cpu" else [torch.float32, torch.bfloat16]
        for kind in kinds:
            if arguments.only != "sets":
                figures, took = timed(chosen, arguments.images, 1, kind)
            if arguments.only != "vectors":
                timed(chosen, arguments.images, _SIZE, kind)
        if chosen == "cpu" and arguments.only != "sets":
            rows = peer_rows(*made_vectors(arguments.images, 1, chosen), figures, took)
            print_rows("others, from finished scores, as multiples of all of ours", rows)
