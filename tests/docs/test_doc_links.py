"""Links, images and names in README.md and docs/ exist, and the site has every page."""

import re
from pathlib import Path
from pkgutil import resolve_name

import pytest
import typer.main
import yaml
from doc_pages import DOCS, PAGES, ROOT, text_of, without_blocks

from maxmatch.cli.main import app

_LINK = re.compile(r"\]\(([^)\s]+)\)|(?:src|href)=\"([^\"]+)\"")


def anchors(path: Path) -> set[str]:
    """The headings of a page as used in links."""
    headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    plain = [re.sub(r"[^\w\s-]", "", heading).strip().lower() for heading in headings]
    return {re.sub(r"[-\s]+", "-", heading) for heading in plain}


@pytest.mark.parametrize("page", PAGES)
def test_relative_links_and_images_exist(page: str) -> None:
    for found in _LINK.finditer(without_blocks(page)):
        target = found[1] or found[2]
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        path = (PAGES[page].parent / file).resolve() if file else PAGES[page]
        assert path.is_file(), f"{page}: {target}"
        assert page == "README.md" or path.is_relative_to(DOCS), f"{page}: {target} is not part of the site"
        assert not anchor or anchor in anchors(path), f"{page}: {target} has no such heading"


@pytest.mark.parametrize("page", PAGES)
def test_names_of_the_package_and_verbs_exist(page: str) -> None:
    for name in re.findall(r"`(maxmatch(?:\.\w+)+)\b[^`/]*`", without_blocks(page)):
        resolve_name(name)
    verbs = typer.main.get_command(app).commands
    for verb in re.findall(r"`maxmatch (\w+)", without_blocks(page)):
        assert verb in verbs, f"{page}: maxmatch {verb}"
    for target in re.findall(r"^:{3} ([\w.]+)$", text_of(page), re.MULTILINE):
        resolve_name(target)


@pytest.mark.parametrize("page", [page for page in PAGES if page.startswith("api/")])
def test_members_listed_in_the_reference_exist(page: str) -> None:
    for module, members in re.findall(
        r"^:{3} ([\w.]+)\n    options:\s*\{?\s*members: \[([^\]]*)\]", text_of(page), re.MULTILINE
    ):
        for member in members.split(", "):
            resolve_name(f"{module}:{member}")


@pytest.mark.parametrize("page", PAGES)
def test_tests_that_a_page_names_exist(page: str) -> None:
    for file, name in re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", without_blocks(page)):
        defined = re.findall(r"^def (test_\w+)", (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE)
        assert not name or name in defined, f"{page}: {file}::{name}"


def test_nav_has_exactly_the_pages() -> None:
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    assert sorted(entries(nav)) == sorted(set(PAGES) - {"README.md"}), "nav in mkdocs.yml"


def entries(nav: object) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    return [page for part in (nav.values() if isinstance(nav, dict) else nav) for page in entries(part)]
