import numpy as np
import pytest

from maxmatch.core import files
from maxmatch.core.files import draft, is_draft, lock, whole, write_whole
from maxmatch.data.npy import AppendableNpy


def test_a_file_is_replaced_whole(tmp_path):
    path = tmp_path / "file.txt"
    with whole(path) as file:
        file.write(b"old")
        assert not path.exists()
    with whole(path) as file:
        file.write(b"new")
        assert path.read_bytes() == b"old"
    assert [(found.name, found.read_bytes()) for found in tmp_path.iterdir()] == [("file.txt", b"new")]


def fail(path):
    with whole(path) as file:
        file.write(b"half of")
        raise OSError("no space left")


def test_a_file_that_is_not_finished_leaves_the_old_one(tmp_path):
    (tmp_path / "file.txt").write_bytes(b"old")
    with pytest.raises(OSError, match="no space left"):
        fail(tmp_path / "file.txt")
    assert [(found.name, found.read_bytes()) for found in tmp_path.iterdir()] == [("file.txt", b"old")]


def test_two_that_write_a_file_at_once_do_not_mix(tmp_path):
    path = tmp_path / "file.txt"
    with whole(path) as first:
        first.write(b"first, and ")
        first.flush()
        with whole(path) as second:
            second.write(b"second")
        assert path.read_bytes() == b"second"
        first.write(b"whole")
    assert [(found.name, found.read_bytes()) for found in tmp_path.iterdir()] == [("file.txt", b"first, and whole")]


def test_one_that_fails_takes_nothing_from_the_other(tmp_path):
    path = tmp_path / "file.txt"
    with whole(path) as first:
        first.write(b"first")
        with pytest.raises(OSError, match="no space left"):
            fail(path)
    assert [(found.name, found.read_bytes()) for found in tmp_path.iterdir()] == [("file.txt", b"first")]


def test_what_a_killed_process_left_is_used_again(tmp_path):
    draft(tmp_path / "file.txt").write_bytes(b"longer than what comes now")
    write_whole(tmp_path / "file.txt", "short")
    assert [(found.name, found.read_text()) for found in tmp_path.iterdir()] == [("file.txt", "short")]


def test_a_draft_renamed_while_another_process_opens_it_is_not_written(tmp_path, monkeypatch):
    path, locked = tmp_path / "file.txt", files._locked

    def renamed_before(file):
        monkeypatch.undo()
        draft(path).write_bytes(b"theirs")
        draft(path).rename(path)
        return locked(file)

    monkeypatch.setattr(files, "_locked", renamed_before)
    with whole(path) as file:
        file.write(b"ours")
        file.flush()
        assert path.read_bytes() == b"theirs"
    assert [(found.name, found.read_bytes()) for found in tmp_path.iterdir()] == [("file.txt", b"ours")]


@pytest.mark.parametrize("locks", [None, False])
def test_without_locks_every_draft_has_a_name_of_its_own(tmp_path, monkeypatch, locks):
    monkeypatch.setattr(files, "_locked", lambda file: locks)
    with whole(tmp_path / "file.txt") as first, whole(tmp_path / "file.txt") as second:
        first.write(b"first")
        second.write(b"second")
    assert (tmp_path / "file.txt").read_bytes() == b"first"
    assert all(is_draft(found.name, "file.txt") for found in tmp_path.iterdir() if found.name != "file.txt")


def test_a_text_is_written_into_a_folder_that_is_made(tmp_path):
    write_whole(tmp_path / "a" / "b" / "text", "größer\n")
    assert (tmp_path / "a" / "b" / "text").read_bytes() == "größer\n".encode()


def test_one_process_at_a_time_writes_at_a_place(tmp_path):
    with (tmp_path / "journal").open("wb") as first:
        lock(first, tmp_path)
        with (
            (tmp_path / "journal").open("rb") as second,
            pytest.raises(ValueError, match="another process is writing there"),
        ):
            lock(second, tmp_path)
    with (tmp_path / "journal").open("rb") as third:
        lock(third, tmp_path)


@pytest.mark.parametrize(("row", "dtype"), [((), "int64"), ((36, 8), "float16")])
def test_an_array_grows_over_several_processes_and_is_numpys_in_the_end(tmp_path, row, dtype):
    rows = np.arange(5 * int(np.prod(row)), dtype=dtype).reshape(5, *row)
    for begin, end in ((0, 2), (2, 2), (2, 5)):
        array = AppendableNpy(tmp_path / "rows.npy", np.dtype(dtype), row)
        assert array.rows == begin
        assert array.written().tolist() == rows[:begin].tolist()
        array.append(rows[begin:end])
        array.close()
    with (tmp_path / ".rows.npy.part").open("ab") as file:
        file.write(b"x")  # a part of a row
    array = AppendableNpy(tmp_path / "rows.npy", np.dtype(dtype), row)
    array.finish()
    assert [path.name for path in tmp_path.iterdir()] == ["rows.npy"]
    found = np.load(tmp_path / "rows.npy", allow_pickle=False)
    assert found.dtype == dtype
    assert found.tolist() == rows.tolist()
