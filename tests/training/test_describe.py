"""What --dry-run prints, against the paper's implementation details."""

import math
import re

import pytest

from maxmatch.recipe.yaml_files import load_recipe
from maxmatch.training.prepare import describe

COCO, F30K = 113_287, 29_000
# Of each model of the paper, on one of its data sets (tests/test_recipes.py has both): images, epochs, batch, learning
# rate, weight decay, schedule, the factor of each group, and for how many epochs the CNN is frozen and negatives are
# averaged.
RESNEXT = {"image.backbone": 0.1, "image.set_module": 1, "text.backbone": 1, "text.encoder": 1, "text.set_module": 1}
PAPER = {
    "f30k_resnet152_bigru": (
        F30K, 120, 200, 2e-3, 0.0, "step",
        {"image.backbone": 1, "image.set_module": 0.01, "text.encoder": 1, "text.set_module": 0.01}, 50, 0,
    ),
    "coco_region_bigru": (
        COCO, 80, 200, 1e-3, 1e-4, "cosine",
        {"image.set_module": 0.1, "text.encoder": 1, "text.set_module": 0.1}, 0, 0,
    ),
    "f30k_region_bert": (
        F30K, 45, 128, 1e-3, 5e-4, "cosine",
        {"image.set_module": 0.5, "text.backbone": 0.1, "text.encoder": 1, "text.set_module": 0.5}, 0, 0,
    ),
    "coco_resnext101_bert": (
        COCO, 50, 128, 1e-4, 0.0, "step", RESNEXT, 1, 1,
    ),
}  # fmt: skip
# From the widths of the layers, by hand: LN_b is 2·1024, the MLP of regions is 2048→1024→512→1024 with BatchNorm.
REGIONS = (2048 + 1) * 1024 + (1024 + 1) * 512 + 2 * 512 + (512 + 1) * 1024
SIZES = {
    "coco_region_bigru": {"image.set_module": 16_795_648 + 2048 + REGIONS, "text.set_module": 13_828_696 + 2048},
    "f30k_region_bert": {"image.set_module": 16_795_648 + 2048 + REGIONS, "text.encoder": 769 * 1024},
}


def groups_in(text):
    pattern = re.compile(r"^(\w+\.\w+) +([\d,]+) +(\S+) +(\S+) +(\S+)$", re.MULTILINE)
    return {
        name: (int(count.replace(",", "")), *map(float, figures)) for name, count, *figures in pattern.findall(text)
    }


def epochs_in(text):
    pattern = re.compile(r"^(\d+) +(\d\S*)(?:  (.*))?$", re.MULTILINE)
    return {int(epoch): (float(rate), notes) for epoch, rate, notes in pattern.findall(text.split("epoch  ")[1])}


