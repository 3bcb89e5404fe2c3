"""A new version ships another `maxmatch-small`: what the old one has read is told of, and encoded again once."""

import json
import os
import shutil
from dataclasses import replace
from itertools import groupby
from pathlib import Path

import numpy as np
import pytest
from commands import run
from made_data import run as started
from PIL import Image
from tiny_models import saved_model, with_statistics

from maxmatch import SetEncoder, SetIndex
from maxmatch.core.files import locked
from maxmatch.model import names
from maxmatch.model.names import SHIPPED, ShippedModel, model_identity
from maxmatch.search import index_folder, rebuild, set_index
from maxmatch.search.index_folder import Origin, ReplacedIndexError, read_origin, write_origin

OLD, NEW = "0.7.0", "0.8.0"


@pytest.fixture(scope="module")
def versions(tmp_path_factory):
    """What ships in two versions of the package: of another width, and read from another part of the picture."""
    folder = tmp_path_factory.mktemp("versions")
    saved_model(folder / OLD / SHIPPED, seed=1)
    saved_model(folder / NEW / SHIPPED, seed=2, width=24)
    return folder


@pytest.fixture
def ship(versions, tmp_path, monkeypatch):
    """Install a version; photos and captions are in the current folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    for seed in range(5):
        pixels = np.random.default_rng(seed).integers(0, 256, (40, 50, 3), np.uint8)
        Image.fromarray(pixels).save(tmp_path / "photos" / f"{seed}.png")
    (tmp_path / "captions.txt").write_text("a dog\na cat\ntwo people ride a red bus\n")
    table = {identity_in(versions / version / SHIPPED): ShippedModel(SHIPPED, version) for version in (OLD, NEW)}
    monkeypatch.setattr(names, "SHIPPED_MODELS", table)

    def install(version):
        monkeypatch.setattr(names, "MODELS", versions / version)
        return SetEncoder.from_pretrained(versions / version / SHIPPED)

    return install


def identity_in(folder):
    return model_identity(SetEncoder.from_pretrained(folder))


def caches(tmp_path):
    return sorted((tmp_path / "cache" / "maxmatch" / "photos").iterdir())


def best_first(model, picture_files, text):
    """The pictures by the model's own scores: what a search must find."""
    scores = model.similarity(model.encode_texts([text]), model.encode_images(picture_files))[0]
    return [str(picture_files[at]) for at in scores.argsort(descending=True).tolist()]


def test_every_model_that_ships_is_in_the_table_with_this_version():
    import maxmatch

    last = {known.name: (identity, known.version) for identity, known in names.SHIPPED_MODELS.items()}
    assert sorted(last) == names.shipped_names()
    for name, (identity, version) in last.items():
        assert identity == identity_in(names.shipped_model(name)), "replaced? Add a row, and raise the version"
        assert version == maxmatch.__version__, "still the same model? Its row has the last version that has it"
    rows = list(names.SHIPPED_MODELS.values())
    assert len(set(rows)) == len(rows), "no version has two models of one name"


def test_a_folder_is_told_of_the_newer_model_and_read_anew_once(ship, tmp_path, capsys):
    ship(OLD)
    assert run(capsys, "search", "a dog", "photos").code == 0
    [old] = caches(tmp_path)
    model = ship(NEW)
    first = run(capsys, "search", "a dog", "photos")
    assert first.code == 0
    assert f"photos was read by an older {SHIPPED}; reading it anew once" in first.err
    assert first.out.split() == best_first(model, [f"photos/{seed}.png" for seed in range(5)], "a dog")
    [new] = caches(tmp_path)
    assert new != old, "nothing of the old one is left"
    second = run(capsys, "search", "a dog", "photos")
    assert (second.out, second.err) == (first.out, "")


