"""Steps recorded once and played back: a GPU then gets its thousands of small kernels in one call.

Recording needs that nothing in a step depends on values the host would have to look at, and that shapes stay: one
record is made for each shape of batch. Dropout stays random: its seed is read when a record is played.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from maxmatch.core.types import Batch, Inputs, LossTerms
from maxmatch.model.encoder import SetEncoder
from maxmatch.model.encoders import RegionEncoder
from maxmatch.model.layers import PIEHead, SetHead
from maxmatch.recipe.schema import Train
from maxmatch.training.distributed import several

TrainStep = Callable[[Batch, int], LossTerms]
_WARM_UP = 3  # steps before recording, in which kernels are compiled and buffers get their size


class RecordedSteps:
    """Plays a step back for batches of a shape that was seen before; records it for one that was not.

    step(batch, seed): everything from the batch to the changed weights. It must not look at values.
    most: records kept; batches of further shapes are done as ever.
    """

    def __init__(self, step: TrainStep, most: int = 8) -> None:
        self.step, self.most = step, most
        self._records: dict[tuple[object, ...], _Record] = {}
        self._seen: dict[tuple[object, ...], int] = {}
        self._pool: Any = None
        # Gradients are collected on the stream where a parameter was first used: it must be the recording one.
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def __call__(self, batch: Batch, seed: int) -> LossTerms:
        """One step."""
        batch = padded(batch)
        shape = _shape(batch)
        record = self._records.get(shape)
        if record is not None:
            return record.play(batch, seed)
        self._seen[shape] = self._seen.get(shape, 0) + 1
        if self._seen[shape] <= _WARM_UP or len(self._records) >= self.most:
            return self._aside(batch, seed)
        record = _Record(self.step, batch, seed, self._stream, self._pool)
        self._pool = record.graph.pool()
        self._records[shape] = record
        return record.play(batch, seed)

    def _aside(self, batch: Batch, seed: int) -> LossTerms:
        """A step that is not recorded."""
        here = torch.cuda.current_stream()
        self._stream.wait_stream(here)
        with torch.cuda.stream(self._stream):
            terms = self.step(batch, seed)
        here.wait_stream(self._stream)
        return terms


class _Record:
    """A recorded step, the batch it reads and the losses it writes."""

    def __init__(self, step: TrainStep, batch: Batch, seed: int, stream: torch.cuda.Stream, pool: Any) -> None:
        self.batch = batch.map(Tensor.clone)
        self.graph = torch.cuda.CUDAGraph()
        torch.manual_seed(seed)  # the step does so too; while recording it may only be the seed that is set already
        with torch.cuda.graph(self.graph, pool=pool, stream=stream):
            self.terms = step(self.batch, seed)

    def play(self, batch: Batch, seed: int) -> LossTerms:
        torch.manual_seed(seed)
        for name, inputs in batch.inputs.items():
            mine = self.batch.inputs[name]
            mine.values.copy_(inputs.values)
            if mine.mask is not None and inputs.mask is not None:
                mine.mask.copy_(inputs.mask)
            self.batch.groups[name].copy_(batch.groups[name])
        self.graph.replay()
        return self.terms


def _shape(batch: Batch) -> tuple[object, ...]:
    return tuple(
        (name, inputs.values.shape, inputs.values.dtype, None if inputs.mask is None else inputs.mask.shape)
        for name, inputs in batch.inputs.items()
    )


def padded(batch: Batch, multiple: int = 8) -> Batch:
    """Texts padded to a multiple of so many tokens, so that few shapes occur."""

    def pad(inputs: Inputs) -> Inputs:
        if inputs.mask is None or inputs.values.is_floating_point():
            return inputs
        more = (0, -inputs.mask.shape[1] % multiple)
        return Inputs(torch.nn.functional.pad(inputs.values, more), torch.nn.functional.pad(inputs.mask, more))

    return Batch({name: pad(inputs) for name, inputs in batch.inputs.items()}, batch.groups)


def can_record(train: Train, negatives: str, device: torch.device) -> bool:
    """Whether steps can be recorded: on one GPU, where nothing looks at values. Mean negatives do, since their number
    varies, and so do fp16's loss scaling and chunks.
    """
    plain = train.precision != "fp16" and train.accumulate == 1 and negatives == "hardest"
    return plain and device.type == "cuda" and not several()


def compile_layers(model: SetEncoder) -> None:
    """Let the compiler fuse the small operations of our own layers."""
    for module in model.modules():
        if isinstance(module, SetHead | PIEHead | RegionEncoder):
            module.compile()
