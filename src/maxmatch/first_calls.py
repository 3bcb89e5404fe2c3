"""The first call of each of torch's elementwise functions, made by one thread, when this is imported.

MKL chooses its code for a function in that function's first call. Where several threads make it at once, one of them
may be given code that is right to twelve bits only, for its share of that one call and without a word: scores were
wrong by 2e-5 once (https://github.com/pytorch/pytorch/issues/188792; docs/log.md has the measurement).
"""

import torch

FUNCTIONS = (
    "acos",
    "asin",
    "atan",
    "cos",
    "cosh",
    "erf",
    "erfc",
    "erfinv",
    "exp",
    "expm1",
    "lgamma",
    "log",
    "log10",
    "log1p",
    "log2",
    "rsqrt",
    "sigmoid",
    "sin",
    "sinh",
    "sqrt",
    "tan",
    "tanh",
)

for _name in FUNCTIONS:
    for _dtype in (torch.float32, torch.float64):
        getattr(torch, _name)(torch.ones(1, dtype=_dtype, device="cpu"))
