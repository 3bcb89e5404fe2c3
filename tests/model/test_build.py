import itertools
import json
import shutil
import sys
from contextlib import nullcontext
from types import ModuleType

import pytest
import torch
from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError
from safetensors.torch import save_file
from tiny_models import D, images_for, texts, tiny_config, tiny_model, tokenizer_for
from transformers import BertConfig, BertModel, CLIPConfig, CLIPModel, ResNetConfig, ResNetModel

from maxmatch import SetEncoder
from maxmatch.model.build import build_model, preprocessing
from maxmatch.model.config import (
    GRU,
    PIE,
    Conv,
    HuggingFaceBackbone,
    ModelConfig,
    Pixels,
    ResNeXtBackbone,
    SetPrediction,
    TimmBackbone,
    TowerConfig,
    Transformer,
)
from maxmatch.model.encoders import ResNeXt
from maxmatch.model.images import ImageTransform
from maxmatch.model.text import train_wordpiece_tokenizer, word_tokenizer
from maxmatch.recipe.schema import Recipe
from maxmatch.recipe.yaml_files import dump_recipe, load_recipe

SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
HEAD = SetPrediction(heads=2, head_width=8)


def one_tower(encoder, name="image", **more):
    return ModelConfig(width=D, towers={name: TowerConfig(encoder=encoder, head=HEAD, **more)})


def test_the_seed_decides_the_weights_and_leaves_the_global_state_alone():
    before = torch.random.get_rng_state()
    first, again, other = (tiny_model("region_bigru", seed=seed).state_dict() for seed in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["towers.image.head.slots"], other["towers.image.head.slots"])


def test_any_head_and_any_set_size_per_tower():
    config = tiny_config("region_bigru")
    image, text = config.towers["image"], config.towers["text"]
    towers = {"image": image.model_copy(update={"head": PIE(), "set_size": 3}), "text": text}
    model = build_model(ModelConfig(width=D, towers=towers), {"text": tokenizer_for(config)})
    images, captions = model.encode_images(images_for(model, 2)), model.encode_texts(texts(5))
    assert model.set_sizes == {"image": 3, "text": 4}
    assert model.similarity(images, captions).shape == (2, 5)
    explanation = model.explain(images_for(model, 1)[0], "a dog")
    assert [pair.image_slot for pair in explanation.pairs] == [0, 1, 2]


def test_word_vectors_are_what_the_words_start_from():
    tokenizer = word_tokenizer(["a dog"], min_count=1)
    vectors = torch.randn(tokenizer.get_vocab_size(), 6)
    config = one_tower(GRU(word_width=6), "text")
    model = build_model(config, {"text": tokenizer}, word_vectors={"text": vectors})
    assert torch.equal(model.tower("text").encoder.words.weight, vectors)


@pytest.mark.parametrize("expected", [None, {"model_type": "bert"}])
def test_a_backbone_starts_from_pretrained_weights_and_the_config_has_its_options(tmp_path, expected):
    bert = BertModel(BertConfig(**SMALL, vocab_size=60, max_position_embeddings=40, hidden_act="relu"))
    bert.save_pretrained(tmp_path / "hub")
    config = one_tower(
        Transformer(backbone=HuggingFaceBackbone(config=expected, pretrained=str(tmp_path / "hub"))), "text"
    )
    tokenizers = {"text": train_wordpiece_tokenizer(["a dog"], 60, max_length=20)}
    model = build_model(config, tokenizers)
    words = model.tower("text").encoder.backbone.embeddings.word_embeddings.weight
    assert torch.equal(words, bert.embeddings.word_embeddings.weight)
    options = model.config.towers["text"].encoder.backbone.config
    assert (options["model_type"], options["hidden_size"], options["vocab_size"]) == ("bert", 16, 60)
    model.save_pretrained(tmp_path / "ours")
    shutil.rmtree(tmp_path / "hub")
    again = type(model).from_pretrained(tmp_path / "ours")
    assert torch.equal(again.encode_texts(["a dog"]), model.encode_texts(["a dog"]))


def test_of_clip_each_tower_takes_its_half(tmp_path):
    words = {**SMALL, "vocab_size": 60, "max_position_embeddings": 24, "bos_token_id": 1, "eos_token_id": 2}
    patches = {**SMALL, "image_size": 32, "patch_size": 16}
    clip = CLIPModel(CLIPConfig(text_config=words, vision_config=patches, projection_dim=8))
    clip.save_pretrained(tmp_path)
    backbone = HuggingFaceBackbone(pretrained=str(tmp_path))
    towers = {
        "image": TowerConfig(encoder=Conv(backbone=backbone, pixels=Pixels(size=32)), head=HEAD),
        "text": TowerConfig(encoder=Transformer(backbone=backbone), head=HEAD),
    }
    tokenizers = {"text": train_wordpiece_tokenizer(["a dog"], 60, max_length=20)}
    model = build_model(ModelConfig(width=D, towers=towers), tokenizers)
    for tower, theirs in (
        ("image", clip.vision_model.embeddings.patch_embedding),
        ("text", clip.text_model.embeddings.token_embedding),
    ):
        assert any(torch.equal(theirs.weight, ours) for ours in model.tower(tower).encoder.backbone.parameters())
    model.save_pretrained(tmp_path / "ours")
    again = type(model).from_pretrained(tmp_path / "ours")
    assert torch.equal(again.encode_texts(["a dog"]), model.encode_texts(["a dog"]))


