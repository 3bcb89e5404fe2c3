"""The recipes that ship, against the paper's implementation details, its ablation table and what the comparisons say
they change.
"""

import pytest
from paper_values import ABLATION, PER_DATA_SET, TABLE, differences

from maxmatch.model.config import GPO, GRU, PIE, GlobalFeature
from maxmatch.recipe.yaml_files import load_recipe
from maxmatch.training.optim import schedule_factor


def given(recipe):
    """A recipe in the terms of the paper's implementation details."""
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
    assert given(recipe) == expected
    assert (recipe.name, recipe.model.preset, recipe.model.similarity) == (f"{data_set}_{model}", model, "maxmatch")
    assert (recipe.train.clip, recipe.train.precision, recipe.objective.negatives) == (1.0, "auto", "hardest")
    assert (recipe.objective.temperature, recipe.objective.diversity) == (0.01, "uniformity")
    assert (recipe.data.captions_per_image, recipe.data.train_split, recipe.data.val_split) == (5, "train", "val")
    assert recipe.similarities == ("maxmatch", "top_k")


@pytest.mark.parametrize(("data_set", "lr"), [("coco", 1e-3), ("f30k", 2e-3)])
def test_resnet_learns_from_epoch_50_on_at_a_hundredth_of_the_rate_and_from_epoch_60_at_a_thousandth(data_set, lr):
    train = load_recipe(f"{data_set}_resnet152_bigru").train
    steps = 100
    assert [train.frozen("image", epoch) for epoch in (0, 49, 50, 119)] == [True, True, False, False]
    rates = [train.lr * schedule_factor(train, epoch * steps, steps) for epoch in (50, 59, 60, 119)]
    assert [train.lr_factor("image", "backbone") * rate for rate in rates] == pytest.approx(
        [lr / 100, lr / 100, lr / 1000, lr / 10**5]
    )


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
    heads = [(tower.head, tower.set_size) for tower in model.towers.values()]
    assert heads == [(PIE(dropout=0.0, init="xavier"), 2)] * 2
    assert (model.similarity, recipe.similarities, loss.diversity, loss.margin) == ("mil", ("mil",), "pvse", 0.1)
    weights = (loss.div_weight, loss.mmd_weight, loss.gd_weight, loss.isd_weight, loss.con_weight)
    assert weights == (0.1, 0.01, 0.0, 0.0, 0.0)
    assert (loss.negatives, loss.triplet_reduction, loss.mean_negatives_epochs) == ("hardest", "mean", 0)
    image, text = (tower.encoder for tower in model.towers.values())
    assert (image.projection, image.init) == ("none", "torch")  # φ's layer starts as torch's
    assert text == GRU(directions="concatenate", dropout=0.0, train_words=False)
    train = recipe.train
    assert (train.lr, train.weight_decay, train.lr_factors, train.clip) == (2e-4, 0.0, {}, 2.0)
    assert (train.amsgrad, train.batch_size, train.batch_captions, train.epochs) == (True, 256, 1, 5 * 30)
    assert train.frozen("image", train.epochs)
    rates = [schedule_factor(train, 5 * epoch, 1) for epoch in range(30)]
    assert rates == pytest.approx([1.0] * 12 + [0.5] * 12 + [0.25] * 6)


def test_maxmatch_on_pvse_changes_similarity_losses_and_set_size_only():
    recipe = load_recipe("f30k_pvse_maxmatch")
    assert recipe.objective == load_recipe("f30k_resnet152_bigru").objective
    changed = {key for key in differences(recipe, load_recipe("f30k_pvse")) if not key.startswith("objective.")}
    assert changed == {"model.options.set_size", "model.similarity", "evaluate.similarities"}
    assert [tower.head for tower in recipe.model.resolved().towers.values()] == [PIE(dropout=0.0, init="xavier")] * 2


@pytest.mark.parametrize("data_set", ["coco", "f30k"])
def test_vsepp_has_one_vector_and_the_triplet_loss_alone(data_set):
    recipe = load_recipe(f"{data_set}_vsepp")
    alone(recipe, GlobalFeature(), mean_negatives_epochs=0)
    image, text = (tower.encoder for tower in recipe.model.resolved().towers.values())
    assert (image.projection, image.pooling, image.unit_pooled, image.init) == ("none", "mean", True, "xavier")
    words = {"word_init": "uniform", "word_scale": 0.1, "directions": "forward", "dropout": 0.0}
    assert text == GRU(**words)
    train = recipe.train
    assert (train.lr, train.weight_decay, train.batch_size) == (2e-4, 0.0, 128)
    assert [train.frozen("image", 5 * epoch) for epoch in range(45)] == [True] * 30 + [False] * 15
    rates = [schedule_factor(train, 5 * epoch, 1) for epoch in range(45)]  # as if its epochs were ours
    assert rates == pytest.approx([1.0] * 15 + [0.1] * 30)
    assert train.epochs == 5 * 45


def alone(recipe, head, mean_negatives_epochs):
    """A recipe whose sets are one vector, and whose loss is the triplet loss of pairs, summed."""
    assert [(tower.head, tower.set_size) for tower in recipe.model.resolved().towers.values()] == [(head, 1)] * 2
    goal = recipe.objective
    weights = {key: value for key, value in goal.keywords(0).items() if key.endswith("_weight") and value}
    assert (weights, goal.margin, goal.negatives) == ({"triplet_weight": 1.0}, 0.2, "hardest")
    assert (goal.triplet_reduction, goal.mean_negatives_epochs) == ("sum", mean_negatives_epochs)
    assert (recipe.model.similarity, recipe.similarities) == ("mil", ("mil",))
    assert (recipe.train.batch_captions, recipe.train.clip, recipe.train.validate_every) == (1, 2.0, 5)


@pytest.mark.parametrize(("text", "decay"), [("bigru", 0.01), ("bert", 1e-4)])
@pytest.mark.parametrize("data_set", ["coco", "f30k"])
def test_vse_infinity_has_the_values_of_its_code(data_set, text, decay):
    recipe = load_recipe(f"{data_set}_vseinf_region_{text}")
    alone(recipe, GPO(), mean_negatives_epochs=5)
    towers, train = recipe.model.resolved().towers, recipe.train
    image = towers["image"].encoder
    assert (image.mlp_reads, image.init, image.dropout) == ("input", "xavier", 0.0)
    if text == "bigru":
        words = {"word_init": "uniform", "word_scale": 0.1, "local": "states", "dropout": 0.0}
        assert towers["text"].encoder == GRU(directions="mean", **words)
    else:
        assert (train.lr_factors, recipe.data.tokenizer) == ({"text.backbone": 0.1}, "pretrained")
    assert (train.lr, train.weight_decay, train.batch_size, train.size_augmentation) == (5e-4, decay, 128, 0.2)
    rates = [schedule_factor(train, 5 * epoch, 1) for epoch in range(25)]
    assert rates == pytest.approx([1.0] * 15 + [0.1] * 10)
    assert train.epochs == 5 * 25
