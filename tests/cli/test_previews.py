"""Pictures in a terminal: what is printed parses back to the picture, and nothing else commands the terminal."""

import io
import re
from base64 import b64decode

import numpy as np
import pytest
from commands import run
from PIL import Image

from maxmatch.cli.common import plain
from maxmatch.cli.search import blocks, iterm, kitty, show, way_to_show

KITTY_CHUNK = re.compile(r"\x1b_G([a-zA-Z0-9=,]*);([A-Za-z0-9+/=]*)\x1b\\")
ITERM = re.compile(r"\x1b\]1337;File=([a-zA-Z0-9=;]*):([A-Za-z0-9+/=]*)\x07")


def kitty_reads(text):
    """The PNG and the keys of the first chunk, as the protocol's description says to read them."""
    assert KITTY_CHUNK.sub("", text) == ""
    chunks = [(dict(one.split("=") for one in keys.split(",")), data) for keys, data in KITTY_CHUNK.findall(text)]
    assert all(len(data) <= 4096 for _, data in chunks)
    assert all(len(data) % 4 == 0 for _, data in chunks[:-1])
    assert [keys["m"] for keys, _ in chunks] == ["1"] * (len(chunks) - 1) + ["0"]
    assert all(keys.keys() == {"m"} for keys, _ in chunks[1:])
    return b64decode("".join(data for _, data in chunks), validate=True), chunks[0][0]


def iterm_reads(text):
    [(keys, data)] = ITERM.findall(text)
    assert ITERM.sub("", text) == ""
    return b64decode(data, validate=True), dict(one.split("=") for one in keys.split(";"))


def blocks_read(text):
    """The pixels of what is drawn, two rows a line."""
    rows = []
    for line in text.split("\n"):
        assert line.endswith("\x1b[0m")
        cells = re.findall(r"\x1b\[38;2;(\d+);(\d+);(\d+);48;2;(\d+);(\d+);(\d+)m▀", line)
        rows += [[cell[:3] for cell in cells], [cell[3:] for cell in cells]]
    return np.array(rows, dtype=np.uint8)


@pytest.mark.parametrize("size", [1, 3072, 3073])
def test_the_bytes_come_back_from_both_protocols(size):
    png = np.random.default_rng(size).bytes(size)
    found, keys = kitty_reads(kitty(png, 30, 8))
    assert found == png
    assert keys == {"a": "T", "f": "100", "q": "2", "c": "30", "r": "8", "m": keys["m"]}
    found, keys = iterm_reads(iterm(png, 30, 8))
    assert found == png
    assert keys == {"inline": "1", "size": str(size), "width": "30", "height": "8", "preserveAspectRatio": "1"}


def test_half_blocks_have_the_colours_of_the_pixels():
    pixels = np.random.default_rng(0).integers(0, 256, (6, 5, 3), np.uint8)
    assert (blocks_read(blocks(Image.fromarray(pixels))) == pixels).all()


@pytest.mark.parametrize(("size", "cells"), [((300, 200), (27, 9)), ((40, 400), (2, 9)), ((4000, 50), (36, 1))])
def test_a_picture_keeps_its_shape_within_nine_lines(tmp_path, size, cells):
    Image.new("RGB", size, (10, 200, 30)).save(tmp_path / "a.png")
    png, keys = kitty_reads(show(tmp_path / "a.png", "kitty"))
    assert (int(keys["c"]), int(keys["r"])) == cells
    with Image.open(io.BytesIO(png)) as shown:
        assert shown.format == "PNG"
        assert shown.getpixel((0, 0)) == (10, 200, 30)
    assert blocks_read(show(tmp_path / "a.png", "blocks")).shape == (2 * cells[1], cells[0], 3)


def test_what_is_no_picture_is_not_shown(tmp_path):
    (tmp_path / "broken.jpg").write_bytes(b"\x1b]0;title\x07")
    assert show(tmp_path / "broken.jpg", "kitty") == show(tmp_path / "nowhere.jpg", "iterm") == ""


@pytest.mark.parametrize(
    ("environment", "way"),
    [
        ({"TERM": "xterm-kitty"}, "kitty"),
        ({"TERM": "xterm-256color", "KITTY_WINDOW_ID": "1"}, "kitty"),
        ({"TERM": "xterm-ghostty"}, "kitty"),
        ({"TERM_PROGRAM": "ghostty"}, "kitty"),
        ({"TERM_PROGRAM": "iTerm.app"}, "iterm"),
        ({"TERM_PROGRAM": "WezTerm"}, "iterm"),
        ({"TERM": "xterm-256color", "COLORTERM": "truecolor"}, None),
        ({"TERM": "tmux-256color", "KITTY_WINDOW_ID": "1", "TMUX": "/tmp/tmux"}, None),
        ({}, None),
    ],
)
def test_a_terminal_is_known_by_its_variables(environment, way):
    assert way_to_show(environment, is_terminal=True) == way
    assert way_to_show(environment, is_terminal=False) is None


def test_asked_for_pictures_are_shown_in_blocks_where_there_are_colours():
    assert way_to_show({"COLORTERM": "truecolor"}, is_terminal=True, asked=True) == "blocks"
    assert way_to_show({"TERM": "xterm-kitty"}, is_terminal=True, asked=True) == "kitty"
    with pytest.raises(ValueError, match="COLORTERM"):
        way_to_show({"TERM": "xterm"}, is_terminal=True, asked=True)
    with pytest.raises(ValueError, match="terminal"):
        way_to_show({"TERM": "xterm-kitty"}, is_terminal=False, asked=True)


def test_a_name_commands_a_terminal_to_nothing_and_usual_names_stay_as_they_are():
    for text in ("\x1b[2Ja", "a\x07", "a\rb", "\x9b31m", "a\u202eb", "a\nb", "\x7f", "\udcff"):
        assert plain(text).isprintable()
        assert "a" not in text or "a" in plain(text)
    assert plain("Ünïcödé 写真 (1) – 🐕.jpg") == "Ünïcödé 写真 (1) – 🐕.jpg"


def test_hits_are_shown_in_a_terminal_and_names_cannot_command_it(model, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TERM", "xterm-kitty")
    monkeypatch.delenv("TMUX", raising=False)
    (tmp_path / "photos").mkdir()
    Image.new("RGB", (30, 20), "red").save(tmp_path / "photos" / "a\x1b[2J.png")

    def said(*more):
        return run(capsys, "search", "a dog", tmp_path / "photos", "--model", model, *more)[:2]

    assert said() == (0, f"{tmp_path}/photos/a\x1b[2J.png\n"), "another program gets the name as it is"
    assert said("--preview")[0] == 2
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    code, out = said()
    assert code == 0
    kitty_reads(out.split("\n")[1])
    assert out.split("\n")[0].endswith("/photos/a\\x1b[2J.png")
    for option in ("--no-preview", "--paths"):
        code, out = said(option)
        assert code == 0
        assert "\x1b" not in out
    assert said("--preview", "--json")[0] == 2