_KILLED = """
import json, os, shutil, sys, warnings
from contextlib import suppress
from pathlib import Path
from killed import Countdown, in_child
from maxmatch.cli.main import main
from maxmatch.model import names
from maxmatch.model.encoder import SetEncoder
from maxmatch.search import encode_files, rebuild
from maxmatch.search.photos import sync
from maxmatch.search.engines.lance_search import lancedb_library
warnings.simplefilter("ignore")  # forks are an experiment to LanceDB; nothing of it runs here before one
lancedb_library()
models, table, arguments, *steps = sys.argv[1:]
names.MODELS = Path(models)
names.SHIPPED_MODELS = {one: names.ShippedModel(*row) for one, row in json.loads(table).items()}
sync._BATCH = 2
SetEncoder.from_pretrained(names.SHIPPED)  # all is loaded once, and not by each child
for step in map(int, steps):
    def work():
        os.chdir(str(step))
        countdown = Countdown(step)
        countdown.count(sync, "_encode")
        countdown.count(encode_files, "_encoded", "complete", "finish")
        countdown.count(rebuild, "discard", "build", "write_origin")
        countdown.count(os, "rename")
        countdown.count(shutil, "rmtree")
        with suppress(SystemExit):
            main(json.loads(arguments))
    print({-9: "killed", 0: "done"}.get(in_child(work), "failed"))
"""


def outcomes_of(arguments, steps):
    """How the command ends in the folders named by the steps, each time killed by SIGKILL at its so-many-th step."""
    done = started(_KILLED, names.MODELS, json.dumps(names.SHIPPED_MODELS), json.dumps(arguments), *steps)
    outcomes = [line for line in done.stdout.split() if line in ("killed", "done", "failed")]
    assert set(outcomes) <= {"killed", "done"}, done.stderr
    return outcomes


def test_reading_anew_resumes_after_a_kill_and_the_old_cache_stays_until_then(ship, tmp_path, capsys, monkeypatch):
    ship(OLD)
    run(capsys, "search", "a dog", "photos")
    [old] = caches(tmp_path)
    ship(NEW)
    (tmp_path / "2").mkdir()
    assert outcomes_of(["search", "a dog", "../photos"], [2]) == ["killed"]
    assert len(caches(tmp_path)) == 2
    resumed = run(capsys, "search", "a dog", "photos")
    assert resumed.code == 0
    assert "5 photos: 3 new" in resumed.err
    assert old not in caches(tmp_path)
    assert run(capsys, "search", "a dog", "photos").err == ""


def test_caches_of_other_folders_and_of_models_of_ones_own_stay(ship, versions, tmp_path, capsys):
    shutil.copytree("photos", "others")
    saved_model(tmp_path / "mine", seed=5)
    ship(OLD)
    run(capsys, "search", "a dog", "others")
    run(capsys, "search", "a dog", "photos", "--model", "mine")
    before = caches(tmp_path)
    ship(NEW)
    assert "older" not in run(capsys, "search", "a dog", "photos").err
    assert set(before) < set(caches(tmp_path))
    of_all = set(caches(tmp_path))
    # The old model by its own folder is no newer one: what the shipped model has read is not in its way.
    assert "older" not in run(capsys, "search", "a dog", "photos", "--model", versions / OLD / SHIPPED).err
    assert of_all < set(caches(tmp_path))


def test_doctor_counts_and_names_the_caches_of_older_models(ship, tmp_path, capsys):
    from maxmatch.cli.doctor import cache_findings

    def found():
        return next(one for one in cache_findings() if one.name == "photo indexes")

    ship(OLD)
    run(capsys, "search", "a dog", "photos")
    before = names.SHIPPED_MODELS.copy()
    names.SHIPPED_MODELS.popitem()
    assert (found().status, found().cure) == ("ok", "")
    names.SHIPPED_MODELS.update(before)
    assert found().status == "note"
    assert "1 folders" in found().detail
    assert "maxmatch search" in found().cure
    [old] = caches(tmp_path)
    ship(NEW)
    shutil.copytree("photos", "others")
    run(capsys, "search", "a dog", "others")
    assert len(caches(tmp_path)) == 2
    assert f"delete {old}." in found().cure, "and not those of newer models"


