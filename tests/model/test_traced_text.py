"""Texts encoded by a trace of the tower are those that the model encodes, to the bit."""

import pytest
import torch

from maxmatch import SetEncoder
from maxmatch.model import traced_text
from maxmatch.model.text import TextTruncated
from maxmatch.model.traced_text import text_encoder

pytestmark = pytest.mark.usefixtures("without_shape_checks")  # which cannot be traced
WORDS = ["a", "red", "dog", "and", "two", "small", "xqzzt", "birds,", "12", "of", "them:", "on", "the", "beach"]


@pytest.fixture(scope="module")
def model():
    return SetEncoder.from_pretrained("maxmatch-small")


def texts_of(*lengths):
    return [" ".join((WORDS * 3)[place % 5 : place % 5 + length]) for place, length in enumerate(lengths)]


@pytest.mark.parametrize(
    "texts",
    [
        texts_of(1),
        texts_of(7),
        [""],
        ["", "a dog", "  "],
        texts_of(*range(1, 33)),
        texts_of(*([4] * 16)),
        texts_of(*([3, 9] * 32)),
        texts_of(*([5, 2, 1] * 30)),
        [],
        ["half a surrogate pair \ud83d", "naïve café", "犬"],
    ],
    ids=len,
)
def test_the_trace_gives_what_the_model_gives_to_the_bit(model, texts):
    encode = text_encoder(model)
    assert torch.equal(encode(texts), model.encode_texts(texts))


def test_the_model_itself_is_not_called_for_a_batch(model, monkeypatch):
    encode, texts = text_encoder(model), texts_of(3, 8)
    expected = model.encode_texts(texts)
    monkeypatch.setattr(model, "encode_texts", lambda *args, **options: pytest.fail("called"))
    assert torch.equal(encode(texts), expected)
    assert not encode(texts).requires_grad


def test_a_text_that_is_too_long_is_truncated_with_the_same_warning(model):
    encode, texts = text_encoder(model), ["dog " * 5_000]
    with pytest.warns(TextTruncated):
        expected = model.encode_texts(texts)
    with pytest.warns(TextTruncated):
        assert torch.equal(encode(texts), expected)


@pytest.mark.parametrize("trace", [lambda *args, **options: 1 / 0, lambda *args: lambda ids, mask: torch.zeros(1)])
def test_without_a_trace_that_gives_the_same_the_model_encodes(model, monkeypatch, trace):
    monkeypatch.setattr(traced_text, "_traced", trace)
    texts = texts_of(3, 8)
    assert torch.equal(text_encoder(model)(texts), model.encode_texts(texts))


def test_other_models_encode_by_themselves(model, monkeypatch):
    monkeypatch.setattr(traced_text, "GRUEncoder", str)
    monkeypatch.setattr(traced_text, "_traced", lambda tower: pytest.fail("traced"))
    texts = texts_of(3, 8)
    assert torch.equal(text_encoder(model)(texts), model.encode_texts(texts))
