"""The GRU of kernels, interpreted on the CPU: `torch.nn.GRU` on packed sequences is the reference, gradients too."""

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from maxmatch.model.encoders import language
from maxmatch.model.encoders.language import GRUEncoder
from maxmatch.model.layers import triton_gru
from maxmatch.model.layers.triton_gru import gru_states

LENGTHS = torch.tensor([6, 1, 3, 5, 2])


def one_direction(width=7, hidden=12, dtype=torch.float32):
    torch.manual_seed(0)
    gru = nn.GRU(width, hidden, batch_first=True).to(dtype)
    words = torch.randn(len(LENGTHS), int(LENGTHS.max()), width, dtype=dtype, requires_grad=True)
    return gru, words


def by_kernels(gru, words, every):
    gates = words.transpose(0, 1) @ gru.weight_ih_l0.T
    (r, z, n), (own_r, own_z, own_n) = gru.bias_ih_l0.chunk(3), gru.bias_hh_l0.chunk(3)
    bias = torch.stack([r + own_r, z + own_z, n, own_n])
    return gru_states(gru.weight_hh_l0[None], bias[None], LENGTHS, [gates[None]], every)


@pytest.mark.parametrize("hidden", [12, 260])  # in one program, in two
@pytest.mark.parametrize("every", [False, True])
def test_states_and_gradients_are_those_of_torchs_gru(hidden, every):
    gru, words = one_direction(hidden=hidden)
    packed, last = gru(pack_padded_sequence(words, LENGTHS, batch_first=True, enforce_sorted=False))
    states, _ = pad_packed_sequence(packed, batch_first=True)
    ours = by_kernels(gru, words, every)
    ours = ours[0].transpose(0, 1) if every else ours
    expected = states if every else last
    read = torch.arange(words.shape[1]) < LENGTHS[:, None] if every else torch.ones(1, len(LENGTHS), dtype=torch.bool)
    arriving = torch.randn_like(expected) * read[..., None]  # what comes after an item's end is arbitrary
    torch.testing.assert_close(ours * read[..., None], expected * read[..., None], rtol=1e-5, atol=1e-6)
    inputs = [words, *gru.parameters()]
    gradients = [torch.autograd.grad((made * arriving).sum(), inputs, retain_graph=True) for made in (expected, ours)]
    for wanted, found in zip(*gradients, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


def test_the_gradient_that_arrives_is_left_as_it_is():
    gru, words = one_direction()
    last = by_kernels(gru, words, every=False)
    arriving = torch.randn_like(last)
    kept = arriving.clone()
    torch.autograd.grad(last, words, arriving)
    assert torch.equal(arriving, kept)


def test_after_its_last_word_an_item_keeps_its_state():
    gru, words = one_direction()
    states = by_kernels(gru, words, every=True)[0]
    last = by_kernels(gru, words, every=False)[0]
    for item, length in enumerate(LENGTHS.tolist()):
        assert torch.equal(states[length - 1 :, item], last[item].expand(states.shape[0] - length + 1, -1))


@pytest.mark.parametrize(
    ("local", "directions"),
    [
        ("words", "mean"),
        ("states", "concatenate"),
        ("states", "forward"),
        pytest.param("words", "concatenate", marks=pytest.mark.slow),
        pytest.param("words", "forward", marks=pytest.mark.slow),
        pytest.param("states", "mean", marks=pytest.mark.slow),
    ],
)
def test_an_encoder_gives_the_same_features_and_learns_the_same_with_the_kernels(directions, local, monkeypatch):
    torch.manual_seed(0)
    encoder = GRUEncoder(9, word_width=6, width=8, directions=directions, dropout=0.0, local=local)
    ids = torch.randint(0, 9, (len(LENGTHS), 6))
    mask = torch.arange(6) < LENGTHS[:, None]
    found = []
    for kernels in (None, triton_gru):
        if kernels is not None:
            monkeypatch.setattr(language, "_gru_kernels", lambda words: triton_gru)
            monkeypatch.setattr(GRUEncoder, "last_states", GRUEncoder.last_states_on_device)
            monkeypatch.setattr(GRUEncoder, "states", GRUEncoder.states_on_device)
        encoder.zero_grad()
        features = encoder(ids, mask)
        shown = features.local * mask[..., None]
        (shown.square().sum() + (features.pooled * torch.arange(8.0)).sum()).backward()
        found.append([shown, features.pooled, *(parameter.grad.clone() for parameter in encoder.parameters())])
    for expected, ours in zip(*found, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-5)


def test_in_mixed_precision_the_gates_and_the_states_have_that_precision(monkeypatch):
    encoder = GRUEncoder(9, word_width=6, width=8, dropout=0.0)
    seen = []
    monkeypatch.setattr(language, "_gru_kernels", lambda words: triton_gru)
    monkeypatch.setattr(
        triton_gru, "gru_states", lambda w, b, n, gates, *_: (seen.append(gates[0].dtype), gates[0][:, 0, :, :8])[1]
    )
    ids, mask = torch.randint(0, 9, (len(LENGTHS), 6)), torch.arange(6) < LENGTHS[:, None]
    with torch.autocast("cpu", torch.bfloat16):
        encoder.last_states_on_device(encoder.vectors(ids), mask)
    encoder.last_states_on_device(encoder.vectors(ids), mask)
    assert seen == [torch.bfloat16, torch.float32]


def test_on_a_processor_there_are_no_kernels():
    assert language._gru_kernels(torch.zeros(1)) is None


@pytest.mark.parametrize(
    ("counts", "directions"),
    [
        ((3, 2), "mean"),
        ((1, 3, 2), "concatenate"),
        ((5,), "forward"),
        ((3, 2), "forward"),
        *(pytest.param(counts, "mean", marks=pytest.mark.slow) for counts in ((1, 3, 2), (5,))),
        *(pytest.param(counts, "concatenate", marks=pytest.mark.slow) for counts in ((3, 2), (5,))),
        pytest.param((1, 3, 2), "forward", marks=pytest.mark.slow),
    ],
)
def test_texts_in_parts_have_the_features_and_gradients_that_they_have_alone(directions, counts, monkeypatch):
    monkeypatch.setattr(language, "_gru_kernels", lambda words: triton_gru)
    torch.manual_seed(0)
    encoder = GRUEncoder(9, word_width=6, width=8, directions=directions, dropout=0.0)
    parts = []
    for place, count in enumerate(counts):
        width = 2 + 3 * place  # the first of each part fills it, the last has one word
        mask = torch.arange(width) < torch.linspace(width, 1, count).round()[:, None]
        parts.append((torch.randint(0, 9, (count, width)), mask))
    found = []
    for together in (False, True):
        if together:
            features = encoder.of_parts(*parts)
        else:
            monkeypatch.setattr(GRUEncoder, "last_states", GRUEncoder.last_states_on_device)
            features = [encoder(*part) for part in parts]
        encoder.zero_grad()
        sum((one.pooled * torch.arange(8.0)).square().sum() + one.local.sum() for one in features).backward()
        gradients = [parameter.grad.clone() for parameter in encoder.parameters()]
        found.append([tensor for one in features for tensor in (one.local, one.pooled, one.positions)] + gradients)
    for expected, ours in zip(*found, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("widths", [(2, 4), (3, 3)])
def test_without_the_kernels_and_where_none_is_longer_parts_are_read_one_by_one(widths, monkeypatch):
    if widths[0] == widths[1]:
        monkeypatch.setattr(language, "_gru_kernels", lambda words: triton_gru)
    encoder = GRUEncoder(9, word_width=6, width=8).eval()
    parts = [(torch.ones(2, width, dtype=torch.long), torch.ones(2, width, dtype=torch.bool)) for width in widths]
    for one, part in zip(encoder.of_parts(*parts), parts, strict=True):
        assert torch.equal(one.pooled, encoder(*part).pooled)
