"""Hugging Face `datasets`: a folder that `save_to_disk` wrote, a data set already loaded, or one of the hub.

Pictures are not decoded: values are bytes, or paths where the data set holds these, read row by row when asked for.
"""

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from maxmatch.core.files import whole
from maxmatch.core.progress import Advance, map_ahead, quiet
from maxmatch.data.dataset import IMAGE, DataError, LazyItems, Problem, Report, Split, give_up, refuse
from maxmatch.data.formats.columns import TableRow, needed_columns, rows_of_split, split_name, splits_of_rows
from maxmatch.data.formats.shared import check_files, check_writable, path_inside, read_item, write_folder
from maxmatch.data.formats.tables import arrow_column, column_names

if TYPE_CHECKING:
    import datasets

_CHUNK = 256
LOOKS_LIKE, KEEPS_METADATA = "dataset_dict.json, as save_to_disk writes it", True


def recognises(path: Path) -> bool:
    """Whether `save_to_disk` wrote this folder."""
    return (path / "dataset_dict.json").is_file() or all(
        (path / name).is_file() for name in ("dataset_info.json", "state.json")
    )


def read(path: Path, report: Report = refuse) -> dict[str, Split]:
    """The splits of a folder that `save_to_disk` wrote."""
    package = _package()
    try:
        loaded = package.load_from_disk(str(path))
    except Exception as error:  # what a damaged folder makes the package raise has no common class
        what = f"not readable by datasets {package.__version__} ({error})"
        give_up(report, Problem(path, what, "Copy or write it again."))
    return from_loaded(loaded, report, path)


def read_hub(name: str, report: Report = refuse, **options: Any) -> dict[str, Split]:
    """The splits of a data set of the Hugging Face Hub. This asks the network; `options` are those of
    `datasets.load_dataset`.
    """
    return from_loaded(_package().load_dataset(name, **options), report, Path(name))


def from_loaded(
    loaded: "datasets.Dataset | datasets.DatasetDict", report: Report = refuse, path: Path = Path("datasets")
) -> dict[str, Split]:
    """The splits of a data set that is loaded. `path`: its name in messages, and where paths of pictures count from."""
    package = _package()
    tables = loaded if isinstance(loaded, package.DatasetDict) else {str(loaded.split or "train"): loaded}
    splits: dict[str, Split] = {}
    for name, table in tables.items():
        for split, found in _read_table(table, split_name(name), path, report).items():
            if split in splits:
                what = f"the split {split!r} comes twice, the second time in the rows of {name!r}"
                give_up(report, Problem(path, what, "Remove or rename the column 'split'."))
            splits[split] = found
    return splits


def write(splits: Mapping[str, Split], path: Path, advance: Advance = quiet, workers: int = 1) -> None:
    """Write what `datasets.load_from_disk` reads: a row for each image, with its bytes and all its captions."""
    package = _package()
    check_writable(splits, "huggingface")
    check_files(splits)

    def fill(folder: Path) -> None:
        parts = folder / "parts"
        tables = {name: _written(split, parts / name, advance, workers) for name, split in splits.items()}
        with _without_bars(package):
            package.DatasetDict(tables).save_to_disk(str(folder))
        shutil.rmtree(parts)

    write_folder(path, "huggingface", splits, fill, advance)


def _package() -> Any:
    try:
        import datasets
    except ImportError as error:
        raise ImportError("Hugging Face data sets need a package. Run: pip install 'maxmatch[data]'") from error
    return datasets


def _read_table(table: "datasets.Dataset", split: str, path: Path, report: Report) -> dict[str, Split]:
    package = _package()
    columns = needed_columns(table.column_names, path, report)
    image = columns.values[IMAGE]
    image_id = next((name for name in table.column_names if name.strip().lower() == "image_id"), None)
    embedded = isinstance(table.features[image], package.Image)
    table = table.with_format(None)
    # What has to be decoded is no metadata, and pictures wait until they are asked for.
    rest = [name for name, kind in table.features.items() if name != image and not hasattr(kind, "decode_example")]
    rows = [
        TableRow(path, number + 1, {**cells, image: number if embedded else cells[image]}, split)
        for number, cells in enumerate(_cells(table.select_columns(rest if embedded else [image, *rest])))
    ]

    def locate(row: TableRow, modality: str, cell: Any) -> tuple[str, Any]:
        if not embedded:
            return path_inside(path, cell)
        # Rows of one picture are known by its id; its name is only that within one of several folders.
        known = None if image_id is None else row.cells.get(image_id)
        return str(cell if known is None else known), cell

    if not embedded:
        return splits_of_rows(rows, columns, locate, report)
    pictures = table.select_columns([image]).cast_column(image, package.Image(decode=False))
    return splits_of_rows(rows, columns, locate, report, partial(LazyItems, read=partial(_picture, pictures)))


def _cells(table: "datasets.Dataset") -> Iterator[dict[str, Any]]:
    """The rows, which a package that reads them one by one is slow to give."""
    for batch in table.iter(batch_size=1000):
        for values in zip(*batch.values(), strict=True):
            yield dict(zip(batch, values, strict=True))


def _picture(table: "datasets.Dataset", row: int) -> bytes | Path:
    """The bytes of a picture, or its path."""
    cell = next(iter(table[row].values())) or {}
    if cell.get("bytes") is None and cell.get("path") is None:
        raise DataError(Problem(Path("datasets"), "no picture in this row", "Take the row out.", row + 1, fatal=True))
    return Path(cell["path"]) if cell["bytes"] is None else cell["bytes"]


def _written(split: Split, folder: Path, advance: Advance, workers: int) -> "datasets.Dataset":
    """The split as Arrow files of a few hundred rows each, of which those that are there already are kept."""
    import pyarrow as pa

    package = _package()
    values = split[IMAGE].values
    rows = list(rows_of_split(split, {IMAGE: range(len(values))}, listed=True))
    columns = {name: arrow_column(name, [row.get(name) for row in rows]) for name in column_names(rows)}
    known = package.Features.from_arrow_schema(pa.schema([(name, column.type) for name, column in columns.items()]))
    schema = package.Features({**known, "image": package.Image()}).arrow_schema
    files = []
    for first in range(0, len(rows), _CHUNK):
        numbers = range(first, min(first + _CHUNK, len(rows)))
        files.append(folder / f"{first:08d}.arrow")
        if files[-1].exists():
            advance(len(numbers))
            continue
        cells = []
        for data, _ in map_ahead(lambda number: read_item(values[number]), numbers, workers):
            cells.append({"bytes": data, "path": None})
            advance(1)
        chunk = {name: column.slice(first, len(cells)) for name, column in columns.items()}
        table = pa.table({**chunk, "image": pa.array(cells, schema.field("image").type)}, schema=schema)
        with whole(files[-1]) as file, pa.ipc.new_stream(file, schema) as stream:
            stream.write_table(table)
    return package.concatenate_datasets([package.Dataset.from_file(str(file)) for file in files])


@contextmanager
def _without_bars(package: Any) -> Iterator[None]:
    """Hide the bars of `datasets`: progress has one bar."""
    shown = not package.are_progress_bars_disabled()
    package.disable_progress_bars()
    try:
        yield
    finally:
        if shown:
            package.enable_progress_bars()
