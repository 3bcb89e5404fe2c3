"""The inner products of the vectors of two collections of sets, in at least float32, in planes."""

import torch
from jaxtyping import Float
from torch import Tensor

_BLOCK = 2**22  # numbers that are at work at once: fewer are not well shared out among cores
_CAST_BLOCK = 2**20  # where they are cast first: more leave the cache


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
    where they lie; those of half precision are made float32 in a core's cache.
    """
    count, size, width = sets.shape
    needs_grad = torch.is_grad_enabled() and (few.requires_grad or sets.requires_grad)
    if few.is_cuda or needs_grad or torch.promote_types(few.dtype, sets.dtype).itemsize > 4:
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
        if x.is_cuda and not (torch.is_grad_enabled() and (x.requires_grad or y.requires_grad)):
            return torch.mm(x, y.T, out_dtype=torch.float32)
        return x.float() @ y.float().T
    common = torch.promote_types(torch.promote_types(x.dtype, y.dtype), torch.float32)
    return x.to(common) @ y.to(common).T
