"""What the help texts promise."""

import re
import shlex

import pytest
import typer
from made_data import run
from typer.testing import CliRunner

from maxmatch.cli.main import app


def commands(command, path=()):
    """Every command with its path, groups of them too."""
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, (*path, name))


TREE = dict(commands(typer.main.get_command(app)))
VERBS = {path: command for path, command in TREE.items() if not hasattr(command, "commands")}


def shown(path):
    """The help as a terminal of 80 columns has it."""
    runner = CliRunner(env={"COLUMNS": "80", "TERMINAL_WIDTH": "80"})
    result = runner.invoke(app, [*path, "--help"])
    assert result.exit_code == 0
    return result.output


def examples(text):
    """The commands among the paragraphs of a help text."""
    for paragraph in re.split(r"\n\s*\n", text or ""):
        line = " ".join(paragraph.split())
        if line.startswith("maxmatch "):
            yield line


@pytest.mark.parametrize("path", VERBS, ids=" ".join)
def test_every_verb_has_an_example(path):
    assert list(examples(VERBS[path].help))


@pytest.mark.parametrize("line", sorted({line for one in TREE.values() for line in examples(one.help)}))
def test_every_example_is_a_command_that_is_understood(line):
    words = shlex.split(line)[1:]
    if ">" in words:
        words = words[: words.index(">")]
    command = TREE[()]
    path = ()
    while (*path, words[0]) in TREE:
        path, words = (*path, words[0]), words[1:]
        command = TREE[path]
        if not words:
            break
    assert path in VERBS, f"{line}: no such verb"
    with command.make_context(" ".join(path), words) as context:  # raises UsageError where an option is not known
        assert context.command is command


@pytest.mark.parametrize("path", TREE, ids=" ".join)
def test_every_example_is_shown_on_one_line_that_can_be_pasted(path):
    indent, margin = 4, 2
    assert [line for line in examples(TREE[path].help) if len(line) > 80 - indent - margin] == []


@pytest.mark.parametrize("path", [path for path in TREE if path not in VERBS], ids=" ".join)
def test_a_list_of_verbs_has_each_in_one_line_that_is_not_cut(path):
    listed = shown(path).split("Commands:")[1].splitlines()[1:]
    assert len(listed) == len(TREE[path].commands)
    assert not [line for line in listed if line.endswith("...")]


@pytest.mark.parametrize("path", VERBS, ids=" ".join)
def test_no_line_is_longer_than_a_terminal_and_every_option_is_explained(path):
    text = shown(path)
    assert max(map(len, text.splitlines())) <= 80
    for parameter in VERBS[path].params:
        assert getattr(parameter, "help", None), f"{' '.join(path)} {parameter.name}: no help"


@pytest.mark.parametrize("path", [("encode",), ("search",)], ids=" ".join)
def test_an_argument_that_may_be_left_out_is_not_called_required(path):
    assert "[required]" not in shown(path).split("Arguments:")[1].split("Options:")[0]


def test_what_stands_in_brackets_is_not_taken_for_markup():
    assert "needs 'maxmatch[ray]'" in " ".join(shown(("encode",)).split())


_ALL = """
import sys
from maxmatch.cli.main import main
for path in sys.argv[1:]:
    try:
        main([*path.split(), "--help"])
    except SystemExit as end:
        assert not end.code, path
print(sorted({"torch", "numpy", "safetensors", "PIL", "lancedb", "transformers"} & set(sys.modules)))
"""


def test_help_of_every_verb_loads_nothing_heavy():
    done = run(_ALL, *map(" ".join, VERBS))
    assert done.stdout.splitlines()[-1:] == ["[]"], done.stderr
