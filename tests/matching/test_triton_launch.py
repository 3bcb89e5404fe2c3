"""A kernel is launched again by its handle; here for a GPU that is not there."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

if sys.platform != "linux":
    pytest.skip("Triton is made for Linux only", allow_module_level=True)


def test_launches_by_the_handle_hand_over_what_ordinary_ones_would() -> None:
    script = Path(__file__).with_name("launched_kernels.py")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    made = subprocess.run([sys.executable, script], capture_output=True, text=True, env=environment)
    assert made.returncode == 0, made.stderr
    first, elsewhere, smaller, odd, *again = json.loads(made.stdout)
    assert [launch["ordinary"] for launch in (first, elsewhere, smaller, odd, *again)] == [True, False, True, True] + [
        False
    ] * 2
    assert all(launch["right"] for launch in (first, elsewhere, smaller, odd, *again))
    assert smaller["numbers"] == [1, 1, 1, False, 128]
    assert all(launch["numbers"] == [2, 2, 1, False, 128] for launch in (first, elsewhere, odd, *again))
    assert odd["kernel"] != first["kernel"]  # another version, for addresses that are no multiples of 16
    assert [launch["kernel"] for launch in again] == [first["kernel"], odd["kernel"]]
