"""From a recipe to data, words, model and feeds."""

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from small_runs import recipe_for, write_pictures

from maxmatch.data.extraction import FrozenBackbone, describe_store
from maxmatch.data.features import FeatureWriter, StoreInfo
from maxmatch.data.load import read_dataset
from maxmatch.data.sampler import BatchPlan
from maxmatch.model.inputs import FeatureReader, PixelReader, TextReader
from maxmatch.recipe.schema import Recipe
from maxmatch.training.distributed import Processes
from maxmatch.training.loop import train
from maxmatch.training.optim import parameter_groups
from maxmatch.training.prepare import describe, prepare, tokenizer_for

ALONE = Processes(0, 1, torch.device("cpu"))


def changed(recipe, **data):
    whole = recipe.model_dump()
    whole["data"] |= data
    return Recipe.model_validate(whole)


def prepared(recipe):
    printed = []
    return prepare(recipe, ALONE, printed.append), printed


def test_a_recipe_becomes_a_model_and_feeds_of_its_splits(data):
    parts, printed = prepared(recipe_for(data))
    assert (parts.train.size, parts.val.size) == (48, 16)
    assert not parts.runs_backbones
    assert len(printed) == 1  # how the data is fed
    assert {name: type(parts.model.tower(name).reader) for name in parts.model.towers} == {
        "image": FeatureReader,
        "text": TextReader,
    }
    assert set(parts.model.tower("text").reader.tokenizer.get_vocab()) >= {f"thing{n}" for n in range(24)}


def test_the_words_are_those_of_the_training_captions_that_are_frequent_enough(data):
    recipe = recipe_for(data)
    often = prepared(changed(recipe, min_count=13))[0].model.tower("text").reader.tokenizer.get_vocab()
    captions = (data / "train_caps.txt").read_text().split()
    assert {word for word in often if word.startswith("thing")} == {w for w in captions if captions.count(w) >= 13}


def test_a_recipe_of_the_paper_without_its_word_vectors_is_trained_with_a_warning(data):
    of_the_paper = recipe_for(data).model_copy(update={"name": "f30k_region_bigru"})
    _, printed = prepared(of_the_paper)
    assert [line for line in printed if "data.word_vectors" in line and "GloVe" in line]
    assert "data.word_vectors" in describe(of_the_paper)
    assert "data.word_vectors" not in describe(recipe_for(data))


def test_a_missing_split_is_reported_and_only_the_first_process_validates(data):
    assert prepare(recipe_for(data), Processes(1, 2, torch.device("cpu")), print).val_feed is None
    parts, printed = prepared(changed(recipe_for(data), val_split="test"))
    assert parts.val is parts.val_feed is None
    assert any("no split 'test'" in line and "without validation" in line for line in printed)
    with pytest.raises(ValueError, match=r"has the splits train, val, not 'teach'"):
        prepared(changed(recipe_for(data), train_split="teach"))


def test_a_recipe_may_use_only_the_first_captions(data):
    parts, _ = prepared(changed(recipe_for(data), captions_per_image=1))
    assert len(parts.train["text"]) == len(parts.val["text"]) * 3 == 48


def test_words_start_from_their_vectors_where_there_are_some(data, tmp_path):
    recipe = recipe_for(data)
    file = tmp_path / "glove.txt"
    file.write_text("".join(f"thing{n} " + " ".join([str(n / 10)] * 10) + "\n" for n in range(20)))
    parts, printed = prepared(changed(recipe, word_vectors=str(file)))
    assert any("20 of 29 words found" in line for line in printed)
    text = parts.model.tower("text")
    ids = text.reader.tokenizer.get_vocab()
    assert torch.equal(text.encoder.words.weight[ids["thing13"]], torch.full((10,), 1.3))


def test_words_that_no_caption_has_are_known_by_their_vectors(data, tmp_path):
    file = tmp_path / "glove.txt"
    file.write_text("".join(f"{word} " + " ".join([str(n)] * 5) + "\n" for n, word in enumerate(["zebra", "thing3"])))
    recipe = changed(recipe_for(data), tokenizer="vectors", vocabulary_size=900, word_vectors=str(file))
    whole = recipe.model_dump()
    config = recipe.model.resolved().model_dump()
    config["towers"]["text"]["encoder"] |= {"vector_width": 5, "train_words": False}
    recipe = Recipe.model_validate({**whole, "model": {"config": config}})
    parts, _ = prepared(recipe)
    model = parts.model
    assert list(model.tower("text").reader.tokenizer.get_vocab()).count("zebra") == 1
    assert not torch.equal(*model.encode_texts(["zebra", "thing3"]))
    torch.testing.assert_close(*model.encode_texts(["unheard", "unknown"]))  # rows of one batch, rounded differently
    frozen = model.tower("text").encoder.words.weight
    groups = parameter_groups(model, recipe.train)
    assert all(parameter is not frozen for group in groups for parameter in group.parameters.values())
    with pytest.raises(ValueError, match="word_vectors, which is not given"):
        prepared(changed(recipe, word_vectors=None))


