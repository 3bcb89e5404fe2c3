import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from made_data import environment, features, run

from maxmatch.data.features import FeatureStore, FeatureWriter, StoreInfo

INFO = StoreInfo("made in a test", 8, "float16", boxes=True)
COUNT = 10


def item(number):
    """Features and boxes of an item, of 1 to 4 regions."""
    values = features(1, 1 + number % 4, 8, seed=number)[0]
    return values, values[:, :4]


def go_on(folder, count=COUNT, info=INFO):
    """Append what is not there yet, two at a time, and finish."""
    with FeatureWriter(folder, info) as writer:
        left = [n for n in range(count) if str(n) not in writer.done]
        for pair in zip(left[::2], [*left[1::2], None], strict=False):
            numbers = [n for n in pair if n is not None]
            writer.append([str(n) for n in numbers], [item(n)[0] for n in numbers], [item(n)[1] for n in numbers])
        return writer.finish()


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    go_on(folder)
    return files(folder)


def begun(folder, count):
    with FeatureWriter(folder, INFO) as writer:
        for n in range(count):
            writer.append([str(n)], [item(n)[0]], [item(n)[1]])
            writer.commit()


KILLED = """
import os, sys
from pathlib import Path
from killed import Countdown, in_child
from maxmatch.data import features, npy
from test_feature_writer import go_on
features._COMMIT_SECONDS = 0
root = Path(sys.argv[1])
append = npy.AppendableNpy.append
for step in range(1, int(sys.argv[2]) + 1):
    countdown = Countdown(step)
    def torn(self, rows):
        def half():
            self._file.write(rows.tobytes()[: 5 + rows.nbytes // 2])
            self._file.flush()
        countdown.tick(half)
        append(self, rows)
    def work():
        npy.AppendableNpy.append = torn
        # A kill, unlike a power cut, leaves what the system has taken: waiting for the disk is left out.
        countdown.count(os, "replace", "fsync", "open", instead={"fsync": lambda handle: None})
        countdown.count(Path, "unlink", "open", "mkdir")
        go_on(root / str(step))
    print({-9: "killed", 0: "done"}.get(in_child(work), "failed"))
"""


def test_a_process_killed_at_any_step_loses_nothing_that_was_committed(tmp_path, whole, monkeypatch):
    """Each child is killed by SIGKILL at its n-th call of the system, or in the middle of a write."""
    steps = 80
    done = run(KILLED, tmp_path, steps)
    outcomes = done.stdout.split()
    assert set(outcomes) == {"killed", "done"}, done.stderr
    assert outcomes == sorted(outcomes, reverse=True)  # every step was tried, up to the last
    assert outcomes.count("killed") >= 50
    kept = []
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    for step in range(1, steps + 1):
        folder = tmp_path / str(step)
        with FeatureWriter(folder, INFO) as writer:
            kept.append(len(writer.done))
            assert list(writer.done) == [str(n) for n in range(len(writer.done))]
        store = go_on(folder)
        assert files(folder) == whole, step
        assert len(store) == COUNT
    assert kept == sorted(kept)
    assert len(set(kept)) == COUNT // 2 + 1


def test_a_process_killed_at_any_time_loses_nothing_that_was_committed(tmp_path):
    code = """
import sys, time
from pathlib import Path
from maxmatch.data import features
from test_feature_writer import INFO, item
features._COMMIT_SECONDS = 0
with features.FeatureWriter(Path(sys.argv[1]), INFO) as writer:
    print("ready", flush=True)
    for n in range(len(writer.done), 10**6):
        writer.append([str(n)], [item(n)[0]], [item(n)[1]])
        print(n, flush=True)
"""
    said = -1
    for pause in (0.0, 0.013, 0.037):
        command = [sys.executable, "-c", code, str(tmp_path / "store")]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment()) as process:
            assert process.stdout.readline() == "ready\n"
            time.sleep(pause)
            process.send_signal(signal.SIGKILL)
            said = max([said, *map(int, process.stdout.read().split())])
        with FeatureWriter(tmp_path / "store", INFO) as writer:
            assert list(writer.done) == [str(n) for n in range(len(writer.done))]
            assert len(writer.done) > said
    count = max(COUNT, said + 10)
    assert files_of(go_on(tmp_path / "store", count)) == files_of(go_on(tmp_path / "again", count))


def files_of(store):
    return files(store.folder)


def test_a_journal_cut_anywhere_resumes_after_its_last_complete_line(tmp_path, whole):
    begun(tmp_path / "begun", 6)
    before = files(tmp_path / "begun")
    for cut in range(0, len(before["features.journal"]) + 1, 23):
        folder = tmp_path / str(cut)
        folder.mkdir()
        for name, data in before.items():
            (folder / name).write_bytes(data[:cut] if name == "features.journal" else data)
        with FeatureWriter(folder, INFO) as writer:
            assert list(writer.done) == [
                str(n) for n in range(max(before["features.journal"][:cut].count(b"\n") - 1, 0))
            ]
        go_on(folder)
        assert files(folder) == whole


def test_a_line_with_a_wrong_checksum_and_what_follows_it_does_not_count(tmp_path, whole):
    begun(tmp_path, 6)
    lines = (tmp_path / "features.journal").read_bytes().splitlines(keepends=True)
    lines[3] = lines[3].replace(b'"2"', b'"7"')
    (tmp_path / "features.journal").write_bytes(b"".join(lines))
    with FeatureWriter(tmp_path, INFO) as writer:
        assert list(writer.done) == ["0", "1"]
    go_on(tmp_path)
    assert files(tmp_path) == whole


