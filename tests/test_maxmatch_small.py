"""The model that ships: it is there, small, and has learned what its card says."""

import numpy as np
from PIL import Image, ImageDraw

from maxmatch import SetEncoder
from maxmatch.shipped import SHIPPED, shipped_model


def test_it_takes_at_most_25_megabytes_on_the_disk():
    folder = shipped_model(SHIPPED)
    assert folder is not None
    assert sum(file.stat().st_size for file in folder.iterdir()) <= 25_000_000


def test_it_loads_by_name_and_its_slots_pair_as_search_needs():
    model = SetEncoder.from_pretrained(SHIPPED)
    assert model.set_sizes == {"image": 4, "text": 4}
    assert model.config.pairing == [0, 1, 2, 3]
    assert model.config.pairing_stability > 0.99


def test_words_that_no_caption_had_lie_near_their_neighbours():
    model = SetEncoder.from_pretrained(SHIPPED)
    pairs = [("a photo of a penguin", "a photo of a bird"), ("a violin player", "a guitar player")]
    for unseen, seen in pairs:
        texts = model.encode_texts([unseen, seen, "a snowboarder in the air"])
        scores = model.similarity(texts[:1], texts[1:])[0]
        assert scores[0] > scores[1], (unseen, seen)


def test_it_tells_snow_from_grass_and_water():
    model = SetEncoder.from_pretrained(SHIPPED)
    colours = {"a field of green grass": (60, 140, 40), "white snow": (240, 243, 250), "blue water": (30, 90, 170)}
    noise = np.random.default_rng(0).normal(0, 8, (240, 320, 1))
    pictures = []
    for colour in colours.values():
        picture = Image.fromarray((np.array(colour) + noise).clip(0, 255).astype(np.uint8))
        ImageDraw.Draw(picture).rectangle((0, 0, 320, 60), fill=(200, 220, 245))  # sky
        pictures.append(picture)
    scores = model.similarity(model.encode_texts(list(colours)), model.encode_images(pictures))
    assert scores.argmax(1).tolist() == [0, 1, 2]
