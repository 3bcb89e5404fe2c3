"""A frozen backbone, run once over the pictures of a data set, and the text half of a two-tower model over its texts:
the rest of a model then trains without them.
"""

import hashlib
import json
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from maxmatch.core.machine import usable_cores
from maxmatch.core.progress import Advance, quiet
from maxmatch.core.types import Inputs
from maxmatch.data.dataset import IMAGE, TEXT, Dataset, LazyItems, Problem, Report, Split, pick, refuse
from maxmatch.data.features import INFO, FeatureStore, FeatureWriter, StoreInfo, distinct_images, read_info
from maxmatch.model import checkpoint
from maxmatch.model.build import build_model
from maxmatch.model.config import Conv, HubImage, HuggingFaceBackbone, ModelConfig, TowerConfig
from maxmatch.model.encoder import SetEncoder
from maxmatch.model.encoders import ConvEncoder
from maxmatch.model.hub.two_towers import HubHalf, HubTextEncoder
from maxmatch.model.inputs import PixelReader, ReadBatch, TextReader, read_ahead
from maxmatch.model.presets import PRESETS
from maxmatch.recipe.schema import Data

_HUGGING_FACE = "hf:"
_SHARED = Path("/dev/shm")
_MOST_WORKERS, _FEW_CORES = 16, 2


@dataclass(frozen=True)
class FrozenBackbone:
    """What is run over the pictures: a backbone, or the whole picture half of a two-tower model."""

    encoder: ConvEncoder | HubHalf
    reader: PixelReader
    name: str
    texts: "FrozenTexts | None" = None
    """The text half of the same two-tower model."""

    def features(self, inputs: Inputs) -> list[np.ndarray]:
        """What is stored of each of some pictures that were read: cells, after the vector of a two-tower model."""
        device = next(self.encoder.parameters()).device
        values, mask = inputs.values.to(device), None if inputs.mask is None else inputs.mask.to(device)
        if isinstance(self.encoder, ConvEncoder):
            return list(self.encoder.cells(values)[0].float().cpu().numpy())
        return [rows.float().cpu().numpy() for rows in self.encoder.stored(self.encoder(values, mask))]


def load_backbone(model: str, device: torch.device | str = "cpu") -> FrozenBackbone:
    """The backbone of a model: a checkpoint's folder (its image tower), a preset by its name, with the weights that it
    names, a two-tower model of transformers by its folder or name on the hub (its whole picture half), or `hf:` and the
    name or folder of a vision model of Hugging Face, which of a two-tower model is the bare backbone.
    """
    if model.startswith(_HUGGING_FACE):
        name = model.removeprefix(_HUGGING_FACE)
        loaded = _built(Conv(backbone=HuggingFaceBackbone(pretrained=name)))
    elif model in PRESETS and not Path(model).is_dir():
        loaded = _built(PRESETS[model]().towers[IMAGE].encoder)
    else:
        try:
            loaded = checkpoint.load(model)
        except (FileNotFoundError, checkpoint.CheckpointError) as error:
            raise ValueError(
                f"model: {error} Expected a checkpoint's folder, one of {', '.join(PRESETS)}, or "
                f"{_HUGGING_FACE}NAME for a model of Hugging Face."
            ) from error
    tower = loaded.tower(IMAGE)
    encoder, reader = tower.encoder, tower.reader
    if not isinstance(encoder, ConvEncoder | HubHalf) or not isinstance(reader, PixelReader):
        raise ValueError(
            f"model: {model} has no backbone whose features could be stored. Give a model of MaxMatch that reads "
            "pictures, or a two-tower model of transformers."
        )
    assert loaded.config is not None
    name = _described(loaded.config.towers[IMAGE].encoder)
    return FrozenBackbone(encoder.eval().to(device), reader, name, text_half(loaded.to(device)))


def describe_store(backbone: FrozenBackbone, dtype: Literal["float16", "float32"]) -> StoreInfo:
    """The info of a store of the backbone's features."""
    encoder, size = backbone.encoder, backbone.reader.transform.size
    if isinstance(encoder, HubHalf):
        return StoreInfo(_source(backbone), encoder.local_width, dtype)
    with torch.inference_mode():
        device = next(encoder.parameters()).device
        cells, grid = encoder.cells(torch.zeros(1, 3, size, size, device=device))
    return StoreInfo(_source(backbone), cells.shape[2], dtype, grid)


