"""README.md and the pages of docs/, split into code blocks.

A block with title="not run: why" is shown with that title on the site, and counted. A block with title="name.yaml" is a
file that the reader is asked to write.
"""

import re
import shlex
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = {"README.md": ROOT / "README.md", **{str(path.relative_to(DOCS)): path for path in sorted(DOCS.rglob("*.md"))}}

_FENCE = re.compile(
    r"^```(?: \{\.)?(?P<language>\w*)(?: title=\"(?P<title>[^\"]*)\")?\}?\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL
)
_NOT_RUN = "not run: "


class Block(NamedTuple):
    """A fenced block; `line` is the number of its first line of code."""

    page: str
    line: int
    language: str
    title: str
    code: str

    @property
    def reason(self) -> str:
        """Why it is not run; empty if it is run."""
        return self.title.removeprefix(_NOT_RUN) if self.title.startswith(_NOT_RUN) else ""

    @property
    def file(self) -> str:
        """The file that the reader is asked to write; empty if there is none."""
        return self.title if Path(self.title).suffix in (".yaml", ".csv") else ""


class Command(NamedTuple):
    """A line of a shell block as words, without comments and anything after a pipe or a redirection."""

    page: str
    line: int
    words: list[str]


def text_of(page: str) -> str:
    return PAGES[page].read_text(encoding="utf-8")


def without_blocks(page: str) -> str:
    """A page's prose, line for line."""
    return _FENCE.sub(lambda found: "\n" * found.group().count("\n"), text_of(page))


def blocks(page: str) -> list[Block]:
    text = text_of(page)
    return [
        Block(
            page, text.count("\n", 0, found.start("code")) + 1, found["language"], found["title"] or "", found["code"]
        )
        for found in _FENCE.finditer(text)
    ]


def commands(block: Block) -> list[Command]:
    """The commands of a shell block. In a `console` block they follow a dollar sign; the rest is their output."""
    joined = re.sub(r" *\\\n *", lambda found: " ", block.code)
    lines = joined.splitlines()
    if block.language == "console":
        lines = [line.removeprefix("$ ") if line.startswith("$ ") else "" for line in lines]
    found = []
    for number, line in enumerate(lines):
        lexer = shlex.shlex(line, posix=True, punctuation_chars="|>")
        lexer.whitespace_split = True
        words = []
        for word in lexer:
            if set(word) <= set("|>"):
                break
            words.append(word)
        if words:
            found.append(Command(block.page, block.line + number, words))
    return found
