"""Nothing leaves the machine: no command opens a connection to another one, or leaves a library's own files behind."""

import os
import re
import shutil
import subprocess
import sys
import urllib.request

import pytest
from made_data import environment
from small_runs import recipe_for, write_data
from tiny_models import saved_model

from maxmatch.data.scenes import generate
from maxmatch.recipe.yaml_files import dump_recipe

ADDRESS = re.compile(r'htons\((\d+)\), .*?(?:inet_addr\("([^"]+)"\)|inet_pton\(AF_INET6, "([^"]+)")')
DNS = "53"
# Threads send telemetry seconds after the start.
WAIT = "import atexit, os, time; atexit.register(time.sleep, float(os.environ['SECONDS_LONGER']))"
LONGER = "search dog index --model fast --runtime onnx"
COMMANDS = [
    "doctor",
    "data scenes made --images 12",
    "data check data",
    "data convert data converted --to features",
    "data features scenes store --model model",
    "train tiny.yaml data.path=data --out run",
    "evaluate run data",
    "analyse run data --out report",
    "reproduce --list",
    "reproduce sizes --data data --base tiny.yaml --out again --quick",
    "demo --out demo train.epochs=1 model.config.width=16 train.workers=0 data.scenes.images=40",
    "export model fast --onnx",
    "encode model pictures --out sets",
    "index build index --from sets --engine exhaustive",
    "index info index",
    "index verify index",
    "index add index --from sets --existing replace",
    "index remove index 000000.png",
    "index compact index",
    "search dog index --model model",
    LONGER,
    "search dog pictures",
    "search --image pictures/000000.png pictures",
]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Data, a recipe, a model, and pictures; also the home of the user."""
    folder = tmp_path_factory.mktemp("offline")
    recipe = recipe_for(write_data(folder / "data"), epochs=1)
    (folder / "tiny.yaml").write_text(dump_recipe(recipe))
    saved_model(folder / "model")
    generate(folder / "scenes", images=12, size=64)
    (folder / "pictures").mkdir()
    for number, path in enumerate(sorted((folder / "scenes").rglob("*.png"))):
        shutil.copy(path, folder / "pictures" / f"{number:06d}.png")
    (folder / "late").mkdir()
    (folder / "late" / "sitecustomize.py").write_text(WAIT)
    return folder


def traced(place, *arguments, longer=3):
    """A command, all of whose connections are written to `trace`; its processes end some seconds later."""
    known = environment()
    path = os.pathsep.join([str(place / "late"), known["PYTHONPATH"]])
    home = {"HOME": str(place), "XDG_CACHE_HOME": str(place / "cache")}
    home |= {"PYTHONPATH": path, "SECONDS_LONGER": str(longer)}
    trace = ["strace", "-D", "-f", "-qq", "-e", "trace=connect,sendto,sendmsg,sendmmsg", "-o", str(place / "trace")]
    unset = ("ORT_DISABLE_TELEMETRY", "HF_HUB_DISABLE_TELEMETRY")
    return subprocess.Popen(
        [*trace, sys.executable, "-m", "maxmatch", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=place,
        env={name: value for name, value in (known | home).items() if name not in unset},
    )


def contacted(place):
    """The addresses of other machines, and of a name server, which may run on this one."""
    found = ((port, one or other) for port, one, other in ADDRESS.findall((place / "trace").read_text()))
    return {
        address
        for port, address in found
        if port == DNS or not (address.startswith("127.") or address in ("::1", "::ffff:127.0.0.1"))
    }


needs_strace = pytest.mark.skipif(
    shutil.which("strace") is None, reason="connections are traced by strace, which is not installed"
)


@pytest.mark.slow
@needs_strace
@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_contacts_another_machine(place, command):
    process = traced(place, *command.split(), longer=30 if command == LONGER else 3)
    printed, _ = process.communicate(timeout=600)
    assert process.returncode in ((0, 1) if command == "doctor" else (0,)), printed
    assert contacted(place) == set()
    assert not (place / "cache" / "Microsoft").exists()


@pytest.mark.slow
@needs_strace
def test_the_server_contacts_no_other_machine(place):
    process = traced(place, "serve", "pictures", "--port", "0")
    try:
        for line in process.stdout:
            if line.startswith("http://"):
                break
        for path in ("", "api/v1/search?q=dog", "api/v1/gallery"):
            with urllib.request.urlopen(line.strip() + path, timeout=60) as answer:
                assert answer.status == 200
    finally:
        process.terminate()
        process.communicate(timeout=60)
    assert contacted(place) == set()


def test_telemetry_of_libraries_is_off_unless_switched_on():
    code = "import os, maxmatch; print(os.environ['ORT_DISABLE_TELEMETRY'], os.environ['HF_HUB_DISABLE_TELEMETRY'])"
    for given, expected in (({}, "1 1"), ({"ORT_DISABLE_TELEMETRY": "0"}, "0 1")):
        known = {name: value for name, value in environment().items() if "TELEMETRY" not in name}
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, env=known | given, check=True
        )
        assert done.stdout.split() == expected.split()
