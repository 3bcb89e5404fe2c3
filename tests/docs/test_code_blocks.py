"""The code that README.md and docs/ show works as it stands there."""

from pathlib import Path

import pytest
from doc_pages import PAGES, Block, blocks, commands, without_blocks
from doc_stand_ins import RUN, SET_UP

from maxmatch.cli.main import main
from maxmatch.search.filters import parse_where

BLOCKS = [block for page in PAGES for block in blocks(page)]
LANGUAGES = {"python", "sh", "console", "yaml", "sql", "json", "text", ""}
NOT_RUN = {"milvus.md": 1}
"""How many blocks of a page say that they are not run. One more needs a reason on the page, and a change here."""


def runs(block: Block) -> bool:
    """Whether a block is Python of the page's own; an example that is included whole has a test of its own."""
    return block.language == "python" and not block.reason and "--8<--" not in block.code


@pytest.fixture
def page_folder(tmp_path, monkeypatch, without_shape_checks):
    """As a reader has it: an empty folder, with a home and a cache of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


@pytest.mark.parametrize("page", sorted({block.page for block in BLOCKS if runs(block)} | set(SET_UP) | set(RUN)))
def test_the_code_of_a_page_runs_from_top_to_bottom(page: str, page_folder: Path) -> None:
    names = {"__name__": "__main__"}
    SET_UP.get(page, lambda names: None)(names)
    left = list(RUN.get(page, []))
    for block in blocks(page):
        if block.file:
            Path(block.file).write_text(block.code, encoding="utf-8")
        elif runs(block):
            padding = "\n" * (block.line - 1)  # so that an error names the line of the page
            exec(compile(padding + block.code, str(PAGES[page]), "exec"), names)
        elif block.language in ("sh", "console"):
            for command in commands(block):
                start = next((one for one in left if " ".join(command.words).startswith(f"maxmatch {one}")), None)
                if start is not None:
                    left.remove(start)
                    with pytest.raises(SystemExit) as ended:
                        main(command.words[1:])
                    assert not ended.value.code, command
    assert not left, f"{page} no longer has these commands"


def test_what_is_not_run_says_why_and_is_counted() -> None:
    reasons = [block for block in BLOCKS if block.title.startswith("not run")]
    assert all(block.reason for block in reasons), 'title="not run: why"'
    assert {page: sum(block.page == page for block in reasons) for page in {one.page for one in reasons}} == NOT_RUN


def test_every_block_says_what_it_is_and_commands_are_not_hidden_in_text() -> None:
    for block in BLOCKS:
        where = f"{block.page}:{block.line}"
        assert block.language in LANGUAGES, where
        if block.language in ("text", ""):
            starts = [line.removeprefix("$ ").split(" ")[0] for line in block.code.splitlines()]
            assert not {"maxmatch", "make", "pip", "python", "torchrun"} & set(starts), f"{where}: say sh"
    for page in PAGES:
        assert "```" not in without_blocks(page), f"{page}: a fence that is not read here"


@pytest.mark.parametrize("block", [one for one in BLOCKS if one.language == "sql"], ids=lambda one: f"{one.page}")
def test_a_filter_is_one_that_search_understands(block: Block) -> None:
    for line in block.code.splitlines():
        parse_where(line)
