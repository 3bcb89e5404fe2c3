"""Recipes as YAML: extending, overriding, coming back as they were, and errors with file and line."""

import pytest
import yaml

from maxmatch.recipe.schema import Recipe
from maxmatch.recipe.yaml_files import RecipeError, dump_recipe, load_recipe

BASE = """\
description: the base
model:
  preset: region_bigru
  options: {word_width: 10, heads: 2}
objective:
  margin: 0.3
train:
  epochs: 4
  batch_size: 8
  lr: 1e-3
  lr_factors: {set_module: 0.1}
  schedule: {name: step, every: 20, factor: 0.5}
evaluate:
  similarities: [maxmatch, top_k]
"""


@pytest.fixture
def write(tmp_path):
    def write(text, name="mine.yaml"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    write(BASE, "base.yaml")
    return write


def refusal(path, *overrides):
    with pytest.raises(RecipeError) as refused:
        load_recipe(path, overrides)
    return str(refused.value)


def test_a_file_is_loaded_by_its_path_and_named_after_it(write):
    recipe = Recipe.load(write(BASE, "mine.yml"))
    assert (recipe.name, recipe.description, recipe.train.lr) == ("mine", "the base", 0.001)
    assert load_recipe(str(write("name: other\n" + BASE))).name == "other"


def test_mappings_are_merged_and_lists_and_values_replaced(write):
    recipe = load_recipe(
        write(
            "extends: base.yaml\ntrain: {lr: 0.5}\nmodel: {options: {heads: 3}}\nevaluate: {similarities: [mil]}\n",
        )
    )
    assert (recipe.train.lr, recipe.train.epochs, recipe.objective.margin) == (0.5, 4, 0.3)
    assert recipe.model.options == {"word_width": 10, "heads": 3}
    assert recipe.evaluate.similarities == ("mil",)


def test_name_and_description_are_not_inherited(write):
    write("name: n\n" + BASE, "named.yaml")
    recipe = load_recipe(write("extends: named.yaml\n"))
    assert (recipe.name, recipe.description) == ("mine", "")


def test_extends_may_be_chained_and_is_relative_to_each_file(write):
    write("extends: ../base.yaml\ntrain: {epochs: 7}\n", "inner/middle.yaml")
    recipe = load_recipe(write("extends: inner/middle.yaml\ntrain: {lr: 0.5}\n"))
    assert (recipe.train.lr, recipe.train.epochs, recipe.train.batch_size) == (0.5, 7, 8)


def test_a_shipped_recipe_can_be_extended_by_name(write):
    recipe = load_recipe(write("extends: f30k_region_bigru\nseed: 3\n"))
    assert recipe == load_recipe("f30k_region_bigru", ["seed=3", "name=mine", "description=''"])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{name: cosine}", {"name": "cosine"}),
        ("cosine", {"name": "cosine"}),
        ("{every: 3}", {"name": "step", "every": 3, "factor": 0.5, "times": None}),
        ("{name: step, every: 3}", {"name": "step", "every": 3, "factor": 0.5, "times": None}),
    ],
)
def test_the_options_of_a_part_go_when_another_is_chosen(write, text, expected):
    recipe = load_recipe(write(f"extends: base.yaml\ntrain: {{schedule: {text}}}\n"))
    assert recipe.train.schedule.model_dump() == expected


def test_null_resets_what_an_extended_recipe_set(write):
    recipe = load_recipe(
        write(
            "extends: base.yaml\nevaluate: {similarities: null}\nobjective: null\n"
            "model: {options: {heads: ~}}\ntrain: {lr_factors: {set_module: null}, clip: null}\n"
        )
    )
    assert (recipe.evaluate.similarities, recipe.objective.margin, recipe.train.clip) == (None, 0.2, None)
    assert (recipe.model.options, recipe.train.lr_factors) == ({"word_width": 10}, {})


