"""`import maxmatch` is light, and its public names are those of __all__."""

import importlib
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import maxmatch

ROOT = Path(__file__).parents[1]


def python(code: str) -> str:
    """What a fresh interpreter prints that runs this code."""
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


HEAVY = {"torch", "numpy", "scipy", "numba", "jaxtyping", "triton", "pydantic", "transformers", "PIL"}


def test_import_loads_nothing_heavy() -> None:
    loaded = set(python("import sys, maxmatch; maxmatch.__version__; dir(maxmatch); print(*sys.modules)").split())
    assert not loaded & {*HEAVY, "importlib.abc"}


def test_the_command_line_shows_its_help_without_what_its_verbs_load() -> None:
    loaded = set(python("import sys, maxmatch.cli.main; print(*sys.modules)").split())
    assert not loaded & HEAVY


@pytest.mark.parametrize("name", maxmatch.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(maxmatch, name) is getattr(maxmatch, name)
    assert name in dir(maxmatch)


def test_public_names_are_unique_and_sorted() -> None:
    assert maxmatch.__all__ == sorted(set(maxmatch.__all__))


def test_star_import_brings_the_public_names() -> None:
    namespace: dict[str, object] = {}
    exec("from maxmatch import *", namespace)
    assert set(maxmatch.__all__) <= namespace.keys()


@pytest.mark.parametrize("name", ["losses", "maximal_assignment", "score_matrix", "similarity", "top_hits"])
def test_names_that_others_rely_on_are_public(name: str) -> None:
    assert name in maxmatch.__all__


def test_lazy_name_is_the_one_of_its_module() -> None:
    losses = importlib.import_module("maxmatch.losses")
    assert maxmatch.losses is losses
    assert maxmatch.similarity is importlib.import_module("maxmatch.matching.similarity")
    assert maxmatch.maximal_assignment is importlib.import_module("maxmatch.matching.assignment").maximal_assignment


@pytest.mark.parametrize("module", ["losses"])
def test_public_names_of_a_part_are_there(module: str) -> None:
    part = importlib.import_module(f"maxmatch.{module}")
    assert part.__all__ == sorted(set(part.__all__))
    assert all(callable(getattr(part, name)) for name in part.__all__)


def test_the_names_of_matching_are_the_packages_and_load_torch_only_when_used() -> None:
    matching = importlib.import_module("maxmatch.matching")
    shared = {*matching.__all__, "similarity"} & {*maxmatch.__all__}
    assert shared == {"maximal_assignment", "score_matrix", "similarity", "top_hits", "top_hits_both"}
    assert all(getattr(matching, name) is getattr(maxmatch, name) for name in shared)
    assert not hasattr(matching, "nothing")
    assert python("import sys, maxmatch.matching.numpy_backend; print('torch' in sys.modules)").strip() == "False"


def test_unknown_attribute_is_refused_with_the_choices() -> None:
    with pytest.raises(AttributeError, match="'max_match'") as refusal:
        maxmatch.max_match  # noqa: B018
    assert all(name in str(refusal.value) for name in maxmatch.__all__)
    assert not hasattr(maxmatch, "max_match")
    with pytest.raises(ImportError, match="max_match"):
        exec("from maxmatch import max_match")


def test_dir_lists_no_more_than_is_there() -> None:
    assert all(hasattr(maxmatch, name) for name in dir(maxmatch))


def test_package_is_typed() -> None:
    assert Path(maxmatch.__file__).with_name("py.typed").is_file()


def test_version_is_that_of_the_project() -> None:
    assert isinstance(maxmatch.__version__, str)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert maxmatch.__version__ == project["version"]
