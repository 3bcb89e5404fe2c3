"""Words that no training caption may have: which captions and images go, and that all the rest stays as it was."""

import json
import os
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from feeding import FEEDS, arrays, assert_by_hand, feature_readers, items, plans
from small_runs import recipe_for, write_data

from maxmatch.data.dataset import Split
from maxmatch.data.features import FeatureWriter, StoreInfo
from maxmatch.data.load import checked_words, hold_out, read_dataset, words_met
from maxmatch.recipe.schema import Recipe
from maxmatch.recipe.yaml_files import SHIPPED, load_recipe
from maxmatch.training.distributed import Processes
from maxmatch.training.loop import train
from maxmatch.training.prepare import prepare

FLICKR8K = Path(os.environ.get("MAXMATCH_FLICKR8K", Path(__file__).parents[3] / "shared" / "data" / "flickr8k"))
CAPTIONS = [
    ["a dog", "A DOG runs on the beach.", "the bird"],  # loses one of three
    ["beach", "Two beach people"],  # loses all
    ["a red-beach bus", "beaches", "a dog isn't on it"],  # keeps all: other words
    ["the bird's beach", "red bus"],
]


def captioned(captions):
    groups = np.repeat(np.arange(len(captions)), [len(own) for own in captions])
    texts = items([caption for own in captions for caption in own], groups, "text")
    return Split({"image": items(arrays(len(captions)), range(len(captions)), "image"), "text": texts})


def held_out(recipe, *words, **data):
    whole = recipe.model_dump()
    whole["data"] |= {"hold_out_words": words, **data}
    return Recipe.model_validate(whole)


def test_captions_with_a_word_go_and_images_with_no_other_caption():
    said = []
    whole = captioned(CAPTIONS)
    kept = hold_out(whole, ["Beach"], said.append)
    assert list(kept["text"].values) == ["a dog", "the bird", *CAPTIONS[2], "red bus"]
    assert kept["text"].groups.tolist() == [0, 0, 1, 1, 1, 2]
    assert list(kept["image"].ids) == ["image0", "image2", "image3"]
    assert [id(one) for one in kept["image"].values] == [id(whole["image"].values[place]) for place in (0, 2, 3)]
    assert said == [
        "held out: 4 of 10 training captions (40.0%), with any of 1 words, and 1 of 4 images, which have no other "
        "caption"
    ]


def test_words_are_whole_ones_in_lower_case_as_the_tokenizer_divides_captions():
    words = checked_words(["Bird", "t-shirt", "isn"], "words")
    assert words == {"bird", "t-shirt", "isn"}
    captions = ["birds fly", "The BIRD's wing", "a T-shirt, red", "a shirt", "it isn't", "bird."]
    assert words_met(captions, words) == [set(), {"bird"}, {"t-shirt"}, set(), set(), {"bird"}]


def test_two_words_are_refused_and_an_unused_word_is_reported():
    with pytest.raises(ValueError, match=r"data\.hold_out_words: expected single words, but 'red bus' is divided into"):
        hold_out(captioned(CAPTIONS), ["dog", "red bus"], print)
    with pytest.raises(ValueError, match=r"data\.hold_out_words: every training caption has one of these"):
        hold_out(captioned([["a dog"], ["the dog"]]), ["dog"], print)
    said = []
    assert hold_out(captioned(CAPTIONS), ["pizza", "beach", "sunset"], said.append).size == 3
    assert said[1] == "data.hold_out_words: no training caption has pizza, sunset"


@FEEDS
def test_both_feeds_bring_the_captions_that_are_left_each_once(make):
    random = np.random.default_rng(3)
    words = ["a", "dog", "beach", "bus", "cat", "bird", "the", "red"]
    whole = captioned([[" ".join(random.choice(words, 4)) for _ in range(5)] for _ in range(24)])
    kept, readers = hold_out(whole, ["beach", "bus"], lambda line: None), feature_readers()
    left = np.bincount(kept["text"].groups)
    assert set(left) >= {1, 2, 3}  # or this shows nothing
    assert_by_hand(make(kept, readers), kept, readers)
    for captions in (None, 3):
        batches = make(kept, readers, captions=captions).batches(plans(kept))
        seen = torch.cat([batch.groups["text"] for batch in batches])
        assert torch.bincount(seen).tolist() == np.minimum(left, captions or 5).tolist()


