import numpy as np
import pytest
from constructed_models import PAIR

from maxmatch.data.dataset import Dataset, Items, Split, first_of_each
from maxmatch.data.load import read_dataset
from maxmatch.data.scenes import generate
from maxmatch.evaluation.analysis import caption_facets
from maxmatch.evaluation.encoding import EncodedSplit


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scenes")
    generate(folder, images=12, size=32)
    return read_dataset(folder)


def _encoded(split, without=()):
    ids = [name for name, group in zip(split["text"].ids, split["text"].groups, strict=True) if group not in without]
    return EncodedSplit({}, {}, {"text": ids})


def test_every_caption_of_generated_scenes_has_its_facet(scenes):
    split = scenes.split("train")
    found = caption_facets(split, _encoded(split))
    expected = [facet["kind"] for known in split["image"].metadata for facet in known["facets"]]
    assert found == expected
    assert len(set(found)) > 4


def test_groups_that_could_not_be_read_are_left_out(scenes):
    split = scenes.split("train")
    whole = caption_facets(split, _encoded(split))
    assert caption_facets(split, _encoded(split, without={1})) == whole[:5] + whole[10:]


def test_the_first_captions_keep_their_facets(scenes):
    fewer = first_of_each(Dataset(scenes.path, scenes.format, scenes.splits), "text", 2).split("train")
    whole = caption_facets(scenes.split("train"), _encoded(scenes.split("train")))
    assert caption_facets(fewer, _encoded(fewer)) == [kind for place, kind in enumerate(whole) if place % 5 < 2]


def _split(metadata):
    texts = Items(["a", "b", "c"], np.array([0, 0, 1]), ["t0", "t1", "t2"])
    return Split({"image": Items([b"", b""], np.arange(2), ["i0", "i1"], metadata), "text": texts})


@pytest.mark.parametrize("metadata", [None, [{}, {"licence": 3}]])
def test_data_without_facets_have_none(metadata):
    split = _split(metadata)
    assert caption_facets(split, _encoded(split), PAIR) is None


def test_facets_of_some_images_only_are_refused_by_name():
    split = _split([{"facets": [{"kind": "object"}, {"kind": "place"}]}, {}])
    with pytest.raises(ValueError, match=r"image i1: expected `facets`, one for each of its 1 captions, got none"):
        caption_facets(split, _encoded(split))
    split = _split([{"facets": [{"kind": "object"}]}, {"facets": [{"kind": "object"}]}])
    with pytest.raises(ValueError, match=r"image i0: expected `facets`, one for each of its 2 captions, got 1"):
        caption_facets(split, _encoded(split))


def test_facets_may_be_plain_names():
    split = _split([{"facets": ["object", "place"]}, {"facets": ["count"]}])
    assert caption_facets(split, _encoded(split)) == ["object", "place", "count"]
