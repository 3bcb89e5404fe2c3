"""The recipes that ship, against SPEC §6, the paper's ablation table and what the comparisons say they change."""

import pytest

from maxmatch.config import PIE
from maxmatch.recipe_files import SHIPPED, list_recipes, load_recipe

DESCRIPTIONS = dict(list_recipes())
NAMES = list(DESCRIPTIONS)
STEP = {"name": "step", "every": 20, "factor": 0.1}
COSINE = {"name": "cosine"}

# SPEC §6, by column: both data sets where one value stands, or (COCO, Flickr30k).
TABLE = {
    "resnet152_bigru": {
        "epochs": 120,
        "batch": 200,
        "lr": (1e-3, 2e-3),
        "set module": (0.1, 0.01),
        "CNN": 1.0,
        "schedule": STEP,
        "weight decay": 0.0,
        "frozen": 50,
        "mean negatives": 0,
        "δ1": 0.2,
        "δ2=δ3": 0.6,
        "s": 0.5,
        "λGD=λISD": 0.1,
        "λCON": 0.0,
        "λMMD=λDiv": 0.01,
        "size augmentation": 0.0,
        "heads": (4, 256),
        "pixels": (224, "crop", (0.08, 1.0)),
    },
    "region_bigru": {
        "epochs": 80,
        "batch": 200,
        "lr": 1e-3,
        "set module": 0.1,
        "schedule": COSINE,
        "weight decay": 1e-4,
        "mean negatives": 0,
        "δ1": 0.3,
        "δ2=δ3": 0.6,
        "s": 0.5,
        "λGD=λISD": (0.1, 0.05),
        "λCON": 0.001,
        "λMMD=λDiv": 0.01,
        "size augmentation": 0.2,
        "heads": (4, 512),
    },
    "region_bert": {
        "epochs": 45,
        "batch": (200, 128),
        "lr": 1e-3,
        "set module": 0.5,
        "BERT": 0.1,
        "schedule": COSINE,
        "weight decay": 5e-4,
        "mean negatives": 0,
        "δ1": 0.15,
        "δ2=δ3": 0.8,
        "s": 0.5,
        "λGD=λISD": 0.1,
        "λCON": 0.001,
        "λMMD=λDiv": 0.01,
        "size augmentation": 0.2,
        "heads": (4, 512),
    },
    "resnext101_bert": {
        "epochs": 50,
        "batch": 128,
        "lr": 1e-4,
        "set module": 1.0,
        "CNN": 0.1,
        "BERT": 1.0,
        "schedule": STEP,
        "weight decay": 0.0,
        "frozen": 1,
        "mean negatives": 1,
        "δ1": 0.1,
        "δ2=δ3": 0.6,
        "s": 0.5,
        "λGD=λISD": 0.1,
        "λCON": 0.0,
        "λMMD=λDiv": 0.01,
        "size augmentation": 0.0,
        "heads": (8, 256),
        "pixels": (512, "squash", (0.36, 1.0)),
    },
}
PER_DATA_SET = {"lr", "set module", "batch", "λGD=λISD"}

# The rows of table_abl: similarity, Div and MMD, GD, ISD.
ABLATION = [
    ("mil", True, False, False),
    ("smooth_chamfer", True, False, False),
    ("smooth_chamfer", True, True, False),
    ("smooth_chamfer", True, False, True),
    ("smooth_chamfer", False, True, True),
    ("smooth_chamfer", True, True, True),
    ("maxmatch", True, False, False),
    ("maxmatch", False, True, False),
    ("maxmatch", False, False, True),
    ("maxmatch", False, True, True),
    ("maxmatch", True, True, True),
]


def differences(one, other):
    """The dotted keys whose values are not the same in two recipes, but for name and description."""

    def flat(values, prefix=""):
        if not isinstance(values, dict) or not values:
            return {prefix: values}
        return {k: v for key, inner in values.items() for k, v in flat(inner, f"{prefix}.{key}".strip(".")).items()}

    a, b = (flat(recipe.model_dump(exclude={"name", "description"})) for recipe in (one, other))
    return {key: a.get(key) for key in a.keys() | b.keys() if a.get(key) != b.get(key)}


