"""The lines of a text file, with their numbers."""

import codecs
import re
from collections.abc import Iterator
from pathlib import Path

from maxmatch.data.problems import Problem, Report, give_up, refuse

_BREAK = re.compile(r"\s*[\r\n]\s*")


def raw_lines(path: Path, report: Report = refuse) -> Iterator[tuple[int, bytes]]:
    """Each line with its number, counted from 1, and its end, without the file's byte-order mark. UTF-16 is refused."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if number == 1 and line.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
                give_up(report, Problem(path, "the text is UTF-16, expected UTF-8", "Save it as UTF-8.", 1))
            yield number, line.removeprefix(codecs.BOM_UTF8) if number == 1 else line


def read_lines(path: Path, report: Report = refuse) -> Iterator[tuple[int, str | None]]:
    r"""Each line with its number, counted from 1, without its end (\n or \r\n) and the file's byte-order mark.

    A line that is not UTF-8 is reported and comes as None, so that those after it keep their places.
    """
    for number, line in raw_lines(path, report):
        try:
            yield number, line.rstrip(b"\r\n").decode()
        except UnicodeDecodeError as error:
            report(not_utf8(path, number, error))
            yield number, None


def not_utf8(path: Path, number: int, error: UnicodeDecodeError) -> Problem:
    """What to say of a line that is not UTF-8."""
    what = f"not UTF-8: the byte 0x{error.object[error.start]:02x} at place {error.start + 1} of the line"
    cure = "Save the file as UTF-8; if it is Latin-1: iconv -f latin1 -t utf-8 FILE > NEW."
    return Problem(path, what, cure, number)


def one_line(text: str) -> str:
    """The text without space around it, and with a space for each line break in it."""
    text = text.strip()
    return _BREAK.sub(" ", text) if "\n" in text or "\r" in text else text
