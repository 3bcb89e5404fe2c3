import pytest
import reference_encoders as reference
import torch
from tiny_backbones import TEXT, text_backbone

from maxmatch.model.encoders import TransformerEncoder
from maxmatch.model.layers import sine_positions

LENGTHS = [6, 2, 4]


@pytest.mark.parametrize("kind", TEXT)
def test_transformer_encoder_agrees_with_the_reference(kind):
    torch.manual_seed(0)
    ids, mask = torch.randint(5, 50, (3, 6)), torch.arange(6) < torch.tensor(LENGTHS)[:, None]
    for pooling in ("max", "mean", "first"):
        encoder = TransformerEncoder(text_backbone(kind), width=6, pooling=pooling).eval().double()
        features = encoder(ids, mask)
        for place, length in enumerate(LENGTHS):
            with torch.no_grad():
                hidden = encoder.backbone(input_ids=ids[place : place + 1, :length]).last_hidden_state[0].tolist()
            expected = reference.transformer(hidden, reference.parameters_of(encoder), pooling)
            reference.assert_item(features, place, expected)
        assert torch.equal(features.positions, sine_positions(mask, 6, torch.float64))


def test_a_model_built_from_a_config_has_no_pooling_layer():
    assert text_backbone("bert").pooler is None


@pytest.mark.usefixtures("without_shape_checks")
def test_wrong_inputs_are_refused():
    encoder = TransformerEncoder(text_backbone("bert"), width=6)
    with pytest.raises(ValueError, match="at most 40"):
        encoder(torch.ones(1, 41, dtype=torch.long))
    with pytest.raises(ValueError, match="expected 0 to 49, got 1 to 50"):
        encoder(torch.tensor([[1, 50]]))
    with pytest.raises(ValueError, match="pooling: expected one of max, mean, first"):
        TransformerEncoder(text_backbone("bert"), pooling="cls")