@pytest.mark.parametrize("recorded", [True, False])
def test_an_index_of_the_old_model_opens_and_names_model_version_and_cure(ship, tmp_path, capsys, recorded):
    model = ship(OLD)
    run(capsys, "index", "build", "old.index", "--source", "photos")
    queries = model.encode_texts(["a dog"])
    if not recorded:  # as by SetIndex.create(model=…)
        (tmp_path / "old.index" / "encoder.json").unlink()
    newer = ship(NEW)
    for verb in ("info", "verify", "compact"):
        assert run(capsys, "index", verb, "old.index").code == 0
    with SetIndex.open("old.index") as index:
        assert len(index.search(queries, 5, model=model)[0]) == 5
        with pytest.raises(ValueError, match=rf"{SHIPPED} of maxmatch {OLD}.*maxmatch index rebuild"):
            index.search(queries, model=newer)
    (tmp_path / "captions").write_text("a dog\n")
    for verb in (
        ("search", "a dog", "old.index"),
        ("search", "--image", "photos/0.png", "old.index"),
        ("serve", "old.index", "--port", "0"),
        ("index", "add", "old.index", "--source", "photos", "--existing", "skip"),
        ("index", "verify", "old.index", "--queries", "captions.txt"),
    ):
        code, out, err = run(capsys, *verb)
        assert (code, out) == (1, "")
        assert f"{SHIPPED} of maxmatch {OLD}" in err
        assert "maxmatch index rebuild old.index" in err
        assert f"install maxmatch {OLD}" in err


def test_the_servers_application_names_them_too(ship, capsys):
    from maxmatch.server.app import create_app

    ship(OLD)
    run(capsys, "index", "build", "old.index", "--source", "photos")
    newer = ship(NEW)
    with SetIndex.open("old.index") as index:
        for model in (None, newer):
            with pytest.raises(ValueError, match=rf"{SHIPPED} of maxmatch {OLD}.*install maxmatch {OLD}"):
                create_app(index, model)


def test_a_new_index_records_the_version_and_a_later_one_is_named_by_it(ship, tmp_path, capsys):
    import maxmatch

    ship(OLD)
    run(capsys, "index", "build", "new.index", "--source", "photos")
    assert read_origin(tmp_path / "new.index") == Origin(SHIPPED, "image", maxmatch.__version__)
    known = json.loads(run(capsys, "index", "info", "new.index", "--json").out)
    assert (known["model_path"], known["model_version"]) == (SHIPPED, OLD), "of the table, which is sure"
    # Of a version after this one: the table cannot know its model.
    names.SHIPPED_MODELS.clear()
    write_origin(tmp_path / "new.index", Origin(SHIPPED, "image", "77.0"))
    ship(NEW)
    assert "install maxmatch 77.0" in run(capsys, "search", "a dog", "new.index").err
    (tmp_path / "new.index" / "encoder.json").write_text(json.dumps({"model": SHIPPED, "modality": "image"}))
    assert "maxmatch index rebuild new.index" in run(capsys, "search", "a dog", "new.index").err


@pytest.mark.parametrize("engine", ["lance", "exhaustive"])
def test_one_command_encodes_the_items_of_an_index_again(ship, tmp_path, capsys, engine):
    ship(OLD)
    run(capsys, "index", "build", "old.index", "--source", "photos", "--engine", engine)
    run(capsys, "index", "remove", "old.index", "3.png")
    with SetIndex.open("old.index") as index:
        facts = {hit.id: hit.metadata for hit in index.search(np.eye(16, dtype="f4")[None, :4])[0]}
    model = ship(NEW)
    code, out, err = run(capsys, "index", "rebuild", "old.index")
    assert code == 0, err
    assert "4 items" in out
    assert sorted(path.name for path in tmp_path.iterdir() if "index" in path.name) == ["old.index"]
    code, out, err = run(capsys, "search", "a dog", "old.index", "--paths")
    assert (code, err) == (0, "")
    files = [tmp_path / "photos" / f"{seed}.png" for seed in (0, 1, 2, 4)]
    assert out.split() == best_first(model, files, "a dog"), "what was removed stays removed"
    with SetIndex.open("old.index") as index:
        assert (index.manifest.engine, index.manifest.dtype, index.manifest.dim) == (engine, "float16", 24)
        hits = index.search(model.encode_texts(["a dog"]), model=model)[0]
        assert {hit.id: hit.metadata for hit in hits} == facts
    again = run(capsys, "index", "rebuild", "old.index", "--json")
    assert (again.code, json.loads(again.out)["added"]) == (0, 0), "there is nothing to do"


