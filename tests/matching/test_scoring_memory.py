"""How much is scored and held at once."""

import numpy as np
import pytest
import torch
from reference import random_mask, random_sets
from scoring_cases import TINY, A, B
from similarity_cases import every_similarity
from torch import Tensor

from maxmatch import score_matrix, top_hits_both
from maxmatch.matching import scoring, similarity


@pytest.fixture
def tile_shapes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The shapes of the tiles that are scored by plain torch."""
    shapes, maxmatch = [], similarity.maxmatch

    def recorded(a: Tensor, b: Tensor, *masks: Tensor | None, **options: Tensor | None) -> Tensor:
        shapes.append((len(a), len(b)))
        return maxmatch(a, b, *masks, **options)

    monkeypatch.setattr(scoring, "compiled_for", lambda *_, **__: None)
    monkeypatch.setattr(similarity, "maxmatch", recorded)
    return shapes


def test_every_pair_is_scored_once(tile_shapes: list[tuple[int, int]]) -> None:
    score_matrix(A, B, max_memory=TINY)
    assert sum(height * width for height, width in tile_shapes) == len(A) * len(B)
    assert len(tile_shapes) > 5


def test_where_memory_is_short_of_a_pair_it_is_a_pair_at_a_time(tile_shapes: list[tuple[int, int]]) -> None:
    score_matrix(A[:3], B[:4], max_memory=1)
    assert tile_shapes == [(1, 1)] * 12


def test_how_many_pairs_a_tile_holds_does_not_depend_on_the_width_of_vectors(
    tile_shapes: list[tuple[int, int]],
) -> None:
    score_matrix(random_sets(26, 30, 2, 3), random_sets(27, 40, 2, 3), max_memory=2**16)
    narrow = tile_shapes[0]
    tile_shapes.clear()
    score_matrix(random_sets(26, 30, 2, 16), random_sets(27, 40, 2, 16), max_memory=2**16)
    assert tile_shapes[0] == narrow
    assert 1 < narrow[0] * narrow[1] < 30 * 40


def test_one_pass_serves_both_directions(tile_shapes: list[tuple[int, int]]) -> None:
    top_hits_both(A, B, 3, max_memory=TINY)
    assert sum(height * width for height, width in tile_shapes) == len(A) * len(B)


@every_similarity
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_is_allocated_stays_within_max_memory(
    name: str, masked: bool, dtype: torch.dtype, allocation_meter: type
) -> None:
    a, b = random_sets(11, 50, 4, 16, dtype=dtype), random_sets(12, 60, 4, 16, dtype=dtype)
    masks = {"a_mask": random_mask(13, 50, 4), "b_mask": random_mask(14, 60, 4)} if masked else {}
    assert _peak(allocation_meter, a, b, name, 2**20, **masks) <= 2**20


@pytest.mark.parametrize(("rows", "columns"), [(1, 16), (16, 1), (2, 6), (5, 5), (8, 8), (16, 16)])
@pytest.mark.parametrize("masked", [False, True])
def test_max_memory_holds_for_sets_of_every_size(rows: int, columns: int, masked: bool, allocation_meter: type) -> None:
    a, b = random_sets(15, 24, rows, 8), random_sets(16, 25, columns, 8)
    masks = {"a_mask": random_mask(17, 24, rows), "b_mask": random_mask(18, 25, columns)} if masked else {}
    assert _peak(allocation_meter, a, b, "maxmatch", 2**19, **masks) <= 2**19


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("kind", ["tensor", "half", "array", "normalised"])
def test_max_memory_holds_for_wide_vectors(kind: str, allocation_meter: type) -> None:
    a, b = random_sets(19, 80, 4, 256), random_sets(20, 80, 4, 256)
    if kind == "half":
        a, b = a.half(), b.half()
    x, y = (a.numpy(), b.numpy()) if kind == "array" else (a, b)
    assert _peak(allocation_meter, x, y, "maxmatch", 2**19, normalise=kind == "normalised") <= 2**19


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("rows", [1, 120])
@pytest.mark.parametrize("whole", [True, False])
def test_max_memory_holds_for_few_rows(dtype: torch.dtype, rows: int, whole: bool, allocation_meter: type) -> None:
    a, b = random_sets(28, rows, 4, 512), random_sets(29, 300, 4 if whole else 8, 512).to(dtype)
    assert _peak(allocation_meter, a, b[:, :4], "maxmatch", 2**20) <= 2**20 < 300 * 4 * 512 * 4


def test_hits_never_hold_the_matrix(allocation_meter: type) -> None:
    a, b = random_sets(21, 200, 1, 2), random_sets(22, 200, 1, 2)
    with allocation_meter(a, b) as meter:
        hits = top_hits_both(a, b, 2, "mil", max_memory=2**16)
    result = sum(part.nbytes for direction in hits for part in direction)
    assert meter.peak_bytes - result <= 2**16 < 200 * 200 * 4


def _peak(meter_of: type, a: object, b: object, name: str, max_memory: int, **options: object) -> int:
    """The most bytes alive at once in score_matrix, beside its inputs and its result."""
    known = [torch.as_tensor(x) for x in (a, b, *options.values()) if isinstance(x, Tensor | np.ndarray)]
    with meter_of(*known) as meter:
        scores = score_matrix(a, b, name, max_memory, **options)
    return meter.peak_bytes - scores.nbytes


@pytest.mark.parametrize(("whole", "usual"), [(8, 1), (16, 1), (141, 141 / 16)])
def test_a_large_gpu_takes_a_sixteenth_of_its_memory_unless_told(
    whole: float, usual: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (whole * 2**30, whole * 2**30))
    assert scoring._usual_memory(torch.device("cuda")) == int(usual * 2**30)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (3 * 2**30, whole * 2**30))  # others work there
    assert scoring._usual_memory(torch.device("cuda")) == int(min(1.5, usual) * 2**30)
    assert scoring._usual_memory(torch.device("cpu")) == 2**30
