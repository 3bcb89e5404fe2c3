"""`maxmatch search` in an indexed folder, in a process of its own: what it finds and what it loads."""

import json
import subprocess
import sys

from PIL import Image
from test_images import noise

_PROGRAM = """
import json, sys
from maxmatch.cli.main import main
try:
    main(sys.argv[1:])
except SystemExit as end:
    assert end.code == 0, end.code
print(json.dumps(sorted(sys.modules)), file=sys.stderr)
"""


def write_photos(folder, *seeds):
    """Photos, in a folder that is made where there is none."""
    folder.mkdir(exist_ok=True)
    for seed in seeds:
        Image.fromarray(noise(60, 40, seed)).save(folder / f"{seed}.png")
    return folder


def arguments(photos, model):
    return ["search", '"a dog" - "a cat"', str(photos), "--model", str(model), "--json"]


def scores(printed):
    """The scores by photo, of what the command printed."""
    return {hit["id"]: hit["score"] for hit in json.loads(printed)["hits"]}


def second_search(*asked):
    """The scores by photo, and the modules that were loaded."""
    done = subprocess.run([sys.executable, "-c", _PROGRAM, *asked], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return scores(done.stdout), set(json.loads(done.stderr.splitlines()[-1]))
