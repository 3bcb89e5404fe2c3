"""How much is scored and held at once."""

import numpy as np
import pytest
import torch
from matching_cases import TINY, A, B, every_similarity
from reference import random_mask, random_sets
from torch import Tensor

from maxmatch import score_matrix, top_hits_both
from maxmatch.matching import products, scoring, similarity


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


def test_every_pair_is_scored_once_for_both_directions(tile_shapes: list[tuple[int, int]]) -> None:
    for scored in (lambda: score_matrix(A, B, max_memory=TINY), lambda: top_hits_both(A, B, 3, max_memory=TINY)):
        tile_shapes.clear()
        scored()
        assert sum(height * width for height, width in tile_shapes) == len(A) * len(B)
        assert len(tile_shapes) > 5


def test_with_too_little_memory_for_a_pair_there_is_a_pair_per_tile(tile_shapes: list[tuple[int, int]]) -> None:
    score_matrix(A[:3], B[:4], max_memory=1)
    assert tile_shapes == [(1, 1)] * 12


def test_the_pairs_of_a_tile_do_not_depend_on_the_width_of_vectors(tile_shapes: list[tuple[int, int]]) -> None:
    score_matrix(random_sets(26, 30, 2, 3), random_sets(27, 40, 2, 3), max_memory=2**16)
    narrow = tile_shapes[0]
    tile_shapes.clear()
    score_matrix(random_sets(26, 30, 2, 16), random_sets(27, 40, 2, 16), max_memory=2**16)
    assert tile_shapes[0] == narrow
    assert 1 < narrow[0] * narrow[1] < 30 * 40


def peak(meter_of: type, a: object, b: object, name: str, max_memory: int, **options: object) -> int:
    """The most bytes alive at once in score_matrix, beside its inputs and its result."""
    known = [torch.as_tensor(x) for x in (a, b, *options.values()) if isinstance(x, Tensor | np.ndarray)]
    with meter_of(*known) as meter:
        scores = score_matrix(a, b, name, max_memory, **options)
    return meter.peak_bytes - scores.nbytes


@every_similarity
@pytest.mark.parametrize(("masked", "dtype"), [(False, torch.float64), (True, torch.float32)])
def test_what_is_allocated_stays_within_max_memory(
    name: str, masked: bool, dtype: torch.dtype, allocation_meter: type
) -> None:
    a, b = random_sets(11, 16, 4, 16, dtype=dtype), random_sets(12, 40, 4, 16, dtype=dtype)
    masks = {"a_mask": random_mask(13, 16, 4), "b_mask": random_mask(14, 40, 4)} if masked else {}
    assert peak(allocation_meter, a, b, name, 2**18, **masks) <= 2**18


@pytest.mark.parametrize("name", ["maxmatch", "sinkhorn"])
@pytest.mark.parametrize(
    ("rows", "columns", "masked"), [(1, 16, True), (16, 1, False), (2, 6, True), (5, 5, True), (8, 8, False)]
)
def test_max_memory_holds_for_sets_of_every_size(
    name: str, rows: int, columns: int, masked: bool, allocation_meter: type
) -> None:
    a, b = random_sets(15, 12, rows, 8), random_sets(16, 13, columns, 8)
    masks = {"a_mask": random_mask(17, 12, rows), "b_mask": random_mask(18, 13, columns)} if masked else {}
    assert peak(allocation_meter, a, b, name, 2**18, **masks) <= 2**18


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("kind", ["tensor", "half", "array", "normalised"])
def test_max_memory_holds_for_wide_vectors(kind: str, allocation_meter: type) -> None:
    a, b = random_sets(19, 32, 4, 128), random_sets(20, 32, 4, 128)
    if kind == "half":
        a, b = a.half(), b.half()
    x, y = (a.numpy(), b.numpy()) if kind == "array" else (a, b)
    assert peak(allocation_meter, x, y, "maxmatch", 2**19, normalise=kind == "normalised") <= 2**19


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(("rows", "kind"), [(1, "whole"), (15, "part of larger sets"), (2, "masked")])
def test_max_memory_holds_for_few_rows(dtype: torch.dtype, rows: int, kind: str, allocation_meter: type) -> None:
    a, b = random_sets(28, rows, 4, 64), random_sets(29, 300, 8 if kind == "part of larger sets" else 4, 64).to(dtype)
    masks = {"b_mask": random_mask(30, 300, 4)} if kind == "masked" else {}
    assert peak(allocation_meter, a, b[:, :4], "maxmatch", 2**18, **masks) <= 2**18 < 300 * 4 * 64 * 4


def test_hits_never_hold_the_matrix(allocation_meter: type) -> None:
    a, b = random_sets(21, 200, 1, 2), random_sets(22, 200, 1, 2)
    with allocation_meter(a, b) as meter:
        hits = top_hits_both(a, b, 2, "mil", max_memory=2**16)
    result = sum(part.nbytes for direction in hits for part in direction)
    assert meter.peak_bytes - result <= 2**16 < 200 * 200 * 4


@pytest.mark.parametrize(("whole", "usual"), [(8, 1), (16, 1), (141, 141 / 16)])
def test_a_large_gpu_takes_a_sixteenth_of_its_memory_unless_told(
    whole: float, usual: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (whole * 2**30, whole * 2**30))
    assert products.usual_memory(torch.device("cuda")) == int(usual * 2**30)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (3 * 2**30, whole * 2**30))  # others work there
    assert products.usual_memory(torch.device("cuda")) == int(min(1.5, usual) * 2**30)
    assert products.usual_memory(torch.device("cpu")) == 2**30
