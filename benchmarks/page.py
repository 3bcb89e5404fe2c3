"""Measure the page: how much it weighs, and how soon results are there after the last key.

    python -m benchmarks.page [--items 10000] [--queries 40]

Budgets: all files of the page at most 150 kB, and the first result at most 100 ms after the last key (the median), with
the pause in which the page waits for another key. A real Chromium opens the page of a real
server whose index holds random sets; its model is the one that ships. Two quiet cores, a minute. Exit code 1: a budget
is exceeded.
"""

import argparse
import re
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import torch
import uvicorn
from PIL import Image
from torch.nn.functional import normalize

import maxmatch.server
from maxmatch.cli.doctor import chromium_path
from maxmatch.model.encoder import SetEncoder
from maxmatch.model.names import SHIPPED, shipped_model
from maxmatch.search.photos.albums import Albums
from maxmatch.search.set_index import SetIndex
from maxmatch.server.app import create_app
from maxmatch.server.connections import server_config

STATIC = Path(maxmatch.server.__file__).parent / "static"
WEIGHT, WAIT = 150_000, 100.0
WORDS = ("dog", "cat", "beach", "snow", "street", "red", "blue", "child", "boat", "tree", "house", "two", "small")
# Types into the search box as a person does, and waits for the first picture of the new results.
SOONEST = """async (text) => {
    const input = document.getElementById("q"), list = document.getElementById("results");
    for (let end = 1; end <= text.length; end++) {
        input.value = text.slice(0, end);
        input.dispatchEvent(new InputEvent("input", { bubbles: true }));
        if (end < text.length) await new Promise((done) => setTimeout(done, 15));
    }
    const start = performance.now();
    while (!document.title.startsWith(text) || list.getAttribute("aria-busy") === "true") {
        await new Promise((done) => requestAnimationFrame(done));
        if (performance.now() - start > 20000) throw new Error("no results");
    }
    return performance.now() - start;
}"""

REQUESTS = """performance.getEntriesByType("resource")
    .filter((one) => one.name.includes("/search?q")).map((one) => one.duration)"""


def weight() -> dict[str, int]:
    """The bytes of each file of the page."""
    return {path.name: path.stat().st_size for path in sorted(STATIC.iterdir())}


def make_index(folder: Path, model: SetEncoder, items: int) -> SetIndex:
    """Random sets of unit vectors, all with the same small picture."""
    Image.new("RGB", (320, 240), "teal").save(folder / "photo.jpg")
    index = SetIndex.create(folder / "index", dim=model.dim, set_size=model.set_sizes["image"], model=model)
    generator = torch.Generator().manual_seed(0)
    facts = {"width": 320, "height": 240, "date": "2024-05-31T12:00:00", "folder": "", "bytes": 1000}
    for start in range(0, items, 2_000):
        names = [f"{number:06d}.jpg" for number in range(start, min(start + 2_000, items))]
        sets = torch.randn(len(names), model.set_sizes["image"], model.dim, generator=generator)
        index.add(names, normalize(sets, dim=-1), [{**facts, "name": name} for name in names])
    return index


def waits(address: str, queries: int) -> tuple[list[float], list[float], float]:
    """Milliseconds from the last key to the first result; of the search request alone; and the page's pause."""
    from playwright.sync_api import sync_playwright

    generator = np.random.default_rng(0)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium_path(), args=["--headless", "--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        page.goto(address)
        page.locator("#results[aria-busy=false]").wait_for(state="attached")
        page.wait_for_timeout(1_000)
        found = []
        for _ in range(queries):
            found.append(page.evaluate(SOONEST, " ".join(generator.choice(WORDS, 3, replace=False))))
            page.wait_for_timeout(150)
        requests = page.evaluate(REQUESTS)
        browser.close()
    pause = re.search(r"const TYPING = (\d+)", (STATIC / "app.js").read_text(encoding="utf-8"))
    return found[2:], requests[2:], float(pause[1]) if pause else 0.0


def main() -> None:
    """Print the budgets and what was measured."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--items", type=int, default=10_000)
    parser.add_argument("--queries", type=int, default=40)
    asked = parser.parse_args()
    sizes = weight()
    total = sum(sizes.values())
    print(f"page: {total / 1000:.0f} kB in {len(sizes)} files (budget {WEIGHT / 1000:.0f} kB), the largest:")
    for name, size in sorted(sizes.items(), key=lambda one: -one[1])[:5]:
        print(f"  {name:22} {size / 1000:5.1f} kB")
    if chromium_path() is None:
        sys.exit("no Chromium: the wait was not measured.")
    model = SetEncoder.from_pretrained(str(shipped_model(SHIPPED)))
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        with make_index(folder, model, asked.items) as index:
            app = create_app(index, model, lambda name: folder / "photo.jpg", albums=Albums(folder / "albums"))
            server = uvicorn.Server(server_config(app, "127.0.0.1", port=0))
            thread = threading.Thread(target=server.run, daemon=True)
            thread.start()
            while not server.started:
                time.sleep(0.05)
            port = server.servers[0].sockets[0].getsockname()[1]
            found, requests, pause = waits(f"http://127.0.0.1:{port}/", asked.queries)
            server.should_exit = True
            thread.join(20)
    median, late = statistics.median(found), sorted(found)[int(0.95 * len(found))]
    print(f"first result after the last key, {asked.items:,} photos, {len(found)} queries:")
    print(f"  median {median:.0f} ms (budget {WAIT:.0f} ms), p95 {late:.0f} ms; {pause:.0f} ms of it for another key")
    print(f"  the search request alone: median {statistics.median(requests):.0f} ms")
    sys.exit(int(total > WEIGHT or median > WAIT))


if __name__ == "__main__":
    main()
