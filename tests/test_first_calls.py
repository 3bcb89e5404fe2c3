"""Nothing is computed by several threads before one has called torch's functions: see `maxmatch.core.devices`."""

import ast
from pathlib import Path

import pytest
from made_data import run

import maxmatch
from maxmatch.core.devices import FUNCTIONS

SOURCE = Path(maxmatch.__file__).parent
# Of torch's functions those for which it calls MKL (ATen's vml.h), by hand.
BY_MKL = {"acos", "asin", "atan", "cos", "cosh", "erf", "erfc", "erfinv", "exp", "expm1", "lgamma", "log", "log10"}
BY_MKL |= {"log1p", "log2", "sin", "sinh", "sqrt", "tan", "tanh"}


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
def test_every_part_that_computes_has_made_them(module):
    done = run(f"import sys, {module}; print('maxmatch.core.devices' in sys.modules)")
    assert done.stdout.strip() == "True", done.stderr


def test_they_are_made_of_every_function_that_is_used():
    called = set()
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                called.add(node.func.attr.rstrip("_"))
    used = called & BY_MKL
    assert {"exp", "log", "sqrt"} <= used
    assert used <= set(FUNCTIONS)