def _source(backbone: FrozenBackbone) -> str:
    """The network, its weights (as numbers, whatever their precision), and the preprocessing of pictures."""
    transform, weights = backbone.reader.transform, _weights(backbone.encoder)
    mean, std = (", ".join(f"{value:.4g}" for value in part) for part in (transform.mean, transform.std))
    pictures = f"{transform.resize} {transform.size} px, mean {mean}, std {std}"
    return f"{backbone.name}, weights {weights}; {pictures}"


def _weights(encoder: ConvEncoder | HubHalf) -> str:
    """A hash of a backbone's weights, as numbers, whatever their precision."""
    weights = hashlib.sha256()
    for name, value in sorted(encoder.backbone.state_dict().items()):
        numbers = value.detach().cpu().contiguous()
        weights.update(name.encode())
        weights.update((numbers.float() if value.is_floating_point() else numbers).add(0).numpy().tobytes())  # −0 is 0
    return weights.hexdigest()[:16]


def check_features(model: SetEncoder, data: Data, dataset: Dataset) -> None:
    """Refuse a store of features that the model's backbone did not make, unless it is trusted, and one of another width
    than the model reads. Features that lie in no store do not say where they come from.
    """
    for part in data.sources():
        assert not isinstance(part.features, tuple)
        folder = part.features or (dataset.path if dataset.format == "features" else None)
        if folder is not None and model.config is not None and IMAGE in model.towers:
            _check_store(model, model.config, Path(folder).expanduser(), data.trust_features)


def _check_store(model: SetEncoder, config: ModelConfig, folder: Path, trusted: bool) -> None:
    tower = model.tower(IMAGE)
    info, encoder, reader = read_info(folder), tower.encoder, tower.reader
    width = encoder.local_width if isinstance(encoder, HubHalf) else getattr(encoder, "feature_width", info.width)
    if info.width != width:
        raise ValueError(
            f"{folder}: features of width {info.width} ({info.source}), but the model reads features of width {width}. "
            "Extract them with this model's backbone (maxmatch data features), or build the model for theirs."
        )
    if not isinstance(encoder, ConvEncoder | HubHalf) or not isinstance(reader, PixelReader) or trusted:
        return
    mine = _source(FrozenBackbone(encoder, reader, _described(config.towers[IMAGE].encoder)))
    if info.source != mine and not (_rounded(encoder) and _unweighted(info.source) == _unweighted(mine)):
        raise ValueError(
            f"{folder}: the features come from {info.source}, but the model's backbone is {mine}. Extract them with it "
            "(maxmatch data features), or use them as they are with data.trust_features=true (--trust-features)."
        )


def _unweighted(source: str) -> str:
    return re.sub(r", weights [0-9a-f]{16};", ";", source)


def _rounded(encoder: ConvEncoder | HubHalf) -> bool:
    """Whether the weights were rounded to half precision, so that they cannot be told from those before."""
    weights = (value for value in encoder.backbone.state_dict().values() if value.is_floating_point())
    return all(torch.equal(value, value.half().to(value.dtype)) for value in weights)


