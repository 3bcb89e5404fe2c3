"""The towers of a model as ONNX graphs, for programs that run without torch (`maxmatch.model.onnx_runtime`)."""

import copy
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from maxmatch.core.files import whole, write_whole
from maxmatch.core.manifest import manifest_text
from maxmatch.model.checkpoint import tokenizer_names
from maxmatch.model.encoder import SetEncoder, Tower
from maxmatch.model.encoders import GRUEncoder
from maxmatch.model.hub.open_clip_models import OpenClipHalf
from maxmatch.model.hub.preprocessing import AudioReader, PatchReader
from maxmatch.model.inputs import FeatureReader, PixelReader
from maxmatch.model.layers import GPOHead
from maxmatch.model.names import model_identity
from maxmatch.model.onnx_runtime import FILE, FORMAT, Exported, Graph, digest

OPSET = 18
_BATCH, _LENGTH = 2, 5  # of the example that a graph is traced with; both are dynamic in the graph


def export_onnx(folder: str | Path) -> Path:
    """Write graphs of the towers of a checkpoint, and onnx.json, into its folder.

    A graph takes batches and texts of any size, computes in float32, and agrees with the model to 1e-4. It has the
    model's identity, so that an index accepts both.
    """
    folder = Path(folder).expanduser()
    model = SetEncoder.from_pretrained(folder, device="cpu")
    assert model.config is not None
    for name in model.towers:
        if isinstance(model.tower(name).reader, PatchReader | AudioReader):
            raise ValueError(
                f"{folder}: a model of sounds (CLAP), or of pictures in their own proportions (SigLIP 2), cannot be "
                "exported to ONNX. Use it without --onnx. SigLIP 2 has models of one size, which can be exported: "
                "google/siglip2-base-patch16-224."
            )
        if isinstance(model.tower(name).encoder, OpenClipHalf):
            raise ValueError(f"{folder}: a model of open_clip cannot be exported to ONNX. Use it without --onnx.")
    towers, tokenizers = {}, tokenizer_names(model.config)
    for name in model.towers:
        path, tokenizer = folder / f"{name}.onnx", tokenizers.get(name)
        export_tower(model.tower(name), path)
        tokenizer_hash = None if tokenizer is None else digest(folder / tokenizer)
        towers[name] = Graph(file=path.name, sha256=digest(path), tokenizer=tokenizer, tokenizer_sha256=tokenizer_hash)
    exported = Exported(identity=model_identity(model), opset=OPSET, config=model.config, towers=towers)
    write_whole(folder / FILE, manifest_text(exported, FORMAT) + "\n")
    return folder


def export_tower(tower: Tower, path: Path) -> None:
    """Write the graph of a tower."""
    exportable = _Exportable(tower).eval()
    inputs, dynamic = _example(tower)
    with _quietly():
        program = torch.onnx.export(
            exportable,
            tuple(inputs.values()),
            dynamo=True,
            opset_version=OPSET,
            input_names=list(inputs),
            output_names=["vectors", "attention"],
            dynamic_shapes=dynamic,
            verbose=False,
        )
        assert program is not None
        with whole(path) as file:
            file.write(program.model_proto.SerializeToString())


class _Exportable(nn.Module):
    """A tower whose outputs are plain tensors."""

    def __init__(self, tower: Tower) -> None:
        super().__init__()
        self.tower = copy.deepcopy(tower).cpu().float()
        encoder = self.tower.encoder
        if isinstance(encoder, GRUEncoder):
            words = _States(encoder.gru)
            encoder.states_on_device = words.__call__  # type: ignore[assignment, method-assign]
            encoder.last_states_on_device = words.last  # type: ignore[assignment, method-assign]
        for module in self.tower.modules():  # a head, or two in a Gaussian's
            if isinstance(module, GPOHead):
                module.states = _States(module.gru).every  # type: ignore[assignment, method-assign]

    def forward(self, values: Tensor, mask: Tensor | None = None) -> tuple[Tensor, ...]:
        sets = self.tower(values, mask)
        return (sets.vectors,) if sets.attention is None else (sets.vectors, sets.attention)


class _States:
    """ONNX's GRU instead of packed sequences, which ONNX lacks: given the lengths, it reads each item backwards from
    its own end, as those do.
    """

    def __init__(self, gru: nn.GRU) -> None:
        self.hidden = gru.hidden_size
        self.directions = ("", "_reverse") if gru.bidirectional else ("",)
        with torch.no_grad():
            self.weight, self.recurrence = (self._stacked(gru, name) for name in ("weight_ih", "weight_hh"))
            self.bias = torch.cat([self._stacked(gru, name) for name in ("bias_ih", "bias_hh")], 1)

    def _stacked(self, gru: nn.GRU, name: str) -> Tensor:
        """The parameter of all directions, its gates in ONNX's order: update, reset, new."""
        stacked = torch.stack([getattr(gru, f"{name}_l0{direction}") for direction in self.directions])
        reset, update, new = stacked.chunk(3, 1)
        return torch.cat([update, reset, new], 1)

    def __call__(self, inputs: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """The states of each direction at every input (B, N, d, H), and after the last (d, B, H)."""
        steps, count = inputs.transpose(0, 1), len(self.directions)
        length, batch = steps.shape[:2]
        every, last = torch.onnx.ops.symbolic_multi_out(
            "GRU",
            [steps, self.weight, self.recurrence, self.bias, mask.sum(1).to(torch.int32)],
            {
                "direction": "bidirectional" if count == 2 else "forward",
                "hidden_size": self.hidden,
                "linear_before_reset": 1,
            },
            dtypes=[inputs.dtype, inputs.dtype],
            shapes=[(length, count, batch, self.hidden), (count, batch, self.hidden)],
        )
        return every.permute(2, 0, 1, 3), last

    def every(self, inputs: Tensor, mask: Tensor) -> Tensor:
        """The states at every input."""
        return self(inputs, mask)[0]

    def last(self, inputs: Tensor, mask: Tensor) -> Tensor:
        """The states after the last input."""
        return self(inputs, mask)[1]


def _example(tower: Tower) -> tuple[dict[str, Tensor], tuple[dict[int, str], ...]]:
    """Inputs by name, and which of their axes are dynamic."""
    reader, free = tower.reader, {0: "batch", 1: "length"}
    mask = torch.ones(_BATCH, _LENGTH, dtype=torch.bool)
    if isinstance(reader, PixelReader):
        size = reader.transform.size
        return {"pixels": torch.zeros(_BATCH, 3, size, size)}, ({0: "batch"},)
    if isinstance(reader, FeatureReader):
        return {"features": torch.zeros(_BATCH, _LENGTH, reader.feature_width), "mask": mask}, (free, free)
    return {"ids": torch.ones(_BATCH, _LENGTH, dtype=torch.long), "mask": mask}, (free, free)


@contextmanager
def _quietly() -> Iterator[None]:
    """Without the exporter's messages to its developers: torchvision is missing, constants are not folded."""
    loggers: list[Any] = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
