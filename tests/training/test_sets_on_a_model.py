"""Training starts from a model of one vector per item, which stays as it is but for what the recipe names."""

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from small_runs import breaking_at_step, outcome, recipe_for, same
from tiny_hub import hub_folder
from tiny_models import SIZES

from maxmatch.core.files import read_metrics
from maxmatch.core.manifest import problems
from maxmatch.data.dataset import IMAGE, TEXT
from maxmatch.data.extraction import TEXTS, describe_store, extract, extract_texts, load_backbone
from maxmatch.data.features import FeatureWriter
from maxmatch.data.load import read_dataset
from maxmatch.data.sampler import BatchPlan
from maxmatch.evaluation.encoding import encode_items, find_model
from maxmatch.evaluation.runs import evaluate_runs
from maxmatch.model.adaptation import add_lora, freeze_but, merged_weights
from maxmatch.model.encoder import SetEncoder
from maxmatch.model.layers import ResidualSetHead
from maxmatch.recipe.schema import Recipe
from maxmatch.recipe.yaml_files import load_recipe
from maxmatch.training import loop
from maxmatch.training import step as update
from maxmatch.training.distributed import Processes
from maxmatch.training.loop import train
from maxmatch.training.prepare import describe, prepare, started_model
from maxmatch.training.run import result_of

ALONE = Processes(0, 1, torch.device("cpu"))
HEAD = {"name": "residual", "heads": 2, "head_width": 8, "depth": 1, "dropout": 0.0}


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    return hub_folder(tmp_path_factory.mktemp("hub") / "clip", "clip")


def recipe(data, start, model=None, **options):
    """A recipe for sets on a model; model: changes to what it says of the model."""
    return Recipe.model_validate(
        {
            "name": "sets",
            "data": {"path": str(data)},
            "model": {"start": str(start), "head": HEAD, "set_size": 4, **(model or {})},
            "objective": {"triplet_weight": 0, "gd_weight": 0, "isd_weight": 0, "mmd_weight": 0, "div_weight": 0,
                          "con_weight": 1.0, "temperature": 0.05},
            "train": {"epochs": 2, "batch_size": 6, "lr": 5e-3, "schedule": "constant", "workers": 0,
                      "crop_scale": None, "flip": False, **options},
        }
    )  # fmt: skip


def learning(model):
    return {name for name, value in model.named_parameters() if value.requires_grad}


def new(model):
    """The weights that sets add to a model."""
    return {
        f"{name}.{own}"
        for name, part in model.named_modules()
        if isinstance(part, ResidualSetHead)
        for own, _ in part.named_parameters()
        if not own.startswith("base.")
    }


def test_a_training_lowers_the_loss_parts_the_slots_and_leaves_the_model_as_it_is(pictures, clip, tmp_path, capsys):
    result = train(recipe(pictures, clip, epochs=12), tmp_path / "run")
    before, after = SetEncoder.from_pretrained(clip), SetEncoder.from_pretrained(tmp_path / "run" / "last")
    weights = after.state_dict()
    assert all(torch.equal(weights[name], value) for name, value in before.state_dict().items())
    assert (after.set_sizes, after.similarity_name) == ({IMAGE: 4, TEXT: 4}, "maxmatch")
    losses = [record["loss"] for record in read_metrics(tmp_path / "run", "train")]
    assert losses[-1] < 0.9 * losses[0]
    sets = after.encode_texts(["r0 g1", "b2 r3"])
    apart = 1 - (sets @ sets.mT)[:, *torch.triu_indices(4, 4, 1)]
    assert apart.min() > 1e-4
    val = read_metrics(tmp_path / "run", "val")
    assert "nearly equal" not in capsys.readouterr().out  # as sets are that start so
    assert (val[0]["step"], len(val)) == (0, 13)
    assert result["rsum"] >= val[0]["rsum"] - 1e-9  # the start is the first of the best