def extract(
    backbone: FrozenBackbone,
    dataset: Dataset,
    writer: FeatureWriter,
    batch_size: int = 64,
    report: Report = refuse,
    advance: Advance = quiet,
    workers: int = 0,
) -> None:
    """Append the backbone's features for every picture of a data set that the writer does not hold yet.

    An image of several splits is taken once. A picture that cannot be read is reported and left out. Which images share
    a batch depends on the data set alone, and every batch is as large as the others, so that a run that was interrupted
    gives the same numbers as one that was not. workers: processes that decode pictures while the backbone works on
    others, as many of them as there is shared memory for; 0: a few threads of this process.
    """
    for split in dataset.splits.values():
        if split.size and isinstance(split[IMAGE].values[0], np.ndarray):
            raise ValueError(f"{dataset.path}: holds features already, of which none can be extracted.")
    found = distinct_images(dataset.splits)
    ids = list(found)
    images = LazyItems(ids, partial(_picture, dataset, found))
    reader = backbone.reader
    backbone.encoder.eval()
    batches = [range(start, min(start + batch_size, len(images))) for start in range(0, len(images), batch_size)]
    left = [batch for batch in batches if any(ids[place] not in writer.done for place in batch)]
    advance(len(images) - sum(map(len, left)))
    device = next(backbone.encoder.parameters()).device
    # The exact kernels: what is done once may take a little longer, and be the same everywhere.
    with torch.inference_mode(), torch.backends.cudnn.flags(enabled=True, deterministic=True, allow_tf32=False):
        ahead, room = device.type != "cpu", _room(reader.blank().nbytes * batch_size)
        several = min(workers, room) if workers > 1 else 0
        read = read_ahead(reader, images, left, True, several or None, ahead, processes=several > 1)
        with ThreadPoolExecutor(1) as writing:  # while the backbone works on the next batch
            written = writing.submit(_write, writer, {})
            for places, batch in zip(left, read, strict=True):
                for skipped in batch.skipped:
                    image = ids[skipped.index]
                    reason = skipped.reason.rstrip(".")
                    what = f"image {image!r} of the split {found[image][0]!r} is left out ({reason})"
                    cure = "Training leaves its captions out, too. Or repair it, and extract to a new folder."
                    report(Problem(dataset.path, what, cure))
                made = backbone.features(_filled(reader, batch, places, batch_size)) if batch.places else []
                written.result()
                new = [place for place in batch.places if ids[place] not in writer.done]
                features = {ids[place]: made[place - places.start] for place in new}
                written = writing.submit(_write, writer, features)
                advance(len(places))
            written.result()


def _filled(reader: PixelReader, batch: ReadBatch, places: range, size: int) -> Inputs:
    """A whole batch of so many pictures: those that were read, each at its place, and blank ones."""
    inputs: Inputs = batch.inputs
    if len(batch.places) == size:
        return inputs
    filled = reader.collate([reader.blank()] * size)
    for whole, read_ones in zip(filled, inputs, strict=True):
        if whole is not None and read_ones is not None:
            whole[[place - places.start for place in batch.places]] = read_ones
    return filled


def _write(writer: FeatureWriter, features: Mapping[str, np.ndarray]) -> None:
    """By the image's id."""
    for image, grid in features.items():
        if not np.isfinite(grid).all():
            what = f"image {image!r}: the backbone gives NaN or infinite values."
            raise ValueError(f"{what} Its weights may be damaged.")
    if features:
        writer.append(list(features), list(features.values()))


def decoding_workers(device: torch.device) -> int:
    """How many processes to decode pictures with for a backbone on this device: one per core beside a GPU, at most 16.
    None where the backbone needs the cores itself, or there are only two: threads are as fast then.
    """
    cores = usable_cores(_MOST_WORKERS)
    return cores if device.type != "cpu" and cores > _FEW_CORES else 0


# The texts, likewise: in a store of their own within that of the pictures, by a hash of the text.

TEXTS = "texts"


@dataclass(frozen=True)
class FrozenTexts:
    """The text half of a two-tower model, and how it reads texts."""

    encoder: HubTextEncoder
    reader: TextReader

    def describe(self, dtype: Literal["float16", "float32"]) -> StoreInfo:
        """The info of a store of the tokens' states."""
        kind = self.encoder.backbone.config.model_type
        words = hashlib.sha256(self.reader.tokenizer.to_str().encode()).hexdigest()[:16]
        source = f"Hugging Face {kind}, texts with their vectors, weights {_weights(self.encoder)}; tokenizer {words}"
        return StoreInfo(source, self.encoder.local_width, dtype)


def text_half(model: SetEncoder) -> FrozenTexts | None:
    """The text half of a two-tower model; None for other models."""
    if TEXT not in model.towers:
        return None
    tower = model.tower(TEXT)
    if not isinstance(tower.encoder, HubTextEncoder) or not isinstance(tower.reader, TextReader):
        return None
    return FrozenTexts(tower.encoder, tower.reader)


