import json
from importlib import metadata

import pytest
import torch
from safetensors.torch import save_file

from maxmatch.cli import doctor
from maxmatch.cli.main import main
from maxmatch.core.machine import torchvision_caused

METADATA = """Metadata-Version: 2.4
Name: maxmatch
Version: 1.2.3
Provides-Extra: search
Provides-Extra: milvus
Provides-Extra: dev
Requires-Dist: torch>=2.8
Requires-Dist: numpy>=999
Requires-Dist: no-such-package>=4
Requires-Dist: tqdm>=1; sys_platform == "no-such-system"
Requires-Dist: pyarrow>=15; extra == "search"
Requires-Dist: no-such-client; extra == "milvus"
Requires-Dist: no-such-tool; extra == "dev"
"""


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as end:
        main(["doctor", *arguments])
    return end.value.code, capsys.readouterr().out


@pytest.fixture(autouse=True)
def no_other_process(monkeypatch):
    """What is imported in a process of its own takes seconds each; two tests below do it for real."""
    monkeypatch.setattr(doctor, "_DIFFICULT", {})


@pytest.fixture
def installed(monkeypatch, tmp_path):
    """A distribution of maxmatch with the metadata above."""
    (tmp_path / "METADATA").write_text(METADATA)
    about, others = metadata.PathDistribution(tmp_path), metadata.distribution
    monkeypatch.setattr(metadata, "distribution", lambda name: about if name == "maxmatch" else others(name))
    return {finding.name: finding for finding in doctor._installed()}


def test_findings_come_as_lines_or_as_json(capsys):
    code, lines = run(capsys)
    same, data = run(capsys, "--json")
    assert (code, same) == (0, 0)
    findings = json.loads(data)
    names = [finding["name"] for finding in findings]
    assert {"python", "torch", "transformers", "numpy", "torchvision", "cpu", "memory"} <= set(names)
    assert {"disk here", "browser", "hub cache", "numba cache", "photo indexes", "shipped model"} <= set(names)
    *shown, verdict = lines.splitlines()
    for line, finding in zip(shown, findings, strict=True):
        assert line.startswith(f"{finding['status']:<6}{finding['name']} ")
        assert finding["cure"] in line
    assert verdict == "Everything needed is installed."
    assert {finding["status"] for finding in findings} <= {"ok", "note", "fail"}


def test_packages_are_compared_with_what_is_needed(capsys, installed):
    found = {name: (finding.status, finding.detail) for name, finding in installed.items()}
    assert found == {
        "maxmatch": ("ok", "1.2.3"),
        "torch": ("ok", torch.__version__),
        "numpy": ("fail", f"{metadata.version('numpy')}, but >=999 is needed."),
        "no-such-package": ("fail", "not installed."),
        "extra search": ("ok", f"pyarrow {metadata.version('pyarrow')}"),
        "extra milvus": ("note", "not installed: no-such-client."),
    }  # not what other systems or developers need
    assert "pip install 'maxmatch[milvus]'" in installed["extra milvus"].cure
    code, lines = run(capsys)
    assert code == 1
    assert "not installed. Run: pip install 'no-such-package>=4'" in lines
    assert lines.splitlines()[-1].endswith(": numpy, no-such-package.")


def test_sources_that_are_not_installed_are_a_note(monkeypatch):
    monkeypatch.setattr(metadata, "distribution", lambda name: metadata.Distribution.from_name("no-such-package"))
    [finding] = doctor._installed()
    assert finding.status == "note"


def test_a_broken_torchvision_fails_with_the_cure(monkeypatch):
    monkeypatch.setattr(doctor, "find_spec", lambda name: name)
    monkeypatch.setattr(doctor, "_imported", lambda package: (False, "operator torchvision::nms does not exist"))
    assert doctor._torchvision().status == "fail"
    assert "pip uninstall torchvision" in doctor._torchvision().cure
    assert not torchvision_caused(FileNotFoundError("/data/torchvision/a.jpg: no such file"))
    assert not torchvision_caused(ModuleNotFoundError("No module named 'torchvision'", name="torchvision"))
    assert not torchvision_caused(RuntimeError("out of memory"))


