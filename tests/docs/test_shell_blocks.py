"""Every command in README.md and docs/ exists: verbs, options, targets, extras, routes."""

import re
import tomllib

import pytest
import typer.main
from doc_pages import PAGES, ROOT, Command, blocks, commands
from served import client_of, make_gallery

from maxmatch.cli.main import app
from maxmatch.recipe.yaml_files import load_recipe

COMMANDS = [
    command
    for page in PAGES
    for block in blocks(page)
    if block.language in ("sh", "console") and not block.reason
    for command in commands(block)
]
REQUESTS = [command for command in COMMANDS if command.words[0] == "curl"]
OTHERS = [command for command in COMMANDS if command.words[0] != "curl"]


@pytest.mark.parametrize("command", OTHERS, ids=lambda one: f"{one.page}:{one.line}")
def test_command_exists(command: Command) -> None:
    program, *rest = command.words
    PROGRAMS[program](rest)


def _maxmatch(words: list[str]) -> None:
    """The verb exists, all options and arguments parse, and a shipped recipe accepts the changes."""
    verb = typer.main.get_command(app)
    while hasattr(verb, "commands"):
        name, *words = words
        verb = verb.commands[name]
    values = verb.make_context(verb.name, list(words)).params
    recipe = values.get("recipe")
    if recipe and "…" not in words and not recipe.endswith(".yaml"):  # … stands for arguments shown earlier
        load_recipe(recipe, values["changes"] or [])


def _make(words: list[str]) -> None:
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert words
    assert set(words) <= set(targets)


def _pip(words: list[str]) -> None:
    """Installs this folder or the package by name, with existing extras."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert words[0] == "install"
    for word in words[1:]:
        wanted = re.fullmatch(r"(?:\.|maxmatch)\[([\w,]+)\]", word)
        if wanted:
            assert set(wanted[1].split(",")) <= set(extras)
        else:
            assert word in (".", "maxmatch", "-c", "-e") or (ROOT / word).is_file(), word


def _python(words: list[str]) -> None:
    """A benchmark, or an example."""
    if words[0] == "-m":
        assert words[1].startswith("benchmarks.")
        assert (ROOT / f"{words[1].replace('.', '/')}.py").is_file()
    else:
        assert words[0].startswith("examples/")
        assert (ROOT / words[0]).is_file()


def _torchrun(words: list[str]) -> None:
    place = words.index("-m")
    assert words[place + 1] == "maxmatch"
    _maxmatch(words[place + 2 :])


def _uv(words: list[str]) -> None:
    """uv's pip, which knows one option more."""
    assert words[0] == "pip"
    cut = words.index("--torch-backend")
    _pip([*words[1:cut], *words[cut + 2 :]])


PROGRAMS = {"make": _make, "maxmatch": _maxmatch, "pip": _pip, "python": _python, "torchrun": _torchrun, "uv": _uv}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    gallery = make_gallery(tmp_path_factory.mktemp("gallery"), count=8)
    with client_of(gallery) as client:
        yield client, gallery


@pytest.mark.parametrize("command", REQUESTS, ids=lambda one: f"{one.page}:{one.line}")
def test_request_is_answered(command: Command, server) -> None:
    client, gallery = server
    if command.words[1] == "-F":
        name, _, file = command.words[2].partition("=@")
        assert file
        with gallery.picture(gallery.ids[0]).open("rb") as picture:
            answer = client.post(command.words[3], files={name: picture})
    else:
        answer = client.get(command.words[1])
    assert answer.status_code == 200, answer.text
    assert answer.json()["hits"]


@pytest.mark.parametrize(
    "words",
    [
        ["maxmatch", "serach", "a dog", "photos"],
        ["maxmatch", "train", "scenes", "train.lrate=1"],
        ["make", "demmo"],
        ["pip", "install", "maxmatch[serch]"],
        ["python", "-m", "benchmarks.nothing"],
        ["docker", "run", "x"],
    ],
    ids=" ".join,
)
def test_unknown_commands_are_detected(words: list[str]) -> None:
    with pytest.raises(Exception, match=r"."):
        test_command_exists(Command("a page", 1, words))
