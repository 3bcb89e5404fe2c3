"""Devices by name; and torch's functions, which one thread calls before several do."""

import ast
from pathlib import Path

import pytest
import torch
from made_data import run

import maxmatch
from maxmatch.core.devices import MKL_FUNCTIONS, chosen_device

SOURCE = Path(maxmatch.__file__).parent
# Of torch's functions those for which it calls MKL (ATen's vml.h), by hand.
BY_MKL = {"acos", "asin", "atan", "cos", "cosh", "erf", "erfc", "erfinv", "exp", "expm1", "lgamma", "log", "log10"}
BY_MKL |= {"log1p", "log2", "sin", "sinh", "sqrt", "tan", "tanh"}


@pytest.mark.parametrize(("name", "expected"), [("cpu", "cpu"), (torch.device("cpu"), "cpu"), ("meta", "meta")])
def test_a_device_that_is_there_is_taken(name, expected):
    assert chosen_device(name) == torch.device(expected)


@pytest.mark.parametrize(("found", "best"), [(True, "cuda"), (False, "cpu")])
def test_without_a_name_it_is_a_gpu_where_there_is_one(monkeypatch, found, best):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: found)
    assert chosen_device() == torch.device(best)


@pytest.mark.parametrize(
    ("name", "gpus", "message"),
    [
        ("quantum", 0, "expected cpu, cuda, cuda:1 … or mps, got 'quantum'"),
        ("cuda", 0, "device cuda: torch sees no GPU here"),
        ("cuda:2", 2, "device cuda:2: there are 2, cuda:0 to cuda:1"),
        ("mps", 0, "device mps: torch sees no Apple GPU"),
    ],
)
def test_one_that_is_not_there_is_refused_with_what_there_is(monkeypatch, name, gpus, message):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(ValueError, match=message):
        chosen_device(name)


def test_the_last_gpu_is_one_of_them(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert chosen_device("cuda:1").index == 1


@pytest.mark.parametrize(
    "module",
    [
        "maxmatch.matching.similarity",
        "maxmatch.matching.scoring",
        "maxmatch.losses",
        "maxmatch.model.layers",
        "maxmatch.model.encoders",
        "maxmatch.model.encoder",
        "maxmatch.evaluation.metrics",
        "maxmatch.training.loop",
        "maxmatch.server.app",
    ],
)
def test_every_part_that_computes_calls_torchs_functions_once_first(module):
    done = run(f"import sys, {module}; print('maxmatch.core.devices' in sys.modules)")
    assert done.stdout.strip() == "True", done.stderr


def test_the_functions_called_first_are_all_that_the_package_uses():
    called = set()
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                called.add(node.func.attr.rstrip("_"))
    used = called & BY_MKL
    assert {"exp", "log", "sqrt"} <= used
    assert used <= set(MKL_FUNCTIONS)
