import pytest
import reference_encoders as reference
import torch
from tiny_backbones import TEXT, parameters_of, text_backbone

from maxmatch.model.encoders import TransformerEncoder
from maxmatch.model.layers import sine_positions

LENGTHS = [6, 2, 4]


@pytest.mark.parametrize("pooling", ["max", "mean", "first"])
@pytest.mark.parametrize("kind", TEXT)
def test_transformer_encoder_agrees_with_the_reference(kind, pooling):
    torch.manual_seed(0)
    encoder = TransformerEncoder(text_backbone(kind), width=6, pooling=pooling).eval().double()
    ids, mask = torch.randint(5, 50, (3, 6)), torch.arange(6) < torch.tensor(LENGTHS)[:, None]
    features = encoder(ids, mask)
    weights = {name: value for name, value in parameters_of(encoder).items() if "projection" in name}
    for b, length in enumerate(LENGTHS):
        with torch.no_grad():
            hidden = encoder.backbone(input_ids=ids[b : b + 1, :length]).last_hidden_state[0]
        local, pooled = reference.transformer(hidden.tolist(), weights, pooling)
        local, pooled = torch.tensor(local, dtype=torch.float64), torch.tensor(pooled, dtype=torch.float64)
        torch.testing.assert_close(features.local[b, :length], local, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(features.pooled[b], pooled, rtol=1e-10, atol=1e-12)
    assert torch.equal(features.positions, sine_positions(mask, 6, torch.float64))


def test_a_model_built_from_a_config_has_no_pooling_layer():
    assert text_backbone("bert").pooler is None


def test_a_text_longer_than_the_model_takes_is_refused():
    encoder = TransformerEncoder(text_backbone("bert"), width=6)
    with pytest.raises(ValueError, match="at most 40"):
        encoder(torch.ones(1, 41, dtype=torch.long))


def test_ids_of_another_vocabulary_are_refused():
    with pytest.raises(ValueError, match="expected 0 to 49, got 1 to 50"):
        TransformerEncoder(text_backbone("bert"), width=6)(torch.tensor([[1, 50]]))


@pytest.mark.usefixtures("without_shape_checks")
def test_an_unknown_pooling_is_refused():
    with pytest.raises(ValueError, match="pooling: expected one of max, mean, first"):
        TransformerEncoder(text_backbone("bert"), pooling="cls")
