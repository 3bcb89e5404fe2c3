"""The desktop entry starts the command with the folder's very name; a second start opens the page of the first."""

import configparser
import os
import shlex
import shutil
import subprocess
import sys

import pytest
from commands import run
from served import Running, app_of, make_gallery

from maxmatch.cli import desktop


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return tmp_path


def words_of(entry):
    """The command of an entry as a desktop starts it: the file's escapes, then the command's quotes and fields."""
    parser = configparser.RawConfigParser(interpolation=None, strict=True)
    parser.optionxform = str
    parser.read_string(entry)
    line = parser["Desktop Entry"]["Exec"]
    unescaped = line.replace("\\\\", "\0").replace("\\s", " ").replace("\0", "\\")
    words, place = [], 0
    while place < len(unescaped):
        assert unescaped[place] == '"'
        word, place = "", place + 1
        while unescaped[place] != '"':
            place += unescaped[place] == "\\"
            word, place = word + unescaped[place], place + 1
        words.append(word.replace("%%", "%"))
        place += 2
    return words


@pytest.mark.parametrize("name", ["Pictures", "my photos", 'a "b" `c` $d \\e %f', "Größe; rm -rf ~", "-x"])
def test_the_entry_names_the_folder_as_it_is(home, capsys, name):
    folder = home / name
    folder.mkdir()
    done = run(capsys, "desktop", "--install", folder)
    entry = home / "data" / "applications" / "maxmatch.desktop"
    assert (done.code, done.out.strip()) == (0, str(entry))
    assert words_of(entry.read_text(encoding="utf-8")) == [sys.executable, "-m", "maxmatch", "desktop", str(folder)]
    assert (home / "data/icons/hicolor/scalable/apps/maxmatch.svg").read_text().startswith("<svg")
    if shutil.which("desktop-file-validate"):
        subprocess.run(["desktop-file-validate", entry], check=True)
    assert run(capsys, "desktop", "--uninstall").code == 0
    assert not [path for path in (home / "data").rglob("*") if path.is_file()]


def test_what_makes_no_sense_is_wrong_use(home, capsys):
    assert run(capsys, "desktop", "--install", "--uninstall").code == 2
    assert run(capsys, "desktop", "--install", home / "none").code == 2
    with pytest.raises(ValueError, match="line break"):
        desktop.desktop_entry([home / "a\nb"], ["maxmatch"])


def test_a_second_start_opens_the_page_of_the_first(home, capsys, monkeypatch):
    opened, started = [], []
    monkeypatch.setattr(desktop.webbrowser, "open", opened.append)
    monkeypatch.setattr(os, "execv", lambda program, words: started.append(words) or sys.exit(0))
    assert run(capsys, "desktop", home).code == 0
    [words] = started
    assert words[1:4] == ["-m", "maxmatch", "serve"]
    assert shlex.join(words[4:]) == shlex.join([str(home), "--port", str(desktop.port_of([home])), "--open"])
    gallery = make_gallery(home / "gallery", 8)
    running = Running(app_of(gallery))
    try:
        monkeypatch.setattr(desktop, "port_of", lambda folders: running.port)
        assert run(capsys, "desktop", home).out.strip() == f"{running.address}/"
        assert opened == [f"{running.address}/"]
    finally:
        running.stop()
    assert len(started) == 1
    assert not desktop.is_served(f"{running.address}/")
