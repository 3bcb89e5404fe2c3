"""Files read by processes have the pixels, and the errors, that they have one by one; no process outlives the work."""

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from maxmatch.core.types import Inputs
from maxmatch.model import inputs, photo_processes
from maxmatch.model.build import build_model
from maxmatch.model.encoder import SetEncoder
from maxmatch.model.hub.preprocessing import processor_transform
from maxmatch.model.images import ImageTransform
from maxmatch.model.inputs import EightBitReader, PixelReader, encode_ahead, read_ahead
from maxmatch.model.photo_processes import PhotoProcesses
from maxmatch.model.presets import PRESETS
from maxmatch.model.text import word_tokenizer

pytestmark = pytest.mark.skipif(not photo_processes.available(), reason="needs Linux")
HALF = (0.5, 0.5, 0.5)
SQUASHED = ImageTransform(24, "squash", (0.4, 0.5, 0.6), (0.2, 0.3, 0.7))
CROPPED = ImageTransform(24, "crop", HALF, HALF)
CLIP = {
    "image_processor_type": "CLIPImageProcessor",
    "size": {"shortest_edge": 28},
    "crop_size": {"height": 24, "width": 24},
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
    "resample": 3,
}
SIGLIP = {"image_processor_type": "SiglipImageProcessor", "size": {"height": 24, "width": 24}, "resample": 2}
TRANSFORMS = {
    "squashed": SQUASHED,
    "cropped": CROPPED,
    "clip": processor_transform(CLIP),
    "siglip": processor_transform(SIGLIP),
}


@pytest.fixture
def files(tmp_path):
    """Pictures of many shapes, some of them bad."""
    generator = np.random.default_rng(0)
    paths = []
    for number, size in enumerate([(24, 24), (31, 25), (25, 33), (90, 61), (61, 90), (300, 200), (7, 2500), (27, 24)]):
        pixels = generator.integers(0, 256, (size[1], size[0], 3), np.uint8)
        paths.append(tmp_path / f"{number}.{('jpg', 'png')[number % 2]}")
        Image.fromarray(pixels).save(paths[-1])
    (tmp_path / "empty.jpg").write_bytes(b"")
    (tmp_path / "text.jpg").write_text("no picture")
    (tmp_path / "cut.png").write_bytes(paths[1].read_bytes()[:200])
    bad = [tmp_path / name for name in ("empty.jpg", "text.jpg", "cut.png", "missing.jpg")]
    return [*paths[:3], *bad, *paths[3:]]


@pytest.fixture
def processes(monkeypatch):
    """Has processes read, however few the files and cores are, and threads nothing; the processes that were started."""
    started = []

    class Waiting(PhotoProcesses):
        def __init__(self, *given):
            super().__init__(*given)
            started.append(self._server)

        def ready(self):
            if not self._ready:
                select.select([self._results], [], [], 60)
            assert super().ready()
            return True

    monkeypatch.setattr(inputs, "PhotoProcesses", Waiting)
    monkeypatch.setattr(inputs, "_MANY_FILES", 1)
    monkeypatch.setattr(inputs, "_MANY_CORES", 1)
    yield started
    assert started
    assert all(server.returncode is not None for server in started)  # ended, and waited for


def in_batches(items, size):
    return [range(first, min(first + size, len(items))) for first in range(0, len(items), size)]


@pytest.mark.parametrize("name", TRANSFORMS)
def test_the_pixels_are_those_of_one_picture_after_the_other_and_bad_files_are_reported_alike(name, files, processes):
    reader = PixelReader(TRANSFORMS[name])
    eight = reader.for_device(torch.device("cuda"))
    assert isinstance(eight, EightBitReader)
    items = files * 5
    found = list(read_ahead(eight, items, in_batches(items, 7), skip=True, workers=3))
    plain = list(read_ahead(reader, items, in_batches(items, 7), skip=True, workers=3, ahead=False))
    for one, other in zip(found, plain, strict=True):
        assert one.places == other.places
        assert one.skipped == other.skipped
        assert torch.equal(reader.normalised(one.inputs.values), other.inputs.values)
    assert sum(len(batch.skipped) for batch in found) == 4 * 5
    assert len(processes) == 1


