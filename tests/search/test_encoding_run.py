"""Shards of sets: what they hold is what the model makes of each item, whatever happens meanwhile."""

import errno
import json
import shutil
import signal
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from made_data import run, split
from picture_heap import HEAP
from PIL import Image
from safetensors.numpy import load_file
from tiny_models import images_for, texts, tiny_model

from maxmatch.data.formats import precomp
from maxmatch.model.encoder import SetEncoder
from maxmatch.search import encode_files
from maxmatch.search.encode_files import (
    Task,
    Worker,
    describe,
    encode_for,
    encode_on_ray,
    encode_source,
    started,
    waiting_shards,
)
from maxmatch.search.shards import ShardError, alone, finish, read_manifest, read_shard, shard_file
from maxmatch.search.sources import list_source

LISTED = HEAP - HEAP // 50  # all but the files that are no pictures by their names
OPTIONS = {"dtype": "float32", "shard_size": 32, "batch_size": 8}


@pytest.fixture(scope="module")
def listing(heap):
    return list_source(heap[0])


@pytest.fixture(scope="module")
def whole(listing, model, tmp_path_factory):
    """The shards of a run that was not interrupted."""
    folder = tmp_path_factory.mktemp("shards") / "whole"
    encode_source(model, listing, folder, **OPTIONS)
    return folder


def read_all(folder):
    manifest = read_manifest(folder)
    return [read_shard(folder, number, manifest) for number in range(manifest.shards)]


def rows(file):
    return [json.loads(line) for line in file.read_text().splitlines()]


def skipped(folder):
    return {row["id"]: row["reason"] for row in rows(folder / "skipped.jsonl")}


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != ".lock"}


