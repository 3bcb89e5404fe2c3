"""Tables, written and read in the tests."""

from pathlib import Path

from maxmatch.data.dataset import IMAGE, TEXT, Split
from maxmatch.data.formats import tables


def written(folder: Path, name: str, data: str | bytes) -> Path:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


def read(path: Path, **options: object) -> tuple[dict[str, Split], list[str]]:
    """What is read in spite of problems, and the problems, less the folder's name."""
    problems = []
    folder = path if path.is_dir() else path.parent
    splits = tables.read(path, problems.append, **options)
    return splits, [str(problem).replace(f"{folder}/", "") for problem in problems]


def pairs(split: Split) -> list[tuple[str, str]]:
    """Each caption with the name of its image."""
    names = [path.name for path in split[IMAGE].values]
    return [(names[group], text) for group, text in zip(split[TEXT].groups, split[TEXT].values, strict=True)]


def plain_pairs(path: Path) -> list[tuple[str, str]]:
    return pairs(tables.read(path)["train"])
