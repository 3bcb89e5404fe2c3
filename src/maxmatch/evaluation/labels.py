"""What labels of the images tell: of the photos found first for "a cat", how many show one; and PCME's PMRP, for which
images that show the same things, and their captions, are plausible answers to each other.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from maxmatch.core.array_checks import UsageError
from maxmatch.core.progress import Advance, Bar, Skipped, no_bar
from maxmatch.data.dataset import IMAGE, TEXT, DataError, Problem, Split, without_groups
from maxmatch.data.extraction import check_features
from maxmatch.evaluation.candidates import ModelName, sources_of
from maxmatch.evaluation.encoding import EncodedSplit, Say, encode_items, left_out, load_for, log_line
from maxmatch.evaluation.evaluator import SetsAndMask
from maxmatch.evaluation.leaderboard import append_record, new_record
from maxmatch.evaluation.metrics import (
    EvaluatedModel,
    ProtocolName,
    Scores,
    chosen,
    coco_folds,
    name_of_similarity,
    scores_of,
)
from maxmatch.evaluation.other_models import AnyEncoder, as_split, check_encoders, encode_pictures, open_encoder
from maxmatch.evaluation.ranking import Fold
from maxmatch.evaluation.result_tables import Cell, Column, Style, Table, render
from maxmatch.model.encoder import SetEncoder
from maxmatch.recipe.schema import Data

VERSION = 1
"""Of the file of labels; a file without one is of this."""
_PHRASE = "a {}"
_WORST = 8  # names that are printed


@dataclass(frozen=True)
class Labels:
    """Names of things, and which of them each image shows, by the image's id. Images that are not listed are unknown.

    As JSON: {"names": ["cat", "pizza"], "labels": {"000000000009": [1], "25": []}}; leading zeros of ids mean nothing.
    """

    names: Sequence[str]
    shown: Mapping[str, Sequence[int]]

    def of(self, image_id: str) -> Sequence[int] | None:
        """The numbers of the names that an image shows; None where that is not known."""
        return self.shown.get(_plain(str(image_id).rpartition("/")[2]))

    def codes(self, image_ids: Sequence[str]) -> Bool[np.ndarray, "B N"]:
        """Which of the N names each image shows; nothing where that is not known."""
        codes = np.zeros((len(image_ids), len(self.names)), np.bool_)
        for place, one in enumerate(image_ids):
            codes[place, list(self.of(one) or ())] = True
        return codes

    @classmethod
    def read(cls, path: str | Path) -> "Labels":
        """From a JSON file."""
        path = Path(path).expanduser()
        cure = 'Expected {"names": ["cat", …], "labels": {"IMAGE ID": [numbers of names], …}}.'
        try:
            found = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_each_once)
            if found.get("version", VERSION) != VERSION:
                raise ValueError(f"version {found['version']}, while this MaxMatch reads {VERSION}")
            names = [str(name) for name in found["names"]]
            _refuse_twice("the name", names)
            _refuse_twice("the labels of image", [_plain(key) for key in found["labels"]])
            shown = {_plain(key): [int(number) for number in numbers] for key, numbers in found["labels"].items()}
        except FileNotFoundError:
            raise DataError(Problem(path, "no such file", "Give another with --labels.", fatal=True)) from None
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise DataError(Problem(path, f"not readable as labels ({error})", cure, fatal=True)) from error
        for key, numbers in shown.items():
            for number in numbers:
                if not 0 <= number < len(names):
                    what = f"the labels of {key} have the number {number}, but there are {len(names)} names"
                    raise DataError(Problem(path, what, "Numbers count from 0.", fatal=True))
        return cls(names, shown)


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON, which would keep the last of several values of a key."""
    _refuse_twice("the key", [key for key, _ in pairs])
    return dict(pairs)


def _refuse_twice(what: str, names: Sequence[str]) -> None:
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise ValueError(f"{what} {twice[0]!r} occurs twice")


def labels_beside(data: str | Path) -> Path:
    """The default path of a data set's labels: labels.json in its folder, or next to its file."""
    path = Path(data).expanduser()
    return (path if path.is_dir() else path.parent) / "labels.json"