def test_a_cycle_is_refused_and_shown(write):
    write("extends: b.yaml\n", "a.yaml")
    write("extends: a.yaml\n", "b.yaml")
    message = refusal(write("\nextends: a.yaml\n"))
    assert message.endswith("b.yaml:1: extends: a cycle: a.yaml -> b.yaml -> a.yaml.")
    itself = refusal(write("extends: mine.yaml\n"))
    assert "mine.yaml:1: extends: a cycle: mine.yaml -> mine.yaml." in itself


@pytest.mark.parametrize(
    ("extends", "message"),
    [
        ("nowhere.yaml", "mine.yaml:2: extends: {folder}/nowhere.yaml: no such file."),
        (
            "f30k_region_bigro",
            "mine.yaml:2: extends: f30k_region_bigro: no recipe of this name. Did you mean 'f30k_region_",
        ),
        ("[a, b]", "mine.yaml:2: extends: expected a file or a name, got ['a', 'b']"),
        ("../../../etc/passwd", "no recipe of this name"),
    ],
)
def test_what_cannot_be_extended_is_refused(write, tmp_path, extends, message):
    assert message.format(folder=tmp_path) in refusal(write(f"# mine\nextends: {extends}\n"))


def test_an_unknown_name_is_refused_with_the_closest_one():
    assert "Did you mean 'coco_region_bigru'?" in refusal("coco_region_bigr")
    assert "`maxmatch train --list`" in refusal("xyz")
    assert refusal("nowhere.yaml").endswith("nowhere.yaml: no such file.")


@pytest.mark.parametrize(
    ("override", "value"),
    [
        ("train.lr=2e-4", lambda recipe: recipe.train.lr == 2e-4),
        ("train.clip=null", lambda recipe: recipe.train.clip is None),
        ("train.crop_scale=[0.5, 1]", lambda recipe: recipe.train.crop_scale == (0.5, 1.0)),
        ("train.schedule={name: step, every: 3}", lambda recipe: recipe.train.schedule.every == 3),
        ("train.schedule.name=constant", lambda recipe: recipe.train.schedule.name == "constant"),
        (
            "train.lr_factors.image.set_module=0.3",
            lambda r: r.train.lr_factors == {"set_module": 0.1, "image.set_module": 0.3},
        ),
        ("model.options.width=16", lambda recipe: recipe.model.resolved().width == 16),
        ("data.path=/a b/c=d.json", lambda recipe: recipe.data.path == "/a b/c=d.json"),
        ("data.path=no", lambda recipe: recipe.data.path == "no"),
    ],
)
def test_an_override_sets_one_value_written_as_in_yaml(write, override, value):
    path = write(BASE)
    assert not value(load_recipe(path))
    assert value(load_recipe(path, [override]))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("train.lr", "train.lr: expected key=value, such as train.lr=2e-4."),
        ("train..lr=3", "train..lr=3: expected key=value"),
        ("train.lrr=3", "train.lrr=3: train.lrr: unknown key 'lrr'. Did you mean 'lr'?"),
        ("train.lr=fast", "train.lr=fast: train.lr: Input should be a valid number"),
        ("train.lr.x=3", "train.lr.x=3: train.lr: Input should be a valid number"),
        ("train=[1]", "train=[1]: train: expected keys with values, such as 'epochs', got [1]"),
        ("train.lr=[1", "not readable as YAML"),
        ("extends=scenes", "only a file can extend another"),
        ("objective.pairs=[[image, audio]]", "objective.pairs=[[image, audio]]: objective.pairs: expected two of"),
    ],
)
def test_a_wrong_override_is_refused_by_its_own_text(write, override, message):
    assert message in refusal(write(BASE), override)


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ("  margin: 0.3", "  margn: 0.3", 6, "objective.margn: unknown key 'margn'. Did you mean 'margin'?"),
        ("  lr: 1e-3", "  lr: fast", 10, "train.lr: Input should be a valid number"),
        (
            "set_module: 0.1",
            "image.backbone: 0.1",
            11,
            "train.lr_factors.image.backbone: the tower 'image' has no backbone",
        ),
        ("every: 20", "evry: 20", 12, "train.schedule.step.evry: unknown key 'evry'. Did you mean 'every'?"),
        ("every: 20,", "", 12, "train.schedule.step.every: Field required"),
        ("top_k]", "topk]", 14, "evaluate.similarities.1: Input should be 'maxmatch'"),
        ("heads: 2", "heads: two", 4, "model.options.heads: Input should be a valid integer"),
        ("  epochs: 4\n", "", 7, "train.epochs: Field required"),
        (
            "objective:\n  margin: 0.3",
            "objective:\n- margin",
            5,
            "objective: expected keys with values, such as 'pairs'",
        ),
    ],
)
def test_an_error_names_the_file_the_line_and_the_key(write, old, new, line, message):
    assert old in BASE
    text = refusal(write(BASE.replace(old, new)))
    assert f"mine.yaml:{line}: {message}" in text


