"""A query fits by how far its best score is above those of queries that nothing fits; the list ends further down."""

import json

import numpy as np
import pytest
import torch

from maxmatch import SetIndex, similarity
from maxmatch.model.text import Words
from maxmatch.search import plausible
from maxmatch.search.engine import Hit
from maxmatch.search.index_folder import Origin, write_origin
from maxmatch.search.plausible import LEAST, CutOff, Limits, Verdict, background, calibrated, is_understood, verdict

K, D = 2, 16


def unit(*shape, seed=0):
    values = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    return values / np.linalg.norm(values, axis=-1, keepdims=True)


class Model:
    """Reads "thing 7" as the set of item 7, and anything else as a set that depends on its letters alone."""

    dim, similarity_name, config, set_sizes, identity = D, "maxmatch", None, {"text": K, "image": K}, "a model"

    def __init__(self, sets, unknown=()):
        self.sets, self.unknown, self.encoded = sets, set(unknown), 0
        self.encode_images = None

    def encode_texts(self, texts, show_progress=None):
        self.encoded += len(texts)
        return np.stack([self._read(text) for text in texts])

    def _read(self, text):
        if text.startswith("thing "):
            return self.sets[int(text.removeprefix("thing "))]
        return unit(K, D, seed=list(text.encode()))

    def known_words(self, *texts):
        words = list(dict.fromkeys(word for text in texts for word in text.split()))
        return Words([word for word in words if word not in self.unknown], [w for w in words if w in self.unknown])


@pytest.fixture
def given(tmp_path):
    sets = unit(60, K, D)
    index = SetIndex.create(tmp_path / "index", dim=D, set_size=K, engine="exhaustive")
    index.add([str(place) for place in range(60)], sets)
    with index:
        yield index, Model(sets)


def judged(index, model, text):
    hits = index.search(model.encode_texts([text]), k=60)[0]
    found = verdict(calibrated(index, model), model.known_words(text), hits)
    return found, plausible.plausible(hits, found)


def test_what_is_there_fits_and_what_is_not_does_not(given):
    index, model = given
    for place in (0, 17, 59):
        found, listed = judged(index, model, f"thing {place}")
        assert found.fits
        assert listed[0].id == str(place)
        assert all(hit.score >= found.ends for hit in listed)
        assert len(listed) < 60
    told = [judged(index, model, f"quarks{number}") for number in range(60)]
    absent = [listed for found, listed in told if not found.fits]
    assert len(absent) > 45
    assert not any(absent)


def test_limits_are_mean_and_spread_of_the_best_scores_of_the_background(given):
    index, model = given
    cut_off = calibrated(index, model)
    for count, texts in background(model).items():
        queries, items = torch.from_numpy(model.encode_texts(texts)), torch.from_numpy(model.sets)
        best = similarity.maxmatch(queries, items).max(1).values.numpy()
        assert cut_off.background[count] == pytest.approx((np.mean(best), np.std(best)), abs=1e-5)
        assert all(len(text.split()) >= count for text in texts)
        assert len(set(texts)) == len(texts)


def test_limits_between_two_numbers_of_words_are_between_theirs():
    cut_off = CutOff(1000, {1: (0.4, 0.1), 2: (0.6, 0.2), 3: (0.7, 0.2), 6: (1.0, 0.2)})
    assert cut_off.limits(4) == pytest.approx((0.8 + 0.2 * (2 + (3.5 - 2) / 16), 0.8 + 0.2 * 1.5))
    assert cut_off.limits(9) == pytest.approx((1.0 + 0.2 * (2 + (3.5 - 2) / 81), 1.0 + 0.2 * 1.5))
    assert cut_off.limits(0) == cut_off.limits(1)
    assert isinstance(cut_off.limits(1), Limits)


def test_in_a_smaller_folder_a_word_needs_less():
    known = dict.fromkeys((1, 2, 3, 6), (0.4, 0.1))
    limits = [CutOff(items, known).limits(1) for items in (30, 100, 1000, 3000, 100_000)]
    fits = [one.fits for one in limits]
    assert fits == sorted(fits)
    assert fits[-1] == fits[-3], "not measured beyond"
    assert all(one.ends <= one.fits for one in limits)


def test_it_is_measured_once_and_again_when_much_has_changed(given):
    index, model = given
    first = calibrated(index, model)
    once = model.encoded
    assert calibrated(index, model) == first
    assert model.encoded == once
    index.remove([str(place) for place in range(5)])
    assert calibrated(index, model) == first
    index.remove([str(place) for place in range(5, 12)])
    assert calibrated(index, model).items == 48
    file = index.folder / plausible.FILE
    kept = json.loads(file.read_text())
    for broken in ("{", "[]", json.dumps({**kept, "model": "another"}), json.dumps({**kept, "kept": [{}]})):
        file.write_text(broken)
        again = model.encoded
        assert calibrated(index, model).items == 48
        assert model.encoded > again
    plausible.forget(index.folder)
    assert not file.exists()


def test_a_folder_alone_and_with_others_are_each_measured_once(given):
    index, model = given
    of_all = calibrated(index, model)
    removed = {str(place): index.fetch([str(place)])[str(place)] for place in range(20)}
    index.remove(list(removed))
    of_some = calibrated(index, model)
    once = model.encoded
    for place, vectors in removed.items():
        index.add([place], vectors[None])
    assert calibrated(index, model) == of_all
    index.remove(list(removed))
    assert calibrated(index, model) == of_some != of_all
    assert model.encoded == once


def test_where_it_cannot_be_measured_nothing_is_cut(given, tmp_path):
    index, model = given
    with SetIndex.create(tmp_path / "few", dim=D, set_size=K) as few:
        few.add([str(place) for place in range(LEAST - 1)], model.sets[: LEAST - 1])
        assert calibrated(few, model) is None
    listed = background(model)[1]
    assert calibrated(index, Model(model.sets, unknown=listed[LEAST - 1 :])) is None
    silent = Model(model.sets)
    silent.set_sizes = {"image": K}
    assert calibrated(index, silent) is None
    write_origin(index.folder, Origin("a model", "text"))
    assert calibrated(index, model) is None, "texts are not photos"
    hits = [Hit("a", 0.1)]
    assert verdict(None, Words(["dog"], []), hits) == Verdict()
    assert plausible.plausible(hits, Verdict()) == hits


@pytest.mark.parametrize(
    ("known", "unknown", "understood"),
    [
        (["dog"], [], True),
        (["a", "Photo", "of"], [], False),
        ([], ["xqzzt"], False),
        (["a", "photo", "of", "a"], ["xqzzt"], False),
        (["two", "in", "the", "street"], ["xqzzt"], False),
        (["red", "car"], ["xqzzt"], True),
    ],
)
def test_a_query_is_understood_if_most_of_its_words_are_known(known, unknown, understood):
    assert is_understood(Words(known, unknown)) is understood
    cut_off = CutOff(1000, dict.fromkeys((1, 2, 3, 6), (0.0, 0.01)))
    assert verdict(cut_off, Words(known, unknown), [Hit("a", 1.0)]).fits is understood
    assert verdict(cut_off, Words(known, unknown), []).fits is (None if understood else False), "of nothing"
