"""A small gallery to serve: generated scenes, a tiny random model, and an index of them."""

import json
import threading
import time
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import uvicorn
from PIL import Image
from starlette.testclient import TestClient
from tiny_models import tiny_model

from maxmatch import SetIndex
from maxmatch.data.scenes import generate
from maxmatch.search.photos.albums import Albums
from maxmatch.search.photos.facts import photo_facts
from maxmatch.server.app import create_app
from maxmatch.server.connections import server_config
from maxmatch.server.gallery import key_of

COUNT = 24
MANY = 60
FOLDERS = ("", "holiday", "holiday/rome", "garden")
SIZES = ((96, 96), (96, 64), (64, 96))
BLOCKED = "Service Worker registration blocked by Playwright"
"""Its line on the console: a service worker would hide requests from the tests."""
EXACT = 0.999999
"""Only the same picture is a near-duplicate: to a model that has learned nothing all pictures look much alike."""


class Gallery(NamedTuple):
    """What there is to serve."""

    root: Path
    ids: list[str]
    index: SetIndex
    model: object
    captions: list[str]
    """Some items' sets are those of texts, so that it is known which one a text finds: captions[n] finds ids[n]."""

    def picture(self, name):
        return self.root / name

    def key(self, place):
        return key_of(self.ids[place])


CAMERAS = ("Canon EOS 5D", "Garmin VIRB", None)


def make_gallery(folder, count=COUNT):
    """Pictures in four folders, of three shapes, a day apart; two of them the same."""
    generate(folder / "scenes", images=count, size=96)
    rows = [json.loads(line) for line in (folder / "scenes" / "metadata.jsonl").read_text().splitlines()]
    model = tiny_model("resnet152_bigru", set_size=3)
    root, ids, facts = folder / "pictures", [], []
    for place, row in enumerate(rows):
        name = f"{FOLDERS[place % 4]}/scene {place:02d}.png".lstrip("/")
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        source = rows[3] if place == 7 else row  # the same picture twice
        with Image.open(folder / "scenes" / source["file_name"]) as image:
            width, height = SIZES[(3 if place == 7 else place) % 3]
            image.crop((0, 0, width, height)).save(path)
        taken = datetime(2024, 1, 1, 12) + timedelta(days=place)
        written = {"camera": CAMERAS[place % 3], "place": "Città, Italy" if place == 5 else None}
        facts.append({**photo_facts(path, root), "taken": taken.isoformat(), **written})
        ids.append(name)
    captions = ["a dog runs on the beach", "two people ride a red bus"]
    sets = model.encode_images([root / name for name in ids])
    sets[: len(captions)] = model.encode_texts(captions)
    index = SetIndex.create(folder / "index", dim=model.dim, set_size=3, model=model, engine="exhaustive")
    index.add(ids, sets, facts)
    return Gallery(root, ids, index, model, captions)


def app_of(gallery, **more):
    own = {"near_duplicate": EXACT, "cut": False}
    own["albums"] = Albums(gallery.index.folder.parent / "data")  # not the user's own
    return create_app(gallery.index, gallery.model, gallery.picture, **own | more)


@contextmanager
def client_of(gallery, **more):
    """Asks as this machine does, under its own name."""
    with TestClient(app_of(gallery, **more), base_url="http://127.0.0.1:8765", client=("127.0.0.1", 50000)) as client:
        yield client


class Running:
    """A real server in a thread; it can be stopped and started again at the same port."""

    def __init__(self, app, port=0):
        self.app = app
        self.port = port
        self.start()

    def start(self):
        config = server_config(self.app, "127.0.0.1", port=self.port)
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(target=self.server.run, daemon=True)
        self.thread.start()
        deadline = time.monotonic() + 30
        while not self.server.started and time.monotonic() < deadline:
            time.sleep(0.01)
        assert self.server.started
        self.port = self.server.servers[0].sockets[0].getsockname()[1]

    def stop(self):
        self.server.should_exit = True
        self.thread.join(20)
        assert not self.thread.is_alive()

    @property
    def address(self):
        return f"http://127.0.0.1:{self.port}"