@pytest.mark.parametrize("name", ["clip", "siglip"])
def test_the_pixels_are_those_of_the_processor_of_transformers(name, files):
    transform = TRANSFORMS[name]
    for file in files[:3] + files[7:]:
        whole = transform.processor(Image.open(file).convert("RGB"), return_tensors="np")["pixel_values"][0]
        assert np.array_equal(transform.pixels(file), whole.astype(np.float32))


def test_a_file_that_cannot_be_read_is_named(files, processes):
    eight = PixelReader(CROPPED).for_device(torch.device("cuda"))
    found = read_ahead(eight, files, in_batches(files, 2), skip=False, workers=2)
    assert next(found).places == [0, 1]
    with pytest.raises(ValueError, match=r"item 3: .*empty\.jpg"):
        next(found)
    half = read_ahead(eight, files, in_batches(files, 2), skip=False, workers=2)
    next(half)
    half.close()


def test_where_a_process_dies_threads_read_the_rest(files, processes):
    eight = PixelReader(CROPPED).for_device(torch.device("cuda"))
    items = (files[:3] + files[7:]) * 40
    found = read_ahead(eight, items, in_batches(items, 4), skip=False, workers=2)
    read = [next(found)]
    os.kill(children(processes[0].pid)[0], signal.SIGKILL)
    read += list(found)
    assert [place for batch in read for place in batch.places] == list(range(len(items)))
    expected = eight.collate([eight.read(item) for item in items])
    assert torch.equal(torch.cat([batch.inputs.values for batch in read]), expected.values)


def test_where_no_process_can_be_started_threads_read(files, monkeypatch):
    monkeypatch.setattr(inputs, "_MANY_FILES", 1)
    monkeypatch.setattr(inputs, "_MANY_CORES", 1)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    eight = PixelReader(CROPPED).for_device(torch.device("cuda"))
    found = list(read_ahead(eight, files, in_batches(files, 2), skip=True, workers=2))
    assert [batch.places for batch in found] == [[0, 1], [2], [], [7], [8, 9], [10, 11]]


