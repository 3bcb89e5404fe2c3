import pytest
import reference_encoders as reference
import torch

from maxmatch.model.encoders.language import GRUEncoder
from maxmatch.model.layers import sine_positions

LENGTHS = [5, 1, 3]


def inputs():
    torch.manual_seed(1)
    return torch.randint(0, 11, (3, 5)), torch.arange(5) < torch.tensor(LENGTHS)[:, None]


@pytest.mark.parametrize("local", ["words", "states"])
@pytest.mark.parametrize("directions", ["mean", "concatenate", "forward"])
def test_gru_encoder_agrees_with_the_reference(directions, local):
    torch.manual_seed(0)
    encoder = GRUEncoder(11, word_width=4, width=6, directions=directions, local=local).eval().double()
    ids, mask = inputs()
    features = encoder(ids, mask)
    for place, length in enumerate(LENGTHS):
        expected = reference.gru(ids[place, :length].tolist(), reference.parameters_of(encoder), directions, local)
        reference.assert_item(features, place, expected)
    assert encoder.local_width == {"words": 4, "states": 6}[local]
    assert torch.equal(features.positions, sine_positions(mask, encoder.local_width, torch.float64))


@pytest.mark.parametrize(("directions", "hidden"), [("mean", 1024), ("concatenate", 512), ("forward", 1024)])
def test_sizes_are_those_of_the_paper_by_default(directions, hidden):
    encoder = GRUEncoder(7, directions=directions)
    assert encoder.words.weight.shape == (7, 300)
    assert encoder.gru.hidden_size == hidden
    assert (encoder.local_width, encoder.width) == (300, 1024)


def test_local_features_are_word_vectors_after_dropout():
    torch.manual_seed(0)
    encoder = GRUEncoder(11, word_width=400, width=6, dropout=0.25)
    local = encoder(*inputs()).local
    assert abs(float((local == 0).float().mean()) - 0.25) < 0.03


def test_words_start_from_the_given_vectors_and_all_are_trained():
    vectors = torch.randn(11, 4)
    encoder = GRUEncoder(11, word_width=4, width=6, word_vectors=vectors)
    assert torch.equal(encoder.words.weight, vectors)
    encoder(torch.tensor([[0, 1]])).pooled.sum().backward()
    assert encoder.words.weight.grad[0].any()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"directions": "sum"}, "directions: .*'sum'"),
        ({"word_init": "zero"}, "word_init: .*'zero'"),
        ({"local": "letters"}, "local: .*'letters'"),
        ({"directions": "concatenate", "width": 7}, "Choose an even one"),
        ({"word_vectors": torch.zeros(3, 4)}, "expected 11 words of width 4"),
    ],
)
@pytest.mark.usefixtures("without_shape_checks")
def test_a_wrong_option_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        GRUEncoder(11, **{"word_width": 4, "width": 6, **options})


@pytest.mark.parametrize(
    ("ids", "mask", "message"),
    [
        ([[1, 11]], None, "expected 0 to 10, got 1 to 11"),
        ([[1, -1]], None, "expected 0 to 10, got -1 to 1"),
        ([[]], None, "expected token ids"),
        ([[1, 2]], [[False, True]], "Pad on the right"),
        ([[1, 2]], [[True]], "expected a boolean mask of shape"),
        ([[1, 2]], [[False, False]], "all False"),
    ],
)
@pytest.mark.usefixtures("without_shape_checks")
def test_a_wrong_input_is_refused(ids, mask, message):
    encoder = GRUEncoder(11, word_width=4, width=6)
    with pytest.raises(ValueError, match=message):
        encoder(torch.tensor(ids, dtype=torch.long), None if mask is None else torch.tensor(mask))


def test_words_can_start_uniform_within_a_bound():
    torch.manual_seed(0)
    words = GRUEncoder(500, 300, 6, word_init="uniform", word_scale=0.1).words.weight.detach()
    assert float(words.abs().max()) <= 0.1
    assert float(words.std()) == pytest.approx(0.1 / 3**0.5, rel=0.01)


@pytest.mark.parametrize("directions", ["mean", "forward"])
def test_the_way_without_a_look_at_the_lengths_gives_the_same_states(directions):
    encoder = GRUEncoder(20, word_width=5, width=6, directions=directions).double()
    local = torch.randn(7, 9, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    mask = torch.arange(9) < torch.tensor([1, 9, 3, 5, 2, 9, 4])[:, None]
    ours, packed = encoder.last_states_on_device(local, mask), encoder.last_states(local, mask)
    torch.testing.assert_close(ours, packed, rtol=1e-12, atol=1e-12)
    parameters = [local, *encoder.gru.parameters()]
    gradients = [torch.autograd.grad(states.square().sum(), parameters) for states in (ours, packed)]
    torch.testing.assert_close(*gradients, rtol=1e-10, atol=1e-12)
    (every, last), (packed_every, _) = encoder.states_on_device(local, mask), encoder.states(local, mask)
    torch.testing.assert_close(every[mask], packed_every[mask], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(last, packed, rtol=1e-12, atol=1e-12)


def test_vectors_that_stay_are_projected_and_learn_nothing():
    vectors = torch.randn(20, 5, generator=torch.Generator().manual_seed(1))
    encoder = GRUEncoder(20, 6, 8, word_vectors=vectors, vector_width=5, train_words=False).eval()
    ids = torch.tensor([[1, 7, 3], [4, 4, 0]])
    mask = torch.tensor([[True, True, True], [True, True, False]])
    found = encoder(ids, mask)
    weight, bias = encoder.projection.weight, encoder.projection.bias
    torch.testing.assert_close(found.local[0, 1], weight @ vectors[7] + bias)
    (found.local.sum() + found.pooled.sum()).backward()
    assert encoder.words.weight.grad is None
    assert encoder.projection.weight.grad.abs().sum() > 0
    with pytest.raises(ValueError, match="vector_width"):
        GRUEncoder(20, 6, 8, word_vectors=vectors, vector_width=4)
