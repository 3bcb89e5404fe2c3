"""What is built is whole: nothing that the package reads at run time is left behind."""

import tarfile
import zipfile
from email.parser import HeaderParser
from pathlib import Path

import pytest
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "maxmatch"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    [path] = WheelBuilder(str(ROOT)).build(directory=str(tmp_path_factory.mktemp("wheel")), versions=["standard"])
    with zipfile.ZipFile(path) as archive:
        yield archive


def about(wheel, name):
    [path] = [path for path in wheel.namelist() if path.endswith(f".dist-info/{name}")]
    return wheel.read(path).decode()


def test_a_wheel_holds_every_file_of_the_package_and_nothing_else(wheel):
    here = {
        path.relative_to(PACKAGE.parent).as_posix()
        for path in PACKAGE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    there = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert there == here
    assert {"maxmatch/py.typed", "maxmatch/recipe/recipes/scenes.yaml", "maxmatch/server/static/index.html"} <= there
    assert any(name.endswith("model.safetensors") for name in there)


def test_a_wheel_fits_where_wheels_are_published(wheel):
    assert sum(entry.compress_size for entry in wheel.infolist()) < 100 * 10**6


def test_the_command_the_licence_and_the_readme_are_in_a_wheel(wheel):
    assert "maxmatch = maxmatch.cli.main:main" in about(wheel, "entry_points.txt")
    assert about(wheel, "licenses/LICENSE") == (ROOT / "LICENSE").read_text(encoding="utf-8")
    facts = HeaderParser().parsestr(about(wheel, "METADATA"))
    assert facts["Description-Content-Type"] == "text/markdown"
    assert facts.get_payload().strip() == (ROOT / "README.md").read_text(encoding="utf-8").strip()
    assert "all" in facts.get_all("Provides-Extra")


def test_an_sdist_holds_what_it_takes_to_build_check_and_test(tmp_path):
    [path] = SdistBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    with tarfile.open(path) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames()}
    assert {"pyproject.toml", "Makefile", "constraints.txt", "LICENSE", "README.md", "CONTRIBUTING.md"} <= names
    assert {"src/maxmatch/py.typed", "tests/conftest.py", "docs/paper-map.md", "benchmarks/matching.py"} <= names
    assert not [name for name in names if "__pycache__" in name or name.startswith(".venv")]
