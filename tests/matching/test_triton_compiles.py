"""The kernels compile for GPUs that are not there: an A100, an H100 and an RTX 5090. The other tests interpret them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

if sys.platform != "linux":
    pytest.skip("Triton is made for Linux only", allow_module_level=True)


@pytest.mark.parametrize(
    ("capability", "instruction", "memory"), [(80, "mma", 163), (90, "wgmma", 227), (120, "mma", 99)]
)
def test_every_kernel_compiles_and_its_products_are_those_of_tensor_cores(
    capability: int, instruction: str, memory: int
) -> None:
    script = Path(__file__).with_name("compiled_kernels.py")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    made = subprocess.run([sys.executable, script, str(capability)], capture_output=True, text=True, env=environment)
    assert made.returncode == 0, made.stderr
    kernels = json.loads(made.stdout)
    multiplying = {name for name, found in kernels.items() if found[instruction]}
    products = {"fused 4", "fused 8", "in place 4", "in place 8", "held", "streamed"}
    assert multiplying == kernels.keys() & products
    assert products - multiplying == {
        80: {"fused 4", "fused 8", "held", "streamed"}, 90: set(), 120: {"fused 4", "held", "streamed"}
    }[capability]  # fmt: skip
    for name, found in kernels.items():
        assert found["shared"] <= memory * 1024, name
    for name in ("planes", "planes, chosen", "blocks", "blocks, back"):  # from 300 million pairs on
        assert kernels[name]["narrow"] == 0, name
    if capability < 90:  # a laptop's has less
        assert all(kernels[name]["shared"] <= 99 * 1024 for name in ("in place 4", "in place 8"))
    elif capability < 120:  # two at a time
        assert 2 * (kernels["fused 8"]["shared"] + 1024) <= memory * 1024
