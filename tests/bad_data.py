"""Every kind of bad data, in each format where it can occur, and what has to be said about it."""

import base64
import io
import json
import tarfile
from typing import NamedTuple

import numpy as np
from made_data import features, split
from sample_splits import picture, split_of

from maxmatch.data.formats import huggingface, karpathy, stored


class Bad(NamedTuple):
    """make(folder) writes the data and says where; level, file, line and text of what is to be found; whether the rest
    can be used.
    """

    make: object
    level: str | None
    file: str = ""
    line: int | None = None
    text: str = ""
    usable: bool = True


def pictures(folder, *names):
    for number, name in enumerate(names or ("a.png", "b.png", "c.png")):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture(number))


def table(data, name="captions.csv", *others):
    """A table of captions, as bytes, beside three pictures."""

    def make(folder):
        pictures(folder)
        for file, content in ((name, data), *others):
            (folder / file).write_bytes(content)
        return folder

    return make


def json_of(change):
    """Karpathy's JSON of three pictures, changed as bytes."""

    def make(folder):
        entries = [
            {
                "filename": f"{letter}.png",
                "imgid": n,
                "split": "train",
                "sentences": [{"raw": f"a dog {n}", "sentid": n, "tokens": []}],
            }
            for n, letter in enumerate("abc")
        ]
        pictures(folder / "images")
        data = json.dumps({"dataset": "made", "images": entries}, indent=1).encode()
        (folder / "dataset_made.json").write_bytes(change(data))
        return folder

    return make


def precomp(captions=b"one\ntwo\nthree\nfour\n", rows=2, values=None, **others):
    """Two images, two captions each."""

    def make(folder):
        np.save(folder / "train_ims.npy", features(rows) if values is None else values)
        (folder / "train_caps.txt").write_bytes(captions)
        for name, content in others.items():
            (folder / f"{name}.txt").write_bytes(content)
        return folder

    return make


def half_a_split(folder):
    precomp()(folder)
    (folder / "test_caps.txt").write_text("one\n")
    return folder


def tar(end=None, **members):
    def make(folder):
        data = io.BytesIO()
        with tarfile.open(fileobj=data, mode="w") as archive:
            for name, content in {"0.png": picture(0), "0.txt": b"a dog", **members}.items():
                info = tarfile.TarInfo(name)
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
        (folder / "train-000000.tar").write_bytes(data.getvalue()[:end])
        return folder

    return make


def store(change):
    def make(folder):
        values = features(3)
        change(values)
        stored.write({"train": split(values, 2)}, folder / "store")
        return folder / "store"

    return make


def set_nan(values):
    values[1, 2, 3] = np.nan


def set_zero(values):
    values[1] = 0


def butd_line(number, values):
    columns = [str(number), "9", "9", str(len(values))]
    columns += [
        base64.b64encode(array.astype("<f4").tobytes()).decode() for array in (np.zeros((len(values), 4)), values)
    ]
    return "\t".join(columns) + "\n"


def butd(text):
    def make(folder):
        (folder / "trainval.tsv").write_text("".join(butd_line(n, features(1, seed=n)[0]) for n in range(3)) + text)
        return folder

    return make


def row_without_picture(folder):
    import datasets

    rows = {"image": [{"bytes": picture(0), "path": None}, None], "caption": ["one", "two"]}
    kinds = datasets.Features({"image": datasets.Image(), "caption": datasets.Value("string")})
    datasets.DatasetDict({"train": datasets.Dataset.from_dict(rows, kinds)}).save_to_disk(str(folder / "hf"))
    return folder / "hf"


def cut_arrow(folder):
    huggingface.write({"train": split_of(0, [1])}, folder / "hf")
    [file] = (folder / "hf" / "train").glob("*.arrow")
    file.write_bytes(file.read_bytes()[:200])
    return folder / "hf"


def changed_picture(data):
    def make(folder):
        karpathy.write({"train": split_of(0, [1, 2, 1], metadata=False)}, folder / "data")
        file = folder / "data" / "images" / "COCO_001.png"
        file.unlink() if data is None else file.write_bytes(data)
        return folder / "data"

    return make


