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


def test_public_names_are_those_of_all_and_of_their_modules() -> None:
    relied_on = {
        "Recipe",
        "SetEncoder",
        "SetIndex",
        "losses",
        "maximal_assignment",
        "score_matrix",
        "similarity",
        "top_hits",
    }
    assert relied_on <= set(maxmatch.__all__)
    for part in (maxmatch, importlib.import_module("maxmatch.losses")):
        assert part.__all__ == sorted(set(part.__all__))
        assert all(getattr(part, name) is getattr(part, name) for name in part.__all__)
    assert set(maxmatch.__all__) <= set(dir(maxmatch))
    assert all(hasattr(maxmatch, name) for name in dir(maxmatch))
    assert maxmatch.losses is importlib.import_module("maxmatch.losses")
    assert maxmatch.similarity is importlib.import_module("maxmatch.matching.similarity")
    assert maxmatch.maximal_assignment is importlib.import_module("maxmatch.matching.assignment").maximal_assignment


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


def test_package_is_typed() -> None:
    assert Path(maxmatch.__file__).with_name("py.typed").is_file()


def test_version_is_that_of_the_project() -> None:
    assert isinstance(maxmatch.__version__, str)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert maxmatch.__version__ == project["version"]