def test_a_shard_holds_the_sets_of_the_pictures_in_the_order_of_the_source(heap, model, whole):
    folder, good, _ = heap
    shards = read_all(whole)
    assert [name for shard in shards for name in shard.ids] == good
    assert len(shards) == -(-LISTED // 32)
    sets = np.concatenate([shard.sets for shard in shards])
    expected = model.encode_images([folder / name for name in good])
    torch.testing.assert_close(torch.from_numpy(sets), expected, atol=1e-5, rtol=1e-5)
    known = shards[0].metadata[0]
    assert known["path"] == str(folder / good[0])
    assert known["size"] == (folder / good[0]).stat().st_size
    assert known["mtime"] == (folder / good[0]).stat().st_mtime


def test_every_item_that_cannot_be_read_is_listed_with_its_reason_and_no_other(heap, whole):
    _, good, bad = heap
    found = skipped(whole)
    assert found.keys() == bad.keys()
    for name, word in bad.items():
        assert word in found[name]
    assert read_manifest(whole).encoded == len(good)
    # Other programs read the shards with safetensors and JSON alone.
    lines = rows(whole / "shard-000000.jsonl")
    assert load_file(whole / "shard-000000.safetensors")["sets"].shape == (len(lines), 4, 16)
    assert json.loads((whole / "manifest.json").read_text())["modality"] == "image"


def test_the_sets_do_not_depend_on_batches_and_shards_and_half_precision_is_rounded(listing, model, whole, tmp_path):
    encode_source(model, listing, tmp_path / "out", "float16", shard_size=50, batch_size=3, workers=2)
    mine, theirs = (np.concatenate([shard.sets for shard in read_all(folder)]) for folder in (tmp_path / "out", whole))
    assert mine.dtype == np.float16
    np.testing.assert_allclose(mine, theirs, atol=5e-4)  # half a step of half precision below 1 is 2.4e-4


def test_a_second_run_does_nothing(listing, model, whole, monkeypatch):
    before = files(whole)
    monkeypatch.setattr(SetEncoder, "forward", lambda *arguments: pytest.fail("encoded again"))
    encode_source(model, listing, whole, **OPTIONS)
    assert files(whole) == before


KILLED = """
import os, random, signal, sys, time
import torch
torch.set_num_threads(1)
from pathlib import Path
from maxmatch.model.encoder import SetEncoder
from maxmatch.search import encode_files
from maxmatch.search.encode_files import encode_source
from maxmatch.search.sources import list_source

source, checkpoint, out, log = sys.argv[1:]
encode_files._COMMIT_SECONDS = 0
model, listing = SetEncoder.from_pretrained(checkpoint), list_source(source)
kept = encode_files.write_batch
def noted(folder, number, batch):
    kept(folder, number, batch)
    with open(log, "a") as file:
        places = (*batch.places, *(one.index for one in batch.skipped))
        file.write("".join(f"{place}\\n" for place in places))
encode_files.write_batch = noted
moments = random.Random(5)
Path(log).touch()
for step in range(4):
    there, child = os.path.getsize(log), os.fork()
    if not child:
        encode_source(model, listing, out, "float32", 32, 8)
        os._exit(0)
    ended = (0, 0)
    while step < 3 and ended == (0, 0) and os.path.getsize(log) == there:
        time.sleep(0.001)
        ended = os.waitpid(child, os.WNOHANG)
    if step < 3 and ended == (0, 0):  # it has kept something: now at any moment
        time.sleep(moments.uniform(0, 0.04))
        os.kill(child, signal.SIGKILL)
    code = os.waitstatus_to_exitcode((ended if ended[0] else os.waitpid(child, 0))[1])
    print(code)
    if code == 0:
        break
"""


def test_killed_at_random_moments_it_resumes_and_encodes_nothing_twice(heap, checkpoint, whole, tmp_path):
    done = run(KILLED, heap[0], checkpoint, tmp_path / "out", tmp_path / "log")
    codes = done.stdout.split()
    assert codes[-1] == "0", done.stderr
    assert str(-signal.SIGKILL) in codes
    noted = (tmp_path / "log").read_text().split()
    # A process killed between keeping a batch and noting it leaves a gap in the log, never a repetition.
    assert len(noted) == len(set(noted))
    assert len(noted) >= LISTED - 8 * len(codes)
    assert files(tmp_path / "out") == files(whole)


def test_a_run_stopped_between_the_last_batch_and_the_shard_is_resumed(listing, model, whole, tmp_path, monkeypatch):
    def stop(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(encode_files, "complete", stop)
        with pytest.raises(KeyboardInterrupt):
            encode_source(model, listing, tmp_path / "out", **OPTIONS)
    encode_source(model, listing, tmp_path / "out", **OPTIONS)
    assert files(tmp_path / "out") == files(whole)


def test_another_model_source_modality_or_precision_in_the_same_folder_is_refused(listing, model, whole, tmp_path):
    other = tiny_model("resnet152_bigru", seed=2)
    (tmp_path / "captions.txt").write_text("a dog\n")
    Image.new("RGB", (50, 50)).save(tmp_path / "a.png")
    before = files(whole)
    renamed = replace(listing, ids=[f"{name}!" for name in listing.ids])
    for arguments, words in (
        ((other, listing, whole, "float32"), "holds the sets of another model"),
        ((model, list_source(tmp_path / "captions.txt"), whole, "float32"), "holds the sets of another source"),
        ((model, list_source(tmp_path), whole, "float32"), "holds the sets of another source"),
        ((model, listing, whole, "float16"), "sets of another precision"),
        ((model, renamed, whole, "float32"), f"a source that has changed since.*{LISTED} items, now {LISTED}"),
    ):
        with pytest.raises(FileExistsError, match=f"{words}.*Give a new folder with --out, or remove this one"):
            encode_source(*arguments)
    assert files(whole) == before


def test_a_folder_of_something_else_and_one_that_another_process_writes_are_refused(listing, model, tmp_path):
    (tmp_path / "diary.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="holds files, but no shards of sets"):
        encode_source(model, listing, tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["diary.txt"], "not even a lock is put there"
    with pytest.raises(FileExistsError, match="is a file"):
        encode_source(model, listing, tmp_path / "diary.txt")
    with alone(tmp_path / "out"), pytest.raises(ValueError, match="another process is writing there"):
        encode_source(model, listing, tmp_path / "out")


def test_a_damaged_shard_is_named_and_encoded_again_once_it_is_removed(listing, model, whole, tmp_path):
    shutil.copytree(whole, tmp_path / "out")
    file = shard_file(tmp_path / "out", 1)
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(ShardError, match=r"shard-000001.safetensors: not a whole safetensors file.*Remove the file"):
        read_all(tmp_path / "out")
    file.unlink()
    with started(listing, tmp_path / "out", describe(model, listing, "float32", 32)) as job:
        assert job.unfinished() == [1]
    encode_source(model, listing, tmp_path / "out", **OPTIONS)
    assert files(tmp_path / "out") == files(whole)
    beside = file.with_suffix(".jsonl")
    beside.write_bytes(b"".join(beside.read_bytes().splitlines(keepends=True)[:-1]))
    with pytest.raises(ShardError, match=r"as many as lines in shard-000001.jsonl"):
        read_all(tmp_path / "out")
    beside.write_text("{}\n")
    with pytest.raises(ShardError, match=r"shard-000001.jsonl: not readable"):
        read_all(tmp_path / "out")


def test_workers_of_a_cluster_write_what_one_process_writes(heap, checkpoint, listing, model, whole, tmp_path):
    """Each makes shards of its own; Ray itself only hands them out."""
    out = tmp_path / "out"
    with started(listing, out, describe(model, listing, "float32", 32)) as job:
        task = Task(str(checkpoint), str(heap[0]), str(out), "folder", batch_size=8)
        first, second = Worker(task), Worker(task)
        covered = [worker({"shard": np.array([n])}) for n, worker in ((2, first), (0, second), (3, first), (1, second))]
        assert sum(int(one["items"].sum()) for one in covered) == len(listing)
        finish(out, job.manifest, listing.left_out)
    mine, theirs = files(out), files(whole)
    for name in mine.keys() | theirs.keys():
        assert name == "manifest.json" or mine[name] == theirs[name]
    (tmp_path / "other").mkdir()
    Image.new("RGB", (50, 50)).save(tmp_path / "other" / "a.png")
    with pytest.raises(ValueError, match="another source on this machine"):
        Worker(replace(task, source=str(tmp_path / "other")))


def test_texts_are_encoded_by_length_and_kept_in_order(model, tmp_path):
    captions = texts(70, seed=3)
    (tmp_path / "captions.txt").write_text("\n".join(captions) + "\n")
    encode_source(model, list_source(tmp_path / "captions.txt"), tmp_path / "out", "float32", 40, 16)
    shards = read_all(tmp_path / "out")
    assert [name for shard in shards for name in shard.ids] == [str(number) for number in range(1, 71)]
    assert [known["text"] for shard in shards for known in shard.metadata] == captions
    sets = torch.from_numpy(np.concatenate([shard.sets for shard in shards]))
    torch.testing.assert_close(sets, model.encode_texts(captions), atol=1e-5, rtol=1e-5)


def test_features_are_encoded_and_pictures_refused_if_the_model_reads_features(heap, tmp_path):
    region = tiny_model("region_bigru")
    values = np.stack([item[:1] for item in images_for(region, 6)])
    precomp.write({"train": split(values, 1)}, tmp_path / "data")
    encode_source(region, list_source(tmp_path / "data"), tmp_path / "out", "float32")
    expected = region.encode_images(list(values))
    torch.testing.assert_close(torch.from_numpy(read_all(tmp_path / "out")[0].sets), expected, atol=1e-5, rtol=1e-5)
    with pytest.raises(ValueError, match="this model reads features extracted beforehand"):
        encode_source(region, list_source(heap[0]), tmp_path / "other")


def test_an_item_of_which_the_model_makes_nan_is_left_out_and_named(tmp_path):
    broken = tiny_model("resnet152_bigru")
    for name in ("a", "b"):
        Image.new("RGB", (50, 50), "red").save(tmp_path / f"{name}.png")
    with torch.no_grad():
        next(broken.tower("image").head.parameters()).fill_(float("nan"))
    done = encode_source(broken, list_source(tmp_path), tmp_path / "out")
    assert done.encoded == 0
    assert "NaN" in skipped(tmp_path / "out")["a.png"]


def test_a_folder_without_shards_is_refused_with_the_cure(tmp_path):
    with pytest.raises(ShardError, match=r"nowhere: no such folder.*maxmatch encode"):
        read_manifest(tmp_path / "nowhere")
    for text, words in (
        ("{", "not readable as JSON"),
        ("{}", "format is not"),
        ('{"format": "maxmatch.shards"}', "dim"),
    ):
        (tmp_path / "manifest.json").write_text(text)
        with pytest.raises(ShardError, match=words):
            read_manifest(tmp_path)


def test_without_ray_the_error_tells_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"pip install 'maxmatch\[ray\]'"):
        encode_on_ray(Task("m", "s", "f", "folder"), [0], print)


def test_shards_beside_an_index_are_removed_only_if_they_are_of_another_source_or_model(model, tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("\n".join(texts(4)))
    index, listing = tmp_path / "index", list_source(tmp_path / "a.txt")
    place = waiting_shards(index)
    place.mkdir()
    (place / "mine.txt").write_text("stays")
    with pytest.raises(FileExistsError):
        encode_for(index, model, listing)
    assert files(place) == {"mine.txt": b"stays"}
    (place / "mine.txt").unlink()
    encode_for(index, model, listing)
    before = files(place)

    def busy(*_, **__):
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr("maxmatch.search.shards.safe_open", busy)
        with pytest.raises(ShardError):
            encode_for(index, model, listing)
    assert files(place) == before
    assert encode_for(index, model, listing, "float32").dtype == "float32"
    assert read_manifest(place).dtype == "float32"