def test_the_start_is_kept_where_every_epoch_is_worse(pictures, clip, tmp_path, monkeypatch):
    left = [90.0, 80.0, 70.0]
    monkeypatch.setattr(loop, "measures", lambda *given: {"rsum": left.pop(0)})
    train(recipe(pictures, clip), tmp_path / "run")
    best, one = SetEncoder.from_pretrained(tmp_path / "run"), SetEncoder.from_pretrained(clip)
    vectors = one.encode_texts(["a dog"])
    torch.testing.assert_close(best.encode_texts(["a dog"]), vectors.expand(-1, 4, -1))
    assert result_of(tmp_path / "run")["best_epoch"] == -1


def test_a_run_that_broke_off_comes_to_the_same_end(pictures, clip, tmp_path):
    whole = recipe(pictures, clip, checkpoint_every=1, log_every=1, unfreeze={"text": 1})
    train(whole, tmp_path / "whole")
    with breaking_at_step(3):
        train(whole, tmp_path / "broken")
    train(whole, tmp_path / "broken", resume=True)
    assert same(outcome(tmp_path / "whole"), outcome(tmp_path / "broken"))


def test_by_default_only_the_heads_learn_and_the_model_stays_in_evaluation_mode(pictures, clip):
    model = started_model(recipe(pictures, clip))
    assert learning(model) == new(model)
    for name in model.towers:
        tower = model.train().tower(name)
        assert not any(part.training for part in tower.encoder.modules())
        assert tower.head.block.training


@pytest.mark.parametrize(
    ("opened", "prefixes"),
    [
        ({"image": 1}, ["towers.image.encoder.backbone.vision_model.encoder.layers.1."]),
        ({"text": 2}, [f"towers.text.encoder.backbone.text_model.encoder.layers.{n}." for n in (0, 1)]),
        (
            {"image": ["visual_projection", "vision_model.post_layernorm"], "text": "text_projection"},
            [
                "towers.image.encoder.backbone.visual_projection.",
                "towers.image.encoder.backbone.vision_model.post_layernorm.",
                "towers.text.encoder.backbone.text_projection.",
            ],
        ),
        ({"image": "all"}, ["towers.image.encoder."]),
    ],
)
def test_unfreezing_touches_exactly_what_is_named(pictures, clip, opened, prefixes, tmp_path):
    whole = recipe(pictures, clip, unfreeze=opened, epochs=1, lr_factors={"backbone": 0.5})
    model = started_model(whole)
    named = {name for name, _ in model.named_parameters() if name.startswith(tuple(prefixes))}
    assert named
    assert learning(model) == named | new(model)
    train(whole, tmp_path / "run")
    after = SetEncoder.from_pretrained(tmp_path / "run" / "last").state_dict()
    before = SetEncoder.from_pretrained(clip).state_dict()
    moved = {name for name, value in before.items() if not torch.equal(value, after[name])}
    assert moved <= named
    assert all(any(name.startswith(prefix) for name in moved) for prefix in prefixes)


@pytest.mark.parametrize(
    ("opened", "error"),
    [({"image": 3}, "2 blocks"), ({"image": ["no.such.part"]}, "no.such.part"), ({"text": [""]}, "no part")],
)
def test_a_block_that_there_is_not_is_refused(pictures, clip, opened, error):
    with pytest.raises(ValueError, match=error):
        started_model(recipe(pictures, clip, unfreeze=opened))


@pytest.mark.parametrize(
    ("model", "options", "place"),
    [
        ({"head": None, "set_size": None}, {}, "model.head"),  # a full fine-tuning only where it is asked for
        ({}, {"freeze": {"image.backbone": 2}}, "train.freeze.image.backbone"),
        ({}, {"freeze": {"backbone": "always"}}, "train.freeze.backbone"),
        ({}, {"unfreeze": {"audio": 1}}, "train.unfreeze.audio"),
        ({}, {"unfreeze": {"text": 1}, "lora": {"rank": 2}}, "train.unfreeze.text"),
        ({}, {"lora": {"towers": ["audio"]}}, "train.lora.towers"),
        ({"head": None}, {"unfreeze": {"text": 1}}, "model.set_size"),
        ({"head": "residual", "start": None, "preset": "region_bigru"}, {}, "model.head"),
        ({"start": "no/such/folder"}, {}, "model.start"),
    ],
)
def test_what_would_train_other_weights_than_it_says_is_refused(pictures, clip, model, options, place):
    with pytest.raises(ValidationError) as error:
        recipe(pictures, clip, model, **options)
    assert place in problems(error.value)


