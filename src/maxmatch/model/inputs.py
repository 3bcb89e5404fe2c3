"""From raw items (pictures, features, texts) to the batches that a tower takes, and the loop that encodes them all.

Importing this loads no torch: models that run without it read and encode their items here, too.
"""

import pickle
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float, UInt8
from tokenizers import Tokenizer

from maxmatch.core.machine import usable_cores
from maxmatch.core.progress import Skipped, bar, map_ahead
from maxmatch.model.config import InputKind
from maxmatch.model.images import ImageError, ImageTransform, describe
from maxmatch.model.photo_processes import MOST_SLOTS, PhotoProcesses, available
from maxmatch.model.text import as_text, encode, text_length

if TYPE_CHECKING:
    import torch

    from maxmatch.core.types import Inputs

_LONG_WORK = 1_000  # items, from which on a progress bar is shown
_PLAIN = (ImageError, FileNotFoundError, PermissionError)  # errors made of a message alone
_WORKERS = 4  # batches of texts that are tokenised at once while the model works
_READERS = 16  # other items read at once
_MANY_CORES, _MANY_FILES = 4, 512  # from which on processes read files in the place of threads
_MOST_PROCESSES = 32
_TASKS_EACH = 8  # files that are begun for each process before they are asked for
_EACH, _LAST = 8, 4  # items at once of a thread that reads and encodes: at most, and towards the end


@runtime_checkable
class Reader(Protocol):
    """How one modality is read. `read` refuses a bad item; `collate` takes what it returned."""

    def length(self, item: Any) -> int:
        """Roughly how long an item is, without reading it: items of similar length share a batch."""

    def read(self, item: Any) -> Any:
        """One item, checked."""

    def collate(self, items: Sequence[Any]) -> Any:
        """A batch of items that were read: `Inputs` of a tower, or arrays by name for a graph of ONNX."""


class PixelReader:
    """Pictures: see `maxmatch.model.images`."""

    reads: ClassVar[InputKind] = "pixels"

    def __init__(self, transform: ImageTransform) -> None:
        self.transform = transform

    def length(self, item: Any) -> int:
        """All pictures become the same size."""
        return 1

    def read(self, item: Any) -> "torch.Tensor":
        """A picture as normalised pixels. A tensor may have its channels first, as torch likes them."""
        return self.transform(_channels_last(item))

    def for_device(self, device: "torch.device") -> Reader:
        """What reads pictures for a model there: on a GPU, where it can be, without normalising them."""
        usual = type(self).read is PixelReader.read and type(self).collate is PixelReader.collate
        read = getattr(self.transform, "eight_bits", None) if usual and device.type != "cpu" else None
        return self if read is None else EightBitReader(self, read)

    def normalised(self, pixels: "UInt8[torch.Tensor, 'B H W 3']") -> "Float[torch.Tensor, 'B 3 H W']":
        """What `read` would have made of these, to the bit: looked up."""
        import torch

        table = torch.from_numpy(self.transform.table).to(pixels.device)
        first = torch.arange(0, table.numel(), table.shape[1], dtype=torch.int32, device=pixels.device)
        places = pixels.permute(0, 3, 1, 2).int() + first[:, None, None]
        return table.flatten().index_select(0, places.flatten()).view(places.shape)

    def blank(self) -> "torch.Tensor":
        """What stands for a picture that could not be read."""
        import torch

        return torch.zeros(3, self.transform.size, self.transform.size)

    def collate(self, items: "Sequence[torch.Tensor]") -> "Inputs":
        """The pictures, stacked."""
        return _stacked([item.numpy() for item in items])


def _stacked(items: Sequence[np.ndarray]) -> "Inputs":
    """A batch, put together by NumPy: after an operation of torch's all its threads wait for the next for a while, and
    keep the cores from what reads pictures.
    """
    import torch

    from maxmatch.core.types import Inputs

    return Inputs(torch.from_numpy(np.stack(items)), None)


