"""Texts, features and sources that are not what they were: what encoding makes of them."""

import sys

import numpy as np
import pytest
import torch
from made_data import split
from PIL import Image
from read_shards import read_all, skipped
from tiny_models import images_for, texts, tiny_model

from maxmatch.data.formats import precomp
from maxmatch.search.encode_files import Task, encode_on_ray, encode_source
from maxmatch.search.shards import ShardError, read_manifest
from maxmatch.search.sources import list_source


def test_texts_are_encoded_by_length_and_kept_in_order(model, tmp_path):
    captions = texts(70, seed=3)
    (tmp_path / "captions.txt").write_text("\n".join(captions) + "\n")
    encode_source(model, list_source(tmp_path / "captions.txt"), tmp_path / "out", "float32", 40, 16)
    shards = read_all(tmp_path / "out")
    assert [name for shard in shards for name in shard.ids] == [str(number) for number in range(1, 71)]
    assert [known["text"] for shard in shards for known in shard.metadata] == captions
    sets = torch.from_numpy(np.concatenate([shard.sets for shard in shards]))
    torch.testing.assert_close(sets, model.encode_texts(captions), atol=1e-5, rtol=1e-5)


def test_features_are_encoded_too_and_pictures_refused_where_the_model_reads_features(heap, tmp_path):
    region = tiny_model("region_bigru")
    values = np.stack([item[:1] for item in images_for(region, 6)])
    precomp.write({"train": split(values, 1)}, tmp_path / "data")
    encode_source(region, list_source(tmp_path / "data"), tmp_path / "out", "float32")
    expected = region.encode_images(list(values))
    torch.testing.assert_close(torch.from_numpy(read_all(tmp_path / "out")[0].sets), expected, atol=1e-5, rtol=1e-5)
    with pytest.raises(ValueError, match="this model reads features extracted beforehand"):
        encode_source(region, list_source(heap[0]), tmp_path / "other")


def test_an_item_of_which_the_model_makes_nan_is_left_out_and_named(tmp_path):
    broken = tiny_model("resnet152_bigru")
    for name in ("a", "b"):
        Image.new("RGB", (50, 50), "red").save(tmp_path / f"{name}.png")
    with torch.no_grad():
        next(broken.tower("image").head.parameters()).fill_(float("nan"))
    done = encode_source(broken, list_source(tmp_path), tmp_path / "out")
    assert done.encoded == 0
    assert "NaN" in skipped(tmp_path / "out")["a.png"]


def test_a_source_that_has_changed_is_refused(model, tmp_path):
    for name in ("a", "b"):
        Image.new("RGB", (50, 50), "red").save(tmp_path / f"{name}.png")
    encode_source(model, list_source(tmp_path), tmp_path.with_name("changed"))
    (tmp_path / "a.png").rename(tmp_path / "c.png")
    with pytest.raises(FileExistsError, match=r"a source that has changed since.*2 items, now 2"):
        encode_source(model, list_source(tmp_path), tmp_path.with_name("changed"))


def test_a_folder_without_shards_says_how_to_make_some(tmp_path):
    with pytest.raises(ShardError, match=r"nowhere: no such folder.*maxmatch encode"):
        read_manifest(tmp_path / "nowhere")
    for text, words in (
        ("{", "not readable as JSON"),
        ("{}", "format is not"),
        ('{"format": "maxmatch.shards"}', "dim"),
    ):
        (tmp_path / "manifest.json").write_text(text)
        with pytest.raises(ShardError, match=words):
            read_manifest(tmp_path)


def test_without_ray_it_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"pip install 'maxmatch\[ray\]'"):
        encode_on_ray(Task("m", "s", "f", "folder"), [0], print)
