"""Compile the matching's kernels for a GPU that need not be there: `python compiled_kernels.py 80`. Prints what became
of each as JSON. Apart from the tests, in which Triton interprets.
"""

import json
import re
import sys
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from maxmatch.matching import triton_backend, triton_fused, triton_scan, triton_tiles
from maxmatch.matching.triton_fused import CUTS, CUTS_IN_PLACE

_NARROW = re.compile(r"arith\.muli %\w*(?:stride|n_columns)\w*, %\w+ : i32")  # places that end at 2³¹


def compiled(
    capability: int, kernel: Any, given: list[str], warps: int, stages: int = 3, **sizes: int
) -> dict[str, int]:
    """given: the types of the arguments before the sizes; pointers and strides are multiples of 16, as they are."""
    names = kernel.arg_names
    signature = dict(zip(names, [*given, *["constexpr"] * len(sizes)], strict=True))
    aligned = {
        (place,): [["tt.divisibility", 16]]
        for place, (name, kind) in enumerate(signature.items())
        if kind.startswith("*") or name in ("stride", "width")
    }
    source = ASTSource(fn=kernel, signature=signature, constexprs=sizes, attrs=aligned)
    options = {"num_warps": warps, "num_stages": stages, "enable_fp_fusion": True}
    made = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    ptx = made.asm["ptx"]
    found = {"shared": made.metadata.shared, "wgmma": ptx.count("wgmma.mma_async"), "mma": ptx.count("mma.sync")}
    found["narrow"] = len(_NARROW.findall(made.asm["ttir"]))
    return found | {"cubin": len(made.asm["cubin"])}


def every_kernel(capability: int) -> dict[str, dict[str, int]]:
    """By name."""
    found, large = {}, 90 <= capability < 120  # a graphics card has less shared memory
    for size in (4, 8):
        if large or (capability >= 90 and size == 8):
            cut = CUTS[size]
            sets = [f"tensordesc<bf16[{rows}, 64]>" for rows in (cut.rows, 128)]
            found[f"fused {size}"] = compiled(
                capability, triton_fused._fused, [*sets, "*fp32", "i32", "i32", "i32", "i32"], cut.warps, cut.stages,
                SIZE=size, D=1024, ROWS=cut.rows, STEP=64, GROUP=8,
            )  # fmt: skip
        cut = CUTS_IN_PLACE[size]
        found[f"in place {size}"] = compiled(
            capability, triton_fused._fused_in_place, ["*bf16", "*bf16", "*fp32", "i32", "i32", "i32", "i32"],
            cut.warps, cut.stages, SIZE=size, EVEN=True, ROWS=cut.rows, STEP=32, GROUP=8,
        )  # fmt: skip
    pack = {"SIZE": 4, "D": 1024, "ROWS": 256, "BLOCK": 256}
    found["pack"] = compiled(capability, triton_fused._pack, ["*bf16", "*bf16", "*fp32", "i32"], 4, **pack)
    for name, back in (("blocks", False), ("blocks, back", True)):
        given = ["*fp32", "*fp32", "i32", "i32", "i32"]
        found[name] = compiled(capability, triton_backend._blocks, given, 4, BACK=back, BLOCK=128)
    for name, scored in (("planes", True), ("planes, chosen", False)):
        given = ["*fp32", "*fp32" if scored else "*i64", "*fp32" if scored else "*i64", *["i32"] * 6]
        found[name] = compiled(capability, triton_backend._planes_4, given, 4, K=4, SCORES=scored, BLOCK=256)
    ranked = ["*fp32", "*i64", "*i64", "*fp32"]
    found["best true"] = compiled(
        capability, triton_backend._best_true, [*ranked, "i32", "i32", "i32"], 4, ROWS=32, COLUMNS=128
    )
    found["count wrong"] = compiled(
        capability, triton_backend._count_wrong, [*ranked, "*i64", "i32", "i32", "i32"], 4, UNIT=4, ROWS=32, COLUMNS=128
    )
    if large:
        for way, kernel, tiles, step in (
            ("held", triton_tiles._held, triton_scan.HELD, 256),
            ("streamed", triton_tiles._streamed, triton_scan.STREAMED, 64),
        ):
            sets = [f"tensordesc<fp16[{4 * tiles.rows}, {step}]>", f"tensordesc<fp16[2, {tiles.items}, 2, {step}]>"]
            found[way] = compiled(
                capability, kernel, [*sets, "*fp32", "*fp32", "*u8", "*i64", *["i32"] * 4], tiles.warps, tiles.stages,
                KEEP=False, SCALED=False, D=256, STEP=step, WARPS=tiles.warps, ITEMS=tiles.items,
            )  # fmt: skip
    return found


if __name__ == "__main__":
    print(json.dumps(every_kernel(int(sys.argv[1]))))
