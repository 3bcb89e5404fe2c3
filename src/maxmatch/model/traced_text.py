"""The text tower of a model as one call that does not hold Python's lock, for a server: torch gives the lock back and
takes it again in each of some hundred operations, and waits for the threads that answer requests each time.
"""

import logging
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import torch
from torch import Tensor, nn

from maxmatch.core.devices import use_threads
from maxmatch.model.encoder import SetEncoder, Tower
from maxmatch.model.encoders.language import GRUEncoder

_MOST = 64  # texts that `encode_texts` puts into one batch
_LONG = "two small dogs run after a red ball on the beach"
_TRIED = ([_LONG, "a", "a dog in the snow"], ["a"], [_LONG] * 3, ["dog", f"{_LONG}, {_LONG}"] * 4)
_log = logging.getLogger("maxmatch")

Encode = Callable[[Sequence[str]], Tensor]
"""From n texts to their sets (n, K, D)."""


def text_encoder(model: SetEncoder) -> Encode:
    """What gives the sets (n, K, D) of texts, to the bit as `model.encode_texts` does.

    It is a trace of the tower where that is a GRU on a processor, and the trace gives the same for batches of other
    sizes than the one it was made from; otherwise `encode_texts` itself. The model must stay in evaluation mode.
    """
    plain: Encode = partial(model.encode_texts, show_progress=False)
    tower = model.tower("text") if "text" in model.towers else None
    if tower is None or model.device.type != "cpu" or not isinstance(tower.encoder, GRUEncoder):
        return plain
    # With one of torch's threads: on busy cores several wait for each other, ten seconds in all.
    with ThreadPoolExecutor(1, initializer=use_threads, initargs=(1, torch.get_num_threads())) as thread:
        try:
            return thread.submit(_tried, tower, plain).result()
        except Exception as error:  # TorchScript is deprecated: it may go, and is not there for every Python
            _log.info("texts are encoded without a trace: %s", error)
            return plain


class _TracedTexts:
    """Encodes texts by a trace of the tower; by `plain` where they are more than one batch, or none."""

    def __init__(self, tower: Tower, plain: Encode) -> None:
        self._plain = plain
        self._reader = tower.reader
        self._traced = _traced(tower)

    def __call__(self, texts: Sequence[str]) -> Tensor:
        if not 0 < len(texts) <= _MOST:
            return self._plain(texts)
        reader = self._reader
        order = sorted(range(len(texts)), key=lambda place: -reader.length(texts[place]))
        with torch.inference_mode():
            inputs = reader.collate([reader.read(texts[place]) for place in order])
            made = self._traced(inputs.values, inputs.mask)
            sets = torch.empty_like(made)
            sets[order] = made
        return sets


def _tried(tower: Tower, plain: Encode) -> Encode:
    """The trace, if it gives the same. It is tried twice: TorchScript may change it after its first call."""
    encode = _TracedTexts(tower, plain)
    same = all(torch.equal(encode(texts), plain(texts)) for texts in (*_TRIED, *_TRIED))
    return encode if same else plain


class _Vectors(nn.Module):
    """A tower from token ids to the vectors of its sets alone."""

    def __init__(self, tower: Tower) -> None:
        super().__init__()
        self.tower = tower

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """(B, N) and (B, N) -> (B, K, D)."""
        vectors: Tensor = self.tower(ids, mask).vectors
        return vectors.float()


def _traced(tower: Tower) -> Callable[[Tensor, Tensor], Tensor]:
    inputs = tower.reader.collate(_TRIED[0])
    with warnings.catch_warnings(), torch.inference_mode():
        warnings.simplefilter("ignore")  # it is deprecated; and checks of the inputs are not in the trace
        module = torch.jit.trace(_Vectors(tower).eval(), (inputs.values, inputs.mask), check_trace=False)  # type: ignore[no-untyped-call]
        traced: Callable[[Tensor, Tensor], Tensor] = torch.jit.freeze(module)
    return traced
