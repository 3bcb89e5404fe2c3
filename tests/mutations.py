"""Sources changed by one thing: one operator, constant or call. `mutants.py` tries them on the tests."""

import ast
import copy
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

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


@dataclass(frozen=True)
class Mutant:
    """A file of the package with one thing changed."""

    file: str
    what: str
    text: str
    lines: range | None
    """The statement it is in; None where it is run on import, for all tests."""

    @property
    def name(self) -> str:
        """The same for the same text of the same file, whenever it is drawn."""
        return hashlib.sha256((self.file + self.text).encode()).hexdigest()


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


def mutant_at(file: str, tree: ast.Module, place: int) -> Mutant:
    """The file with the node at a place changed."""
    other = copy.deepcopy(tree)
    node = list(ast.walk(other))[place]
    before = ast.unparse(node)
    lines = statement(other, node)
    changed(node)
    return Mutant(file, f"line {node.lineno}: {before} -> {ast.unparse(node)}", ast.unparse(other), lines)


def statement(tree: ast.Module, wanted: ast.expr) -> range | None:
    """The lines of the innermost statement around a node, if it is in a function."""
    statements = [node for node in ast.walk(tree) if isinstance(node, ast.stmt)]  # from the outside in
    near = [node for node in statements if node.lineno <= wanted.lineno <= node.end_lineno]
    around = [node for node in near if any(inner is wanted for inner in ast.walk(node))]
    inside = any(isinstance(node, ast.FunctionDef) for node in around)
    return range(around[-1].lineno, around[-1].end_lineno + 1) if inside else None
