import base64
import os

import numpy as np
import pytest
from made_data import features, interrupting, run, split

from maxmatch.data.dataset import IMAGE, DataError, Dataset
from maxmatch.data.features import with_features
from maxmatch.data.formats import butd

WIDTH = 6


def item(number, boxes=3):
    values = features(1, boxes, WIDTH, seed=number)[0]
    return values, np.arange(4 * boxes, dtype=np.float32).reshape(-1, 4) + number


def line(number, boxes=3, image=None, **change):
    """A line as the original tool writes it; `change` replaces columns."""
    values, places = item(number, boxes)
    columns = {
        "image_id": str(number) if image is None else image,
        "image_w": "640",
        "image_h": "480",
        "num_boxes": str(boxes),
        "boxes": base64.b64encode(places.tobytes()).decode(),
        "features": base64.b64encode(values.tobytes()).decode(),
    }
    return "\t".join({**columns, **change}.values()) + "\n"


def check(store, numbers, boxes=lambda n: 3):
    assert store.ids == [str(n) for n in numbers]
    for place, n in enumerate(numbers):
        values, places = item(n, boxes(n))
        assert store.values[place].tolist() == values.astype(store.info.dtype).tolist()
        assert store.boxes[place].tolist() == places.tolist()


@pytest.mark.parametrize(("dtype", "ragged"), [("float16", False), ("float32", True)])
def test_several_files_become_one_store(tmp_path, dtype, ragged):
    def boxes(n):
        return 1 + n % 5 if ragged else 3

    files = [tmp_path / "tsv" / f"karpathy_train.tsv.{k}" for k in range(2)]
    files[0].parent.mkdir()
    for k, file in enumerate(files):
        file.write_text("".join(line(n, boxes(n)) for n in range(40 * k, 40 * k + 40)))
    (tmp_path / "tsv" / "captions.tsv").write_text("image\tcaption\n1.jpg\ta dog\n")
    read = []
    store = butd.convert(tmp_path / "tsv", tmp_path / "store", advance=read.append, dtype=dtype)
    check(store, range(80), boxes)
    assert sum(read) == sum(file.stat().st_size for file in files)
    assert store.info.source == "BUTD TSV: karpathy_train.tsv.0, karpathy_train.tsv.1"


def test_files_are_recognised_by_their_beginning(tmp_path):
    (tmp_path / "captions.tsv").write_text("image\tcaption\n1.jpg\ta dog\n")
    assert not butd.recognises(tmp_path)
    assert not butd.recognises(tmp_path / "captions.tsv")
    assert not butd.recognises(tmp_path / "nothing")
    with pytest.raises(DataError, match="no tab-separated file with the columns image_id, image_w"):
        butd.convert(tmp_path, tmp_path / "store")
    assert not (tmp_path / "store").exists()
    (tmp_path / "trainval.tsv").write_text(line(1))
    assert butd.recognises(tmp_path)
    assert butd.recognises(tmp_path / "trainval.tsv")
    (tmp_path / "trainval.tsv").write_text("image_id\timage_w\timage_h\tnum_boxes\tboxes\tfeatures\n" + line(1))
    check(butd.convert(tmp_path, tmp_path / "store"), [1])


def test_crlf_a_byte_order_mark_and_a_missing_last_newline_make_no_difference(tmp_path):
    text = (line(1) + line(2)).replace("\n", "\r\n").removesuffix("\r\n")
    (tmp_path / "x.tsv").write_bytes(b"\xef\xbb\xbf" + text.encode())
    check(butd.convert(tmp_path, tmp_path / "store"), [1, 2])


