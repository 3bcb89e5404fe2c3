"""Every format that data sets are read from and written to, and which of them a folder is in."""

from collections.abc import Callable
from inspect import signature
from pathlib import Path
from typing import Any, NamedTuple

from maxmatch.data.formats import folder, huggingface, imagefolder, karpathy, precomp, shards, stored, tables
from maxmatch.data.formats.writing import PARTIAL
from maxmatch.data.items import Dataset, Split
from maxmatch.data.problems import DataError, Problem, Report, refuse


class Format(NamedTuple):
    """How a format is recognised, read and written: every module of one has these three."""

    recognises: Callable[[Path], bool]
    read: Callable[..., dict[str, Split]]
    write: Callable[..., None]
    looks_like: str
    """What is looked for, in words."""


# In the order of recognition: what has a name of its own before what any table or picture could be.
FORMATS: dict[str, Format] = {
    "features": Format(stored.recognises, stored.read, stored.write, "store.json, a store of features of ours"),
    "huggingface": Format(
        huggingface.recognises, huggingface.read, huggingface.write, "dataset_dict.json, as save_to_disk writes it"
    ),
    "karpathy": Format(karpathy.recognises, karpathy.read, karpathy.write, "dataset_NAME.json, Karpathy's"),
    "precomp": Format(precomp.recognises, precomp.read, precomp.write, "train_ims.npy with train_caps.txt"),
    "webdataset": Format(shards.recognises, shards.read, shards.write, "tars like train-000000.tar"),
    "imagefolder": Format(imagefolder.recognises, imagefolder.read, imagefolder.write, "[train/]metadata.jsonl"),
    "table": Format(tables.recognises, tables.read, tables.write, "captions.csv, .tsv, .jsonl or .parquet"),
    "folder": Format(folder.recognises, folder.read, folder.write, "pictures"),
}


def read_dataset(path: str | Path, format: str | None = None, report: Report = refuse, **options: Any) -> Dataset:
    """Read a data set in any format; in which, is seen from the names of files, or told.

    report: what to do with each problem; by default the first one is raised as DataError. `options` are those of the
    format's `read`.
    """
    path = Path(path).expanduser()
    if format is None:
        format = recognise(path)
    elif format not in FORMATS:
        raise ValueError(f"format: expected one of {', '.join(FORMATS)}, got {format!r}.")
    for option in options.keys() - signature(FORMATS[format].read).parameters.keys():
        raise ValueError(f"{option}: data in the format {format!r} takes no such option; leave it out.")
    return Dataset(path, format, FORMATS[format].read(path, report, **options))


def recognise(path: Path) -> str:
    """The name of the format that a file or folder is in."""
    if path.name.startswith(".") and path.name.endswith(PARTIAL):
        cure = "Run it again: it goes on where it stopped."
        raise DataError(Problem(path, "what an interrupted write left behind", cure, fatal=True))
    for name, format in FORMATS.items():
        if format.recognises(path):
            return name
    if not path.exists():
        raise DataError(Problem(path, "no such file or folder", "Check the path.", fatal=True))
    looked_for = "; ".join(f"{name}: {format.looks_like}" for name, format in FORMATS.items())
    what = f"no data set that is known here. Looked for {looked_for}. Found {_found(path)}"
    raise DataError(
        Problem(path, what, "Name the format with 'format', or convert the data to one of these.", fatal=True)
    )


def _found(path: Path) -> str:
    """The first few names in a folder."""
    if not path.is_dir():
        return "a file with this suffix" if path.suffix else "a file"
    names = sorted(entry.name for entry in path.iterdir())
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + more if names else "nothing: the folder is empty"