def with_preprocessor(folder):
    """A small ResNet that says what is to be done to pictures."""
    ResNetModel(ResNetConfig(depths=[1], hidden_sizes=[16], embedding_size=8)).save_pretrained(folder)
    said = {"size": {"height": 48, "width": 48}, "image_mean": [0.5] * 3, "image_std": [0.25] * 3}
    (folder / "preprocessor_config.json").write_text(json.dumps(said))
    return HuggingFaceBackbone(pretrained=str(folder))


def prepared(model):
    transform = model.tower("image").reader.transform
    return transform.size, transform.resize, transform.mean[0], transform.std[0]


def test_pictures_for_a_hugging_face_backbone_are_prepared_as_its_preprocessor_file_says(tmp_path):
    backbone = with_preprocessor(tmp_path / "theirs")
    model = build_model(one_tower(Conv(backbone=backbone)))
    assert prepared(model) == (48, "squash", 0.5, 0.25)
    assert prepared(build_model(one_tower(Conv(backbone=backbone, pixels=Pixels(size=32))))) == (
        32, "squash", 0.5, 0.25,
    )  # fmt: skip
    model.save_pretrained(tmp_path / "ours")
    shutil.rmtree(tmp_path / "theirs")
    again = type(model).from_pretrained(tmp_path / "ours")
    assert prepared(again) == prepared(model)
    assert again.config.towers["image"].encoder.pixels == Pixels(
        size=48, resize="squash", mean=(0.5,) * 3, std=(0.25,) * 3
    )


def test_pictures_are_prepared_as_any_preprocessor_file_says(tmp_path):
    assert (preprocessing(str(tmp_path)).size, preprocessing(str(tmp_path)).resize) == (None, None)
    square = {"height": 64, "width": 64}
    for said, pixels in (
        ({}, (None, "crop")),
        ({"size": 288}, (288, "crop")),
        ({"size": {"shortest_edge": 240}}, (240, "crop")),
        ({"size": square}, (64, "squash")),
        ({"do_center_crop": False, "crop_size": 224, "size": square}, (64, "squash")),
        ({"do_center_crop": True, "crop_size": square, "size": {"shortest_edge": 100}}, (64, "crop")),
    ):
        (tmp_path / "preprocessor_config.json").write_text(json.dumps(said))
        found = preprocessing(str(tmp_path))
        assert (found.size, found.resize) == pixels, said


@pytest.mark.parametrize("error", [EntryNotFoundError, LocalEntryNotFoundError])
def test_a_preprocessor_file_that_the_hub_lacks_is_no_error_and_one_out_of_reach_a_warning(monkeypatch, error):
    def fetch(*arguments):
        raise error("no such file")

    monkeypatch.setattr("huggingface_hub.hf_hub_download", fetch)
    unreachable = (
        pytest.warns(UserWarning, match="someone/vision") if error is LocalEntryNotFoundError else nullcontext()
    )
    with unreachable:
        assert preprocessing("someone/vision") == Pixels()


def test_what_neither_the_config_nor_a_file_says_is_as_usual(tmp_path):
    backbone = with_preprocessor(tmp_path)
    (tmp_path / "preprocessor_config.json").unlink()
    assert prepared(build_model(one_tower(Conv(backbone=backbone)))) == (224, "crop", 0.485, 0.229)
    random = HuggingFaceBackbone(config={"model_type": "resnet", "depths": [1], "hidden_sizes": [16]})
    assert prepared(build_model(one_tower(Conv(backbone=random)))) == (224, "crop", 0.485, 0.229)


def test_a_recipe_leaves_the_preprocessing_to_the_file_also_after_it_was_written(tmp_path):
    config = one_tower(Conv(backbone=with_preprocessor(tmp_path))).model_dump(mode="json")
    config["towers"]["text"] = {"encoder": {"name": "gru"}}
    recipe = Recipe.model_validate(
        {"name": "mine", "model": {"config": config}, "train": {"epochs": 1, "batch_size": 2, "lr": 1e-3}}
    )
    (tmp_path / "recipe.yaml").write_text(dump_recipe(recipe))
    again = load_recipe(tmp_path / "recipe.yaml")
    assert again == recipe
    tokenizers = {"text": word_tokenizer(["a dog"], 1)}
    assert prepared(build_model(again.model.resolved(), tokenizers)) == (48, "squash", 0.5, 0.25)


