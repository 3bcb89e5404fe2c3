"""Import paths that the docs named before 0.1 still work, and say where the module is now."""

import importlib
import sys

import pytest

from maxmatch.core.moved import MOVED


@pytest.mark.parametrize(("old", "new"), MOVED.items())
def test_an_old_path_gives_the_names_of_the_new_one_with_a_warning(old, new):
    sys.modules.pop(f"maxmatch.{old}", None)
    parent = f"maxmatch.{old}".rpartition(".")[0]
    if parent.removeprefix("maxmatch.") in MOVED:
        sys.modules.pop(parent, None)
        with pytest.warns(DeprecationWarning, match="is now"):
            importlib.import_module(parent)
    with pytest.warns(DeprecationWarning, match=f"maxmatch.{new}"):
        module = importlib.import_module(f"maxmatch.{old}")
    there = importlib.import_module(f"maxmatch.{new}")
    public = [name for name in vars(there) if not name.startswith("_")]
    assert public
    assert all(getattr(module, name) is getattr(there, name) for name in public)


def test_a_module_that_never_was_is_not_found():
    with pytest.raises(ModuleNotFoundError, match="never_was"):
        importlib.import_module("maxmatch.never_was")


@pytest.mark.parametrize(("module", "name"), [("model", "SetEncoder"), ("recipe", "Recipe")])
def test_modules_that_became_packages_keep_their_names(module, name):
    package = importlib.import_module(f"maxmatch.{module}")
    assert getattr(package, name) is getattr(importlib.import_module("maxmatch"), name)
    with pytest.raises(AttributeError):
        package.no_such_name  # noqa: B018


def test_the_old_path_of_a_name_gives_it_with_a_warning():
    from maxmatch.core import types
    from maxmatch.losses.objective import LossTerms

    with pytest.warns(DeprecationWarning, match=r"maxmatch\.losses\.objective"):
        assert types.LossTerms is LossTerms
    with pytest.raises(AttributeError, match="no_such_name"):
        types.no_such_name  # noqa: B018