def test_a_preset_is_no_model_to_unfreeze(data):
    with pytest.raises(ValidationError) as error:
        recipe_for(data, unfreeze={"image": 1})
    assert "train.unfreeze.image" in problems(error.value)


def test_stored_features_are_not_those_of_a_model_that_learns(pictures, clip):
    whole = recipe(pictures, clip, unfreeze={"image": 1}).model_dump(mode="json")
    whole["data"]["features"] = "store"
    with pytest.raises(ValidationError) as error:
        Recipe.model_validate(whole)
    assert "data.features" in problems(error.value)


def test_a_model_of_the_hub_is_fine_tuned_with_one_vector_where_that_is_said(pictures, clip, tmp_path):
    whole = recipe(pictures, clip, {"head": None, "set_size": None}, epochs=1, unfreeze={"text": ["text_projection"]})
    assert whole.model.similarity == "mil"
    train(whole, tmp_path / "run")
    before, after = (SetEncoder.from_pretrained(one) for one in (clip, tmp_path / "run" / "last"))
    moved = [name for name, value in before.state_dict().items() if not torch.equal(value, after.state_dict()[name])]
    assert moved == ["towers.text.encoder.backbone.text_projection.weight"]
    assert after.config.logit_scale == before.config.logit_scale


def test_a_recipe_is_read_before_its_model_is_fetched_and_a_dry_run_says_so(monkeypatch, tmp_path):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    whole = load_recipe("clip_sets", ["model.start=nobody/no-such-clip"])
    assert {name: tower.set_size for name, tower in whole.model.resolved().towers.items()} == {IMAGE: 4, TEXT: 4}
    assert "nobody/no-such-clip" in describe(whole)
    known = load_recipe("clip_sets", ["model.start=laion/clap-htsat-unfused", "objective.pairs=[[audio, text]]"])
    assert set(known.model.resolved().towers) == {"audio", TEXT}


# --- stored features ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["clip", "siglip2"])
def test_sets_on_stored_features_are_those_on_pictures(pictures, family, tmp_path):
    folder = hub_folder(tmp_path / family, family)
    backbone = load_backbone(str(folder))
    with FeatureWriter(tmp_path / "store", describe_store(backbone, "float32")) as writer:
        extract(backbone, read_dataset(pictures), writer, batch_size=5)
        writer.finish()
    share = 0.5 if family == "siglip2" else 0.0  # CLIP has no token that stands for a word left out
    whole = recipe(pictures, folder, epochs=1, size_augmentation=share)
    stored = whole.model_dump(mode="json")
    stored["data"]["features"] = str(tmp_path / "store")
    found = []
    for one in (whole, Recipe.model_validate(stored)):
        parts = prepare(one, ALONE, print)
        with torch.no_grad():
            parts.model.tower(IMAGE).head.gamma.normal_(generator=torch.Generator().manual_seed(0))
        encoded = encode_items(parts.model, parts.train)
        found.append((encoded.ids[IMAGE], encoded.sets[IMAGE]))
    assert found[0][0] == found[1][0]
    torch.testing.assert_close(found[0][1], found[1][1], rtol=1e-4, atol=1e-5)
    result = train(Recipe.model_validate(stored), tmp_path / "run")
    assert np.isfinite(result["rsum"])
    (line,) = evaluate_runs([tmp_path / "run"], pictures, split="val").lines  # the pictures themselves
    assert line.result.figures["rsum"] == pytest.approx(result["rsum"])


