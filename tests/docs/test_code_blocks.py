"""The code in README.md and docs/ runs as shown."""

from pathlib import Path

import pytest
from doc_pages import PAGES, Block, blocks, commands, without_blocks
from doc_stand_ins import RUN, SET_UP

from maxmatch.cli.main import main
from maxmatch.search.filters import parse_where

BLOCKS = [block for page in PAGES for block in blocks(page)]
LANGUAGES = {"python", "sh", "console", "yaml", "sql", "json", "text", ""}
NOT_RUN = {"milvus.md": 1}
"""The number of blocks per page that are not run. One more needs a reason on the page and a change here."""
WITH_FIGURES = {"analysis.md", "api/evaluation.md"}


def runs(block: Block) -> bool:
    """Whether a block is Python code of the page itself; included examples have their own tests."""
    return block.language == "python" and not block.reason and "--8<--" not in block.code


@pytest.fixture
def page_folder(tmp_path, monkeypatch, without_shape_checks):
    """An empty folder with its own home and cache."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


@pytest.mark.parametrize("page", sorted({block.page for block in BLOCKS if runs(block)} | set(SET_UP) | set(RUN)))
def test_code_of_a_page_runs_from_top_to_bottom(page: str, page_folder: Path, monkeypatch) -> None:
    if page in WITH_FIGURES:  # figures take seconds to draw, and have their own tests
        monkeypatch.setattr("maxmatch.evaluation.report.figures.render", lambda figure, kind, dpi=200: b"")
    names = {"__name__": "__main__"}
    SET_UP.get(page, lambda names: None)(names)
    left = list(RUN.get(page, []))
    for block in blocks(page):
        if block.file:
            Path(block.file).write_text(block.code, encoding="utf-8")
        elif runs(block):
            padding = "\n" * (block.line - 1)  # so that errors name the line of the page
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


def test_blocks_that_are_not_run_give_a_reason_and_are_counted() -> None:
    reasons = [block for block in BLOCKS if block.title.startswith("not run")]
    assert all(block.reason for block in reasons), 'title="not run: why"'
    assert {page: sum(block.page == page for block in reasons) for page in {one.page for one in reasons}} == NOT_RUN


def test_every_block_has_a_language_and_text_blocks_have_no_commands() -> None:
    for block in BLOCKS:
        where = f"{block.page}:{block.line}"
        assert block.language in LANGUAGES, where
        if block.language in ("text", ""):
            starts = [line.removeprefix("$ ").split(" ")[0] for line in block.code.splitlines()]
            assert not {"maxmatch", "make", "pip", "python", "torchrun"} & set(starts), f"{where}: use sh"
    for page in PAGES:
        assert "```" not in without_blocks(page), f"{page}: a fence that is not read here"


@pytest.mark.parametrize("block", [one for one in BLOCKS if one.language == "sql"], ids=lambda one: f"{one.page}")
def test_filters_parse(block: Block) -> None:
    for line in block.code.splitlines():
        parse_where(line)
