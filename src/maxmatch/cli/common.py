"""Shared by all commands: messages on stderr, Ctrl-C, and loading the model and the index that a command names."""

import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

import typer

from maxmatch.model.names import (
    SHIPPED,
    AnyModel,
    model_folder,
    model_identity,
    model_title,
    name_to_record,
    recorded_model,
    shipped_model,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from maxmatch.model.encoder import SetEncoder
    from maxmatch.search.photos.library import Library
    from maxmatch.search.set_index import SetIndex


def cores() -> int:
    """How many threads or processes to use: one per core, at most eight."""
    from maxmatch.core.machine import usable_cores

    return usable_cores(8)


def say(line: str) -> None:
    """Print a line on stderr, above a progress bar."""
    from tqdm import tqdm

    tqdm.write("\n".join(map(plain, f"maxmatch: {line}".split("\n"))), file=sys.stderr)


def plain(text: str) -> str:
    """The text with escape sequences made harmless: a file's name may contain any character."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


@contextmanager
def usage_errors() -> Iterator[None]:
    """A `UsageError` from below becomes wrong use of the command: exit code 2, with a hint at --help."""
    from maxmatch.core.array_checks import UsageError

    try:
        yield
    except UsageError as error:
        raise typer.BadParameter(str(error)) from error


@contextmanager
def interrupt_watch() -> Iterator[Callable[[], bool]]:
    """A function that tells whether Ctrl-C was pressed, even if a library turned it into another error.

    Handlers stay as they are: Python writes the number of each signal to a socket as well.
    """
    ours, pythons = socket.socketpair()
    with ours, pythons:
        ours.setblocking(False)
        pythons.setblocking(False)
        try:
            before = signal.set_wakeup_fd(pythons.fileno(), warn_on_full_buffer=False)
        except ValueError:  # only the main thread receives signals
            yield lambda: False
            return

        def was_pressed() -> bool:
            try:
                return signal.SIGINT in ours.recv(4096)
            except BlockingIOError:
                return False

        try:
            yield was_pressed
        finally:
            signal.set_wakeup_fd(before)


@contextmanager
def resumable(what: object) -> Iterator[None]:
    """Work that the same command resumes after an interruption; the message tells so."""
    try:
        yield
    except KeyboardInterrupt:
        say(f"{what}: interrupted; finished work is kept. Run the same command again to continue.")
        raise


Loaded = TypeVar("Loaded", bound=AnyModel)
Runtime = Literal["auto", "torch", "onnx"]
RuntimeOption = Annotated[
    Runtime,
    typer.Option(
        help="What runs the model. auto: ONNX Runtime if the model's folder has ONNX graphs (maxmatch export --onnx), "
        "otherwise torch, with NumPy for text if possible. The first indexing of a folder uses torch if there is a GPU."
    ),
]


def load_for_search(name: str, device: str | None, runtime: Runtime = "auto", many: bool = False) -> AnyModel:
    """A model that encodes queries and photos without loading torch where possible: torch takes longer to load than a
    search takes. By ONNX Runtime where the model's folder has graphs; otherwise texts in NumPy where its text tower
    is one that NumPy can compute, and pictures as `load_model`. On a device other than the CPU: torch.

    many: so much is to be encoded that a GPU is worth loading torch for, unless the user chooses.
    """
    from importlib.util import find_spec

    from maxmatch.model.onnx_runtime import FILE, OnnxEncoder

    folder = model_folder(name)
    on_cpu = device in (None, "cpu")
    if runtime == "auto" and on_cpu:
        if (folder / FILE).is_file() and find_spec("onnxruntime") is not None:
            runtime = "torch" if many and device is None and _has_gpu() else "onnx"
        else:
            from maxmatch.model.numpy_text import numpy_text_encoder

            fast = numpy_text_encoder(folder, lambda: load_model(str(folder), device))
            if fast is not None:
                return fast
    if runtime != "onnx":
        return load_model(str(folder), device)
    if not on_cpu:
        raise typer.BadParameter(f"--runtime onnx works on the CPU, not on {device}: leave one of the two out")
    return OnnxEncoder.from_folder(folder)


def _has_gpu() -> bool:
    """Whether torch is installed and sees a GPU."""
    from importlib.util import find_spec

    if find_spec("torch") is None:
        return False
    from maxmatch.core.devices import chosen_device

    return chosen_device().type != "cpu"


def check_modality(name: str, towers: "Iterable[str]", modality: str | None) -> None:
    """Refuse a model that has no tower for a modality."""
    if modality is not None and modality not in towers:
        raise ValueError(
            f"{name}: this model reads {', '.join(towers)}, not {modality}. Choose another model, or for "
            "`maxmatch encode` another --modality."
        )


def load_model(name: str, device: str | None, modality: str | None = None) -> "SetEncoder":
    """A model by its name (`maxmatch.model.names`), by default on a GPU if there is one.
    modality: one that it must have a tower for.
    """
    from maxmatch.core.devices import chosen_device
    from maxmatch.model.encoder import SetEncoder

    model = SetEncoder.from_pretrained(name, device=chosen_device(device))
    check_modality(name, model.towers, modality)
    return model


def default_model(named_by: str = "--model") -> str:
    """The folder of the model used when none is named."""
    folder = shipped_model(SHIPPED)
    if folder is None:
        raise ValueError(
            f"{SHIPPED}: missing; the model that ships with MaxMatch is not part of this installation. "
            f"Name another one ({named_by}), or install MaxMatch again."
        )
    return str(folder)


def model_of(
    index: "SetIndex",
    folder: Path,
    name: str | None,
    device: str | None,
    load: "Callable[[str, str | None], Loaded]" = load_model,  # type: ignore[assignment]  # which makes it SetEncoder
) -> "Loaded":
    """The model of an index, from where it was when the index was built, or as named by the user; another one is
    refused. load: `load_model` or `load_for_search`.
    """
    from maxmatch.search.index_folder import model_version, other_model, read_origin

    place = folder.expanduser()
    origin = read_origin(place)
    noted = index.manifest.model
    if name is None and origin is None:
        shipped = shipped_model(SHIPPED)
        found = load(str(shipped), device) if shipped is not None and noted is not None else None
        if found is not None and model_identity(found) == noted:
            return found
        if model_version(place, index.manifest) is not None:
            raise other_model(place, index.manifest, SHIPPED if found is None else model_title(model_identity(found)))
        raise ValueError(f"{folder}: the index does not record which model made its sets. Name it with --model.")
    wanted = name or (recorded_model(origin.model) if origin else "")
    try:
        model = load(wanted, device)
    except (OSError, ValueError) as error:
        if name is not None:
            raise
        raise ValueError(
            f"{folder}: the model that made its sets, {wanted}, cannot be loaded ({error}) "
            "If it has moved, name its new place with --model."
        ) from error
    if noted is not None and model_identity(model) != noted:
        given = model_title(model_identity(model), name_to_record(wanted))
        raise other_model(place, index.manifest, given, name)
    return model


_SHOWN = 10


def is_folder_of_photos(folder: Path) -> bool:
    """Whether a folder holds photos rather than an index. FileNotFoundError if it is not a folder."""
    from maxmatch.search.index_folder import is_half_replaced, is_index, read_manifest

    place = folder.expanduser()
    if is_half_replaced(place.resolve()):
        read_manifest(place.resolve())  # which tells how to finish
    if not place.is_dir():
        what = "a file" if place.exists() else "no such folder"
        raise FileNotFoundError(f"{folder}: {what}. Expected a folder of photos, or an index (maxmatch index build).")
    return not is_index(place)


def are_folders_of_photos(folders: "Sequence[Path]", exclude: "Sequence[str]" = ()) -> bool:
    """Whether they are folders of photos; one may be an index instead, alone and without exclusions."""
    of_photos = [is_folder_of_photos(folder) for folder in folders]
    if not all(of_photos) and (len(folders) > 1 or exclude):
        index = folders[of_photos.index(False)]
        what = "--exclude is for folders of photos" if exclude else "several folders must all be folders of photos"
        raise typer.BadParameter(f"{index} is an index: {what}")
    return all(of_photos)


def open_folders(
    folders: "Sequence[Path]",
    model: str | None,
    device: str | None,
    load: "Callable[[str, str | None], Loaded]",
    load_many: "Callable[[str, str | None], Loaded] | None" = None,
    *,
    exclude: "Sequence[str]" = (),
    at_most: int | None = None,
    anew: bool = False,
    thorough: bool = False,
) -> "tuple[Library, Loaded]":
    """The library of folders of photos, each brought up to date first, and the model. load: `load_model` or
    `load_for_search`. load_many: used instead if no photo of a folder has been read yet. exclude: patterns of photos to
    leave out. at_most: how many photos of each folder are encoded now. anew: an index was found to be damaged.
    thorough: look for damage in all of their files.
    """
    from maxmatch.core.progress import bar
    from maxmatch.data.dataset import IMAGE, DataError
    from maxmatch.model.picture_files import not_read
    from maxmatch.search.photos.library import Library, distinct_folders
    from maxmatch.search.photos.sync import UNREADABLE, is_indexed, open_synced, place_of, replacing_older

    named = model or default_model()
    encoder = load(named, device)
    check_modality(named, encoder.set_sizes, IMAGE)
    distinct = distinct_folders(folders)
    if load_many is not None and (anew or not all(is_indexed(place_of(folder, encoder)) for folder in distinct)):
        encoder = load_many(named, device)
    opened: list[tuple[Path, SetIndex]] = []
    empty: DataError | None = None
    for folder in distinct:
        place = place_of(folder, encoder)
        try:
            with resumable(folder), replacing_older(folder, encoder, say):
                index, done = open_synced(
                    place,
                    encoder,
                    folder,
                    exclude=exclude,
                    at_most=at_most,
                    anew=anew,
                    thorough=thorough,
                    bar=bar,
                    say=say,
                )
        except DataError as error:  # nothing in it: the others are searched
            if len(distinct) > 1:
                say(str(error))
            empty = error
            continue
        opened.append((folder, index))
        for one in done.unreadable[:_SHOWN]:
            say(plain(one.reason))  # which names the file, or the cache that cannot be written
        if len(done.unreadable) > _SHOWN:
            say(f"… and {len(done.unreadable) - _SHOWN} more that cannot be read; all are in {place / UNREADABLE}")
        if len(done.still) > len(done.unreadable):  # each is named once; that there are some, every time
            some = "1 photo or folder" if len(done.still) == 1 else f"{len(done.still):,} photos or folders"
            say(f"{some} cannot be read; which and why is in {place / UNREADABLE}")
        if done.unread:
            say(not_read(done.unread))
        if done.added or done.changed or done.removed or done.renamed or done.taken_over:
            more = f", {done.renamed:,} renamed" if done.renamed else ""
            more += f", {done.taken_over:,} taken over" if done.taken_over else ""
            what = f"{done.added:,} new, {done.changed:,} changed, {done.removed:,} gone{more}"
            say((f"{folder}: " if len(distinct) > 1 else "") + f"{len(index):,} photos: {what}")
    if not opened and empty is not None:
        raise empty
    return Library(opened, exclude), encoder


ExcludeOption = Annotated[
    list[str] | None,
    typer.Option(
        "--exclude",
        metavar="PATTERN",
        help="Skip photos or whole folders whose path in the folder matches, e.g. '*.gif' or Screenshots. Repeatable.",
    ),
]