def test_tokenizers_are_learned_loaded_or_the_backbones_own(data, tmp_path):
    recipe = recipe_for(data, "region_bert")
    encoder = recipe.model.resolved().towers["text"].encoder
    captions = ["thing1 thing2"] * 4
    learned = tokenizer_for(recipe.data, encoder, captions)
    learned.save(str(tmp_path / "tokenizer.json"))
    loaded = tokenizer_for(changed(recipe, tokenizer=str(tmp_path / "tokenizer.json")).data, encoder, [])
    assert loaded.encode("thing2").ids == learned.encode("thing2").ids
    assert loaded.truncation["max_length"] == 24
    own = encoder.model_copy(update={"backbone": encoder.backbone.model_copy(update={"pretrained": str(tmp_path)})})
    wanted = changed(recipe, tokenizer="pretrained").data
    assert tokenizer_for(wanted, own, []).get_vocab() == learned.get_vocab()
    with pytest.raises(ValueError, match=r"data\.tokenizer: .* names no pretrained backbone\. Take 'wordpiece'"):
        tokenizer_for(wanted, encoder, [])


def test_pictures_are_cropped_for_training_only_and_if_the_recipe_asks_for_it(pictures):
    def first_batch(feed, seed):
        (batch,) = feed.batches([BatchPlan(np.arange(3), seed)])
        return batch.inputs["image"].values

    cropped, _ = prepared(recipe_for(pictures, "resnet152_bigru", workers=0))
    assert cropped.runs_backbones
    assert isinstance(cropped.model.tower("image").reader, PixelReader)
    whole, _ = prepared(recipe_for(pictures, "resnet152_bigru", workers=0, crop_scale=None, flip=False))
    assert torch.equal(first_batch(whole.feed, 1), first_batch(whole.feed, None))
    assert torch.equal(first_batch(cropped.feed, None), first_batch(whole.feed, None))


def test_pictures_are_mirrored_without_a_crop_too(tmp_path):
    data = write_pictures(tmp_path / "data")
    for number in range(3):
        noise = np.random.default_rng(number).integers(0, 256, (72, 72, 3), np.uint8)
        Image.fromarray(noise).save(data / f"{number}.png")
    parts, _ = prepared(recipe_for(data, "resnet152_bigru", workers=0, crop_scale=None, flip=True))
    plans = [BatchPlan(np.arange(3), seed) for seed in (None, *range(8))]
    straight, *seen = (batch.inputs["image"].values for batch in parts.feed.batches(plans))
    turned = [torch.equal(one, other.flip(2)) for batch in seen for one, other in zip(batch, straight, strict=True)]
    same = [torch.equal(one, other) for batch in seen for one, other in zip(batch, straight, strict=True)]
    assert 0 < sum(turned) < sum(turned) + sum(same) == 24


def test_stored_features_of_a_frozen_backbone_train_the_model_that_pictures_would(pictures, tmp_path):
    options = {"epochs": 2, "batch_size": 6, "workers": 0, "crop_scale": None, "flip": False}
    recipe = recipe_for(pictures, "resnet152_bigru", freeze={"image.backbone": "always"}, **options)
    parts, _ = prepared(recipe)
    encoder, reader = parts.model.tower("image").encoder.eval(), parts.model.tower("image").reader
    channels = encoder.local_projection.in_features
    source = describe_store(FrozenBackbone(encoder, reader, "Hugging Face resnet"), "float32").source
    with FeatureWriter(tmp_path / "store", StoreInfo(source, channels)) as writer, torch.no_grad():
        for split in read_dataset(pictures).splits.values():
            for name, picture in zip(split["image"].ids, split["image"].values, strict=True):
                pixels, _ = reader.collate([reader.read(picture)])
                writer.append([name], encoder.cells(pixels)[0].numpy())
        writer.finish()
    stored = changed(recipe, features=str(tmp_path / "store"))
    assert not prepared(stored)[0].runs_backbones
    results = [train(recipe, tmp_path / "pictures"), train(stored, tmp_path / "features")]
    weights = [load_file(tmp_path / which / "last" / "model.safetensors") for which in ("pictures", "features")]
    for name, value in weights[0].items():
        if name.endswith("query_norm.bias"):  # makes no difference, so that it follows rounding errors
            continue
        torch.testing.assert_close(weights[1][name], value, rtol=1e-4, atol=1e-4, msg=name)
    assert results[0]["rsum"] == pytest.approx(results[1]["rsum"])


def test_features_that_the_backbone_did_not_make_are_refused_before_training(pictures, tmp_path):
    recipe = recipe_for(pictures, "resnet152_bigru", freeze={"image.backbone": "always"}, workers=0)
    with FeatureWriter(tmp_path / "store", StoreInfo("random numbers", 24)) as writer:
        for split in read_dataset(pictures).splits.values():
            writer.append(split["image"].ids, list(np.random.default_rng(0).normal(size=(split.size, 4, 24))))
        writer.finish()
    stored = changed(recipe, features=str(tmp_path / "store"))
    with pytest.raises(ValueError, match=r"random numbers.*Hugging Face resnet.*data\.trust_features=true"):
        train(stored, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert prepared(changed(stored, trust_features=True))[0].train.size == 12


def test_features_of_another_width_than_a_region_encoders_are_refused_before_training(data, tmp_path):
    recipe = recipe_for(data)
    with FeatureWriter(tmp_path / "store", StoreInfo("a detector", 24)) as writer:
        for split in read_dataset(data).splits.values():
            writer.append(split["image"].ids, list(np.zeros((split.size, 4, 24))))
        writer.finish()
    with pytest.raises(ValueError, match=r"24.*12"):
        prepared(changed(recipe, features=str(tmp_path / "store")))
