"""The map in docs/architecture.md is the package as it is."""

import re

from doc_pages import ROOT, text_of

PACKAGE = ROOT / "src" / "maxmatch"
MAP = text_of("architecture.md")


def test_the_map_names_every_module_and_no_other() -> None:
    named = re.findall(r"^\| `([\w/]+\.py)` \|", MAP, re.MULTILINE)
    files = [path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py") if path.name != "__init__.py"]
    assert sorted(named) == sorted(files)


def test_every_file_named_for_a_change_is_there() -> None:
    """In the last but one column; a new file is marked +."""
    changes = [line.split("|") for line in MAP.splitlines() if re.match(r"\| an? .*\| \d+ \|$", line)]
    assert len(changes) == 14
    for *_, now, count, _ in changes:
        files = re.findall(r"(\+ )?`([\w/.]+)`", now)
        assert len(files) == int(count)
        assert [file for new, file in files if not new and not (PACKAGE / file).exists()] == []


def test_every_module_on_a_walk_is_there() -> None:
    for walk in re.findall(r"```text\n(.*?)```", MAP, re.DOTALL)[1:]:
        for name in re.findall(r"\b[a-z]+(?:/[a-z_]+)+\b", walk):
            found = [PACKAGE / f"{name}.py", *PACKAGE.glob(f"*/{name}.py")]
            assert any(path.exists() for path in found), name