def test_captions_are_encoded_again_from_their_texts(ship, tmp_path, capsys):
    ship(OLD)
    run(capsys, "index", "build", "captions.index", "--source", "captions.txt", "--modality", "text")
    (tmp_path / "captions.txt").unlink()  # the index has the texts
    model = ship(NEW)
    assert run(capsys, "index", "rebuild", "captions.index").code == 0
    with SetIndex.open("captions.index") as index:
        [[hit]] = index.search(model.encode_texts(["a cat"]), 1)
        assert hit.metadata == {"text": "a cat"}
        assert all(match.cosine == pytest.approx(1, abs=1e-2) for match in hit.matches)


def test_pictures_that_python_added_by_their_paths_are_encoded_again(ship, capsys):
    files = [f"photos/{seed}.png" for seed in range(5)]
    model = ship(OLD)
    with SetIndex.create("mine.index", dim=model.dim, set_size=4, model=model) as index:
        index.add(files, model.encode_images(files))
    model = ship(NEW)
    code, _, err = run(capsys, "index", "rebuild", "mine.index")
    assert code == 0, err
    assert run(capsys, "search", "a dog", "mine.index", "--paths").out.split() == best_first(model, files, "a dog")


def test_where_pictures_are_gone_nothing_changes_and_a_version_is_named(ship, tmp_path, capsys):
    ship(OLD)
    run(capsys, "index", "build", "old.index", "--source", "photos")
    before = (tmp_path / "old.index" / "index.json").read_text()
    (tmp_path / "photos").rename(tmp_path / "moved")
    ship(NEW)
    code, _, err = run(capsys, "index", "rebuild", "old.index")
    assert code == 1
    for fact in ("5 of 5", f"{tmp_path}/photos/0.png", "--source", "--missing ignore", f"install maxmatch {OLD}"):
        assert fact in err
    assert (tmp_path / "old.index" / "index.json").read_text() == before
    (tmp_path / "moved" / "0.png").unlink()
    assert "1 of 5" in run(capsys, "index", "rebuild", "old.index", "--source", "moved").err
    code, _, err = run(capsys, "index", "rebuild", "old.index", "--source", "moved", "--missing", "ignore")
    assert code == 0, err
    found = run(capsys, "search", "a dog", "old.index", "--paths").out.split()
    assert sorted(found) == [f"{tmp_path}/moved/{seed}.png" for seed in range(1, 5)]


@pytest.mark.slow
def test_a_kill_at_any_step_of_a_rebuild_keeps_an_index_and_the_next_one_resumes(ship, tmp_path, capsys, monkeypatch):
    ship(OLD)
    run(capsys, "index", "build", "old.index", "--source", "photos")
    model = ship(NEW)
    expected = best_first(model, [tmp_path / "photos" / f"{seed}.png" for seed in range(5)], "a dog")
    steps = range(1, 17)
    for step in steps:
        shutil.copytree("old.index", f"{step}/old.index")
    outcomes = outcomes_of(["index", "rebuild", "old.index"], steps)
    assert outcomes == sorted(outcomes, reverse=True)
    assert outcomes[7] == "killed"
    assert outcomes[-1] == "done"
    found = []
    for step in steps:
        monkeypatch.chdir(tmp_path / str(step))
        if Path("old.index").exists():
            with SetIndex.open("old.index") as index:
                assert len(index) == 5
                found.append(index.manifest.dim)
        else:  # between two renames
            found.append(None)
            for command in (("search", "a dog", "old.index"), ("index", "info", "old.index")):
                assert "maxmatch index rebuild" in run(capsys, *command).err
        code, _, err = run(capsys, "index", "rebuild", "old.index")
        assert code == 0, err
        assert run(capsys, "search", "a dog", "old.index", "--paths").out.split() == expected
        assert sorted(os.listdir()) == ["old.index"]
    assert [dim for dim, _ in groupby(found)] == [16, None, 24]