@pytest.mark.parametrize("name", PAPER)
def test_groups_and_learning_rates_over_time_are_those_of_the_paper(name):
    images, epochs, batch, lr, decay, schedule, factors, frozen, mean = PAPER[name]
    text = describe(load_recipe(name))
    assert f"{epochs} epochs of {math.ceil(images / batch):,} steps, batches of {batch} images" in text
    groups = groups_in(text)
    assert {group: figures[1] for group, figures in groups.items()} == factors
    for group, (_, factor, rate, weight_decay) in groups.items():
        assert rate == pytest.approx(lr * factors[group]), factor
        assert weight_decay == decay
    for group, size in SIZES.get(name, {}).items():
        assert groups[group][0] == size
    printed = epochs_in(text)
    assert {1, 2, epochs // 2 + 1, epochs, frozen + 1, mean + 1} <= printed.keys()
    assert schedule != "step" or set(range(1, epochs, 20)) <= printed.keys()
    for epoch, (rate, notes) in printed.items():
        done = epoch - 1
        factor = 0.1 ** (done // 20) if schedule == "step" else (1 + math.cos(math.pi * done / epochs)) / 2
        assert rate == pytest.approx(lr * factor, rel=5e-3)
        assert ("image frozen" in notes) == (done < frozen)
        assert ("mean negatives" in notes) == (done < mean)
        assert "text frozen" not in notes


def test_the_ablation_is_on_coco_and_scenes_have_their_own_number_of_steps():
    assert "45 epochs of 567 steps" in describe(load_recipe("ablation/07"))
    text = describe(load_recipe("scenes", ["data.scenes.images=1000", "train.batch_size=10", "train.epochs=2"]))
    steps = int(re.search(r"2 epochs of (\d+) steps", text).group(1))
    assert 70 <= steps < 100  # the training split of a thousand pictures
    assert "smooth_chamfer; loss 1·triplet + 0.01·MMD + 0.01·Div" in describe(load_recipe("coco_region_bigru_setdiv"))


def test_the_steps_are_those_of_the_data_where_it_is_at_hand(data):
    changes = [f"data.path={data}", "train.batch_size=10", "model.options={feature_width: 12}"]
    text = describe(load_recipe("f30k_region_bigru", changes))
    assert "80 epochs of 5 steps, batches of 10 images" in text  # 48 images
    text = describe(load_recipe("f30k_region_bigru", [*changes, "train.batch_size=47"]))
    assert "80 epochs of 1 step, batches of 47 images" in text  # one image alone has no negatives
    held_out = describe(load_recipe("f30k_region_bigru", [*changes, "data.hold_out_words=[thing1]"]))
    assert re.search(r"80 epochs of [345] steps", held_out)


def test_vse_infinity_has_the_sizes_of_its_code_and_says_that_its_loss_is_a_sum():
    text = describe(load_recipe("f30k_vseinf_region_bigru"))
    sizes = {group: figures[0] for group, figures in groups_in(text).items()}
    regions = (2048 + 1) * 1024 + (2048 + 1) * 512 + 2 * 512 + (512 + 1) * 1024
    bigru = 2 * 3 * 1024 * (300 + 1024 + 2)
    assert sizes["image.set_module"] == regions + 12_704
    assert sizes["text.set_module"] == 12_704
    assert bigru <= sizes["text.encoder"] < bigru + 300 * 10  # and the few words that are always there
    assert "loss 1·triplet (sum); " in text
    printed = {epoch: rate for epoch, (rate, _) in epochs_in(describe(load_recipe("f30k_vsepp"))).items()}
    assert (printed[1], printed[76], printed[151], printed[225]) == (2e-4, 2e-5, 2e-5, 2e-5)


def test_by_its_name_alone_a_recipe_says_whose_images_it_counts(tmp_path):
    assert "29,000" in describe(load_recipe("f30k_region_bigru"))
    (tmp_path / "coconut.yaml").write_text("extends: f30k_region_bigru\n")
    for recipe in (load_recipe(tmp_path / "coconut.yaml"), load_recipe("f30k_region_bigru", ["data.path=nowhere"])):
        text = describe(recipe)
        assert "steps, batches" not in text
        assert "not known" in text
        assert ("nowhere" in text) == (recipe.data.path is not None)
        assert epochs_in(text)[41][0] == pytest.approx(recipe.train.lr / 2)


@pytest.mark.parametrize("warmup", ["warmup_steps: 500", "warmup_epochs: 2"])
def test_without_known_steps_the_warm_up_is_left_out_with_a_word(tmp_path, warmup):
    (tmp_path / "mine.yaml").write_text(f"extends: f30k_region_bigru\ntrain: {{{warmup}}}\n")
    recipe = load_recipe(tmp_path / "mine.yaml")
    text = describe(recipe)
    assert epochs_in(text)[1][0] == pytest.approx(recipe.train.lr)
    assert "warm-up" in text


def test_a_backbone_frozen_for_good_has_no_learning_rate():
    text = describe(load_recipe("scenes", ["train.freeze={backbone: always}"]))
    assert "image.backbone" not in text
    assert all(notes.startswith("image frozen") for _, notes in epochs_in(text).values())
    assert "text frozen" not in text  # a Bi-GRU has no backbone


def test_the_warm_up_shows():
    changes = [
        "train.warmup_epochs=2",
        "train.warmup_steps=0",
        "train.lr=1e-3",
        "train.epochs=15",
        "train.schedule=cosine",
    ]
    printed = epochs_in(describe(load_recipe("scenes", changes), steps_per_epoch=10))
    assert printed[1][0] == pytest.approx(1e-3 / 20)
    assert printed[2][0] == pytest.approx(1e-3 * 11 / 20 * (1 + math.cos(math.pi / 15)) / 2, rel=5e-3)
