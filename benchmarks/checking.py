"""Time `maxmatch data check` on 150,000 generated captions in each format: `python -m benchmarks.checking`.

The goal is 60 seconds without images, whose decoding time depends on their size.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.timing import Row, describe_machine, print_rows
from maxmatch.data.check import check

_CAPTIONS = 5
_GOAL = 60.0


def captions_of(image: int) -> list[str]:
    words = np.random.default_rng(image).zipf(1.4, (_CAPTIONS, 11)) % 20_000
    return [" ".join(f"w{word}" for word in caption) for caption in words.tolist()]


def write_karpathy(folder: Path, images: int) -> Path:
    entries = [
        {
            "filename": f"{image}.jpg",
            "imgid": image,
            "split": "train",
            "sentences": [
                {"raw": text, "tokens": text.split(), "sentid": image * _CAPTIONS + n}
                for n, text in enumerate(captions_of(image))
            ],
        }
        for image in range(images)
    ]
    (folder / "dataset_made.json").write_text(json.dumps({"dataset": "made", "images": entries}))
    return folder / "dataset_made.json"


def write_csv(folder: Path, images: int) -> Path:
    rows = [f"{image}.jpg,{text}\n" for image in range(images) for text in captions_of(image)]
    (folder / "captions.csv").write_text("image,caption\n" + "".join(rows))
    return folder / "captions.csv"


def write_jsonl(folder: Path, images: int) -> Path:
    rows = [json.dumps({"image": f"{image}.jpg", "caption": captions_of(image)}) for image in range(images)]
    (folder / "captions.jsonl").write_text("\n".join(rows) + "\n")
    return folder / "captions.jsonl"


def write_precomp(folder: Path, images: int) -> Path:
    """Features of 36 regions with width 64: 276 MB at full size."""
    features = np.random.default_rng(0).normal(size=(images, 36, 64)).astype(np.float32)
    (folder / "precomp").mkdir()
    np.save(folder / "precomp" / "train_ims.npy", features)
    texts = [text for image in range(images) for text in captions_of(image)]
    (folder / "precomp" / "train_caps.txt").write_text("\n".join(texts) + "\n")
    return folder / "precomp"


WRITERS: dict[str, Callable[[Path, int], Path]] = {
    "Karpathy's JSON": write_karpathy,
    "CSV": write_csv,
    "JSON lines": write_jsonl,
    "precomp": write_precomp,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=30_000)
    images: int = parser.parse_args().images
    print(describe_machine())
    rows = []
    for name, write in WRITERS.items():
        with tempfile.TemporaryDirectory() as place:
            path = write(Path(place), images)
            begin = time.perf_counter()
            report = check(path, pictures=False)
            seconds = time.perf_counter() - begin
        assert report.usable
        assert report.splits["train"].items == {"image": images, "text": images * _CAPTIONS}
        goal = "met" if seconds <= _GOAL else "NOT MET"
        rows.append(Row(name, seconds * 1e3, note=f"goal {_GOAL:.0f} s {goal}"))
    print_rows(f"data check, {images * _CAPTIONS:,} captions, no images", rows)


if __name__ == "__main__":
    main()