def said(recipe):
    """A recipe in the terms of SPEC §6."""
    train, loss, model = recipe.train, recipe.objective, recipe.model.resolved()
    image, text = model.towers["image"], model.towers["text"]
    assert (loss.gd_weight, loss.gd_margin, loss.mmd_weight) == (loss.isd_weight, loss.isd_margin, loss.div_weight)
    assert train.lr_factor("image", "set_module") == train.lr_factor("text", "set_module")
    assert image.head == text.head
    assert (model.width, image.set_size, text.set_size, image.head.depth) == (1024, 4, 4, 4)
    values = {
        "epochs": train.epochs,
        "batch": train.batch_size,
        "lr": train.lr,
        "set module": train.lr_factor("image", "set_module"),
        "schedule": train.schedule.model_dump(),
        "weight decay": train.weight_decay,
        "mean negatives": loss.mean_negatives_epochs,
        "δ1": loss.margin,
        "δ2=δ3": loss.gd_margin,
        "s": loss.scale,
        "λGD=λISD": loss.gd_weight,
        "λCON": loss.con_weight,
        "λMMD=λDiv": loss.mmd_weight,
        "size augmentation": train.size_augmentation,
        "heads": (image.head.heads, image.head.head_width),
    }
    if image.encoder.name == "conv":
        frozen = [epoch for epoch in range(train.epochs) if train.frozen("image", epoch)]
        assert frozen == list(range(len(frozen)))
        values["frozen"], values["CNN"] = len(frozen), train.lr_factor("image", "backbone")
        values["pixels"] = (image.encoder.pixels.size, image.encoder.pixels.resize, train.crop_scale)
        assert train.flip
    if text.encoder.name == "transformer":
        values["BERT"] = train.lr_factor("text", "backbone")
        assert not train.frozen("text", 0)
        assert recipe.data.tokenizer == "pretrained"
    else:
        assert (recipe.data.tokenizer, recipe.data.min_count, text.encoder.word_width) == ("words", 4, 300)
    return values


@pytest.mark.parametrize("data_set", ["coco", "f30k"])
@pytest.mark.parametrize("model", TABLE)
def test_the_recipes_of_the_paper_have_its_values(model, data_set):
    which = {"coco": 0, "f30k": 1}[data_set]
    expected = {
        key: value[which] if key in PER_DATA_SET and isinstance(value, tuple) else value
        for key, value in TABLE[model].items()
    }
    recipe = load_recipe(f"{data_set}_{model}")
    assert said(recipe) == expected
    assert (recipe.name, recipe.model.preset, recipe.model.similarity) == (f"{data_set}_{model}", model, "maxmatch")
    assert (recipe.train.clip, recipe.train.precision, recipe.objective.negatives) == (1.0, "auto", "hardest")
    assert (recipe.objective.temperature, recipe.objective.diversity) == (0.01, "uniformity")
    assert (recipe.data.captions_per_image, recipe.data.train_split, recipe.data.val_split) == (5, "train", "val")
    assert recipe.similarities == ("maxmatch", "top_k")


@pytest.mark.parametrize("row", range(1, 12))
def test_the_rows_of_the_ablation_change_the_similarity_and_four_weights(row):
    similarity, regular, gd, isd = ABLATION[row - 1]
    recipe, whole = load_recipe(f"ablation/{row:02}"), load_recipe("coco_region_bert")
    loss = recipe.objective
    weights = (loss.div_weight, loss.mmd_weight, loss.gd_weight, loss.isd_weight)
    assert recipe.model.similarity == similarity
    assert weights == (0.01 * regular, 0.01 * regular, 0.1 * gd, 0.1 * isd)
    assert recipe.similarities == (("maxmatch", "top_k") if similarity == "maxmatch" else (similarity,))
    allowed = {f"objective.{name}_weight" for name in ("div", "mmd", "gd", "isd")}
    assert differences(recipe, whole).keys() <= allowed | {"model.similarity", "evaluate.similarities"}


@pytest.mark.parametrize("data_set", ["coco", "f30k"])
@pytest.mark.parametrize("model", TABLE)
def test_setdiv_is_smooth_chamfer_without_gd_and_isd(model, data_set):
    expected = {
        "model.similarity": "smooth_chamfer",
        "evaluate.similarities": None,
        "objective.gd_weight": 0.0,
        "objective.isd_weight": 0.0,
    }
    if TABLE[model]["λCON"]:
        expected["objective.con_weight"] = 0.0
    if model == "region_bigru":
        expected["objective.margin"] = 0.2
    setdiv, ours = load_recipe(f"{data_set}_{model}_setdiv"), load_recipe(f"{data_set}_{model}")
    assert differences(setdiv, ours) == expected
    assert (setdiv.objective.div_weight, setdiv.objective.mmd_weight, setdiv.objective.margin <= 0.2) == (
        0.01,
        0.01,
        True,
    )


@pytest.mark.parametrize("data_set", ["coco", "f30k"])
def test_pvse_has_its_own_head_similarity_and_weights(data_set):
    recipe = load_recipe(f"{data_set}_pvse")
    model, loss = recipe.model.resolved(), recipe.objective
    assert [(tower.head, tower.set_size) for tower in model.towers.values()] == [(PIE(dropout=0.0), 2)] * 2
    assert (model.similarity, recipe.similarities, loss.diversity, loss.margin) == ("mil", ("mil",), "pvse", 0.1)
    weights = (loss.div_weight, loss.mmd_weight, loss.gd_weight, loss.isd_weight, loss.con_weight)
    assert weights == (0.1, 0.01, 0.0, 0.0, 0.0)
    assert (recipe.train.lr, recipe.train.batch_size, recipe.train.clip, recipe.train.lr_factors) == (
        2e-4,
        256,
        2.0,
        {},
    )


