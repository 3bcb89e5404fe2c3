"""The site builds, has all pages and loads nothing from other hosts."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from doc_pages import DOCS, PAGES, ROOT


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The output of `make docs`, in another folder."""
    folder = tmp_path_factory.mktemp("site")
    shutil.copytree(DOCS, folder / "docs")
    for name in ("src", "examples"):
        (folder / name).symlink_to(ROOT / name)
    (folder / "mkdocs.yml").write_bytes((ROOT / "mkdocs.yml").read_bytes())
    command = [sys.executable, "-m", "zensical", "build", "--strict"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "site"


def test_every_page_is_built(site: Path) -> None:
    built = {str(path.relative_to(site)) for path in site.rglob("*.html")}
    assert {page.removesuffix(".md") + ".html" for page in PAGES if page != "README.md"} | {"404.html"} == built


def test_the_reference_has_the_public_names(site: Path) -> None:
    for page, name in [("model", "SetEncoder"), ("search", "SetIndex"), ("matching", "maxmatch"), ("recipe", "Recipe")]:
        assert re.search(rf'id="maxmatch\.[\w.]*\.{name}"', (site / "api" / f"{page}.html").read_text()), name


def test_nothing_is_loaded_from_another_host(site: Path) -> None:
    elsewhere = re.compile(
        r"<(?:script|link|img|iframe|source)\b[^>]*(?:src|href)=\"?(?:https?:)?//|@import|url\(['\"]?(?:https?:)?//"
    )
    for path in [*site.rglob("*.html"), *site.rglob("*.css")]:
        found = elsewhere.search(path.read_text(encoding="utf-8"))
        assert found is None, f"{path}: {found and found.group()}"
