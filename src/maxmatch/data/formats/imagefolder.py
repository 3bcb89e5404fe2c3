"""Hugging Face's `imagefolder` with captions: pictures beside a table `metadata.jsonl` (or .csv, .parquet).

    train/metadata.jsonl     {"file_name": "0001.jpg", "caption": ["a dog", …]}
    train/0001.jpg

The folder's name is the split; a table may also lie at the top, as in `maxmatch.data.formats.tables`.
"""

from collections.abc import Mapping
from pathlib import Path

from maxmatch.core.files import whole
from maxmatch.core.progress import Advance, quiet
from maxmatch.data.dataset import IMAGE, Problem, Report, Split, give_up, refuse
from maxmatch.data.formats.columns import rows_of_split, split_name
from maxmatch.data.formats.shared import check_files, check_writable, copy_all, write_folder
from maxmatch.data.formats.tables import read_tables, tables_in, write_jsonl

LOOKS_LIKE, KEEPS_METADATA = "[train/]metadata.jsonl", True


def recognises(path: Path) -> bool:
    """Whether there is a table `metadata` in the folder or in one of its folders."""
    return path.is_dir() and bool(_metadata(path, skip_closed=True))


def read(path: Path, report: Report = refuse, modalities: Mapping[str, str] | None = None) -> dict[str, Split]:
    """The splits of an image folder. modalities: the columns with the files of others, as {"audio": "audio_path"}."""
    tables = _metadata(path)
    if not tables:
        what, cure = "no metadata.jsonl, metadata.csv or metadata.parquet", "Name the table of captions so."
        give_up(report, Problem(path, what, cure))
    return read_tables({split: [files] for split, files in tables.items()}, report, modalities=modalities)


def write(splits: Mapping[str, Split], path: Path, advance: Advance = quiet, workers: int = 1) -> None:
    """Write a folder for each split, with copies of its pictures and a line of metadata for each of them."""
    check_writable(splits, "imagefolder")
    check_files(splits)

    def fill(folder: Path) -> None:
        for name, split in splits.items():
            # No picture may be called "metadata": Hugging Face would take it for the table.
            names = copy_all(split[IMAGE], folder / name, {"metadata"}, workers, advance)
            cells_of = rows_of_split(split, {IMAGE: names}, listed=True)
            rows = [{"file_name": cells.pop("image"), **cells} for cells in cells_of]
            with whole(folder / name / "metadata.jsonl") as file:
                write_jsonl(file, rows)

    write_folder(path, "imagefolder", splits, fill, advance)


def _metadata(path: Path, skip_closed: bool = False) -> dict[str, list[Path]]:
    """The tables by split: those at the top, or else those in the folders below (skip_closed: that can be read)."""
    top = [file for file in tables_in(path) if file.stem == "metadata"]
    if top:
        return {"train": top}
    found: dict[str, list[Path]] = {}
    for folder in sorted(path.iterdir()):
        if folder.is_dir() and not folder.name.startswith("."):
            try:
                tables = [file for file in tables_in(folder) if file.stem == "metadata"]
            except PermissionError:
                if not skip_closed:
                    raise
                continue
            if tables:
                found.setdefault(split_name(folder.name), []).extend(tables)
    return found