def stored_halves(folder, pictures, store):
    """Both halves of a model over a data set, in a store."""
    backbone, dataset = load_backbone(str(folder)), read_dataset(pictures)
    with FeatureWriter(store, describe_store(backbone, "float32")) as writer:
        extract(backbone, dataset, writer, batch_size=5)
        writer.finish()
    with FeatureWriter(store / TEXTS, backbone.texts.describe("float32")) as writer:
        extract_texts(backbone.texts, dataset, writer, batch_size=7)
        writer.finish()
    return store


def on_store(whole, store):
    given = whole.model_dump(mode="json")
    given["data"]["features"] = str(store)
    return Recipe.model_validate(given)


@pytest.mark.parametrize("family", ["clip", "siglip", "siglip2"])
def test_sets_on_stored_tokens_are_those_on_texts_and_the_model_is_not_run(pictures, family, tmp_path, monkeypatch):
    folder = hub_folder(tmp_path / family, family)
    store = stored_halves(folder, pictures, tmp_path / "store")
    whole = recipe(pictures, folder, epochs=1, batch_captions=1)
    stored, found = on_store(whole, store), []
    for one in (whole, stored):
        parts = prepare(one, ALONE, print)
        with torch.no_grad():
            parts.model.tower(TEXT).head.gamma.normal_(generator=torch.Generator().manual_seed(0))
        encoded = encode_items(parts.model, parts.train)
        found.append((encoded.ids[TEXT], encoded.sets[TEXT]))
        (batch,) = parts.feed.batches([BatchPlan(np.arange(3), 1)])
        assert len(batch.groups[TEXT]) == 3  # one caption of each
    assert found[0][0] == found[1][0]
    torch.testing.assert_close(found[0][1], found[1][1], rtol=1e-4, atol=1e-5)

    def never(*given, **options):
        raise AssertionError("the text encoder was run")

    encoder = type(parts.model.tower(TEXT).encoder.backbone)
    with monkeypatch.context() as patched:
        patched.setattr(encoder, "get_text_features", never)
        result = train(stored, tmp_path / "run")
    (line,) = evaluate_runs([tmp_path / "run"], pictures, split="val").lines  # the pictures and texts themselves
    assert line.result.figures["rsum"] == pytest.approx(result["rsum"])


def test_texts_are_encoded_where_they_are_not_stored_by_this_text_encoder_or_it_learns(pictures, clip, tmp_path):
    store = stored_halves(clip, pictures, tmp_path / "store")

    def texts_of(whole):
        lines = []
        first = prepare(on_store(whole, store), ALONE, lines.append).train[TEXT].values[0]
        return type(first), "\n".join(lines)

    kind, said = texts_of(recipe(pictures, clip))
    assert kind is np.ndarray
    assert "the text encoder is not run" in said
    assert texts_of(recipe(pictures, clip, unfreeze={"text": 1}))[0] is str
    info = store / TEXTS / "store.json"
    own = info.read_text()
    info.write_text(own.replace("weights ", "weights 0"))
    kind, said = texts_of(recipe(pictures, clip))
    assert kind is str
    assert "of another text encoder" in said
    info.write_text(own)
    ids = store / TEXTS / "ids.txt"
    ids.write_text("\n".join(["other", *ids.read_text().splitlines()[1:]]) + "\n")
    kind, said = texts_of(recipe(pictures, clip))
    assert kind is str
    assert "texts are not stored" in said


# --- a checkpoint of ours, and the whole life of a run --------------------------------------------------------------