BAD = {
    "columns": ("2\t640\t480\n", r"3 columns, expected 6: image_id, image_w"),
    "empty line": ("\n", r"1 columns, expected 6"),
    "id": (line(2, image=""), r"expected an image's id, got ''"),
    "id bytes": (line(2, image="caf\udce9"), r"expected an image's id"),
    "number": (line(2, num_boxes="x"), r"image 2: expected the number of boxes, at least 1, got 'x'"),
    "no boxes": (line(2, num_boxes="0"), r"image 2: expected the number of boxes, at least 1, got '0'"),
    "base64": (line(2, features="ab!d"), r"image 2: features: no whole base64"),
    "base64 cut": (line(2)[:-8] + "\n", r"image 2: features: (no whole base64|expected 3×6 numbers)"),
    "python 3": (line(2, features="b'AAAA'"), r"image 2: features: no whole base64"),
    "length": (line(2, num_boxes="4"), r"image 2: boxes: expected 4×4 numbers \(float32\), got 48 bytes"),
    "width": (
        line(2, features=base64.b64encode(bytes(60)).decode()),
        r"image 2: features: expected 3×6 .* 60 bytes",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_line_is_named_and_the_others_are_kept(tmp_path, case):
    data, message = BAD[case]
    (tmp_path / "x.tsv").write_bytes((line(1) + data + line(3)).encode("utf-8", "surrogateescape"))
    with pytest.raises(DataError, match=rf"x\.tsv:2: {message}"):
        butd.convert(tmp_path, tmp_path / "refused")
    problems = []
    for times in (1, 2):  # once more, though all is done
        check(butd.convert(tmp_path, tmp_path / "store", problems.append), [1, 3])
        assert [problem.line for problem in problems] == [2] * times


def test_a_file_that_ends_within_a_line_keeps_the_lines_before(tmp_path):
    data = line(1) + line(2)
    (tmp_path / "x.tsv").write_text(data[:-40])
    problems = []
    check(butd.convert(tmp_path, tmp_path / "store", problems.append), [1])
    assert problems[0].line == 2
    (tmp_path / "y.tsv").write_text(line(2))  # whole in another file: that one counts
    check(butd.convert(tmp_path, tmp_path / "again", problems.append), [1, 2])


def test_values_too_large_for_half_precision_are_reported(tmp_path):
    large = base64.b64encode(np.full((3, WIDTH), 1e6, np.float32).tobytes()).decode()
    (tmp_path / "x.tsv").write_text(line(1) + line(2, features=large))
    with pytest.raises(DataError, match=r"x\.tsv:2: image 2: features: too large for float16"):
        butd.convert(tmp_path, tmp_path / "store", dtype="float16")


@pytest.mark.parametrize("far", [0, 100])
def test_a_repeated_image_is_reported_and_dropped(tmp_path, far):
    between = range(10, 10 + far)
    (tmp_path / "x.tsv").write_text(line(1) + "".join(map(line, between)) + line(5, image="1"))
    problems = []
    check(butd.convert(tmp_path, tmp_path / "store", problems.append), [1, *between])
    assert str(problems[0]).startswith(f"{tmp_path / 'x.tsv'}:{far + 2}: image 1 came before; the first is kept.")
    assert len(problems) == 1
    check(butd.convert(tmp_path, tmp_path / "store", problems.append), [1, *between])  # also when all are there already
    assert problems[1] == problems[0]


def test_a_file_of_which_no_line_can_be_used_is_refused_and_leaves_no_store(tmp_path):
    (tmp_path / "x.tsv").write_text(line(1, num_boxes="0"))
    with pytest.raises(DataError, match="no line can be used"):
        butd.convert(tmp_path, tmp_path / "store", lambda problem: None)
    assert not (tmp_path / "store" / "store.json").exists()


def test_a_line_without_end_is_not_read_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(butd, "_LONGEST", 1000)
    (tmp_path / "x.tsv").write_text(line(1) + "x" * 5000)
    with pytest.raises(DataError, match=r"x\.tsv:2: a line of more than 1000 bytes"):
        butd.convert(tmp_path, tmp_path / "store", lambda problem: None)


def test_an_interrupted_conversion_resumes(tmp_path, monkeypatch):
    (tmp_path / "x.tsv").write_text("".join(map(line, range(100))))

    with pytest.raises(KeyboardInterrupt):
        butd.convert(tmp_path, tmp_path / "store", advance=interrupting(70))
    assert not (tmp_path / "store" / "store.json").exists()
    decoded = []
    decode = butd._item
    monkeypatch.setattr(butd, "_item", lambda *fields: decoded.append(1) or decode(*fields))
    check(butd.convert(tmp_path, tmp_path / "store"), range(100))
    assert len(decoded) == 1 + 100 - 64  # one to see the width; two blocks of 32 were written
    files = {path.name: path.read_bytes() for path in (tmp_path / "store").iterdir()}
    butd.convert(tmp_path, tmp_path / "whole")
    assert files == {path.name: path.read_bytes() for path in (tmp_path / "whole").iterdir()}


def test_workers_give_the_same_store(tmp_path):
    (tmp_path / "x.tsv").write_text("".join(map(line, range(70))) + line(99, num_boxes="0") + line(98))
    code = """
import sys
from pathlib import Path
from maxmatch.data.formats import butd
if __name__ == "__main__":
    problems = []
    butd.convert(Path(sys.argv[1]), Path(sys.argv[2]), problems.append, workers=2)
    print([problem.line for problem in problems])
"""
    done = run(code, tmp_path, tmp_path / "store")
    assert done.stdout == "[71]\n", done.stderr
    butd.convert(tmp_path, tmp_path / "whole", lambda problem: None)
    for path in (tmp_path / "whole").iterdir():
        assert path.read_bytes() == (tmp_path / "store" / path.name).read_bytes(), path.name
    assert sorted(os.listdir(tmp_path / "store")) == sorted(os.listdir(tmp_path / "whole"))


def test_the_store_joins_captions_by_id(tmp_path):
    (tmp_path / "x.tsv").write_text("".join(map(line, (7, 5, 6))))
    data = Dataset(tmp_path, "karpathy", {"train": split([b"a", b"b"], 5, ids=["5", "7"])})
    images = with_features(data, butd.convert(tmp_path, tmp_path / "store")).splits["train"][IMAGE]
    assert [value.tolist() for value in images.values] == [item(5)[0].tolist(), item(7)[0].tolist()]
