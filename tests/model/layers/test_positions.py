import pytest
import reference_layers as reference
import torch

from maxmatch.model.layers import grid_positions, sine_positions


@pytest.mark.parametrize("width", [1, 7, 8, 300])
def test_sequence_positions_agree_with_the_reference(width):
    lengths = [1, 5, 3]
    mask = torch.arange(6) < torch.tensor(lengths)[:, None]
    positions = sine_positions(mask, width, torch.float64)
    for item, length in zip(positions, lengths, strict=True):
        expected = torch.tensor(reference.sequence_positions(length, width), dtype=torch.float64)
        torch.testing.assert_close(item[:length], expected, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (7, 7), (2, 5)])
def test_grid_positions_agree_with_the_reference(rows, columns):
    expected = torch.tensor(reference.grid_positions(rows, columns, 10), dtype=torch.float64)
    positions = grid_positions(rows, columns, 10, dtype=torch.float64)
    torch.testing.assert_close(positions, expected, rtol=1e-10, atol=1e-14)


def test_positions_do_not_depend_on_padding():
    alone = sine_positions(torch.ones(1, 4, dtype=torch.bool), 16)
    padded = sine_positions(torch.arange(9)[None] < 4, 16)
    assert torch.equal(alone, padded[:, :4])


def test_places_are_counted_over_real_features_wherever_the_padding_is():
    right = sine_positions(torch.tensor([[True, True, True, False, False]]), 8)
    left = sine_positions(torch.tensor([[False, False, True, True, True]]), 8)
    assert torch.equal(right[:, :3], left[:, 2:])


def test_positions_on_a_grid_need_an_even_width():
    with pytest.raises(ValueError, match="Choose an even width"):
        grid_positions(2, 2, 7)
