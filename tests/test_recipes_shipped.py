"""The recipes beside the paper's: what they are for, and that each says so."""

import pytest
from paper_values import TABLE, differences

from maxmatch.recipe.yaml_files import SHIPPED, list_recipes, load_recipe

DESCRIPTIONS = dict(list_recipes())
NAMES = list(DESCRIPTIONS)


@pytest.mark.parametrize(
    ("family", "ours", "weight"), [("flickr8k", "flickr8k_maxmatch", 0.1), ("scenes", "scenes", 0.5)]
)
def test_on_small_data_the_contrastive_term_is_on_and_only_the_method_differs(family, ours, weight):
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


@pytest.mark.parametrize("similarity", ["paired", "sinkhorn"])
def test_what_the_matching_is_worth_is_measured_by_the_similarity_alone(similarity):
    recipe = load_recipe(f"flickr8k_{similarity}")
    changed = differences(recipe, load_recipe("flickr8k_maxmatch"))
    changed.pop("model.config.similarity", None)
    assert changed == {"model.similarity": similarity, "evaluate.similarities": None}
    assert recipe.similarities == (similarity,)


@pytest.mark.parametrize("name", ["flickr8k_vsepp", "flickr8k_vseinf"])
def test_the_rivals_on_flickr8k_see_what_maxmatch_sees_and_have_one_vector(name):
    recipe, ours = load_recipe(name), load_recipe("flickr8k_maxmatch")
    assert (recipe.data, recipe.evaluate.split) == (ours.data, ours.evaluate.split)
    mine, other = (one.model.resolved().towers["image"].encoder for one in (recipe, ours))
    assert (mine.backbone, mine.pixels) == (other.backbone, other.pixels)
    assert recipe.train.freeze == {"image.backbone": "always"}
    assert {tower.set_size for tower in recipe.model.resolved().towers.values()} == {1}
    weights = {key: value for key, value in recipe.objective.keywords(0).items() if key.endswith("_weight") and value}
    assert weights == {"triplet_weight": 1.0}


def test_pcmepp_differs_in_the_head_the_similarity_the_loss_and_the_batches_alone():
    changed = differences(load_recipe("flickr8k_pcmepp"), load_recipe("flickr8k_maxmatch"))
    losses = {key.removeprefix("objective."): value for key, value in changed.items() if key.startswith("objective.")}
    assert losses.pop("mean_negatives_epochs") == 0
    assert losses.pop("plain_bce_epochs") == 10
    assert {key: value for key, value in losses.items() if value} == {"bce_weight": 1.0, "kl_weight": 1e-4}
    assert {key: value for key, value in changed.items() if not key.startswith("objective.")} == {
        "model.options.head": "gaussian",
        "model.options.reads": "local",
        "model.options.set_size": 2,
        "model.options.log_variance": -8,
        "model.options.word_scale": None,
        "model.similarity": "csd",
        "train.epochs": 100,
        "train.batch_size": 128,
        "train.batch_captions": 1,
        "train.lr_factors": {},
        "train.lr_factors.set_module": None,
        "train.clip": 2.0,
        "train.validate_every": 10,
        "evaluate.similarities": None,
    }
    recipe = load_recipe("flickr8k_pcmepp")
    assert (recipe.objective.pseudo_positives, recipe.objective.label_smoothing) == (0.1, 1e-4)
    assert {tower.head.pooling for tower in recipe.model.resolved().towers.values()} == {"gpo"}


def test_every_comparison_of_the_paper_ships_and_nothing_else_does():
    paper = {
        f"{data_set}_{model}{suffix}" for data_set in ("coco", "f30k") for model in TABLE for suffix in ("", "_setdiv")
    }
    peers = {"coco_pvse", "f30k_pvse", "f30k_pvse_maxmatch", "coco_vsepp", "f30k_vsepp"}
    peers |= {f"{data_set}_vseinf_region_{text}" for data_set in ("coco", "f30k") for text in ("bigru", "bert")}
    small = {
        "flickr8k_maxmatch",
        "flickr8k_setdiv",
        "flickr8k_mil",
        "flickr8k_paired",
        "flickr8k_sinkhorn",
        "flickr8k_pcmepp",
        "flickr8k_pvse",
        "flickr8k_finetuned",
        "flickr8k_minilm",
        "flickr8k_small",
        "flickr8k_held_out",
        "flickr8k_vsepp",
        "flickr8k_vseinf",
        "maxmatch_large",
        "maxmatch_small",
        "maxmatch_small_phrases",
        "scenes",
        "scenes_setdiv",
        "scenes_mil",
    }
    small |= {"clip_sets", "siglip_sets", "foundation", "foundation_sets"}
    assert set(NAMES) == paper | peers | small | {f"ablation/{row:02}" for row in range(1, 12)}
    assert sorted(NAMES) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_every_recipe_describes_itself_and_the_source_of_its_values(name):
    first, *rest = (SHIPPED / f"{name}.yaml").read_text(encoding="utf-8").splitlines()
    assert first.startswith("# ")
    assert all(len(line) <= 120 for line in (first, *rest))
    assert DESCRIPTIONS[name] == load_recipe(name).description
    assert len(load_recipe(name).description) > 20
    if not name.startswith(("scenes", "flickr8k", "maxmatch_", "clip_", "siglip_", "foundation")):
        assert any(
            label in first for label in ("table:mscoco", "table:flickr30k", "tab:resnext", "tab:PVSE", "table_abl")
        )