def test_resnext_has_the_parameters_of_the_published_network_and_takes_them_from_a_file(tmp_path):
    with torch.device("meta"):  # the classifier is left out
        assert sum(p.numel() for p in ResNeXt().parameters()) == 88_791_336 - 2048 * 1000 - 1000
    shape = {"depths": (1, 1), "groups": 2, "group_width": 4, "base_width": 8}
    source = ResNeXt(**shape)
    published = {**source.state_dict(), "fc.weight": torch.zeros(3, 64), "fc.bias": torch.zeros(3)}
    save_file(published, tmp_path / "weights.safetensors")
    backbone = ResNeXtBackbone(**shape, pretrained=str(tmp_path / "weights.safetensors"))
    model = build_model(one_tower(Conv(backbone=backbone, pixels=Pixels(size=32))))
    assert torch.equal(model.tower("image").encoder.backbone.layer2[0].conv2.weight, source.layer2[0].conv2.weight)


def test_resnext_is_a_plain_residual_network_when_it_has_one_group():
    """Against the ResNet of transformers, with the same weights."""
    config = ResNetConfig(embedding_size=8, hidden_sizes=[32, 64], depths=[2, 2], layer_type="bottleneck")
    theirs = ResNetModel(config).eval()
    ours = ResNeXt((2, 2), groups=1, group_width=8, base_width=8).eval()

    def take(convolution, norm, layer):
        convolution.load_state_dict(layer.convolution.state_dict())
        norm.load_state_dict(layer.normalization.state_dict())

    take(ours.conv1, ours.bn1, theirs.embedder.embedder)
    for stage, block in itertools.product(range(2), repeat=2):
        mine, other = ours.get_submodule(f"layer{stage + 1}")[block], theirs.encoder.stages[stage].layers[block]
        for number, layer in enumerate(other.layer, 1):
            take(getattr(mine, f"conv{number}"), getattr(mine, f"bn{number}"), layer)
        if mine.downsample is not None:
            take(*mine.downsample, other.shortcut)
    images = torch.randn(2, 3, 40, 56)
    with torch.no_grad():
        torch.testing.assert_close(ours(images), theirs(images).last_hidden_state)


def test_a_missing_tokenizer_and_one_that_does_not_fit_the_backbone_are_refused():
    with pytest.raises(ValueError, match=r"tower 'text'.*needs its tokenizer"):
        build_model(tiny_config("region_bigru"))
    config = tiny_config("region_bert")
    large = train_wordpiece_tokenizer([f"w{i}" for i in range(900)], 500, max_length=20)
    with pytest.raises(ValueError, match=r"tokens, but the backbone knows 120"):
        build_model(config, {"text": large})
    with pytest.raises(ValueError, match=r"cuts at 99 tokens, but the backbone takes at most 40"):
        build_model(config, {"text": train_wordpiece_tokenizer(["a dog"], 100, max_length=99)})


def test_pictures_for_a_backbone_of_timm_are_prepared_as_timm_says_and_a_checkpoint_keeps_it(monkeypatch, tmp_path):
    said = {"input_size": (3, 32, 32), "mean": (0.5, 0.5, 0.5), "std": (0.25, 0.25, 0.25), "crop_mode": "center"}
    stand_in = ModuleType("timm")

    def create_model(name, pretrained, num_classes):
        backbone = torch.nn.Conv2d(3, 6, 8, 8)
        backbone.pretrained_cfg = said
        return backbone

    stand_in.create_model = create_model
    monkeypatch.setitem(sys.modules, "timm", stand_in)
    model = build_model(one_tower(Conv(backbone=TimmBackbone(model="some_vit"))), seed=0)
    expected = ImageTransform(32, "crop", (0.5, 0.5, 0.5), (0.25, 0.25, 0.25))
    assert model.tower("image").reader.transform == expected
    said["mean"] = (0.0, 0.0, 0.0)  # another version of timm
    assert SetEncoder.from_pretrained(model.save_pretrained(tmp_path / "a")).tower("image").reader.transform == expected
    given = Conv(backbone=TimmBackbone(model="some_vit"), pixels=Pixels(size=64, resize="squash"))
    chosen = build_model(one_tower(given), seed=0).tower("image").reader.transform
    assert (chosen.size, chosen.resize, chosen.mean) == (64, "squash", (0.0, 0.0, 0.0))


def test_without_timm_its_backbones_are_refused_with_the_cure(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ImportError, match="pip install timm"):
        build_model(one_tower(Conv(backbone=TimmBackbone(model="resnet18"))))