def _text_id(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def distinct_texts(dataset: Dataset) -> dict[str, str]:
    """The texts of all splits by what a store knows them by."""
    splits = (split for split in dataset.splits.values() if TEXT in split.items)
    return {_text_id(text): text for split in splits for text in split[TEXT].values}


def extract_texts(
    texts: FrozenTexts, dataset: Dataset, writer: FeatureWriter, batch_size: int = 64, advance: Advance = quiet
) -> None:
    """Append the vector and the tokens' states of every text of a data set that the writer does not hold yet."""
    found = list(distinct_texts(dataset).items())
    device = next(texts.encoder.parameters()).device
    with torch.inference_mode():
        for start in range(0, len(found), batch_size):
            batch = found[start : start + batch_size]
            if any(name not in writer.done for name, _ in batch):
                ids, mask = texts.reader.collate([text for _, text in batch])
                made = texts.encoder(ids.to(device), None if mask is None else mask.to(device))
                rows = [one.float().cpu().numpy() for one in texts.encoder.stored(made)]
                new = {name: row for (name, _), row in zip(batch, rows, strict=True) if name not in writer.done}
                writer.append(list(new), list(new.values()))
            advance(len(batch))


def with_token_states(
    model: SetEncoder, data: Data, splits: Sequence[Split], say: Callable[[str], object]
) -> Sequence[Split]:
    """The splits with what is stored of their texts in the place of these, if all of it is stored, and by a text half
    that is this model's and does not learn; as they are otherwise.
    """
    texts, folders = text_half(model), {part.features for part in data.sources()}
    learns = texts is None or not any(part is texts.encoder for part in model.tower(TEXT).fixed)
    if texts is None or learns or len(folders) != 1 or None in folders:
        return splits
    folder = Path(str(folders.pop())).expanduser() / TEXTS
    if not (folder / INFO).is_file():
        return splits
    store = FeatureStore.open(folder)
    if not data.trust_features and store.info.source != texts.describe(store.info.dtype).source:
        say(f"{folder}: of another text encoder ({store.info.source}), so texts are encoded in every step")
        return splits
    ids = [[_text_id(text) for text in split[TEXT].values] for split in splits]
    missing = sum(one not in store.positions for some in ids for one in some)
    if missing:
        say(f"{folder}: {missing:,} texts are not stored, so texts are encoded in every step. Extract to a new folder")
        return splits
    say("texts: the states of their tokens are stored; the text encoder is not run")
    return [
        replace(split, items={**split.items, TEXT: replace(split[TEXT], values=_rows(store, mine))})
        for split, mine in zip(splits, ids, strict=True)
    ]


def _rows(store: FeatureStore, ids: Sequence[str]) -> Any:
    return pick(store.values, np.array([store.positions[one] for one in ids], np.int64))


def _picture(dataset: Dataset, found: Mapping[str, tuple[str, int]], image: str) -> Any:
    """A picture by its id: what is read of it."""
    split, place = found[image]
    return dataset.splits[split][IMAGE].values[place]


def _room(size: int) -> int:
    """How many processes can each keep two batches of so many bytes, and one more, in the memory that they share."""
    try:
        return shutil.disk_usage(_SHARED).free // (3 * size)
    except OSError:  # shared in another way
        return _MOST_WORKERS


def _built(encoder: Any) -> SetEncoder:
    """A model of one tower, of which only the encoder is of use here."""
    return build_model(ModelConfig(towers={IMAGE: TowerConfig(encoder=encoder)}), seed=0)


def _described(encoder: Any) -> str:
    """The network in a few words, whatever its path."""
    if isinstance(encoder, HubImage):
        return f"Hugging Face {encoder.config.get('model_type')}, with its vector"
    backbone = encoder.backbone
    if isinstance(backbone, HuggingFaceBackbone):
        return f"Hugging Face {(backbone.config or {}).get('model_type')}"
    options = backbone.model_dump(exclude={"source", "pretrained"})
    return f"{backbone.source} {json.dumps(options)}" if options else str(backbone.source)
