"""The lines of a text file, with their numbers."""

import codecs
import re
from collections.abc import Iterator
from pathlib import Path

from maxmatch.data.problems import Problem, Report, give_up, refuse

_BREAK = re.compile(r"\s*[\r\n]\s*")


def read_lines(path: Path, report: Report = refuse) -> Iterator[tuple[int, str | None]]:
    r"""Each line with its number, counted from 1, without its end (\n or \r\n) and the file's byte-order mark.

    A line that is not UTF-8 is reported and comes as None, so that those after it keep their places.
    """
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if number == 1 and line.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
                give_up(report, Problem(path, "the text is UTF-16, expected UTF-8", "Save it as UTF-8."))
            text = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
            yield number, _decoded(text.rstrip(b"\r\n"), path, number, report)


def one_line(text: str) -> str:
    """The text without space around it, and with a space for each line break in it."""
    text = text.strip()
    return _BREAK.sub(" ", text) if "\n" in text or "\r" in text else text


def _decoded(line: bytes, path: Path, number: int, report: Report) -> str | None:
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        what = f"not UTF-8: the byte 0x{line[error.start]:02x} at place {error.start + 1} of the line"
        cure = "Save the file as UTF-8; if it is Latin-1: iconv -f latin1 -t utf-8 FILE > NEW."
        report(Problem(path, what, cure, number))
        return None
