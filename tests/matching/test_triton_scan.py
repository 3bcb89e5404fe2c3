"""A few queries against many sets by one kernel, interpreted on the CPU: `score_matrix` is the reference."""

import sys

import numpy as np
import pytest
import torch
from reference import random_sets
from torch import Tensor

if sys.platform != "linux":
    pytest.skip("Triton is made for Linux only", allow_module_level=True)

from maxmatch import score_matrix, top_hits
from maxmatch.core.checks import NotFiniteError, NotUnitLength
from maxmatch.matching import scoring, triton_scan
from maxmatch.matching.triton_scan import Cut, best_hits, best_keys, can_scan, quantise, way_for
from maxmatch.matching.triton_tiles import Tiles

HELD, STREAMED = Tiles(4, 16, 3, held=True), Tiles(8, 32, 3, held=False)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few programs, each of which takes a while here."""
    monkeypatch.setattr(triton_scan, "FEW", Cut(16, 16, 4, 2))


def halves(count: int, width: int, seed: int) -> Tensor:
    return random_sets(seed, count, 4, width).half()


def sorted_scores(queries: Tensor, items: Tensor) -> tuple[Tensor, Tensor]:
    """All of them, best first, equal ones in the order of the items."""
    scores = score_matrix(queries.float(), items.float())
    return scores.sort(dim=1, descending=True, stable=True)


def check_hits(queries: Tensor, items: Tensor, found: tuple[Tensor, Tensor], k: int) -> None:
    """The scores are the k largest, and each is that of its place."""
    scores, places = found
    assert scores.shape == places.shape == (len(queries), k)
    torch.testing.assert_close(scores, sorted_scores(queries, items)[0][:, :k], rtol=0, atol=1e-5)
    whole = score_matrix(queries.float(), items.float())
    torch.testing.assert_close(scores, whole.gather(1, places), rtol=0, atol=1e-5)
    assert all(len(set(row)) == k for row in places.tolist())


@pytest.mark.parametrize(
    ("queries", "items", "width", "k"), [(1, 100, 32, 1), (3, 32, 64, 32), (7, 50, 96, 2), (33, 9, 32, 1)]
)
def test_the_best_hits_are_the_largest_scores(queries: int, items: int, width: int, k: int) -> None:
    asked, there = halves(queries, width, 0), halves(items, width, 1)
    check_hits(asked, there, best_hits(asked, there, k), k)


@pytest.mark.parametrize(
    ("queries", "cut"), [(17, Cut(16, 64, 4, 2)), (33, Cut(32, 32, 4, 3)), (65, STREAMED), (3, STREAMED), (40, HELD)]
)
def test_the_best_of_each_block_for_more_queries_than_a_program_takes(queries: int, cut: Cut | Tiles) -> None:
    width = 64 if cut == HELD else 96
    asked, there = halves(queries, width, 0), halves(70, width, 1)
    keys = best_keys(asked, there, None, cut)
    parts = score_matrix(asked.float(), there.float()).split(cut.items, dim=1)
    torch.testing.assert_close(scores_of(keys), torch.stack([part.amax(1) for part in parts], 1), rtol=0, atol=1e-5)
    assert (0x7FFFFFFF - (keys & 0x7FFFFFFF)).tolist() == [list(range(len(parts)))] * queries


def scores_of(keys: Tensor) -> Tensor:
    ordered = (keys >> 32).int()
    return torch.where(ordered < 0, ordered ^ 0x7FFFFFFF, ordered).view(torch.float32)


@pytest.mark.parametrize("most", [0, 2048])
@pytest.mark.parametrize("cut", [None, STREAMED])
@pytest.mark.parametrize("k", [3, 130])
def test_of_equal_scores_the_first_places_come_first(
    k: int, cut: Cut | Tiles | None, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triton_scan, "_RANKED", most)  # by choosing them first, and by comparing each with each
    # Each product has one number that is not 0, so that no processor rounds a score otherwise in another place.
    levels = torch.stack([torch.randperm(26, generator=torch.Generator().manual_seed(seed)) for seed in range(2)])
    asked, one = torch.zeros(2, 4, 32).half(), torch.zeros(26, 4, 32).half()
    for slot in range(4):
        for query in range(2):
            asked[query, slot, 4 * query + slot] = 1
            one[:, slot, 4 * query + slot] = levels[query] / 32
    there = one.repeat(5, 1, 1)  # every score five times, in different blocks
    order = levels.argsort(dim=1, descending=True)
    expected = (order[:, :, None] + 26 * torch.arange(5)).flatten(1)[:, :k]
    _, places = best_hits(asked, there, k, way=cut)
    assert torch.equal(places, expected)


@pytest.mark.parametrize(("count", "k"), [(3000, 7), (700, 256), (40, 40), (33, 1)])
def test_the_largest_keys_of_each_row_are_chosen(count: int, k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_scan, "_CHOSEN", 900)  # in parts, then of those
    keys = torch.randint(-(2**62), 2**62, (3, count), generator=torch.Generator().manual_seed(0)) * 2
    chosen = triton_scan._largest(keys, k)
    assert torch.equal(chosen.sort(dim=1, descending=True).values, keys.topk(k, dim=1).values)


@pytest.mark.parametrize("cut", [None, STREAMED])
def test_only_items_that_are_kept_are_found(cut: Cut | Tiles | None) -> None:
    asked, there = halves(3, 32, 0), halves(90, 32, 1)
    keep = torch.rand(90, generator=torch.Generator().manual_seed(2)) < 0.3
    there[~keep, 1, 3] = torch.nan  # and the others not looked at
    count = int(keep.sum())
    scores, places = best_hits(asked, there, count + 2, keep, cut)
    expected, order = sorted_scores(asked, there[keep])
    torch.testing.assert_close(scores[:, :count], expected, rtol=0, atol=1e-5)
    assert torch.equal(places[:, :count], keep.nonzero()[:, 0][order])
    assert bool((scores[:, count:] == -torch.inf).all())
    assert bool((places[:, count:] == -1).all())


@pytest.mark.parametrize(
    ("queries", "items", "k", "fits"),
    [
        (torch.zeros(128, 4, 32).half(), torch.zeros(9, 4, 32).half(), 9, True),
        (torch.zeros(1, 4, 32).bfloat16(), torch.zeros(9, 4, 32).bfloat16(), 9, True),
        (torch.zeros(999, 4, 32).half(), torch.zeros(9, 4, 32).half(), 9, True),
        (torch.zeros(1, 4, 32), torch.zeros(9, 4, 32, dtype=torch.int8), 9, True),
        (torch.zeros(0, 4, 32).half(), torch.zeros(9, 4, 32).half(), 9, False),
        (torch.zeros(1, 4, 32).half(), torch.zeros(0, 4, 32).half(), 0, False),
        (torch.zeros(1, 4, 32).half(), torch.zeros(999, 4, 32).half(), 257, False),
        (torch.zeros(1, 3, 32).half(), torch.zeros(9, 3, 32).half(), 9, False),
        (torch.zeros(1, 4, 40).half(), torch.zeros(9, 4, 40).half(), 9, False),
        (torch.zeros(1, 4, 32), torch.zeros(9, 4, 32), 9, False),
        (torch.zeros(1, 4, 32), torch.zeros(9, 4, 32).half(), 9, False),
        (torch.zeros(1, 4, 32).half(), torch.zeros(9, 32, 4).half().transpose(1, 2), 9, False),
    ],
)
def test_what_can_be_scanned(queries: Tensor, items: Tensor, k: int, fits: bool) -> None:
    assert can_scan(queries, items, k) is fits


# --- integers -------------------------------------------------------------------------------------------------------


def test_a_vector_is_a_scale_times_integers_of_which_the_largest_is_127() -> None:
    sets = halves(5, 96, 0)
    sets[3, 2] = 0
    values, scales = quantise(sets)
    assert values.abs().amax(2).tolist() == [[127] * 4] * 3 + [[127, 127, 0, 127]] + [[127] * 4]
    exact = sets.double().numpy()
    largest = abs(exact).max(-1, keepdims=True) / 127
    expected = (exact / np.where(largest > 0, largest, 1)).round()  # ties aside, of which there is none
    assert values.tolist() == expected.tolist()
    np.testing.assert_allclose(scales.numpy(), largest[..., 0], rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    ("queries", "way", "some"),
    [(3, None, True), (3, None, False), (18, Cut(16, 16, 4, 2), True), (40, HELD, True), (70, STREAMED, False)],
)
def test_hits_of_integers_are_the_largest_scores_of_what_they_stand_for(
    queries: int, way: Cut | Tiles | None, some: bool
) -> None:
    asked, items = random_sets(0, queries, 4, 64), random_sets(1, 50, 4, 64)
    (values, scales), (own, own_scales) = quantise(items), quantise(asked)
    keep = torch.arange(50) % 3 > 0 if some else None
    scores, places = best_hits(asked, values, 4, keep, way, scales)
    whole = score_matrix(own * own_scales[..., None], values * scales[..., None])
    whole = whole if keep is None else whole.masked_fill(~keep, -torch.inf)
    torch.testing.assert_close(scores, whole.topk(4).values, rtol=0, atol=1e-5)
    torch.testing.assert_close(scores, whole.gather(1, places), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("queries", "width", "dtype", "expected"),
    [
        (16, 256, torch.float16, triton_scan.FEW),
        (32, 256, torch.float16, triton_scan.MANY),
        (33, 256, torch.float16, triton_scan.HELD),
        (33, 256, torch.int8, triton_scan.HELD_INT8),
        (33, 192, torch.int8, triton_scan.STREAMED),  # held are powers of two
        (33, 1024, torch.bfloat16, triton_scan.STREAMED),
        (900, 512, torch.float16, triton_scan.STREAMED),
    ],
)
def test_many_queries_are_scanned_by_tiles_that_fit(
    queries: int, width: int, dtype: torch.dtype, expected: Cut | Tiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    items = torch.zeros(9, 4, width, dtype=dtype)
    monkeypatch.undo()  # the usual cuts
    assert way_for(queries, items) == expected
    monkeypatch.setattr(triton_scan, "_capability", lambda _: (8, 6))
    monkeypatch.setattr(triton_scan, "shared_memory", lambda _: 99 * 1024)
    assert isinstance(way_for(queries, items), Cut)  # an older GPU has no copy engine


# --- top_hits through the kernel ------------------------------------------------------------------------------------


@pytest.fixture
def scans(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """`top_hits` takes the way it takes on a GPU; what it asked for."""
    asked: list[int] = []

    class Kernels:
        can_scan = staticmethod(triton_scan.can_scan)
        scan_bytes = staticmethod(triton_scan.scan_bytes)
        most_queries = staticmethod(triton_scan.most_queries)

        @staticmethod
        def best_hits(queries: Tensor, items: Tensor, k: int, keep: Tensor | None) -> tuple[Tensor, Tensor]:
            asked.append(k)
            return best_hits(queries, items, k, keep)

    monkeypatch.setattr(scoring, "scans_for", lambda _: Kernels)
    return asked


def test_top_hits_of_sets_where_they_lie_are_those_of_all_scores(scans: list[int]) -> None:
    a, b = halves(2, 32, 3), halves(70, 32, 4)
    found = top_hits(a, b, 100)
    assert scans == [70]  # all there are
    check_hits(a, b, (found.scores, found.indices), 70)
    assert found.scores.dtype == torch.float32


def test_top_hits_of_more_queries_than_memory_allows_at_once(scans: list[int]) -> None:
    a, b = halves(5, 32, 3), halves(70, 32, 4)
    found = top_hits(a, b, 3, max_memory=2 * triton_scan.scan_bytes(70, 3))
    assert scans == [3, 3, 3]
    check_hits(a, b, (found.scores, found.indices), 3)


@pytest.mark.parametrize("precision", [torch.float16, torch.float32])
def test_top_hits_of_some_are_those_of_them_alone(precision: torch.dtype, scans: list[int]) -> None:
    a, b = halves(2, 32, 3).to(precision), halves(70, 32, 4).to(precision)
    keep = torch.arange(70) % 7 == 3
    found, alone = top_hits(a, b, 12, keep=keep.numpy(), max_memory=20_000), top_hits(a, b[keep], 10)
    assert torch.equal(found.indices[:, :10], keep.nonzero()[:, 0][alone.indices])
    torch.testing.assert_close(found.scores[:, :10], alone.scores, rtol=0, atol=1e-5)
    assert found.indices[:, 10:].tolist() == [[-1, -1]] * 2
    assert found.scores[:, 10:].tolist() == [[-torch.inf] * 2] * 2
    assert scans == ([12, 10] if precision == torch.float16 else [])


def test_of_none_there_are_no_hits(scans: list[int]) -> None:
    found = top_hits(halves(2, 32, 3), halves(70, 32, 4), 3, keep=torch.zeros(70, dtype=torch.bool))
    assert found.indices.tolist() == [[-1] * 3] * 2
    assert found.scores.tolist() == [[-torch.inf] * 3] * 2


@pytest.mark.parametrize("keep", [torch.ones(3, dtype=torch.bool), torch.ones(9)])
def test_keep_is_a_boolean_for_each(keep: Tensor, without_shape_checks: None) -> None:
    with pytest.raises(ValueError, match=r"^keep: expected a boolean for each of 9"):
        top_hits(halves(3, 32, 5), halves(9, 32, 6), 1, keep=keep)


def test_top_hits_takes_another_way_where_the_kernel_cannot(scans: list[int]) -> None:
    a, b = halves(2, 32, 3), halves(70, 32, 4)
    mask = torch.ones(70, 4, dtype=torch.bool)
    for found in (
        top_hits(a, b, 3, max_memory=10),
        top_hits(a, b, 3, b_mask=mask),
        top_hits(a, b, 3, normalise=True),
        top_hits(a.float(), b.float(), 3),
        top_hits(a, b.numpy(), 3),
    ):
        torch.testing.assert_close(found.scores, sorted_scores(a, b)[0][:, :3], rtol=0, atol=1e-3)
    assert top_hits(a, b, 3, "chamfer").scores.shape == (2, 3)
    assert scans == []


@pytest.mark.usefixtures("scans")
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # NumPy's, which stands in for the GPU
@pytest.mark.parametrize("value", [torch.nan, -torch.inf])
def test_top_hits_names_an_item_that_is_not_finite(value: float) -> None:
    good, bad = halves(3, 32, 5), halves(20, 32, 6)
    bad[18, 2, 5] = value
    with pytest.raises(NotFiniteError, match=r"^b: item 18 "):
        top_hits(good, bad, 1)
    with pytest.raises(NotFiniteError, match=r"^a: item 18 "):
        top_hits(bad, good, 1)


@pytest.mark.usefixtures("scans")
def test_top_hits_warns_of_vectors_that_are_not_of_unit_length() -> None:
    with pytest.warns(NotUnitLength, match="^b: "):
        top_hits(halves(3, 32, 5), halves(9, 32, 6) * 2, 1)
