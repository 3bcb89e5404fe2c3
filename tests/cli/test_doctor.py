import json

import pytest

from maxmatch.cli import doctor
from maxmatch.cli.main import main
from maxmatch.torchvision import is_to_blame


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as end:
        main(["doctor", *arguments])
    return end.value.code, capsys.readouterr().out


def test_findings_come_as_lines_or_as_json(capsys):
    code, lines = run(capsys)
    same, data = run(capsys, "--json")
    assert (code, same) == (0, 0)
    names = [finding["name"] for finding in json.loads(data)]
    assert {"python", "torch", "transformers", "numpy", "torchvision", "cpu", "disk", "memory", "timm"} <= set(names)
    assert [line.split()[1] for line in lines.splitlines()] == names
    assert {finding["status"] for finding in json.loads(data)} <= {"ok", "note", "fail"}


def test_a_package_that_is_missing_fails_with_the_cure(capsys, monkeypatch):
    monkeypatch.setattr(doctor, "_REQUIRED", ("torch", "no-such-package"))
    code, lines = run(capsys)
    assert code == 1
    assert "not installed. Run: pip install no-such-package" in lines


def test_little_room_is_worth_a_note(monkeypatch, tmp_path):
    monkeypatch.setattr(doctor, "_LITTLE_DISK", 2**70)
    assert doctor._disk(tmp_path).status == "note"


def test_other_errors_are_not_blamed_on_torchvision():
    assert not is_to_blame(FileNotFoundError("/data/torchvision/a.jpg: no such file"))
    assert not is_to_blame(ModuleNotFoundError("No module named 'torchvision'", name="torchvision"))
    assert not is_to_blame(RuntimeError("out of memory"))