def test_a_pillow_without_avif_is_noted_with_its_cure(without_avif):
    assert doctor._avif().status == "ok"
    with without_avif():
        assert doctor._avif().status == "note"
        assert "Pillow>=11.3" in doctor._avif().cure


def test_native_code_for_another_machine_is_found_without_ending_the_doctor(monkeypatch, tmp_path):
    (tmp_path / "dies_at_once.py").write_text("import os, signal; os.kill(os.getpid(), signal.SIGILL)")
    (tmp_path / "says_why.py").write_text("raise ImportError('libnothing.so: cannot open shared object file')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    dead = doctor._loads("dies_at_once", "index", "pip install --force-reinstall dies_at_once")
    assert dead.status == "fail"
    assert "ended with -4" in dead.detail
    printed = doctor._loads("says_why", "index", "pip install --force-reinstall says_why")
    assert "libnothing.so" in printed.detail
    assert printed.cure == "Run: pip install --force-reinstall says_why"
    assert doctor._loads("json", "nothing", "").detail == json.__version__


def test_a_milvus_server_that_does_not_answer_fails_only_when_asked_for(capsys):
    assert "milvus server" not in run(capsys)[1]
    found = doctor._milvus("http://127.0.0.1:9")
    assert found.status == "fail"
    assert "does not answer" in found.detail
    assert "expected the address" in doctor._milvus("localhost").detail


def test_a_milvus_server_that_answers_is_shown_with_its_version(monkeypatch):
    from maxmatch.search.engines.milvus import Server

    class Client:
        def get_server_version(self, timeout):
            return "v2.3.5"

        def close(self):
            pass

    monkeypatch.setattr(Server, "connect", lambda self: Client())
    found = doctor._milvus("http://localhost:19530")
    assert (found.status, found.detail) == ("ok", "http://localhost:19530: Milvus 2.3.5")


def test_little_room_is_worth_a_note(monkeypatch, tmp_path):
    assert doctor._disk("disk", tmp_path).status == "ok"
    for name in ("_LITTLE_DISK", "_LITTLE_MEMORY", "_LITTLE_SHARED"):
        monkeypatch.setattr(doctor, name, 2**70)
    monkeypatch.setattr(doctor, "_SHARED", tmp_path)
    for finding in (doctor._disk("disk", tmp_path), doctor._memory(), doctor._shared_memory()):
        assert finding.status == "note"
        assert finding.cure
    monkeypatch.setattr(doctor, "free_memory", lambda: None)
    assert doctor._memory().detail == "unknown on this system"
    for cuda, driver, reason in ((None, False, "none found"), (None, True, "for the CPU only"), ("12.8", True, "12.8")):
        assert reason in doctor._no_gpu(cuda, driver).detail


def test_a_browser_may_be_named_by_the_user(monkeypatch):
    monkeypatch.setenv("MAXMATCH_CHROMIUM", "/nowhere/chromium")
    assert doctor.chromium_path() is None
    assert "apt-get install chromium" in doctor._browser().cure
    monkeypatch.setenv("MAXMATCH_CHROMIUM", "/bin/sh")
    assert doctor._browser().detail == "/bin/sh"


def test_a_cache_that_cannot_be_written_is_a_note_with_the_variable_to_set(monkeypatch, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("no folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(blocked))
    assert doctor._photos().status == "note"
    assert "XDG_CACHE_HOME" in doctor._photos().cure
    assert "NUMBA_CACHE_DIR" in doctor._compiled().cure
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "new"))
    assert "not created yet" in doctor._photos().detail
    (tmp_path / "new" / "maxmatch" / "photos" / "holidays").mkdir(parents=True)
    assert "1 folders, 0.0 GiB" in doctor._photos().detail


def test_a_model_that_ships_is_there_and_whole(tmp_path):
    assert doctor._shipped(tmp_path).status == "note"
    folder = tmp_path / "small"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    assert doctor._shipped(tmp_path).status == "fail"
    save_file({"one": torch.zeros(4), "two": torch.zeros(4)}, folder / "model.safetensors")
    assert "small, 2 tensors" in doctor._shipped(tmp_path).detail
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[:-3])
    damaged = doctor._shipped(tmp_path)
    assert damaged.status == "fail"
    assert "model.safetensors: missing or damaged" in damaged.detail
