"""Teachers: what other models make of the training items, found once before training and looked up in every batch.

A teacher is a model of ours, a file of its sets, or a text encoder alone. To such a one an image is what its captions
say on average, so that it scores pairs as any other does.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize

from maxmatch.core.progress import Bar, no_bar
from maxmatch.data.dataset import IMAGE, TEXT, Split
from maxmatch.data.feed import FeedName
from maxmatch.data.load import Say
from maxmatch.evaluation.encoding import EncodedSplit, encode_items, find_model, left_out, load_encoded
from maxmatch.matching import SIMILARITIES
from maxmatch.model.build import text_backbone, tokenizer_file
from maxmatch.model.encoder import SetEncoder
from maxmatch.model.inputs import TextReader
from maxmatch.model.text import load_tokenizer

_TEXTS_AT_ONCE = 256
_HUB = "hf:"  # only a name that begins so is looked up on the network


class Teacher(NamedTuple):
    """What a teacher makes of the training items.

    sets: of each modality, by the place of an item in the training split, (items, K, D). similarity: between them.
    """

    sets: Mapping[str, Float[Tensor, "_ K D"]]
    similarity: Callable[[Tensor, Tensor], Tensor]


def teachers_scores(
    teachers: Sequence[Teacher], pair: tuple[str, str], places: Mapping[str, Tensor]
) -> Float[Tensor, "T B C"] | None:
    """The scores that teachers give the items at some places; −inf for items without a place (−1), which they do not
    know. None where no teacher knows both modalities.
    """
    able = [teacher for teacher in teachers if all(name in teacher.sets for name in pair)]
    if not able:
        return None
    with torch.no_grad():
        scores = torch.stack([_scores(teacher, pair, places) for teacher in able])
        unknown = (places[pair[0]] < 0)[:, None] | (places[pair[1]] < 0)
        return scores.masked_fill(unknown, -torch.inf)


def _scores(teacher: Teacher, pair: tuple[str, str], places: Mapping[str, Tensor]) -> Tensor:
    rows, columns = (teacher.sets[name].index_select(0, places[name].clamp(min=0)).float() for name in pair)
    return teacher.similarity(rows, columns)


def load_teachers(
    names: Sequence[str],
    train: Split,
    device: torch.device,
    *,
    workers: int | None = None,
    precision: torch.dtype | None = None,
    feed: FeedName = "auto",
    picture_cache: Path | None = None,
    say: Say,
    bar: Bar = no_bar,
) -> list[Teacher]:
    """The teachers of a recipe; each encodes the training items once. Their sets stay on the device, in half precision.

    names: runs, checkpoints, files of sets, or text encoders: folders, `package:NAME/FOLDER`, or `hf:NAME` on the hub.
    feed, picture_cache: as of `choose_feed`.
    """
    teachers = []
    for name in names:
        with bar(f"teacher {Path(name).name}", train.size) as advance:
            source = find_model(name)
            if source is None:
                if not Path(name).expanduser().is_dir() and not name.startswith(("package:", _HUB)):
                    raise FileNotFoundError(
                        f"objective.teachers: {name}: no such folder. Give a run, a checkpoint, a file of sets, or a "
                        "text encoder: its folder, package:NAME/FOLDER, or hf:NAME on the hub."
                    )
                encoded, similarity = _text_teacher(name, train, device), "maxmatch"
                options: Mapping[str, float] = {}
            elif source.kind == "sets":
                encoded = load_encoded(Path(source.path))
                similarity = encoded.notes.get("similarity", "maxmatch")
                options = encoded.notes.get("similarity_options", {})
            else:
                model = SetEncoder.from_pretrained(source.path, device)
                encoded = encode_items(
                    model, train, batch_size=128, workers=workers, precision=precision, feed=feed,
                    picture_cache=picture_cache, report=left_out(say), advance=advance,
                )  # fmt: skip
                similarity, options = model.similarity_name, model.similarity_options
        sets = {kind: _by_place(name, kind, train, encoded).to(device) for kind in encoded.sets if kind in train.items}
        size = sum(one.nbytes for one in sets.values())
        say(f"teacher {name}: its sets of the training items take {size / 2**30:.1f} GiB")
        teachers.append(Teacher(sets, partial(SIMILARITIES[similarity], **options)))
    return teachers


def _by_place(name: str, kind: str, train: Split, encoded: EncodedSplit) -> Tensor:
    """The sets of one modality in the order of the split; zeros for what could not be read, which no batch has."""
    known = {one: place for place, one in enumerate(encoded.ids[kind])}
    found = [(place, known[str(one)]) for place, one in enumerate(train[kind].ids) if str(one) in known]
    count, missing = len(train[kind]), len(train[kind]) - len(found)
    if missing > count / 100:
        raise ValueError(
            f"teacher {name}: knows {len(found):,} of {count:,} {kind}s of the training split. Give the model itself, "
            "or the sets of this very split."
        )
    sets = encoded.sets[kind]
    ordered = torch.zeros(count, *sets.shape[1:], dtype=torch.float16)
    here, there = torch.tensor(found, dtype=torch.long).view(-1, 2).unbind(1)
    ordered[here] = sets[there.to(sets.device)].half().cpu()
    return ordered


def _text_teacher(name: str, train: Split, device: torch.device) -> EncodedSplit:
    """Captions by the mean of a text encoder's last states, as unit vectors; images by the mean of their captions'."""
    name = name.removeprefix(_HUB)
    backbone = text_backbone(name).to(device).eval()
    reader = TextReader(load_tokenizer(tokenizer_file(name)))
    texts, order = train[TEXT], np.argsort([len(text) for text in train[TEXT].values])
    vectors: Tensor | None = None
    with torch.inference_mode():
        for start in range(0, len(order), _TEXTS_AT_ONCE):
            places = order[start : start + _TEXTS_AT_ONCE]
            ids, mask = reader.collate([reader.read(texts.values[int(place)]) for place in places])
            assert mask is not None
            ids, mask = ids.to(device), mask.to(device)
            states = backbone(input_ids=ids, attention_mask=mask.long()).last_hidden_state
            mean = (states * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
            if vectors is None:
                vectors = torch.zeros(len(texts), mean.shape[1])
            vectors[torch.from_numpy(places)] = normalize(mean.float(), dim=-1).cpu()
    assert vectors is not None
    owners = torch.from_numpy(texts.groups)
    of_groups = torch.zeros(train.size, vectors.shape[1]).index_add_(0, owners, vectors)
    images = train[IMAGE]
    sets = {TEXT: vectors[:, None], IMAGE: normalize(of_groups, dim=-1)[torch.from_numpy(images.groups)][:, None]}
    groups = {TEXT: owners, IMAGE: torch.from_numpy(images.groups)}
    return EncodedSplit(sets, groups, {TEXT: list(map(str, texts.ids)), IMAGE: list(map(str, images.ids))})
