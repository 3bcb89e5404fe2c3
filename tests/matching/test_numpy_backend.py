"""NumPy's matching and similarities are torch's, to the last choice between matchings that tie."""

import numpy as np
import pytest
import reference
import torch
from hypothesis import given
from hypothesis import strategies as st
from made_sets import unit_sets

from maxmatch.matching import SIMILARITIES
from maxmatch.matching.assignment import maximal_assignment
from maxmatch.matching.numpy_backend import LARGEST, assign, cosine_planes, matched, product_in_this_thread

sizes = st.integers(1, LARGEST)


@given(rows=sizes, columns=sizes, seed=st.integers(0, 1000), levels=st.sampled_from([2, 3, 100_000]))
def test_the_matching_is_that_of_torch_ties_included(rows, columns, seed, levels):
    # Few levels: nearly every problem then has several matchings of the same total.
    drawn = np.random.default_rng(seed).integers(0, levels, (rows, columns, 40)) / levels
    cosines = (2 * drawn - 1).astype(np.float32)
    expected = maximal_assignment(torch.from_numpy(cosines).permute(2, 0, 1))
    np.testing.assert_array_equal(assign(cosines), expected.T.numpy())


@pytest.mark.parametrize("name", reference.NAMES)
@given(rows=sizes, columns=sizes, seed=st.integers(0, 1000))
def test_scores_are_those_of_torch(name, rows, columns, seed):
    columns = rows if SIMILARITIES[name].in_order else columns
    a, b = unit_sets(3, rows, 12, seed=seed), unit_sets(5, columns, 12, seed=seed + 1)
    scores = SIMILARITIES[name].of_planes(cosine_planes(a.numpy(), b.numpy())).reshape(3, 5)
    np.testing.assert_allclose(scores, SIMILARITIES[name](a, b).numpy(), atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("smooth_chamfer", {"alpha": 3.0}),
        ("top_k", {"k": 2}),
        ("top_k", {"k": 99}),
        ("sinkhorn", {"epsilon": 0.5, "iterations": 1}),
        ("sinkhorn", {"epsilon": 0.02, "iterations": 20}),
    ],
)
def test_options_count_in_numpy_as_in_torch(name, options):
    a, b = unit_sets(3, 4, 12, seed=0), unit_sets(5, 3, 12, seed=1)
    similarity = SIMILARITIES[name].with_options(options)
    scores = similarity.of_planes(cosine_planes(a.numpy(), b.numpy())).reshape(3, 5)
    np.testing.assert_allclose(scores, similarity(a, b).numpy(), atol=1e-6, rtol=0)
    np.testing.assert_allclose(scores, SIMILARITIES[name].torch(a, b, **options).numpy(), atol=1e-6, rtol=0)


@pytest.mark.usefixtures("without_shape_checks")
def test_paired_refuses_sets_of_two_sizes():
    planes = cosine_planes(unit_sets(3, 4, 12).numpy(), unit_sets(5, 3, 12).numpy())
    with pytest.raises(ValueError, match=r"paired: sets of 4 and of 3 vectors"):
        SIMILARITIES["paired"].of_planes(planes)


def test_a_row_without_a_partner_has_the_cosine_zero():
    cosines = np.array([[[0.1]], [[0.7]], [[-0.2]]], np.float32)
    chosen = assign(cosines)
    assert chosen[:, 0].tolist() == [-1, 0, -1]
    assert matched(cosines, chosen)[:, 0].tolist() == [0.0, np.float32(0.7), 0.0]


@pytest.mark.parametrize("shape", [(0, 8, 3), (1, 1536, 255), (33, 300, 41), (70, 9000, 2), (2, 300_000, 1)])
def test_a_product_in_pieces_is_the_product(shape):
    rows, width, columns = shape
    random = np.random.default_rng(0)
    a, b = (
        random.normal(size=(rows, width)).astype(np.float32),
        random.normal(size=(columns, width)).astype(np.float32).T,
    )
    product = product_in_this_thread(a, b)
    assert product.dtype == np.float32
    np.testing.assert_allclose(product, a.astype(float) @ b.astype(float), atol=1e-4 * np.sqrt(width))