def test_sets_start_from_a_run_of_one_vector_and_the_run_is_evaluated_without_its_start(pictures, tmp_path):
    base = recipe_for(pictures, "resnet152_bigru", epochs=1, batch_size=6, workers=0).model_dump(mode="json")
    base["model"]["options"] = {**SIZES["resnet152_bigru"], "width": 16, "head": "global", "set_size": 1}
    base["objective"] |= {"gd_weight": 0, "isd_weight": 0, "mmd_weight": 0, "div_weight": 0}
    train(Recipe.model_validate(base), tmp_path / "one")
    whole = recipe(pictures, tmp_path / "one")
    model = started_model(whole)
    assert learning(model) == new(model)
    train(whole, tmp_path / "sets")
    further = recipe(pictures, tmp_path / "sets", {"head": None, "set_size": None})
    assert learning(started_model(further)) == new(model)  # a second training leaves the model as it is, too
    for name in (tmp_path / "one").iterdir():
        name.rename(name.with_name(f"{name.name}.gone"))
    source = find_model(tmp_path / "sets")
    assert source.recipe.data.path == str(pictures)
    assert SetEncoder.from_pretrained(tmp_path / "sets").encode_texts(["r0 g1"]).shape == (1, 4, 16)


# --- LoRA and gradient checkpointing --------------------------------------------------------------------------------


def lora_of(model, **options):
    pytest.importorskip("peft", reason="an extra: pip install 'maxmatch[lora]'")
    for name in model.towers:
        add_lora(model.tower(name), **{"rank": 2, "alpha": 4.0, **options})
        freeze_but(model.tower(name))
    return model


def test_merged_adapters_make_the_same_sets_as_adapters_beside_the_layers(clip, tmp_path):
    plain, model = SetEncoder.from_pretrained(clip), lora_of(SetEncoder.from_pretrained(clip))
    texts = ["a dog", "a red bus"]
    torch.testing.assert_close(model.encode_texts(texts), plain.encode_texts(texts))  # they start at nothing
    with torch.no_grad():
        for name, value in model.named_parameters():
            if "lora_B" in name:
                value.normal_(std=0.5)
    assert (model.encode_texts(texts) - plain.encode_texts(texts)).abs().max() > 1e-2
    merged = SetEncoder.from_pretrained(model.save_pretrained(tmp_path / "merged"))
    assert merged.state_dict().keys() == plain.state_dict().keys() == merged_weights(model).keys()
    torch.testing.assert_close(merged.encode_texts(texts), model.encode_texts(texts), rtol=1e-5, atol=1e-5)
    assert not any("lora" in name for name, _ in merged.named_modules())


def test_a_training_with_adapters_moves_the_layers_that_have_them_and_no_others(pictures, clip, tmp_path):
    pytest.importorskip("peft", reason="an extra: pip install 'maxmatch[lora]'")
    whole = recipe(pictures, clip, lora={"rank": 2, "towers": ["image"]}, gradient_checkpointing=True)
    model = started_model(whole)
    assert {name.split(".")[1] for name in learning(model) - new(model)} == {"image"}
    train(whole, tmp_path / "run")
    before, after = (SetEncoder.from_pretrained(one).state_dict() for one in (clip, tmp_path / "run" / "last"))
    moved = {name for name, value in before.items() if not torch.equal(value, after[name])}
    layers = "towers.image.encoder.backbone.vision_model.encoder.layers"
    assert moved == {f"{layers}.{n}.self_attn.{part}_proj.weight" for n in (0, 1) for part in "qv"}


def test_layers_for_adapters_that_there_are_not_are_refused_with_those_that_there_are(clip):
    with pytest.raises(ValueError, match="k_proj"):
        add_lora(SetEncoder.from_pretrained(clip).tower(TEXT), 2, 4.0, targets=["no_such_layer"])


def test_gradients_are_the_same_with_activations_computed_again(pictures, clip):
    found = []
    for again in (False, True):
        whole = recipe(pictures, clip, unfreeze={"image": "all", "text": 1}, gradient_checkpointing=again)
        parts = prepare(whole, ALONE, print)
        (batch,) = parts.feed.batches([BatchPlan(np.arange(6), 1)])
        update.gradients(parts.model, batch, update.criterion_for(whole, 0), seed=0)
        found.append({name: value.grad for name, value in parts.model.named_parameters() if value.grad is not None})
    assert found[0].keys() == found[1].keys()
    assert any("vision_model.encoder.layers.0" in name for name in found[0])
    for name, one in found[0].items():
        torch.testing.assert_close(one, found[1][name], rtol=1e-4, atol=1e-7, msg=name)