def _plain(name: str) -> str:
    return name.lstrip("0") if name.isdigit() else name


@dataclass(frozen=True)
class LabelResult:
    """What a model finds for each name.

    precision: by name, the share of the first k images that show it. shown: how many images do. possible: what a
    perfect model would reach on average, since some names have fewer than k images.
    """

    model: str
    k: int
    images: int
    precision: Mapping[str, float]
    shown: Mapping[str, int]

    @property
    def mean(self) -> float:
        """The mean over the names."""
        return fmean(self.precision.values())

    @property
    def possible(self) -> float:
        """The mean of a perfect model."""
        return fmean(min(count, self.k) / self.k for count in self.shown.values())

    def to_json(self) -> dict[str, Any]:
        """All figures, unrounded."""
        by_name = {name: {"precision": self.precision[name], "images": self.shown[name]} for name in self.precision}
        about = {"model": self.model, "k": self.k, "images": self.images}
        return {**about, f"precision_at_{self.k}": self.mean, "possible": self.possible, "by_name": by_name}


def precision_by_label(scores: Float[np.ndarray, "n q"], shows: Bool[np.ndarray, "n q"], k: int) -> np.ndarray:
    """The share of the first k of n images that show what each of q queries names. Ties count against the model."""
    count = np.full(len(shows.T), min(k, len(scores)))
    shares: np.ndarray = _true_among_first(scores.T, shows.T, count, -np.sort(-scores.T, axis=1)) / k
    return shares


def evaluate_labels(
    models: str | Path | Sequence[ModelName],
    data: str | Path | Data | None = None,
    labels: str | Path | Labels = "labels.json",
    *,
    k: int = 5,
    split: str | None = None,
    phrase: str = _PHRASE,
    options: Mapping[str, Any] | None = None,
    results: str | Path | None = None,
    device: str | None = None,
    batch_size: int = 64,
    workers: int | None = None,
    say: Say = log_line,
    bar: Bar = no_bar,
) -> list[LabelResult]:
    """Measure how well models find things by their names, among the labelled images of a split.

    Args:
        models: Runs, checkpoints, names of models, or models of sentence-transformers.
        data: Data in any format. None: the data that the runs were trained on.
        labels: Which image shows what: a JSON file, see `Labels`.
        k: How many of the images found first are looked at.
        split: None: as for `evaluate_runs`.
        phrase: The query for a name.
        results: A file to append the results to, see `maxmatch.evaluation.leaderboard`.
        options: This and what follows as for `evaluate_runs`.

    Returns:
        One result for each model.

    Example:
        >>> evaluate_labels("maxmatch-small", "coco", "coco/labels.json", split="val")[0].mean  # doctest: +SKIP
    """
    known = labels if isinstance(labels, Labels) else Labels.read(labels)
    if k < 1:
        raise UsageError(f"k: expected at least 1, got {k}.")
    sources = sources_of(models, say)
    check_encoders(sources)
    loaded = load_for(sources, data, split, options, say=say)
    part, shows = _labelled(loaded.part, known, str(loaded.dataset.path))
    asked = np.flatnonzero(shows.any(0)).tolist()
    names = [known.names[number] for number in asked]
    found_by = []
    for source in sources:
        model = open_encoder(source, device)
        if isinstance(model.library, SetEncoder):
            check_features(model.library, loaded.described, loaded.dataset)
        with bar(f"{source.name}: images", part.size) as advance:
            images, kept = _encoded_images(model, part, batch_size, workers, left_out(say), advance)
        if images is None:
            raise ValueError(f"{source.name}: not one labelled picture of {loaded.dataset.path} could be read.")
        sides = {IMAGE: images, TEXT: model.encode(TEXT, [phrase.format(name) for name in names], batch_size)}
        ids = [str(one) for one in compress(part[IMAGE].ids, kept)]
        member = EvaluatedModel(source.name, as_split(sides, {IMAGE: ids, TEXT: names}), model.similarity)
        scores = scores_of([member])
        whole = torch.cat([scores.rows(block).cpu() for block in scores.blocks()]).float().numpy()
        seen = shows[kept][:, asked]
        precision = precision_by_label(whole, seen, k).tolist()
        one = LabelResult(
            source.name,
            k,
            len(ids),
            dict(zip(names, precision, strict=True)),
            dict(zip(names, seen.sum(0).tolist(), strict=True)),
        )
        found_by.append(one)
        if results is not None:
            asked_for = [names, seen.astype(int).tolist(), phrase, k]
            digest = hashlib.sha256(json.dumps([ids, asked_for]).encode()).hexdigest()
            where = {"path": str(loaded.dataset.path), "split": loaded.split, "digest": digest, "images": one.images}
            figures = {f"precision_at_{k}": 100 * one.mean, "possible": 100 * one.possible}
            named = name_of_similarity(model.similarity)
            append_record(results, new_record(source.name, model.identity(), named, where, "labels", figures))
    return found_by