@pytest.mark.parametrize("name", [".features.npy.part", ".boxes.npy.part"])
def test_items_whose_features_are_gone_are_not_done(tmp_path, whole, name):
    begun(tmp_path, 6)
    os.truncate(tmp_path / name, (tmp_path / name).stat().st_size - 1)
    with FeatureWriter(tmp_path, INFO) as writer:
        assert list(writer.done) == [str(n) for n in range(5)]
    go_on(tmp_path)
    assert files(tmp_path) == whole


def test_a_finished_store_has_nothing_left_to_do(tmp_path, whole):
    go_on(tmp_path / "store")
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "store").iterdir()}
    assert len(go_on(tmp_path / "store")) == COUNT
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "store").iterdir()} == times
    with FeatureWriter(tmp_path / "store", INFO) as writer, pytest.raises(ValueError, match="the store is finished"):
        writer.append(["new"], [item(0)[0]], [item(0)[1]])


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (StoreInfo("elsewhere", 8, "float16", boxes=True), "source 'made in a test' and not 'elsewhere'"),
        (StoreInfo("made in a test", 9, "float16", boxes=True), "width 8 and not 9"),
        (StoreInfo("made in a test", 8, "float32", boxes=True), "dtype 'float16' and not 'float32'"),
        (StoreInfo("made in a test", 8, "float16", (1, 1), boxes=True), r"grid None and not \(1, 1\)"),
        (StoreInfo("made in a test", 8, "float16"), "boxes True and not False"),
    ],
)
@pytest.mark.parametrize("finished", [False, True])
def test_other_features_are_not_mixed_in(tmp_path, other, message, finished):
    if finished:
        go_on(tmp_path)
    else:
        begun(tmp_path, 3)
    before = files(tmp_path)
    with pytest.raises(ValueError, match=f"holds other features: {message}. Choose a new folder"):
        FeatureWriter(tmp_path, other)
    assert files(tmp_path) == before


def test_two_writers_do_not_share_a_folder(tmp_path):
    if sys.platform == "win32":
        pytest.skip("files are not locked on Windows")
    with FeatureWriter(tmp_path, INFO), pytest.raises(ValueError, match="another process is writing there"):
        FeatureWriter(tmp_path, INFO)
    FeatureWriter(tmp_path, INFO).close()


def test_an_array_of_someone_else_is_not_touched(tmp_path):
    np.save(tmp_path / "features.npy", np.zeros(3))
    with pytest.raises(FileExistsError, match="holds files, but no store of features"):
        FeatureWriter(tmp_path, INFO)
    assert np.load(tmp_path / "features.npy").tolist() == [0, 0, 0]


def test_what_does_not_fit_is_refused_and_nothing_of_its_batch_is_kept(tmp_path):
    good = np.ones((2, 8))
    with FeatureWriter(tmp_path, StoreInfo("test", 8, "float16")) as writer:
        writer.append(["a"], [good])
        for ids, arrays, message in (
            (["b", "c"], [good, np.ones((2, 7))], r"features of 'c': expected \(at least one, 8\), got \(2, 7\)"),
            (["b", "c"], [good, np.ones((0, 8))], r"got \(0, 8\)"),
            (["b", "c"], [good, np.ones(8)], r"got \(8,\)"),
            (["b", "a"], [good, good], r"'a' is there already"),
            (["b", "b"], [good, good], r"an id comes twice"),
            (["b", "c\nd"], [good, good], r"the id 'c\\nd' does not fit on a line"),
            (["b", ""], [good, good], r"the id '' does not fit"),
            (["b", "c"], [good, good * 1e5], r"features of 'c': too large for float16. Write the store in float32"),
        ):
            with pytest.raises(ValueError, match=message):
                writer.append(ids, arrays)
        assert list(writer.done) == ["a"]
        writer.append(["z"], [good * 2])
        store = writer.finish()
    assert store.ids == ["a", "z"]
    assert store[1].tolist() == (good * 2).tolist()
    with FeatureWriter(tmp_path / "grid", StoreInfo("test", 8, grid=(2, 2))) as writer:
        with pytest.raises(ValueError, match=r"expected the grid \(2, 2\), got 3 features"):
            writer.append(["a"], [np.ones((3, 8))])
        with pytest.raises(ValueError, match="no features were appended"):
            writer.finish()
    with (
        FeatureWriter(tmp_path / "boxes", INFO) as writer,
        pytest.raises(ValueError, match=r"boxes of 'a': expected \(2, 4\)"),
    ):
        writer.append(["a"], [good], [np.ones((1, 4))])


def test_a_write_that_fails_halfway_is_cut_off(tmp_path, monkeypatch, whole):
    begun(tmp_path / "store", 4)

    def full(rows):
        raise OSError("no space left")

    with FeatureWriter(tmp_path / "store", INFO) as writer:
        monkeypatch.setattr(writer._boxes, "append", full)
        with pytest.raises(OSError, match="no space left"):
            writer.append(["4"], [item(4)[0]], [item(4)[1]])
    with FeatureWriter(tmp_path / "store", INFO) as writer:
        assert list(writer.done) == ["0", "1", "2", "3"]
    assert files_of(go_on(tmp_path / "store")) == whole


def test_the_store_that_writing_gives_is_the_one_that_opens(tmp_path):
    store = go_on(tmp_path)
    again = FeatureStore.open(tmp_path)
    assert [again[n].tolist() for n in range(COUNT)] == [item(n)[0].astype("float16").tolist() for n in range(COUNT)]
    assert store.ids == again.ids
