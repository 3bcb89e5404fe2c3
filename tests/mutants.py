"""Do the tests notice when the losses or the matching are changed by one thing? `make mutants`.

Each mutant is a copy of the sources with one operator, constant or call changed, tested by the tests of its file in a
process of its own; a seed draws them. (mutmut finds no test for any mutant here: shapes are checked by an import hook.)
"""

import ast
import copy
import os
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
TESTS = {
    **{
        f"losses/{name}.py": f"losses/test_{name}.py"
        for name in ("contrastive", "diversity", "mmd", "objective", "triplet")
    },
    "matching/assignment.py": "matching/test_assignment.py",
    "matching/similarity.py": "matching/test_similarity*.py",
    "matching/scoring.py": "matching/test_scoring*.py",
    "matching/tiles.py": "matching/test_scoring*.py",
}
OPERATORS = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.LShift: ast.RShift, ast.RShift: ast.LShift,
    ast.USub: ast.UAdd, ast.Invert: ast.UAdd,
}  # fmt: skip
CALLS = {
    "amax": "amin", "amin": "amax", "max": "min", "min": "max", "sum": "mean", "mean": "sum", "exp": "expm1",
    "clamp_min": "clamp_max", "relu": "neg",
}  # fmt: skip


def changed(node: ast.AST) -> bool:
    """Change a node, if there is a way to."""
    operator = node.ops[0] if isinstance(node, ast.Compare) else getattr(node, "op", None)
    if type(operator) in OPERATORS:
        other = OPERATORS[type(operator)]()
        if isinstance(node, ast.Compare):
            node.ops[0] = other
        else:
            node.op = other
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        node.value = not node.value
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        node.value += 1
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CALLS:
        node.func.attr = CALLS[node.func.attr]
    else:
        return False
    return True


def places(tree: ast.Module) -> Iterator[int]:
    """The nodes that can be changed. Annotations and the texts of errors are left alone."""
    kept = set()
    for node in ast.walk(tree):
        notes = [getattr(node, "returns", None), getattr(node, "annotation", None)]
        inert = [node] if isinstance(node, ast.Raise) else notes
        kept |= {id(inner) for one in inert if one is not None for inner in ast.walk(one)}
    for place, node in enumerate(ast.walk(tree)):
        if id(node) not in kept and changed(copy.deepcopy(node)):
            yield place


def mutant(tree: ast.Module, place: int) -> tuple[str, str]:
    """What is changed, and the text then."""
    other = copy.deepcopy(tree)
    node = list(ast.walk(other))[place]
    before = ast.unparse(node)
    changed(node)
    return f"line {node.lineno}: {before} -> {ast.unparse(node)}", ast.unparse(other)


def survives(file: str, text: str) -> bool:
    """Whether the tests of a file pass though its text is another."""
    import pytest

    child = os.fork()
    if child == 0:
        with tempfile.TemporaryDirectory() as folder:
            shutil.copytree(ROOT / "src" / "maxmatch", f"{folder}/maxmatch")
            Path(folder, "maxmatch", file).write_text(text, encoding="utf-8")
            sys.path.insert(0, folder)
            silent = os.open(os.devnull, os.O_WRONLY)
            os.dup2(silent, 1)
            os.dup2(silent, 2)
            tests = map(str, sorted((ROOT / "tests").glob(TESTS[file])))
            code = pytest.main(["-x", "-q", "-p", "no:cacheprovider", *tests])
        os._exit(int(code))
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, 1, 2), f"pytest ended with {code}"  # 2: a file that cannot even be imported
    return code == 0


def main(count: int) -> None:
    import torch  # noqa: F401  # before the processes divide: the slow part of each

    trees = {file: ast.parse((ROOT / "src" / "maxmatch" / file).read_text(encoding="utf-8")) for file in TESTS}
    every = [(file, place) for file, tree in trees.items() for place in places(tree)]
    chosen = random.Random(0).sample(every, min(count, len(every)))
    found: Counter[bool] = Counter()
    for file, place in chosen:
        what, text = mutant(trees[file], place)
        lives = survives(file, text)
        found[lives] += 1
        print(f"{'SURVIVED' if lives else 'killed':<9}{file} {what}", flush=True)
    print(f"{found[False]} of {len(chosen)} killed ({found[False] / len(chosen):.0%}); {len(every)} mutants in all")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 150)