class EightBitReader:
    """Pictures as pixels of eight bits, which are normalised where the model is: a quarter of the bytes to copy there.

    read: makes them (`ImageTransform.eight_bits`). Batches are (B, size, size, 3); see `PixelReader.normalised`.
    """

    def __init__(self, pixels: PixelReader, read: Callable[[Any], np.ndarray]) -> None:
        self.pixels, self.eight_bits = pixels, read

    def length(self, item: Any) -> int:
        """All pictures become the same size."""
        return 1

    def read(self, item: Any) -> np.ndarray:
        """A picture before it is normalised."""
        return self.eight_bits(_channels_last(item))

    def collate(self, items: Sequence[np.ndarray]) -> "Inputs":
        """The pictures, stacked."""
        return _stacked(items)


def _channels_last(item: Any) -> Any:
    """A tensor as an array, which has its channels last; anything else as it is."""
    if "torch" not in sys.modules:
        return item
    import torch

    if not isinstance(item, torch.Tensor):
        return item
    channels_first = item.ndim == 3 and item.shape[0] in (1, 3, 4) and item.shape[2] not in (1, 3, 4)
    return (item.movedim(0, 2) if channels_first else item).detach().cpu().numpy()


class FeatureReader:
    """Features extracted beforehand: an array or tensor (count, width) per item."""

    reads: ClassVar[InputKind] = "features"

    def __init__(self, feature_width: int) -> None:
        self.feature_width = feature_width

    def length(self, item: Any) -> int:
        """How many features the item has."""
        return len(item) if getattr(item, "ndim", 0) else 0

    def read(self, item: Any) -> "torch.Tensor":
        """The item's features in float32."""
        import torch

        if not isinstance(item, torch.Tensor | np.ndarray):
            raise ValueError(
                f"{describe(item)}: this model reads features extracted beforehand, an array "
                f"(count, {self.feature_width}) per item. Extract them, or use a model that reads pixels."
            )
        if item.ndim != 2 or item.shape[1] != self.feature_width or not len(item):
            raise ValueError(
                f"features: expected (count, {self.feature_width}) with at least one, got {tuple(item.shape)}. "
                "Use the features that the model was trained on."
            )
        features = torch.as_tensor(np.array(item, dtype=np.float32) if isinstance(item, np.ndarray) else item.float())
        if not bool(torch.isfinite(features).all()):
            raise ValueError("features: NaN or infinite values. Extract them again, or leave the item out.")
        return features

    def collate(self, items: "Sequence[torch.Tensor]") -> "Inputs":
        """Padded to the longest item."""
        import torch

        from maxmatch.core.types import Inputs

        values = torch.nn.utils.rnn.pad_sequence(list(items), batch_first=True)
        lengths = torch.tensor([len(item) for item in items], device=values.device)
        return Inputs(values, torch.arange(values.shape[1], device=values.device) < lengths[:, None])


class TokenStateReader(FeatureReader):
    """What a frozen text half of a two-tower model made of a text: a row for its vector, and one for each token."""


class TextReader:
    """Texts, through a tokenizer."""

    reads: ClassVar[InputKind] = "text"

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer

    def length(self, item: Any) -> int:
        """How many characters the text has."""
        return text_length(item)

    def read(self, item: Any) -> str:
        """The text itself, which may be empty."""
        return as_text(item)

    def collate(self, items: Sequence[str]) -> "Inputs":
        """Token ids, padded to the longest text."""
        from maxmatch.core.types import Inputs

        return Inputs(*encode(self.tokenizer, items))

    def words(self, ids: "torch.Tensor") -> list[str]:
        """The tokens of a text, for people to read."""
        return [_readable(self.tokenizer, int(token)) for token in ids]


def _readable(tokenizer: Tokenizer, token: int) -> str:
    """A token without the marks by which a tokenizer tells where words begin and end."""
    written = tokenizer.id_to_token(token) or ""
    if tokenizer.decoder is None or written.startswith("##"):
        return written
    plain = tokenizer.decode([token], skip_special_tokens=False).strip()
    return written if not plain or "\N{REPLACEMENT CHARACTER}" in plain else plain


class ReadBatch(NamedTuple):
    """What was read of some items: their places in the input, the tower's inputs, and what could not be read."""

    places: list[int]
    inputs: Any
    """What the reader collated; None where nothing could be read."""
    skipped: list[Skipped]


