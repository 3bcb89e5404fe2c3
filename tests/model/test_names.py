"""Models by their names: looked up on the hub only where the name can be meant so."""

import logging

import pytest
from tiny_models import CHECKPOINT, tiny_model

from maxmatch.model import names
from maxmatch.model.checkpoint import load


def test_a_folder_that_is_not_there_is_not_looked_up_on_the_hub(tmp_path, monkeypatch):
    monkeypatch.setattr(names, "_fetched", lambda name: pytest.fail(f"asked the hub for {name}"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")  # what lies beside the folder of the tests is not ours
    for name in (tmp_path / "nothing", "nothing", "./a/b", "a/b/c", "/a/b", "../b", "a/", "~/nothing"):
        with pytest.raises(FileNotFoundError, match="no such folder"):
            load(name)


def test_the_hub_is_asked_for_organisation_and_name_and_that_is_logged(saved, monkeypatch, caplog):
    import huggingface_hub

    asked = []

    def snapshot(name, allow_patterns, local_files_only):
        asked.append((name, local_files_only))
        return str(saved)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    for offline in (False, True):
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", offline)
        with caplog.at_level(logging.WARNING):
            load("someone/model")
    assert asked == [("someone/model", False), ("someone/model", True)]
    assert "someone/model" in caplog.text


def test_a_model_that_the_hub_does_not_have_is_reported(monkeypatch, tmp_path):
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"^someone/model: .*HF_HUB_OFFLINE"):
        load("someone/model")


def test_a_model_is_pushed_whole_and_in_private_unless_told_otherwise(monkeypatch):
    import huggingface_hub

    calls = []

    class Hub:
        def create_repo(self, name, private, exist_ok):
            calls.append((name, private))

        def upload_folder(self, repo_id, folder_path, commit_message):
            calls.append((repo_id, sorted(path.name for path in folder_path.iterdir())))

    monkeypatch.setattr(huggingface_hub, "HfApi", Hub)
    model = tiny_model("region_bigru")
    assert model.push_to_hub("someone/model") == "https://huggingface.co/someone/model"
    assert calls == [("someone/model", True), ("someone/model", CHECKPOINT)]
    with pytest.raises(ValueError, match="expected 'organisation/name'"):
        model.push_to_hub("model")
