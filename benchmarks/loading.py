"""Measure how fast batches reach the device, on generated data of Flickr30k's size: `python -m benchmarks.loading`.

(a) one .npy file per image, read by a DataLoader, as in other implementations of this field; captions are tokenised
    in advance and workers persist between epochs, which is faster than usual
(b) MappedFeed over one memory-mapped array
(c) ResidentFeed: everything on the device

The data has just been written, so files come from the page cache if they fit into memory; the disk is not measured.
Needs 17 GB of disk at full size; --images, --regions and --width reduce it.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from benchmarks.timing import Row, describe_machine, print_rows, time_each
from maxmatch.core.progress import Skipped
from maxmatch.core.types import Batch, Inputs
from maxmatch.data.dataset import IMAGE, TEXT, Items, Split
from maxmatch.data.feed import Feed, MappedFeed, ResidentFeed
from maxmatch.data.sampler import BatchPlan, GroupSampler
from maxmatch.model.inputs import FeatureReader, Reader, TextReader
from maxmatch.model.text import word_tokenizer

_WORDS = [f"word{i}" for i in range(8_476)]  # with the special ones, the size of Flickr30k's vocabulary
_CAPTIONS = 5
_DROP = {IMAGE: 0.2, TEXT: 0.2}
_GOAL = 1 / 20


class OneFilePerImage(Dataset[tuple[Tensor, list[list[int]], int]]):
    """An image and its captions per item, as in other implementations."""

    def __init__(self, folder: Path, captions: list[list[int]]) -> None:
        self.folder, self.captions = folder, captions

    def __getitem__(self, image: int) -> tuple[Tensor, list[list[int]], int]:
        features = torch.from_numpy(np.load(self.folder / f"{image}.npy"))
        return features, self.captions[_CAPTIONS * image : _CAPTIONS * (image + 1)], image


def collate(items: list[tuple[Tensor, list[list[int]], int]]) -> Batch:
    features = torch.stack([features for features, _, _ in items])
    captions = [torch.tensor(caption) for _, captions, _ in items for caption in captions]
    ids = torch.nn.utils.rnn.pad_sequence(captions, batch_first=True)
    lengths = torch.tensor([len(caption) for caption in captions])
    images = torch.tensor([image for _, _, image in items])
    inputs = {
        IMAGE: Inputs(features, torch.ones(features.shape[:2], dtype=torch.bool)),
        TEXT: Inputs(ids, torch.arange(ids.shape[1]) < lengths[:, None]),
    }
    return Batch(inputs, {IMAGE: images, TEXT: images.repeat_interleave(_CAPTIONS)})


class FileFeed:
    """(a), with the interface of a feed."""

    def __init__(self, dataset: OneFilePerImage, plans: Sequence[BatchPlan], device: str, workers: int) -> None:
        self.skipped: dict[str, Skipped] = {}
        self.device = device
        self.loader = DataLoader(
            dataset,
            batch_sampler=[plan.groups.tolist() for plan in plans],
            num_workers=workers,
            collate_fn=collate,
            pin_memory=device == "cuda",
            persistent_workers=workers > 0,
        )

    def batches(self, plans: object) -> Iterator[Batch]:
        for batch in self.loader:
            yield batch.to(self.device, non_blocking=True)


def write_data(folder: Path, images: int, regions: int, width: int, files: int) -> Path:
    """Write one array, and one file per image. With fewer files than images, images share files and rows repeat."""
    path = folder / "train_ims.npy"
    array = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(images, regions, width))
    random = np.random.default_rng(0)
    for image in range(images):
        if image < files:
            array[image] = random.random((regions, width), dtype=np.float32)
            np.save(folder / f"{image}.npy", array[image])
        else:
            array[image] = array[image % files]
            os.link(folder / f"{image % files}.npy", folder / f"{image}.npy")
    array.flush()
    return path


def split_of(array: np.ndarray) -> tuple[Split, dict[str, Reader]]:
    """The images with five captions of 14 words on average, and the readers of both."""
    random, images = np.random.default_rng(1), np.arange(len(array))
    lengths = random.integers(9, 20, _CAPTIONS * len(images))
    captions = [" ".join(_WORDS[word] for word in random.integers(0, len(_WORDS), n)) for n in lengths]
    groups = np.repeat(images, _CAPTIONS)
    readers: dict[str, Reader] = {
        IMAGE: FeatureReader(array.shape[2]),
        TEXT: TextReader(word_tokenizer([" ".join(_WORDS)] * 4)),
    }
    items = {
        IMAGE: Items(array, images, [str(image) for image in images]),  # type: ignore[arg-type]
        TEXT: Items(captions, groups, [str(caption) for caption in range(len(captions))]),
    }
    return Split(items), readers


def same(batch: Batch, other: Batch) -> bool:
    """Whether two batches are equal to the bit."""
    tensors = [[*b.inputs[IMAGE], *b.inputs[TEXT], *b.groups.values()] for b in (batch, other)]
    return all(a is not None and b is not None and torch.equal(a, b) for a, b in zip(*tensors, strict=True))


@contextmanager
def no_waiting(device: str) -> Iterator[None]:
    """Raise an error if making a batch would wait for the GPU."""
    if device == "cuda":
        torch.cuda.set_sync_debug_mode("error")
    yield
    if device == "cuda":
        torch.cuda.set_sync_debug_mode("default")


def resident(split: Split, readers: dict[str, Reader], device: str, drop: dict[str, float]) -> ResidentFeed:
    begin = time.perf_counter()
    feed = ResidentFeed(split, readers, device, drop=drop)
    size = split[IMAGE].values.nbytes / 2**30  # type: ignore[attr-defined]
    print(f"  {size:.1f} GiB of features and {len(split[TEXT]):,} captions, tokenised, on the device after "
          f"{time.perf_counter() - begin:.1f} s", flush=True)  # fmt: skip
    return feed


def measure(args: argparse.Namespace, folder: Path, device: str) -> tuple[Feed, list[BatchPlan], float]:
    """Print the table. Returns (c), its plans and its milliseconds per batch."""
    array = np.load(write_data(folder, args.images, args.regions, args.width, args.files or args.images), mmap_mode="r")
    split, readers = split_of(array)
    plans = list(GroupSampler(args.images // args.batch * args.batch, args.batch, seed=0).plans(0))[: args.batches]
    reader = readers[TEXT]
    assert isinstance(reader, TextReader)
    encodings = reader.tokenizer.encode_batch(list(split[TEXT].values))
    captions = [encoding.ids[: sum(encoding.attention_mask)] for encoding in encodings]
    feeds: dict[str, Feed] = {}
    for workers in args.workers:
        dataset = OneFilePerImage(folder, captions)
        feeds[f"(a) one file an image, {workers} workers"] = FileFeed(dataset, plans, device, workers)
    for workers in args.workers:
        feeds[f"(b) memory map, {workers} workers"] = MappedFeed(split, readers, device, workers=workers)
    feeds["(c) on the device"] = resident(split, readers, device, {})

    first, *others = [list(_first(feed, plans, 3)) for feed in feeds.values()]
    assert all(same(*pair) for other in others for pair in zip(first, other, strict=True)), "batches differ"
    feeds["(c) with 20 % of regions and words left out"] = augmented = resident(split, readers, device, _DROP)
    with no_waiting(device):
        list(_first(augmented, plans, 3))
    print("  all feeds gave the same batches")

    times = time_each([lambda feed=feed: _consume(feed, plans) for feed in feeds.values()], args.repeats)  # type: ignore[misc]
    each = {what: min(of) / len(plans) for what, of in zip(feeds, times, strict=True)}
    base = min(ms for what, ms in each.items() if what.startswith("(a)"))
    goals = {"(c) on the device": _GOAL} if device == "cuda" else {}
    rows = [Row(what, ms, ms / base, goals.get(what), f"{1e3 / ms:,.1f} batches/s") for what, ms in each.items()]
    print_rows(f"{device.upper()}: a batch of {args.batch} images and {_CAPTIONS * args.batch} captions, "
               f"{args.images:,} × {args.regions} × {args.width}, page cache warm", rows)  # fmt: skip
    return augmented, plans, rows[-1].ms


def _first(feed: Feed, plans: list[BatchPlan], count: int) -> Iterator[Batch]:
    batches = feed.batches(plans)
    for _ in range(min(count, len(plans))):
        yield next(batches)


def _consume(feed: Feed, plans: list[BatchPlan]) -> None:
    for _ in feed.batches(plans):
        pass


def training_step(feed: Feed, plans: list[BatchPlan], feeding: float, width: int, device: str) -> None:
    """Loading as a share of a region_bigru step: forward, backward and AdamW, on a GPU in bfloat16."""
    from maxmatch.losses import triplet
    from maxmatch.matching.similarity import maxmatch
    from maxmatch.model.build import build_model
    from maxmatch.model.presets import PRESETS

    tokenizer = word_tokenizer([" ".join(_WORDS)] * 4)
    model = build_model(PRESETS["region_bigru"](feature_width=width), {TEXT: tokenizer}, seed=0).to(device).train()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4)
    batch = next(feed.batches(plans))

    def step() -> None:
        optimiser.zero_grad()
        with torch.autocast("cuda", torch.bfloat16) if device == "cuda" else nullcontext():
            images, texts = (model(name, *batch.inputs[name]).vectors for name in (IMAGE, TEXT))
        loss = triplet(maxmatch(images.float(), texts.float()), batch.groups[IMAGE][:, None] == batch.groups[TEXT])
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()

    (times,) = time_each([step], 5)
    print(f"\n  a training step of region_bigru on such a batch {min(times):.1f} ms: feeding with augmentation is "
          f"{feeding / min(times):.1%} of it, goal ≤ 5 %")  # fmt: skip


def main() -> None:
    cores = os.cpu_count() or 1
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=29_000)
    parser.add_argument("--regions", type=int, default=36)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--files", type=int, default=None, help="number of different files in (a); the rest are links")
    parser.add_argument("--batch", type=int, default=200)
    parser.add_argument("--batches", type=int, default=100, help="batches per run")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--workers", type=int, nargs="+", default=sorted({min(4, cores), cores}))
    parser.add_argument(
        "--folder", type=Path, default=None, help="where to write; default: the system's temporary folder"
    )
    parser.add_argument("--step", action="store_true", help="time a training step on the CPU too")
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    print(describe_machine())
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        feed, plans, feeding = measure(args, Path(folder), device)
        if device == "cuda" or args.step:
            training_step(feed, plans, feeding, args.width, device)


if __name__ == "__main__":
    main()