def test_maxmatch_on_pvse_changes_similarity_losses_and_set_size_only():
    recipe = load_recipe("f30k_pvse_maxmatch")
    assert recipe.objective == load_recipe("f30k_resnet152_bigru").objective
    changed = {key for key in differences(recipe, load_recipe("f30k_pvse")) if not key.startswith("objective.")}
    assert changed == {"model.options.set_size", "model.similarity", "evaluate.similarities"}
    assert [tower.head for tower in recipe.model.resolved().towers.values()] == [PIE(dropout=0.0)] * 2


@pytest.mark.parametrize("data_set", ["coco", "f30k"])
def test_vsepp_has_one_vector_and_the_triplet_loss_alone(data_set):
    recipe = load_recipe(f"{data_set}_vsepp")
    assert {tower.set_size for tower in recipe.model.resolved().towers.values()} == {1}
    weights = {key: value for key, value in recipe.objective.keywords(0).items() if key.endswith("_weight") and value}
    assert (weights, recipe.objective.margin, recipe.objective.negatives) == ({"triplet_weight": 1.0}, 0.2, "hardest")


@pytest.mark.parametrize(
    ("family", "ours", "weight"), [("flickr8k", "flickr8k_maxmatch", 0.1), ("scenes", "scenes", 0.5)]
)
def test_on_small_data_the_contrastive_term_is_on_and_the_variants_change_the_method_alone(family, ours, weight):
    whole = load_recipe(ours)
    assert (whole.objective.con_weight, whole.objective.temperature) == (weight, 0.05)
    assert not whole.train.flip
    assert whole.train.crop_scale is None
    for variant, similarity in (("setdiv", "smooth_chamfer"), ("mil", "mil")):
        changed = differences(load_recipe(f"{family}_{variant}"), whole)
        changed.pop("model.config.similarity", None)  # goes with the model's
        assert changed == {
            "model.similarity": similarity,
            "evaluate.similarities": None,
            "objective.gd_weight": 0.0,
            "objective.isd_weight": 0.0,
        }


def test_flickr8k_is_as_it_was_measured():
    recipe = load_recipe("flickr8k_maxmatch")
    model, train = recipe.model.resolved(), recipe.train
    assert (model.width, model.towers["image"].set_size, train.epochs, train.batch_size) == (1024, 4, 10, 200)
    assert train.lr_factor("image", "set_module") == 0.5
    assert train.frozen("image", train.epochs - 1)
    assert (model.towers["text"].encoder.word_scale, train.ema, train.size_augmentation) == (0.02, 0.99, 0.2)
    tuned = load_recipe("flickr8k_finetuned").train
    assert [tuned.frozen("image", epoch) for epoch in (5, 6)] == [True, False]
    assert (tuned.feed, tuned.crop_scale, tuned.flip) == ("resident", (0.5, 1.0), True)
    shipped = load_recipe("maxmatch_small")
    assert shipped.train == tuned
    assert shipped.model == load_recipe("flickr8k_small").model


def test_every_comparison_of_the_paper_ships_and_nothing_else_does():
    paper = {
        f"{data_set}_{model}{suffix}" for data_set in ("coco", "f30k") for model in TABLE for suffix in ("", "_setdiv")
    }
    peers = {"coco_pvse", "f30k_pvse", "f30k_pvse_maxmatch", "coco_vsepp", "f30k_vsepp"}
    small = {
        "flickr8k_maxmatch",
        "flickr8k_setdiv",
        "flickr8k_mil",
        "flickr8k_finetuned",
        "flickr8k_minilm",
        "flickr8k_small",
        "flickr8k_held_out",
        "maxmatch_small",
        "scenes",
        "scenes_setdiv",
        "scenes_mil",
    }
    assert set(NAMES) == paper | peers | small | {f"ablation/{row:02}" for row in range(1, 12)}
    assert sorted(NAMES) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_every_recipe_says_what_it_is_and_where_its_values_come_from(name):
    first, *rest = (SHIPPED / f"{name}.yaml").read_text(encoding="utf-8").splitlines()
    assert first.startswith("# ")
    assert all(len(line) <= 120 for line in (first, *rest))
    assert DESCRIPTIONS[name] == load_recipe(name).description
    assert len(load_recipe(name).description) > 20
    if not name.startswith(("scenes", "flickr8k", "maxmatch_small")):
        assert any(
            label in first for label in ("table:mscoco", "table:flickr30k", "tab:resnext", "tab:PVSE", "table_abl")
        )