def test_who_opened_the_index_before_is_told_that_it_was_replaced(ship, tmp_path, capsys, versions):
    model = ship(OLD)
    run(capsys, "index", "build", "old.index", "--source", "photos")
    other = with_statistics(SetEncoder.from_pretrained(versions / OLD / SHIPPED))  # of the same width
    with_other = tmp_path / "other"
    other.towers["text"].head.slots.data.neg_()
    other.save_pretrained(with_other)
    queries = model.encode_texts(["a dog"])
    with SetIndex.open("old.index") as reader, SetIndex.open("old.index") as writer:
        assert len(reader.search(queries)[0]) == 5
        assert run(capsys, "index", "rebuild", "old.index", "--model", with_other).code == 0
        now = (tmp_path / "old.index" / "index.json").read_text()
        for call in (
            lambda: reader.search(queries),
            lambda: writer.add(["new"], queries),
            lambda: writer.remove(["0.png"]),
            writer.verify,
            writer.compact,
        ):
            with pytest.raises(ReplacedIndexError):
                call()
        assert (tmp_path / "old.index" / "index.json").read_text() == now
    with SetIndex.open("old.index") as index:
        assert len(index.search(other.encode_texts(["a dog"]), model=other)[0]) == 5


def test_what_was_measured_while_the_index_was_replaced_is_not_kept(ship, tmp_path, capsys, monkeypatch):
    ship(OLD)
    run(capsys, "index", "build", "old.index", "--source", "photos")
    real = set_index.measure

    def replaced_meanwhile(*arguments, **options):
        done = real(*arguments, **options)
        ship(NEW)
        assert run(capsys, "index", "rebuild", "old.index").code == 0
        return replace(done, trials=[None])

    with SetIndex.open("old.index") as index:
        monkeypatch.setattr(set_index, "measure", replaced_meanwhile)
        with pytest.raises(ReplacedIndexError):
            index.verify()
    assert index_folder.read_manifest(tmp_path / "old.index").dim == 24