def test_an_error_names_the_file_that_has_it_not_the_one_that_was_asked_for(write, tmp_path):
    write(BASE.replace("margin", "margn"), "wrong.yaml")
    assert refusal(write("extends: wrong.yaml\n\ntrain: {lr: 1}\n")).startswith(
        f"{tmp_path}/wrong.yaml:6: objective.margn"
    )
    assert refusal(write("extends: base.yaml\n\ntrain:\n  lr: -1\n")).startswith(f"{tmp_path}/mine.yaml:4: train.lr: ")


def test_all_problems_are_reported_at_once(write):
    text = refusal(write(BASE.replace("margin", "margn").replace("1e-3", "fast")), "seed=x")
    assert [line.split(": ")[1] for line in text.splitlines()] == ["seed", "objective.margn", "train.lr"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "train:\n  lr: 1\n  epochs: 2\n  lr: 3\n",
            "mine.yaml:4: duplicate key 'lr', first given at {path}:2.",
        ),
        ("- 1\n- 2\n", "mine.yaml: expected keys with values, such as `train:`, got [1, 2]."),
        ("a: [1\n", "mine.yaml:2: not readable as YAML"),
        ("a: 1\n\tb: 2\n", "mine.yaml:2: not readable as YAML"),
        ("a: 1\n---\nb: 2\n", "mine.yaml:2: not readable as YAML: expected a single document"),
        ("a: &x {b: 1}\nc: *x\n", "mine.yaml:2: not readable as YAML: references (*name) are not read"),
        ("a: !!python/object/apply:os.system [ls]\n", "mine.yaml:1: expected plain data, got the tag"),
        ("1: 2\n", "mine.yaml:1: expected the name of an option, got '1'."),
        ("seed: " + "9" * 5000 + "\n", "mine.yaml:1: expected a number, got '9999"),
        ("seed: !!int x\n", "mine.yaml:1: expected a number, got 'x'."),
        ("a: " + "[" * 3000 + "\n", "nested too deeply"),
        ("a: \x01\n", "mine.yaml: not readable as YAML"),
    ],
)
def test_a_file_that_is_no_plain_yaml_is_refused_with_the_line(write, text, message):
    path = write(text)
    assert message.format(path=path) in refusal(path)


def test_a_file_that_is_not_utf8_or_empty_is_refused(write, tmp_path):
    (tmp_path / "latin.yaml").write_bytes("description: café".encode("latin-1"))
    assert "latin.yaml: not UTF-8" in refusal(tmp_path / "latin.yaml")
    assert "mine.yaml: model: Field required" in refusal(write(""))


@pytest.mark.parametrize("name", ["scenes", "coco_resnet152_bigru", "f30k_pvse_maxmatch", "flickr8k_held_out"])
def test_a_recipe_written_out_loads_back_equal(name, tmp_path):
    recipe = load_recipe(name, ["data.path='1e5'", "train.lr=3", "train.lr=1.0e-5"])  # the last override wins
    path = tmp_path / "recipe.yaml"
    path.write_text(dump_recipe(recipe), encoding="utf-8")
    assert load_recipe(path) == recipe
    assert yaml.safe_load(path.read_text(encoding="utf-8")) == recipe.model_dump(mode="json"), "others read it too"