def _encoded_images(
    model: AnyEncoder,
    part: Split,
    batch_size: int,
    workers: int | None,
    report: Callable[[Skipped], None],
    advance: Advance,
) -> tuple[SetsAndMask | None, np.ndarray]:
    """The sets of a split's images, and which of them could be read. Models of this package also take features."""
    images = part[IMAGE]
    if not isinstance(model.library, SetEncoder):
        return encode_pictures(model.encode, images.values, images.ids, batch_size, report, advance)
    found = encode_items(model.library, part, batch_size=batch_size, workers=workers, report=report, advance=advance)
    return SetsAndMask(found.sets[IMAGE].cpu(), None), np.isin(images.groups, found.groups[IMAGE].cpu().numpy())


def _labelled(part: Split, labels: Labels, path: str) -> tuple[Split, np.ndarray]:
    """The images whose labels are known, and which names each shows."""
    images = part[IMAGE]
    known = [labels.of(one) is not None for one in images.ids]
    if not any(known):
        raise UsageError(
            f"labels: none of the {len(images):,} images of {path} has labels. Their ids must be the same: the data "
            f"has {images.ids[0]!r}, the labels {next(iter(labels.shown), 'none')!r}."
        )
    unknown = np.setdiff1d(images.groups, images.groups[np.flatnonzero(known)])
    part = without_groups(part, unknown)
    return part, labels.codes(part[IMAGE].ids)


def label_table(results: Sequence[LabelResult]) -> Table:
    """The mean of each model, and the names that it finds worst."""
    k = results[0].k
    columns = [
        Column("model", "model"),
        Column("images", "images", ",.0f"),
        Column("names", "names", ",.0f"),
        Column(f"precision@{k}", "mean", ".3f"),
        Column("possible", "possible", ".3f"),
        Column("worst", "worst"),
    ]
    rows: list[dict[str, Cell]] = []
    for one in results:
        worst = sorted(one.precision, key=lambda name: one.precision[name] - min(one.shown[name], k) / k)[:_WORST]
        rows.append(
            {
                "model": one.model,
                "images": one.images,
                "names": len(one.precision),
                "mean": one.mean,
                "possible": one.possible,
                "worst": ", ".join(f"{name} {one.precision[name]:.1f}" for name in worst),
            }
        )
    return Table(columns, rows)


def render_labels(results: Sequence[LabelResult], style: Style = "text") -> str:
    """The table as text, Markdown or LaTeX."""
    return render(label_table(results), style)


# PMRP: the plausible-match R-precision of PCME.

DISTANCES = (0, 1, 2)
"""In how many labels a plausible answer may differ: PMRP is the mean over these."""
_ROWS = 256  # queries at once


