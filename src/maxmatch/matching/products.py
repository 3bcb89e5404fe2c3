"""The inner products of all vectors of two batches of sets, which compiled code is there for what follows, and what all
pairs are computed in: tiles, and the memory for them.
"""

from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.forward_ad import unpack_dual

from maxmatch.core.machine import optional_module

_BLOCK = 2**22  # numbers that are at work at once: fewer are not well shared out among cores
_CAST_BLOCK = 2**20  # where they are cast first: more leave the cache
_WORTH_COMPILING = 100_000  # pairs: loading the compiled code takes as long as plain torch takes for some millions

LEAST_MEMORY = 2**30  # bytes for the tiles at work
NORMALISE = "Pass normalise=True to have it done on the way."


class Tile(NamedTuple):
    """The scores of some rows with some columns."""

    rows: slice
    columns: slice
    scores: Tensor


def usual_memory(device: torch.device) -> int:
    """Bytes for the tiles at work. A GPU needs larger ones, else it waits for their launches."""
    if device.type != "cuda":
        return LEAST_MEMORY
    free, whole = torch.cuda.mem_get_info(device)
    return max(LEAST_MEMORY, min(whole // 16, free // 2))


def kernels_for(cosines: Tensor) -> Any | None:
    """The GPU kernels, where the tensor is at most float32 on a CUDA device and Triton is installed."""
    return (
        optional_module("maxmatch.matching.triton_backend") if cosines.is_cuda and cosines.element_size() <= 4 else None
    )


def scans_for(sets: Tensor) -> Any | None:
    """The GPU kernels that search sets where they lie, where these are on a CUDA device and Triton is installed."""
    return optional_module("maxmatch.matching.triton_scan") if sets.is_cuda else None


def compiled_for(sets: Tensor, pairs: int) -> Any | None:
    """The compiled CPU code, for so many pairs in at most float32 on the CPU that it pays, where Numba is installed."""
    fits = sets.device.type == "cpu" and sets.element_size() <= 4 and pairs >= _WORTH_COMPILING
    return optional_module("maxmatch.matching.numba_backend") if fits else None


def products_with_few(many: Float[Tensor, "n W"], few: Float[Tensor, "q W"]) -> Float[Tensor, "n q"]:
    """The inner products of many vectors with a few. In float32 on a CPU by oneDNN, which torch does not ask by itself:
    on AMD's processors it takes half the time of MKL for such shapes. It has no gradient.
    """
    onednn = many.device.type == "cpu" and many.dtype == few.dtype == torch.float32
    there = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    if onednn and there and hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        with torch.inference_mode():
            products: Tensor = torch.ops.mkldnn._linear_pointwise(many, few, None, "none", [], "")
        return products
    return many @ few.T


def has_gradient(*tensors: Tensor) -> bool:
    """Whether a derivative is taken with respect to any of them, backwards or forwards (`torch.func.jvp`)."""
    backwards = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    return backwards or any(unpack_dual(tensor).tangent is not None for tensor in tensors)  # type: ignore[no-untyped-call]


def cosine_planes(a: Float[Tensor, "B K D"], b: Float[Tensor, "C L D"]) -> Float[Tensor, "K L B C"]:
    """The inner products of all vectors of all pairs, in at least float32."""
    (n_a, k, width), (n_b, m, _) = a.shape, b.shape
    with torch.autocast(a.device.type, enabled=False):
        if n_a * k < width:
            return _few_against_many(a, b)
        if n_b * m < width:
            return _few_against_many(b, a).permute(1, 0, 3, 2)
        x, y = a.transpose(0, 1).reshape(-1, width), b.transpose(0, 1).reshape(-1, width)
        return multiply(x, y).view(k, n_a, m, n_b).transpose(1, 2)


def _few_against_many(a: Tensor, b: Tensor) -> Tensor:
    """The planes without a second copy of b, which is the larger by far."""
    products = few_products(a.reshape(-1, a.shape[2]), b)
    return products.view(*a.shape[:2], *products.shape[1:]).permute(1, 2, 0, 3)


def few_products(few: Float[Tensor, "Q D"], sets: Float[Tensor, "C L D"]) -> Float[Tensor, "Q L C"]:
    """The inner products of a few vectors with those of many sets, in at least float32. On a CPU sets are read once,
    in place; those of half precision are cast to float32 in a core's cache.
    """
    count, size, width = sets.shape
    if few.is_cuda or has_gradient(few, sets) or torch.promote_types(few.dtype, sets.dtype).itemsize > 4:
        with torch.autocast(few.device.type, enabled=False):
            products = multiply(sets.reshape(-1, width), few)  # this way round it takes half the time
        return products.view(count, size, len(few)).permute(2, 1, 0).contiguous()
    few, sets = few.detach().float(), sets.detach()
    products = few.new_empty(len(few), size, count)
    block_size = _BLOCK if sets.dtype == torch.float32 else _CAST_BLOCK
    step = max(1, block_size // (size * max(width, 5 * len(few))))  # and few enough products to stay in the cache
    with torch.no_grad(), torch.autocast(few.device.type, enabled=False):
        for begin in range(0, count, step):
            part = slice(begin, min(begin + step, count))
            block = sets[part].float().reshape(-1, width)
            products[:, :, part] = (block @ few.T).view(part.stop - begin, size, len(few)).permute(2, 1, 0)
    return products


def multiply(x: Float[Tensor, "m D"], y: Float[Tensor, "n D"]) -> Float[Tensor, "m n"]:
    """x yᵀ in at least float32: half-precision products are exact and are added up in float32."""
    if x.dtype == y.dtype and x.dtype.itemsize == 2:
        if x.is_cuda and not has_gradient(x, y):
            return torch.mm(x, y.T, out_dtype=torch.float32)
        return x.float() @ y.float().T
    common = torch.promote_types(torch.promote_types(x.dtype, y.dtype), torch.float32)
    return x.to(common) @ y.to(common).T