def children(pid):
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def gone(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state == "Z"


PROGRAM = """
import sys, time
from maxmatch.model.images import ImageTransform
from maxmatch.model.photo_processes import PhotoProcesses
from maxmatch.model.presets import PRESETS
from maxmatch.model.text import word_tokenizer
transform = ImageTransform(24, "crop", (0.5,) * 3, (0.5,) * 3)
photos = PhotoProcesses(transform.eight_bits, sys.argv[1:], 64, (24, 24, 3), 3)
while not photos.ready():
    time.sleep(0.01)
for slot in range(64):
    photos.begin(slot, slot % len(sys.argv[1:]))
print(photos._server.pid, flush=True)
try:
    time.sleep(60)
finally:
    photos.close()
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_no_process_outlives_the_one_that_asked(how, files):
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *map(str, files)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell in the background ignores it
    )  # fmt: skip
    server = int(program.stdout.readline())
    pids = [server, *children(server)]
    assert len(pids) == 4
    program.send_signal(how)
    program.communicate(timeout=30)
    until = time.monotonic() + 30
    while not all(map(gone, pids)) and time.monotonic() < until:
        time.sleep(0.05)
    assert all(map(gone, pids))


def test_few_files_or_cores_and_items_that_are_not_files_are_left_to_threads(files, monkeypatch):
    monkeypatch.setattr(inputs, "PhotoProcesses", lambda *given: pytest.fail("not worth a start"))
    eight = PixelReader(CROPPED).for_device(torch.device("cuda"))
    monkeypatch.setattr(inputs, "usable_cores", lambda most=None: 16)
    assert sum(len(batch.places) for batch in read_ahead(eight, files, in_batches(files, 4), skip=True)) == 8
    monkeypatch.setattr(inputs, "_MANY_FILES", 1)
    mixed = [file.read_bytes() if file.is_file() else file for file in files]
    assert sum(len(batch.places) for batch in read_ahead(eight, mixed, in_batches(mixed, 4), skip=True)) == 8
    monkeypatch.setattr(inputs, "usable_cores", lambda most=None: 2)
    assert sum(len(batch.places) for batch in read_ahead(eight, files, in_batches(files, 4), skip=True)) == 8


def test_a_transform_or_reader_of_somebody_else_is_not_bypassed():
    class Doubled(ImageTransform):
        def __call__(self, source):
            return 2 * super().__call__(source)

    class Other(PixelReader):
        def read(self, item):
            return super().read(item) + 1

    cuda = torch.device("cuda")
    assert type(PixelReader(Doubled(24, "crop", HALF, HALF)).for_device(cuda)) is PixelReader
    assert type(Other(CROPPED).for_device(cuda)) is Other
    assert type(PixelReader(CROPPED).for_device(torch.device("cpu"))) is PixelReader


def test_a_tensor_with_its_channels_first_is_read_as_pixels_of_eight_bits_too():
    reader = PixelReader(SQUASHED)
    picture = torch.randint(0, 256, (3, 40, 30), dtype=torch.uint8)
    eight = reader.for_device(torch.device("cuda"))
    assert torch.equal(reader.normalised(eight.collate([eight.read(picture)]).values)[0], reader.read(picture))


def test_what_a_gpu_made_is_fetched_when_the_next_batch_is_queued():
    done = []

    class Reader:
        def length(self, item):
            return 1

        def read(self, item):
            if item < 0:
                raise ValueError("bad")
            return item

        def collate(self, items):
            return Inputs(list(items), None)

    def encode(read):
        done.append(("queued", read.values))
        return read.values

    def fetch(made):
        done.append(("fetched", made))
        return [10 * value for value in made]

    items, batches = [1, -2, 3, 4], [[0], [1], [2, 3]]
    found = list(encode_ahead(Reader(), items, batches, True, encode, workers=2, fetch=fetch))
    assert [(batch.places, made) for batch, made in found] == [([0], [10]), ([], None), ([2, 3], [30, 40])]
    assert done == [("queued", [1]), ("fetched", [1]), ("queued", [3, 4]), ("fetched", [3, 4])]
    assert list(encode_ahead(Reader(), [], [], True, encode, fetch=fetch)) == []


@pytest.mark.parametrize("errors", ["raise", "skip"])
def test_a_model_on_a_gpu_makes_the_sets_of_one_by_one(errors, files, processes, monkeypatch):
    torch.manual_seed(0)
    config = PRESETS["efficientnet_lite0_bigru"](width=32, image_size=32, word_width=8, heads=2, head_width=8)
    tokenizer = word_tokenizer(["a dog"], min_count=1, max_length=8)
    model = build_model(config, {"text": tokenizer}, pretrained=False, seed=0).eval()
    items = files * 3 if errors == "skip" else files[:3] * 5
    read = [place for place in range(len(items)) if items[place] in [*files[:3], *files[7:]]]
    alone = torch.cat([model.encode_images([items[place]], batch_size=1) for place in read])
    monkeypatch.setattr(SetEncoder, "device", torch.device("cuda"))  # as far as reading is concerned
    found = model.encode_images(items, batch_size=4, errors=errors)
    if errors == "skip":
        assert found.kept == read
        assert [one.index for one in found.skipped] == [place for place in range(len(items)) if place not in read]
        found = found.sets
    torch.testing.assert_close(found, alone, rtol=0, atol=1e-5)