def pmrp(
    scores: Float[Tensor, "B C"],
    codes: Bool[np.ndarray, "B N"],
    image_groups: Int[Tensor, " B"],
    text_groups: Int[Tensor, " C"],
) -> dict[str, float]:
    """Plausible-match R-precision both ways, in per cent: i2t_pmrp, t2i_pmrp.

    codes: which of N names each image shows; a caption has the code of the first image of its group. An answer is
    plausible if its code differs from the query's in at most ζ names; with R plausible answers in all, the R-precision
    is the share of plausible ones among the first R. PMRP: its mean over ζ = 0, 1, 2 and over the queries.

    Images that show nothing are left out, with their captions. Ties count against the model.
    """
    images, texts = image_groups.cpu().numpy(), text_groups.cpu().numpy()
    known = np.asarray(codes.any(1))
    numbers, first = np.unique(images, return_index=True)
    owner = first[np.searchsorted(numbers, texts)]
    rows, columns = np.flatnonzero(known), np.flatnonzero(known[owner])
    if not len(rows):
        raise UsageError("pmrp: no image shows any of the names. Check that labels and data have the same ids.")
    matrix = scores.float().cpu().numpy()[np.ix_(rows, columns)]
    of_rows, of_columns = (some.astype(np.float32) for some in (codes[rows], codes[owner[columns]]))
    return {
        "i2t_pmrp": 100 * _plausible_precision(matrix, of_rows, of_columns),
        "t2i_pmrp": 100 * _plausible_precision(matrix.T, of_columns, of_rows),
    }


def _plausible_precision(
    scores: Float[np.ndarray, "n m"], queries: Float[np.ndarray, "n N"], answers: Float[np.ndarray, "m N"]
) -> float:
    found_of: list[np.ndarray] = []
    for start in range(0, len(scores), _ROWS):
        part = slice(start, start + _ROWS)
        asked, found = queries[part], scores[part]
        apart = asked.sum(1)[:, None] + answers.sum(1) - 2 * (asked @ answers.T)  # Hamming's distance of the codes
        best_first = -np.sort(-found, axis=1)
        found_of += [_r_precision(found, apart < distance + 0.5, best_first) for distance in DISTANCES]
    return float(np.concatenate(found_of).mean())


def _r_precision(
    scores: Float[np.ndarray, "n m"], true: Bool[np.ndarray, "n m"], best_first: Float[np.ndarray, "n m"]
) -> Float[np.ndarray, " q"]:
    """The share of true answers among the first R, R being how many there are; at one score wrong ones come first.

    A query without a true answer, which only a group of several images can have, is left out.
    """
    asked = np.flatnonzero(true.any(1))
    scores, true, best_first = scores[asked], true[asked], best_first[asked]
    count = true.sum(1)
    shares: np.ndarray = _true_among_first(scores, true, count, best_first) / count
    return shares


def _true_among_first(
    scores: Float[np.ndarray, "n m"],
    true: Bool[np.ndarray, "n m"],
    count: Int[np.ndarray, " n"],
    best_first: Float[np.ndarray, "n m"],
) -> Int[np.ndarray, " n"]:
    """How many of the first `count` answers of each row are true; at one score wrong ones come first."""
    last = best_first[np.arange(len(scores)), count - 1][:, None]  # the score of the last of them
    above, at = scores > last, scores == last
    room = count - above.sum(1) - (at & ~true).sum(1)  # for true answers at that score
    found: np.ndarray = (above & true).sum(1) + np.maximum(room, 0)
    return found


def pmrp_figures(
    scores: Scores, encoded: EncodedSplit, labels: Labels, protocol: ProtocolName = "auto"
) -> dict[str, float]:
    """PMRP of a split, by the protocol: with COCO's as the mean over the folds of 1K, and of 5K. Holds all scores."""
    images, texts = (encoded.groups[name].cpu() for name in (IMAGE, TEXT))
    codes = labels.codes(encoded.ids[IMAGE])
    whole = torch.cat([scores.rows(block).cpu() for block in scores.blocks()])
    parts = {"": [Fold(slice(0, len(images)), slice(0, len(texts)))]}
    if chosen(protocol, images, size=encoded.notes.get("groups")) == "coco":
        parts = {"coco_1k_": coco_folds(images, texts), "coco_5k_": parts[""]}
    found: dict[str, float] = {}
    for prefix, folds in parts.items():
        each = [pmrp(whole[a, b], codes[a], images[a], texts[b]) for a, b in folds]
        found |= {f"{prefix}{name}": fmean(one[name] for one in each) for name in each[0]}
    return found
