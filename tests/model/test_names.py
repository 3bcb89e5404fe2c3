"""Models by their names: looked up on the hub only where the name can be meant so."""

import errno
import logging
from types import SimpleNamespace

import pytest
from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError
from tiny_models import CHECKPOINT, tiny_model

from maxmatch.model import names
from maxmatch.model.checkpoint import CheckpointError, load


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

    def snapshot(name, revision, allow_patterns, local_files_only):
        asked.append((name, revision, local_files_only))
        return str(saved)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    for offline in (False, True):
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", offline)
        with caplog.at_level(logging.WARNING):
            load("someone/model")
    assert asked == [("someone/model", None, False), ("someone/model", None, True)]
    assert "someone/model" in caplog.text


def test_a_name_on_the_hub_may_have_a_prefix_and_a_revision(saved, monkeypatch, tmp_path):
    import huggingface_hub

    asked = []

    def snapshot(name, revision, **_):
        asked.append((name, revision))
        return str(saved)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "someone" / "model").mkdir(parents=True)
    for name in ("hf:someone/model", "hf:model", "someone/model@v1", "hf:someone/model@refs/pr/3"):
        load(name)
        assert names.name_to_record(name) == name
    assert asked == [("someone/model", None), ("model", None), ("someone/model", "v1"), ("someone/model", "refs/pr/3")]
    with pytest.raises(CheckpointError, match=r"config\.json is missing"):
        load("someone/model")  # a folder comes first
    with pytest.raises(ValueError, match="expected 'organisation/name'"):
        tiny_model("region_bigru").push_to_hub("someone/model@v1")


def hub_without_safetensors(monkeypatch, tmp_path, saved):
    """A hub whose model has only pickles, but for a pull request of the hub's own."""
    import huggingface_hub

    class Hub:
        def get_repo_discussions(self, name, author, discussion_type):
            assert (author, discussion_type) == ("SFconvertbot", "pull_request")
            titles = ("Fix a typo", "Adding `safetensors` variant of this model")
            return [SimpleNamespace(title=title, git_reference=f"refs/pr/{n}") for n, title in enumerate(titles)]

    (tmp_path / "pickles").mkdir()
    folders = {None: tmp_path / "pickles", "refs/pr/1": saved}
    monkeypatch.setattr(huggingface_hub, "HfApi", Hub)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda name, revision, **_: str(folders[revision]))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))


@pytest.mark.parametrize("offline", [False, True])
def test_weights_that_the_hub_has_converted_to_safetensors_are_found(saved, monkeypatch, tmp_path, caplog, offline):
    import huggingface_hub

    hub_without_safetensors(monkeypatch, tmp_path, saved)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", offline)
    if offline:
        kept = tmp_path / "models--someone--model" / "refs" / "refs" / "pr"
        kept.mkdir(parents=True)
        (kept / "1").write_text("0123abc")
    load("someone/model")
    assert "someone/model@refs/pr/1" in caplog.text


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (RepositoryNotFoundError, "RepositoryNotFoundError.*hf auth login"),
        (GatedRepoError, "GatedRepoError.*terms"),
        (RevisionNotFoundError, "RevisionNotFoundError.*revision"),
        (ConnectionError, "ConnectionError.*connection"),
    ],
)
def test_why_a_model_cannot_be_fetched_is_reported_with_what_to_do(monkeypatch, error, message):
    import huggingface_hub

    def failing(*_, **__):
        raise error.__new__(error)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", failing)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    with pytest.raises(FileNotFoundError, match=rf"^someone/model@v1: .*{message}"):
        load("someone/model@v1")


def test_a_full_disk_is_reported_as_such(monkeypatch):
    import huggingface_hub

    def failing(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", failing)
    with pytest.raises(OSError, match=r"someone/model: no space left.*HF_HOME"):
        load("someone/model")


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
