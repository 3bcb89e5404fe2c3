"""Measure the memory of a server while large pictures are uploaded to it, and what is left of it afterwards.

    python -m benchmarks.uploads [webp:20 webp-alpha:16 png-palette:40 jpeg:50 …] [--count 30]

A kind of file and its size in million pixels; each gets a `maxmatch serve` of its own and is uploaded --count times.
Printed as one JSON object a line: the statuses of the responses, and the server's memory in MB: when it is ready, at
its highest, and after the last upload. Linux only. Needs 3 GB of memory and minutes.
"""

import argparse
import io
import json
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from PIL import Image

from benchmarks.serving import make_index, memory
from maxmatch.model.encoder import SetEncoder
from maxmatch.model.names import SHIPPED

FILES: dict[str, tuple[str, str, dict[str, Any]]] = {  # the picture's mode, its format and its options
    "webp": ("RGB", "WEBP", {"method": 0}),
    "webp-alpha": ("RGBA", "WEBP", {"method": 0}),
    "webp-lossless": ("RGB", "WEBP", {"method": 0, "lossless": True, "quality": 0}),
    "png": ("RGB", "PNG", {"compress_level": 1}),
    "png-alpha": ("RGBA", "PNG", {"compress_level": 1}),
    "png-palette": ("P", "PNG", {"compress_level": 1}),
    "jpeg": ("RGB", "JPEG", {}),
    "jpeg-progressive": ("RGB", "JPEG", {"progressive": True}),
    "avif": ("RGB", "AVIF", {"speed": 10}),
    "avif-alpha": ("RGBA", "AVIF", {"speed": 10}),
}


def picture(kind: str, megapixels: float) -> bytes:
    """The file of a picture, twice as wide as high."""
    mode, name, options = FILES[kind]
    height = int((megapixels * 1e6 / 2) ** 0.5)
    seeds = np.random.default_rng(0).integers(0, 256, (12, 24, len(mode)), dtype=np.uint8)
    small = Image.fromarray(seeds[..., 0] if mode == "P" else seeds, "L" if mode == "P" else mode)
    large = small.resize((2 * height, height), Image.Resampling.NEAREST if mode == "P" else Image.Resampling.BILINEAR)
    if mode == "P":
        large.putpalette(np.random.default_rng(1).integers(0, 256, 768, dtype=np.uint8).tobytes())
    file = io.BytesIO()
    large.save(file, name, **options)
    return file.getvalue()


def upload(port: int, data: bytes) -> int:
    """Send a picture; the status of the response."""
    part = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/api/v1/search/image",
        part + data + b"\r\n--x--\r\n",
        {"Content-Type": "multipart/form-data; boundary=x"},
    )
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as refusal:
        return refusal.code


def highest(process: int) -> float:
    """The most memory that a process ever had, in MB."""
    [line] = [line for line in Path(f"/proc/{process}/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) / 2**10


def measured(index: Path, data: bytes, count: int) -> dict[str, Any]:
    """Upload a picture to a new server."""
    command = [sys.executable, "-m", "maxmatch.cli.main", "serve", str(index), "--port", "0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        assert server.stdout is not None
        port = urlsplit(server.stdout.readline().decode().strip()).port or 0
        Path(f"/proc/{server.pid}/clear_refs").write_text("5")  # the highest so far counts from here
        start = memory(server.pid)
        statuses = Counter(upload(port, data) for _ in range(count))
        time.sleep(1)
        peak, left = highest(server.pid), memory(server.pid)
    finally:
        server.kill()
        server.wait()
    return {
        "statuses": dict(statuses),
        "start_mb": round(start),
        "peak_mb": round(peak - start),
        "left_mb": round(left - start),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", default=["webp:50", "webp:20"], help=f"{', '.join(FILES)}: million pixels")
    parser.add_argument("--count", type=int, default=30, help="uploads of each")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        index = Path(folder) / "index"
        make_index(index, SetEncoder.from_pretrained(SHIPPED), 1000, "lance")
        for file in given.files:
            kind, _, size = file.partition(":")
            data = picture(kind, float(size))
            found = measured(index, data, given.count)
            print(json.dumps({"file": file, "megabytes": round(len(data) / 1e6, 1), **found}), flush=True)


if __name__ == "__main__":
    main()
