"""The paper map names what is there, and leaves nothing of the paper out."""

import ast
import re
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "paper-map.md").read_text(encoding="utf-8")
ROWS = [
    line for line in TEXT.splitlines() if line.startswith("|") and not line.startswith(("|---", "| paper", "| table |"))
]
NAMED = sorted(set(re.findall(r"`([^`]+)`", "\n".join(ROWS))))
TESTS = [name for name in NAMED if name.startswith("tests/")]
FILES = [name for name in NAMED if name.startswith("maxmatch/")]
FUNCTIONS = [name for name in NAMED if re.fullmatch(r"[a-z_]+(\.\w+)+", name)]
LABELS = [
    *("eqn:sdsdds", "eqn:permutation", "max-similarity", "eqn:hungarian-similarity", "eqn:combined-loss"),
    *("eqn:triplet-loss", "eqn:global-discriminative-loss", "eqn:intra-set-divergence-loss", "smooth-chamfer-collapse"),
    *("lst:mask_similarity", "lst:create_permutations", "lst:assignment_similarity", "lst:GD"),
    *("table:flickr30k", "table:mscoco", "table_abl", "tab:5", "tab:resnext", "tab:PVSE"),
    *("fig:figure_1", "fig:main_figure", "fig:tsne", "fig:heatmap"),
    *("fig:qualitative", "fig:qualitativei2t", "fig:negative_samples"),
]


@cache
def names_in(path):
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return {one.name for one in tree.body if isinstance(one, ast.FunctionDef)}


@pytest.mark.parametrize("label", LABELS)
def test_everything_that_has_a_label_in_the_paper_has_a_row(label):
    assert [row for row in ROWS if label in re.split(r"[,(|]\s*|\s", row)], f"{label}: no row"


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function_that_is_named_is_there(name):
    module, _, attribute = f"maxmatch.{name}".rpartition(".")
    assert callable(getattr(import_module(module), attribute))


@pytest.mark.parametrize("name", TESTS)
def test_every_test_that_is_named_is_there(name):
    path, _, test = name.partition("::")
    assert test in names_in(path)


@pytest.mark.parametrize("name", FILES)
def test_every_recipe_that_is_named_ships(name):
    assert (ROOT / "src" / name).is_file()


def test_every_row_names_something_or_says_why_not():
    assert len(FUNCTIONS) > 25
    for row in ROWS:
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        if len(cells) == 4 and "`" in row:
            assert all(cells), row
            assert "`tests/" in cells[2], row
