"""Retrieval by object labels: of the photos that a model puts first for "a cat", how many show one."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from torch import Tensor

from maxmatch.core.array_checks import UsageError
from maxmatch.core.devices import chosen_device
from maxmatch.core.progress import Bar, no_bar
from maxmatch.data.dataset import IMAGE, TEXT, DataError, Problem, Split, without_groups
from maxmatch.evaluation.encoding import Say, encode_items, find_models, left_out, load_for, log_line
from maxmatch.evaluation.result_tables import Cell, Column, Style, Table, render
from maxmatch.matching import top_hits
from maxmatch.matching.similarity import with_options
from maxmatch.model.encoder import SetEncoder
from maxmatch.recipe.schema import Data

_PHRASE = "a {}"
_WORST = 8  # names that are printed


@dataclass(frozen=True)
class Labels:
    """Names of things, and which of them each image shows, by the image's id. Images that are not listed are unknown.

    As JSON: {"names": ["cat", "pizza"], "labels": {"000000000009": [1], "25": []}}; leading zeros of ids mean nothing.
    """

    names: Sequence[str]
    shown: Mapping[str, Sequence[int]]

    @classmethod
    def read(cls, path: str | Path) -> "Labels":
        """From a JSON file."""
        path = Path(path).expanduser()
        cure = 'Expected {"names": ["cat", …], "labels": {"IMAGE ID": [numbers of names], …}}.'
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            names = [str(name) for name in found["names"]]
            shown = {_plain(key): [int(number) for number in numbers] for key, numbers in found["labels"].items()}
        except FileNotFoundError:
            raise DataError(Problem(path, "no such file", "Check the path.", fatal=True)) from None
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise DataError(Problem(path, f"not readable as labels ({error})", cure, fatal=True)) from error
        for key, numbers in shown.items():
            for number in numbers:
                if not 0 <= number < len(names):
                    what = f"the labels of {key} have the number {number}, but there are {len(names)} names"
                    raise DataError(Problem(path, what, "Numbers count from 0.", fatal=True))
        return cls(names, shown)


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


def precision_by_label(
    images: Tensor, shows: np.ndarray, queries: Tensor, k: int, similarity: Any = "maxmatch"
) -> np.ndarray:
    """The share of the first k images that show what each query names.

    images: (images, K, D). shows: (images, queries), whether an image shows it. queries: (queries, K, D).
    """
    first = top_hits(queries, images, min(k, len(images)), similarity).indices.cpu().numpy()
    hits: np.ndarray = np.take_along_axis(shows.T, first, axis=1).sum(1) / k
    return hits


def evaluate_labels(
    models: str | Path | Sequence[str | Path],
    data: str | Path | Data | None = None,
    labels: str | Path | Labels = "labels.json",
    *,
    k: int = 5,
    split: str | None = None,
    phrase: str = _PHRASE,
    options: Mapping[str, Any] | None = None,
    device: str | None = None,
    batch_size: int = 64,
    workers: int | None = None,
    say: Say = log_line,
    bar: Bar = no_bar,
) -> list[LabelResult]:
    """Measure how well models find things by their names, among the labelled images of a split.

    Args:
        models: Runs, checkpoints or names of models.
        data: Data in any format. None: the data that the runs were trained on.
        labels: Which image shows what: a JSON file, see `Labels`.
        k: How many of the images found first are looked at.
        split: None: as for `evaluate_runs`.
        phrase: The query for a name.
        options: This and what follows as for `evaluate_runs`.

    Returns:
        One result for each model.

    Example:
        >>> evaluate_labels("maxmatch-small", "coco", "coco/labels.json", split="val")[0].mean  # doctest: +SKIP
    """
    known = labels if isinstance(labels, Labels) else Labels.read(labels)
    if k < 1:
        raise UsageError(f"k: expected at least 1, got {k}.")
    sources = find_models([models] if isinstance(models, str | Path) else models, say)
    loaded = load_for(sources, data, split, options, say=say)
    part, shows = _labelled(loaded.part, known, str(loaded.dataset.path))
    asked = np.flatnonzero(shows.any(0)).tolist()
    results = []
    for source in sources:
        if source.kind == "sets":
            raise UsageError(f"{source.name}: a file of sets cannot encode names. Give the model itself.")
        model = SetEncoder.from_pretrained(source.path, chosen_device(device))
        with bar(f"{source.name}: images", part.size) as advance:
            encoded = encode_items(
                model, part, batch_size=batch_size, workers=workers, report=left_out(say), advance=advance
            )
        kept = np.isin([str(one) for one in part[IMAGE].ids], list(encoded.ids[IMAGE]))
        queries = model.encode(TEXT, [phrase.format(known.names[number]) for number in asked])
        similarity = with_options(model.similarity_name, dict(model.similarity_options))
        seen = shows[kept][:, asked]
        found = precision_by_label(encoded.sets[IMAGE].cpu(), seen, queries.cpu(), k, similarity)
        names = [known.names[number] for number in asked]
        counts = seen.sum(0)
        results.append(
            LabelResult(
                source.name,
                k,
                int(kept.sum()),
                dict(zip(names, map(float, found), strict=True)),
                dict(zip(names, map(int, counts), strict=True)),
            )
        )
    return results


def _labelled(part: Split, labels: Labels, path: str) -> tuple[Split, np.ndarray]:
    """The images whose labels are known, and which names each shows."""
    images = part[IMAGE]
    known = [_plain(str(one).rpartition("/")[2]) in labels.shown for one in images.ids]
    if not any(known):
        raise UsageError(
            f"labels: none of the {len(images):,} images of {path} has labels. Their ids must be the same."
        )
    unknown = np.setdiff1d(images.groups, images.groups[np.flatnonzero(known)])
    part = without_groups(part, unknown)
    shows = np.zeros((len(part[IMAGE]), len(labels.names)), np.bool_)
    for place, one in enumerate(part[IMAGE].ids):
        shows[place, list(labels.shown.get(_plain(str(one).rpartition("/")[2]), ()))] = True
    return part, shows


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