CSV = b"image,caption\na.png,one\nb.png,two\n"
LINE = b'{"image": "a.png", "caption": "one"}\n'
NAN = features(2)
NAN[1, 0, 0] = np.inf
NOT_UTF8 = "not UTF-8: the byte 0xe9"

BAD = {
    # Bytes that are not UTF-8.
    "utf-8, csv": Bad(table(CSV + b"c.png,caf\xe9\n"), "warning", "captions.csv", 4, NOT_UTF8),
    "utf-8, karpathy": Bad(
        json_of(lambda data: data.replace(b"a dog 1", b"caf\xe9")), "error", "dataset_made.json", 22, NOT_UTF8, False
    ),
    "utf-8, tar": Bad(tar(**{"1.png": picture(1), "1.txt": b"caf\xe9"}), "warning", "1", None, NOT_UTF8),
    # A byte-order mark is no matter.
    "bom, csv": Bad(table(b"\xef\xbb\xbf" + CSV), None),
    # An empty line.
    "empty line, csv": Bad(table(CSV + b"\nc.png,three\n"), "warning", "captions.csv", 4, "an empty line"),
    # Captions that do not fit the images.
    "not divisible": Bad(precomp(b"one\ntwo\nthree\n"), "error", "train_caps.txt", None, "3 captions for the 2", False),
    "half a split": Bad(half_a_split, "error", "test_ims.npy", None, "the split 'test' is left out", False),
    # Cut short.
    "cut, karpathy": Bad(json_of(lambda data: data[:300]), "error", "dataset_made.json", 22, "breaks off", False),
    "cut, tar of two": Bad(tar(end=3900, **{"1.png": picture(1), "1.txt": b"a cat"}), "error", "train-000000.tar", None,
                           "ends early", False),
    "cut, huggingface": Bad(cut_arrow, "error", "hf", None, "not readable by datasets", False),
    "cut, butd": Bad(butd(butd_line(3, features(1)[0])[:-20]), "warning", "trainval.tsv", 4, "image 3: features: "),
    # A missing column.
    "column, csv": Bad(table(b"picture,caption\na.png,one\n"), "error", "captions.csv", None, "the columns", False),
    # A path that leaves the folder.
    "outwards, csv": Bad(table(CSV + b"../c.png,three\n"), "warning", "captions.csv", 4, "'../c.png' leaves"),
    "outwards, karpathy": Bad(
        json_of(lambda data: data.replace(b"b.png", b"../b.png")), "warning", "dataset_made.json", None,
        "image 2: '../b.png' leaves the folder",
    ),
    # Features that are none.
    "nan, precomp": Bad(precomp(values=NAN), "error", "train_ims.npy", 2, "NaN or infinite values in 1 of 3", False),
    "nan, store": Bad(store(set_nan), "error", "features.npy", 2, "NaN or infinite values in 1 of 3", False),
    "nan, butd": Bad(butd(butd_line(3, np.full((1, 4), np.nan))), "error", "trainval.tsv", 4, "NaN", False),
    "zeros": Bad(store(set_zero), "note", "features.npy", 2, "all values are zero, of image '1'"),
    # Files that disagree.
    "two tables": Bad(
        table(CSV, "captions.csv", ("captions.jsonl", LINE)), "error", "captions.csv", None,
        "holds other captions than captions.jsonl", False,
    ),
    # Pictures that cannot be used.
    "missing": Bad(changed_picture(None), "error", "COCO_001.png", None, "no such picture", False),
    "cut picture": Bad(changed_picture(picture(1)[:-30]), "error", "COCO_001.png", None, "not a readable", False),
    "cut picture in a tar": Bad(
        tar(**{"1.png": picture(1)[:-30], "1.txt": b"a cat"}), "error", "1.png", None, "not a readable picture", False
    ),
    "no picture in a row": Bad(row_without_picture, "error", "hf", None, "no picture in this row", False),
}  # fmt: skip