def test_a_run_over_stored_features_never_sees_held_out_words(tmp_path):
    data = write_data(tmp_path / "data", captions=5)
    pictures = np.load(data / "train_ims.npy"), np.load(data / "dev_ims.npy")
    recipe = held_out(recipe_for(data, epochs=1, log_every=1), "thing3", "thing17")
    captions = (data / "train_caps.txt").read_text().splitlines()
    allowed = [caption for caption in captions if not {"thing3", "thing17"} & set(caption.split())]
    said = []
    parts = prepare(recipe, Processes(0, 1, torch.device("cpu")), said.append)
    gone = len(captions) - len(allowed)
    assert f"held out: {gone} of 240 training captions ({gone / 240:.1%})" in said[0]
    assert list(parts.train["text"].values) == allowed
    assert not {"thing3", "thing17"} & set(parts.model.tower("text").reader.tokenizer.get_vocab())
    assert list(parts.val["text"].values) == (data / "dev_caps.txt").read_text().splitlines()
    # Through a store, as `maxmatch data features` writes one: every image keeps its own features.
    names = [name for split in (parts.train, parts.val) for name in split["image"].ids]
    assert len(names) < 64
    with FeatureWriter(tmp_path / "store", StoreInfo("the data's", pictures[0].shape[2])) as writer:
        for split, array in zip(("train", "val"), pictures, strict=True):
            for name, features in zip(_ids(data, split), array, strict=True):
                writer.append([name], -features[None])
        writer.finish()
    stored = held_out(recipe, "thing3", "thing17", features=str(tmp_path / "store"))
    again = prepare(stored, Processes(0, 1, torch.device("cpu")), lambda line: None)
    assert list(again.train["image"].ids) == list(parts.train["image"].ids)
    for one, other in zip(again.train["image"].values, parts.train["image"].values, strict=True):
        assert np.array_equal(one, -other)
    train(stored, tmp_path / "run", show_progress=False)
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert all(np.isfinite(record["loss"]) for record in records if record["kind"] == "train")


def _ids(data, split):
    return read_dataset(data).split(split)["image"].ids


def test_words_are_a_list_of_words_in_a_recipe_and_null_takes_them_back(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("extends: flickr8k_held_out\ndata: {hold_out_words: null}\n")
    assert load_recipe(file).data == load_recipe("flickr8k_small").data
    with pytest.raises(ValueError, match="hold_out_words"):
        load_recipe("flickr8k_small", ["data.hold_out_words=snow"])


def test_the_held_out_recipe_is_the_small_model_but_for_its_words():
    recipe, small = load_recipe("flickr8k_held_out"), load_recipe("flickr8k_small")
    assert recipe.model_copy(update={"name": "", "description": "", "data": small.data}) == small.model_copy(
        update={"name": "", "description": ""}
    )
    words = recipe.data.hold_out_words
    assert checked_words(words, "words") == set(words)
    assert len(set(words)) == len(words)


@pytest.mark.skipif(
    not (FLICKR8K / "dataset_flickr8k.json").is_file(), reason="needs Flickr8k; set MAXMATCH_FLICKR8K to its folder"
)
def test_the_share_that_the_held_out_recipe_leaves_out_is_what_it_says():
    """Counted on raw captions with an expression of its own."""
    images = json.loads((FLICKR8K / "dataset_flickr8k.json").read_text())["images"]
    recipe = (SHIPPED / "flickr8k_held_out.yaml").read_text()
    words = load_recipe("flickr8k_held_out").data.hold_out_words
    pattern = re.compile(rf"(?<![\w'-])({'|'.join(words)})(?![\w-])", re.IGNORECASE)
    met = {split: [] for split in ("train", "val", "test")}
    for image in images:
        met[image["split"]].append([bool(pattern.search(sentence["raw"])) for sentence in image["sentences"][:5]])
    captions, gone = sum(map(sum, met["train"])), sum(all(own) for own in met["train"])
    assert f"{captions:,} of its 30,000" in recipe
    assert f"{gone} of its 6,000 images" in recipe
    validation = [
        sentence["raw"].lower() for image in images if image["split"] == "val" for sentence in image["sentences"]
    ]
    per_word = Counter(word for caption in validation for word in set(pattern.findall(caption)))
    assert sum(map(sum, met["val"])) > 700
    assert sum(count >= 14 for count in per_word.values()) >= 15
