"""A two-tower model of transformers is a SetEncoder with one vector per item, whose scores are the model's own."""

import warnings

import numpy as np
import pytest
import torch
from PIL import Image
from tiny_hub import FAMILIES, LONGEST, hub_folder

from maxmatch import SetEncoder
from maxmatch.model.images import load_image
from maxmatch.model.names import model_identity
from maxmatch.model.text import TextTruncated

TEXTS = [
    "a dog",
    "",
    "a",
    "Two people ride a red BUS.",
    "a dog isn't a cat, it's a bird " * 9,
    "  ",
    "犬 \u00e9 \U0001f415",
]


def pictures():
    """Of all shapes and modes."""
    generator = np.random.default_rng(0)

    def noise(width, height, mode="RGB"):
        channels = len(Image.new(mode, (1, 1)).getbands())
        shape = (height, width) if channels == 1 else (height, width, channels)
        return Image.fromarray(generator.integers(0, 256, shape, dtype=np.uint8), mode)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of Image.fromarray's mode
        return {
            "square": noise(32, 32),
            "portrait": noise(40, 90),
            "landscape": noise(301, 200),
            "panorama": noise(640, 20),
            "tower": noise(7, 500),
            "one pixel": noise(1, 1),
            "three rows": noise(50, 3),
            "grey": noise(45, 60, "L"),
            "palette": noise(70, 50).quantize(16),
            "transparent": noise(33, 44, "RGBA"),
            "grey and transparent": noise(33, 44, "LA"),
            "ink": noise(33, 44, "CMYK"),
            "one bit": noise(33, 44, "L").convert("1"),
        }


def own_logits(folder, images, texts):
    """What transformers itself gives, by its own tokenizer, processor and forward."""
    from transformers import AutoImageProcessor, AutoModel, AutoTokenizer

    model = AutoModel.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    padding = "max_length" if model.config.model_type.startswith("siglip") else True
    inputs = tokenizer(texts, padding=padding, truncation=True, max_length=LONGEST, return_tensors="pt")
    rgb = [load_image(image) for image in images]  # transparent pixels white, which transformers leaves to its caller
    inputs |= AutoImageProcessor.from_pretrained(folder, backend="pil")(rgb, return_tensors="pt")
    with torch.no_grad():
        return model(**inputs).logits_per_image


def our_logits(model, images, texts):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TextTruncated)
        return model.logits(model.encode_images(images, batch_size=3), model.encode_texts(texts, batch_size=2))


@pytest.fixture(scope="module", params=FAMILIES)
def folder(request, tmp_path_factory):
    return hub_folder(tmp_path_factory.mktemp("hub") / request.param, request.param)


def test_scores_are_those_of_transformers_before_and_after_a_save(folder, tmp_path):
    images = list(pictures().values())
    expected = own_logits(folder, images, TEXTS)
    assert min(float(expected.std(axis).min()) for axis in (0, 1)) > 1e-3  # so that equal scores mean something
    model = SetEncoder.from_pretrained(folder)
    assert model.set_sizes == {"image": 1, "text": 1}
    torch.testing.assert_close(our_logits(model, images, TEXTS), expected, rtol=1e-5, atol=1e-5)
    again = SetEncoder.from_pretrained(model.save_pretrained(tmp_path / "ours"))
    torch.testing.assert_close(our_logits(again, images, TEXTS), expected, rtol=1e-5, atol=1e-5)
    assert model_identity(again) == model_identity(model)
    assert again.config == model.config