class _Batches:
    """What is read of each of some batches: those of `read_ahead`, by their number."""

    def __init__(self, reader: Reader, items: Sequence[Any], batches: Sequence[Sequence[int]], skip: bool) -> None:
        self.reader, self.items, self.batches, self.skip = reader, items, batches, skip

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, number: int) -> ReadBatch:
        return self.read(self.batches[number])

    def read(self, places: Sequence[int], each: Callable[..., Iterable[Any]] = map) -> ReadBatch:
        """The items at some places. each: reads them one after the other, or at the same time."""
        found = dict(zip(places, each(self.read_one, places), strict=True))
        good = {place: value for place, value in found.items() if not isinstance(value, Skipped)}
        skipped = [value for value in found.values() if isinstance(value, Skipped)]
        return ReadBatch(list(good), self.reader.collate(list(good.values())) if good else None, skipped)

    def read_one(self, place: int) -> Any:
        """The item at a place, or why it could not be read."""
        try:
            return self.reader.read(self.items[place])
        except (ValueError, OSError) as error:
            return self.refused(place, error)

    def refused(self, place: int, error: Exception) -> Skipped:
        """Why the item at a place could not be read, where such items are left out. Otherwise raises it."""
        if not isinstance(error, ValueError | OSError):
            raise error
        if not self.skip:
            kind = type(error) if type(error) in _PLAIN else ValueError
            raise kind(f"item {place}: {error}") from error
        return Skipped(f"item {place}", str(error), place)