def test_a_running_server_says_that_its_index_was_replaced(ship, tmp_path, capsys):
    from fastapi.testclient import TestClient

    from maxmatch.server.app import create_app

    model = ship(OLD)
    run(capsys, "index", "build", "old.index", "--source", "photos")
    with SetIndex.open("old.index") as index:
        app = create_app(index, model)
        with TestClient(app, base_url="http://127.0.0.1:8765", client=("127.0.0.1", 50000)) as client:
            assert client.get("/api/v1/search", params={"q": "a dog"}).status_code == 200
            ship(NEW)
            run(capsys, "index", "rebuild", "old.index")
            answer = client.get("/api/v1/search", params={"q": "a dog"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "replaced")
    assert "Restart" in answer.json()["error"]["message"]
    assert str(tmp_path) not in answer.text


def test_a_folder_with_other_files_is_not_replaced(ship, tmp_path, capsys):
    ship(OLD)
    run(capsys, "index", "build", "old.index", "--source", "photos")
    own = tmp_path / "old.index" / "photos"
    shutil.copytree("photos", own)
    (own.parent / "notes.txt").write_text("mine")
    ship(NEW)
    code, _, err = run(capsys, "index", "rebuild", "old.index")
    assert code == 1
    assert "notes.txt" in err
    assert (len(list(own.iterdir())), (own.parent / "notes.txt").read_text()) == (5, "mine")
    assert not list(tmp_path.glob(".old.index*")), "nothing was encoded"
    own.rename(tmp_path / "own")
    (own.parent / "notes.txt").unlink()
    assert run(capsys, "index", "rebuild", "old.index").code == 0


def test_a_file_that_came_while_items_were_encoded_stays(ship, tmp_path, capsys, monkeypatch):
    ship(OLD)
    run(capsys, "index", "build", "old.index", "--source", "photos")
    ship(NEW)
    notes, real = tmp_path / "old.index" / "notes.txt", rebuild.encode_for
    monkeypatch.setattr(
        rebuild, "encode_for", lambda *given, **more: (notes.write_text("mine"), real(*given, **more))[1]
    )
    code, _, err = run(capsys, "index", "rebuild", "old.index")
    assert (code, notes.read_text()) == (1, "mine")
    assert "notes.txt" in err


@pytest.mark.parametrize("repaired", [True, False])
def test_a_picture_that_cannot_be_read_any_more_is_refused_too(ship, tmp_path, capsys, repaired):
    ship(OLD)
    run(capsys, "index", "build", "old.index", "--source", "photos")
    before = (tmp_path / "old.index" / "index.json").read_text()
    picture = (tmp_path / "photos" / "0.png").read_bytes()
    (tmp_path / "photos" / "0.png").write_bytes(b"no picture")
    ship(NEW)
    for _ in range(2):
        code, _, err = run(capsys, "index", "rebuild", "old.index")
        assert code == 1
        for fact in ("1 of 5", "0.png", "--missing ignore", f"remove {tmp_path}/..old.index.rebuilt.encoding"):
            assert fact in err
        assert (tmp_path / "old.index" / "index.json").read_text() == before
    if repaired:
        (tmp_path / "photos" / "0.png").write_bytes(picture)
        shutil.rmtree(tmp_path / "..old.index.rebuilt.encoding")
        assert run(capsys, "index", "rebuild", "old.index").code == 0
    else:
        assert run(capsys, "index", "rebuild", "old.index", "--missing", "ignore").code == 0
    with SetIndex.open("old.index") as index:
        assert len(index) == (5 if repaired else 4)


def test_an_index_that_was_moved_away_alone_is_moved_back(ship, tmp_path, capsys):
    ship(OLD)
    run(capsys, "index", "build", "old.index", "--source", "photos")
    (tmp_path / "old.index").rename(tmp_path / ".old.index.replaced")
    assert "maxmatch index rebuild" in run(capsys, "index", "info", "old.index").err
    ship(NEW)
    code, _, err = run(capsys, "index", "rebuild", "old.index")
    assert code == 0, err
    with SetIndex.open("old.index") as index:
        assert (len(index), index.manifest.dim) == (5, 24)
    assert not list(tmp_path.glob(".old.index*"))


def test_what_was_made_beside_the_index_is_removed_under_its_lock(ship, tmp_path, capsys, monkeypatch):
    ship(OLD)
    run(capsys, "index", "build", "old.index", "--source", "photos")
    ship(NEW)
    real, held = rebuild.discard, []

    def noticing(folder):
        try:
            with locked(tmp_path / "old.index"):
                held.append(False)
        except ValueError:
            held.append(True)
        real(folder)

    monkeypatch.setattr(rebuild, "discard", noticing)
    for _ in range(2):
        assert run(capsys, "index", "rebuild", "old.index").code == 0
    assert held == [True, True, True]


def made_by_python(model, folder, ids, files, metadata=None):
    with SetIndex.create(folder, dim=model.dim, set_size=4, model=model) as index:
        index.add(ids, model.encode_images(files), metadata)


def test_the_folder_is_named_in_which_relative_paths_are_looked_up(ship, tmp_path, capsys, monkeypatch):
    files = sorted((tmp_path / "photos").iterdir())
    model = ship(OLD)
    made_by_python(model, "mine.index", [file.name for file in files], files)
    known = [{"path": file.name, "size": file.stat().st_size + 1, "mtime": 0.0} for file in files]
    made_by_python(model, "checked.index", [file.name for file in files], files, known)
    made_by_python(model, "whole.index", list(map(str, files)), files)
    ship(NEW)
    shutil.copytree("photos", "others")
    assert f"{tmp_path}/0.png: no such file" in run(capsys, "index", "rebuild", "mine.index").err
    monkeypatch.chdir(tmp_path / "others")
    code, _, err = run(capsys, "index", "rebuild", "../mine.index")
    assert code == 0
    assert f"5 relative paths are looked up in {tmp_path}/others" in err
    code, _, err = run(capsys, "index", "rebuild", "../checked.index")
    assert code == 1
    for fact in ("5 of 5", f"{tmp_path}/others/0.png", "size"):
        assert fact in err
    assert "relative" not in run(capsys, "index", "rebuild", "../whole.index").err


def test_what_was_encoded_in_another_folder_is_not_resumed(ship, tmp_path, capsys, monkeypatch):
    files = sorted((tmp_path / "photos").iterdir())
    made_by_python(ship(OLD), "mine.index", [file.name for file in files], files)
    model = ship(NEW)
    shutil.copytree("photos", "others")
    for file in (tmp_path / "others").iterdir():
        Image.new("RGB", (8, 8)).save(file)
    file.write_bytes(b"no picture")  # so that the first run leaves its shards
    monkeypatch.chdir(tmp_path / "others")
    assert run(capsys, "index", "rebuild", "../mine.index").code == 1
    monkeypatch.chdir(tmp_path / "photos")
    assert run(capsys, "index", "rebuild", "../mine.index").code == 0
    expected = best_first(model, [file.name for file in files], "a dog")
    assert run(capsys, "search", "a dog", "../mine.index", "--paths").out.split() == expected


def test_metadata_of_ones_own_stay_where_the_items_have_moved(ship, tmp_path, capsys):
    model = ship(OLD)
    run(capsys, "index", "build", "old.index", "--source", "photos")
    with SetIndex.open("old.index") as index:
        index.upsert(["0.png"], model.encode_images(["photos/0.png"]), [{"album": "Bath", "path": "gone"}])
    (tmp_path / "photos").rename(tmp_path / "moved")
    model = ship(NEW)
    assert run(capsys, "index", "rebuild", "old.index", "--source", "moved").code == 0
    with SetIndex.open("old.index") as index:
        found = {hit.id: hit.metadata for hit in index.search(model.encode_texts(["a dog"]))[0]}
    assert found["0.png"]["album"] == "Bath"
    assert found["0.png"]["path"] == f"{tmp_path}/moved/0.png"
    assert found["0.png"].keys() - found["1.png"].keys() == {"album"}


def test_names_that_no_file_can_have_count_as_gone(ship, capsys):
    model = ship(OLD)
    ids, files = ["photos/0.png", "photos/1.png", "a" * 300], [f"photos/{seed}.png" for seed in range(3)]
    made_by_python(model, "mine.index", ids, files, [{}, {"path": 3}, {}])
    ship(NEW)
    code, _, err = run(capsys, "index", "rebuild", "mine.index")
    assert code == 1
    assert "1 of 3" in err, "a path that is no text is none; the id is the path"
    assert run(capsys, "index", "rebuild", "mine.index", "--missing", "ignore").code == 0


def test_captions_with_a_path_are_taken_for_pictures_unless_named(ship, capsys):
    model = ship(OLD)
    with SetIndex.create("mine.index", dim=model.dim, set_size=4, model=model) as index:
        index.add(["1"], model.encode_texts(["a dog"]), [{"text": "a dog", "path": "a.txt"}])
    model = ship(NEW)
    assert "--modality text" in run(capsys, "index", "rebuild", "mine.index").err
    code, _, err = run(capsys, "index", "rebuild", "mine.index", "--modality", "text")
    assert code == 0, err
    with SetIndex.open("mine.index") as index:
        assert index.search(model.encode_texts(["a dog"]))[0][0].matches[0].cosine == pytest.approx(1, abs=1e-2)


def test_items_on_a_server_are_not_rebuilt(ship, tmp_path, capsys):
    ship(OLD)
    run(capsys, "index", "build", "old.index", "--source", "photos")
    manifest = index_folder.read_manifest(tmp_path / "old.index")
    index_folder.write_manifest(tmp_path / "old.index", manifest.model_copy(update={"engine": "milvus"}))
    ship(NEW)
    code, _, err = run(capsys, "index", "rebuild", "old.index")
    assert code == 1
    assert "maxmatch index build" in err