def read_ahead(
    reader: Reader,
    items: Sequence[Any],
    batches: Sequence[Sequence[int]],
    skip: bool,
    workers: int | None = None,
    ahead: bool = True,
    processes: bool = False,
) -> Iterator[ReadBatch]:
    """The batches in order, the next few being read in `workers` threads while the model works on one: each item by
    itself, so that all threads have something to do, but for texts.

    skip: leave out an item that cannot be read; otherwise an error names it. ahead: whether there are processors for
    both; False where the model works on this one: then all threads read one batch and wait while the model works.
    processes: take processes in the place of threads, ahead: many threads wait for Python's lock more than they decode.
    Many picture files for a GPU are read by processes in any case (`maxmatch.model.photo_processes`).
    """
    threads = workers or usable_cores(_WORKERS if isinstance(reader, TextReader) else _READERS)
    all_of_them = _Batches(reader, items, batches, skip)
    if processes and len(batches) > 1:
        yield from in_processes(all_of_them, threads)
    elif ahead and isinstance(reader, EightBitReader) and (begun := _photo_processes(reader, items, batches, workers)):
        with ThreadPoolExecutor(threads) as pool, closing(begun) as photos:
            yield from _from_processes(all_of_them, photos, pool)
    elif max(map(len, batches), default=0) < 2 or (isinstance(reader, TextReader) and not ahead):
        yield from map(all_of_them.read, batches)
    elif ahead and isinstance(reader, TextReader):
        yield from map_ahead(all_of_them.read, batches, threads, ahead=1)
    elif ahead:
        two_batches = -(-2 * max(map(len, batches)) // threads)
        in_order = chain.from_iterable(batches)
        with closing(map_ahead(all_of_them.read_one, in_order, threads, ahead=two_batches)) as one_by_one:
            for places in batches:
                yield all_of_them.read(places, lambda _, places: islice(one_by_one, len(places)))
    else:
        with ThreadPoolExecutor(threads) as pool:
            for places in batches:
                yield all_of_them.read(places, pool.map)


def _photo_processes(
    reader: EightBitReader, items: Sequence[Any], batches: Sequence[Sequence[int]], workers: int | None
) -> PhotoProcesses | None:
    """Processes to read files with, where there are enough of both files and cores; otherwise None: threads are as
    fast, and need no start.
    """
    cores = workers or usable_cores(_MOST_PROCESSES)
    many = cores >= _MANY_CORES and sum(map(len, batches)) >= _MANY_FILES and isinstance(items, list)
    if not (many and available() and all(isinstance(item, str | Path) for item in items)):
        return None
    size, transform = max(map(len, batches)), reader.pixels.transform
    # The batch in hand, the next, and enough others that no process waits for a task.
    slots = min(size * (2 + -(-_TASKS_EACH * cores // size)), MOST_SLOTS // size * size)
    shape = (transform.size, transform.size, 3)
    try:
        return PhotoProcesses(reader.eight_bits, items, slots, shape, cores, transform.loads) if slots else None
    except (OSError, pickle.PicklingError, AttributeError, TypeError):
        return None  # a limit of the system's, or a transform of somebody else's that cannot be pickled


def _from_processes(parts: _Batches, photos: PhotoProcesses, threads: ThreadPoolExecutor) -> Iterator[ReadBatch]:
    """The batches in order, read by processes; by threads until the processes have started, and should they fail."""
    batches = parts.batches
    size = max(map(len, batches))
    at_once = photos.slots // size
    waiting: dict[int, int] = {}  # slots that processes fill, and the place of the file
    found: dict[int, Any] = {}  # by place: pixels, a Skipped, an error, or a thread's future

    def begin(number: int) -> None:
        for slot, place in enumerate(batches[number], number % at_once * size):
            if photos.ready() and photos.begin(slot, place):
                waiting[slot] = place
            else:
                found[place] = threads.submit(parts.read_one, place)

    def finish() -> None:
        for slot, error in (ended := list(photos.finished())):
            place = waiting.pop(slot)
            found[place] = photos.pixels(slot) if error is None else error
        if not ended:
            found.update((place, threads.submit(parts.read_one, place)) for place in waiting.values())
            waiting.clear()

    def made(place: int) -> Any:
        while place not in found:
            finish()
        value = found.pop(place)
        if isinstance(value, Exception):
            return parts.refused(place, value)
        return value.result() if isinstance(value, Future) else value

    try:
        for number in range(min(at_once, len(batches))):
            begin(number)
        for number, places in enumerate(batches):
            batch = parts.read(places, lambda _, places: map(made, places))
            if number + at_once < len(batches):
                begin(number + at_once)  # into the slots that were copied from
            yield batch
    finally:
        threads.shutdown(cancel_futures=True)


def encode_ahead(
    reader: Reader,
    items: Sequence[Any],
    batches: Sequence[Sequence[int]],
    skip: bool,
    encode_batch: Callable[[Any], Any],
    *,
    workers: int | None = None,
    ahead: bool = True,
    threads: int = 1,
    fetch: Callable[[Any], Any] | None = None,
) -> Iterator[tuple[ReadBatch, Any]]:
    """The batches in order and what `encode_batch` makes of each, None where nothing could be read.

    fetch: for a GPU, which only queues `encode_batch`: brings what that made here. It is called when the next batch has
    been read and queued, so that the GPU works meanwhile.
    threads: of which each reads and encodes batches of its own, with its share of torch's threads. Nobody waits for the
    others, as threads do that share the work of one batch. With one, see `read_ahead`.
    """
    all_of_them = _Batches(reader, items, batches, skip)

    def encoded(batch: ReadBatch) -> tuple[ReadBatch, Any]:
        return batch, None if batch.inputs is None else encode_batch(batch.inputs)

    if threads == 1:
        found = map(encoded, read_ahead(reader, items, batches, skip, workers, ahead))
        yield from found if fetch is None else _one_later(found, fetch)
        return
    from maxmatch.core.devices import sharing_threads  # loads torch, which the model has loaded

    with sharing_threads(threads) as shared:
        work = shared(lambda places: encoded(all_of_them.read(places)))
        yield from map_ahead(work, batches, threads, ahead=2)


def _one_later(found: Iterator[tuple[ReadBatch, Any]], fetch: Callable[[Any], Any]) -> Iterator[tuple[ReadBatch, Any]]:
    """What was found, each fetched when the next is there."""
    before: tuple[ReadBatch, Any] | None = None
    for following in chain(found, [None]):
        if before is not None:
            batch, made = before
            yield batch, None if made is None else fetch(made)
        before = following


def in_processes(parts: Any, workers: int) -> Iterator[Any]:
    """parts[0], parts[1], … in order, made by processes a few ahead; tensors come back through shared memory."""
    from torch import Generator
    from torch.utils.data import DataLoader

    # The generator: processes get a seed from it, which would otherwise come from the global one.
    yield from DataLoader(
        parts, batch_size=None, num_workers=min(workers, len(parts)), collate_fn=_as_it_is, generator=Generator()
    )


def _as_it_is(part: Any) -> Any:
    return part


@dataclass(frozen=True)
class Encoded:
    """What `encode(..., errors="skip")` gives: the sets of the items that could be read, and which could not."""

    sets: Any
    """(n, K, D): a tensor, or an array where ONNX Runtime made them."""
    kept: list[int]
    """The place in the input of each set, ascending."""
    skipped: list[Skipped]


def moved(inputs: "Inputs", parameter: "torch.Tensor") -> "Inputs":
    """On a model's device, and pixels or features in its precision. parameter: any of the model's."""
    dtype = parameter.dtype if inputs.values.is_floating_point() else inputs.values.dtype
    mask = None if inputs.mask is None else inputs.mask.to(parameter.device)
    return type(inputs)(inputs.values.to(parameter.device, dtype), mask)


def checked_items(items: Iterable[Any], batch_size: int, errors: str) -> list[Any]:
    """The items given to `encode`, as a list. ValueError where they are not a list of items."""
    # uint8 of height × width × channels is one picture, not a list of its rows.
    picture = str(getattr(items, "dtype", "")).endswith("uint8") and tuple(items.shape[2:]) in ((3,), (4,))  # type: ignore[attr-defined]
    listed = hasattr(items, "__iter__") or hasattr(items, "__getitem__")
    if isinstance(items, str | bytes | Path) or picture or not listed:
        raise ValueError(f"items: expected a list, got one {type(items).__name__}. For one item use [item].")
    if errors not in ("raise", "skip"):
        raise ValueError(f"errors: expected 'raise' or 'skip', got {errors!r}.")
    if batch_size < 1:
        raise ValueError(f"batch_size: expected at least 1, got {batch_size}.")
    return list(items)


def _batches(order: Sequence[int], size: int, threads: int) -> Iterator[Sequence[int]]:
    """The items in batches of one size; for several threads in smaller ones towards the end, so that all of them have
    something to do and end at about the same time.
    """
    least = min(_LAST, -(-len(order) // threads))
    while order:
        taken = size if threads == 1 else min(size, _EACH, max(-(-len(order) // (2 * threads)), least))
        yield order[:taken]
        order = order[taken:]


def encode_items(
    modality: str,
    items: Iterable[Any],
    batch_size: int,
    show_progress: bool | None,
    errors: str,
    *,
    reader: Reader,
    empty: Callable[[int], Any],
    encode_batch: Callable[[Any], Any],
    within: AbstractContextManager[object] | None = None,
    ahead: bool = False,
    threads: int = 1,
    fetch: Callable[[Any], Any] | None = None,
) -> Any:
    """The loop behind every `encode`: the sets of all items in their order, or an `Encoded` with errors="skip".

    empty: makes the tensor or array of n sets that is filled. encode_batch: the sets of what `reader` collated.
    within: a context for the whole loop. ahead, threads, fetch: see `encode_ahead`. Items of similar length share a
    batch.
    """
    items = checked_items(items, batch_size, errors)
    threads = max(min(threads, len(items)), 1)
    sets = empty(len(items))
    rows = np.asarray(sets)  # the same memory; by NumPy for the reason of `_stacked`
    order = sorted(range(len(items)), key=lambda place: -reader.length(items[place]))
    batches = [*_batches(order, batch_size, threads)]
    skipped: list[Skipped] = []
    shown = False if show_progress is None and len(items) <= _LONG_WORK else show_progress
    with within or nullcontext(), bar(modality, len(items), shown) as advance:
        skip = errors == "skip"
        for batch, made in encode_ahead(
            reader, items, batches, skip, encode_batch, ahead=ahead, threads=threads, fetch=fetch
        ):
            if made is not None:
                rows[batch.places] = np.asarray(made)
            skipped += batch.skipped
            advance(len(batch.places) + len(batch.skipped))
    if errors == "raise":
        return sets
    skipped.sort(key=lambda item: item.index)
    lost = {item.index for item in skipped}
    kept = [place for place in range(len(items)) if place not in lost]
    return Encoded(sets[kept] if skipped else sets, kept, skipped)
