"""All that can be said about a model's sets on a split, in numbers: what `maxmatch analyse` writes and draws."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from maxmatch.evaluation.by_slot import BySlot, by_slot
from maxmatch.evaluation.collapse import Pairing, log_circular_variance, slot_pairing
from maxmatch.evaluation.cosines import BetweenSets, WithinSets, between_sets, within_sets
from maxmatch.evaluation.elements import Elements, element_analysis
from maxmatch.evaluation.encoding import EncodedSplit
from maxmatch.evaluation.failures import Failures, worst_queries
from maxmatch.evaluation.paired import paired
from maxmatch.evaluation.ranking import ranks_both_ways
from maxmatch.evaluation.retrieval import chance, figures
from maxmatch.evaluation.specialisation import Specialisation, specialisation
from maxmatch.matching.scoring import score_matrix
from maxmatch.matching.similarity import with_options


@dataclass(frozen=True)
class Analysis:
    """The analysis of two modalities of a split. Slots are counted from 0; matrices have a row for each slot of the
    first modality and a column for each of the second. Items are named by their places in the encoded split, and by
    their ids where these are known.
    """

    pair: tuple[str, str]
    similarity: str
    items: dict[str, int]
    """How many, by modality."""
    set_sizes: dict[str, int]
    """Vectors in a set, by modality."""
    width: int
    """Of a vector."""
    retrieval: dict[str, float]
    """i2t_r1, …, rsum, ranks and ties, as evaluation gives them; i2t is from the first modality to the second."""
    chance: dict[str, float]
    """Recalls and rsum of answers in random order."""
    log_variance: dict[str, float]
    """log circular variance by modality (table tab:5, below)."""
    within: dict[str, WithinSets]
    """Cosines within sets, by modality."""
    between: BetweenSets
    """Cosines between the slots of the two (fig:heatmap), and which slots hold the best pair."""
    pairing: Pairing
    """Which slots meet in the best matching of true pairs."""
    elements: Elements
    """Retrieval with one slot kept (table tab:5)."""
    by_slot: tuple[BySlot, BySlot]
    """Retrieval by each slot (fig:qualitative): from the first modality to the second, and back."""
    failures: tuple[Failures, Failures]
    """The worst queries, in the same order."""
    facets: tuple[Specialisation, Specialisation] | None
    """Whether the slots of either modality specialise; None where facets are not known."""

    def to_json(self) -> dict[str, Any]:
        """All of it as dicts, lists, plain numbers, texts and None; no NaN."""
        plain: dict[str, Any] = _plain(self)
        for name, within in self.within.items():
            plain["within"][name]["edges"] = within.edges
        plain["between"]["usage"] = dict(zip(self.pair, self.between.usage, strict=True))
        return plain


def analyse(
    encoded: EncodedSplit,
    pair: tuple[str, str],
    similarity: str,
    *,
    options: Mapping[str, int | float] | None = None,
    facets: Sequence[str] | None = None,
    examples: int = 8,
    answers: int = 5,
    worst: int = 10,
    seed: int = 0,
) -> Analysis:
    """Analyse the sets of two modalities, on the device that they are on.

    options: of the similarity, alpha or k, where they are not the usual ones. facets: what each item of the second
    modality is about, see `maxmatch.evaluation.facets.caption_facets`. examples: how many queries, drawn at random, are
    shown with the answers of each of their slots. worst: how many failures are shown each way; answers: with how many
    answers. The largest thing held is one score matrix.
    """
    data = paired(encoded, pair)
    rows, columns = data.sets
    scoring = with_options(similarity, options or {})
    scores = score_matrix(rows, columns, scoring)
    found = figures(*ranks_both_ways(scores, *data.groups))
    failures = worst_queries(scores, data, worst, answers)
    del scores
    drawn = np.random.default_rng(seed)
    both = [pair, (pair[1], pair[0])]
    queries = [_some(drawn, len(sets), examples) for sets in data.sets]
    forth, back = (by_slot(encoded, way, chosen, answers) for way, chosen in zip(both, queries, strict=True))
    return Analysis(
        pair=pair,
        similarity=similarity,
        items={name: len(sets) for name, sets in zip(pair, data.sets, strict=True)},
        set_sizes={name: sets.shape[1] for name, sets in zip(pair, data.sets, strict=True)},
        width=rows.shape[2],
        retrieval=found,
        chance=chance(*_numbered(*data.groups)),
        log_variance={name: log_circular_variance(sets) for name, sets in zip(pair, data.sets, strict=True)},
        within={name: within_sets(sets) for name, sets in zip(pair, data.sets, strict=True)},
        between=between_sets(encoded, pair),
        pairing=slot_pairing(rows, columns, encoded.partners(pair), similarity),
        elements=element_analysis(encoded, pair, scoring, found),
        by_slot=(forth, back),
        failures=failures,
        facets=None if facets is None else specialisation(encoded, pair, facets, seed=seed),
    )


def _some(drawn: np.random.Generator, count: int, wanted: int) -> list[int]:
    """Places drawn at random, in order."""
    return sorted(drawn.choice(count, min(wanted, count), replace=False).tolist())


def _numbered(row_groups: Tensor, column_groups: Tensor) -> tuple[Tensor, Tensor]:
    """The groups counted from 0, on the CPU."""
    numbers = torch.unique(torch.cat([row_groups, column_groups]), return_inverse=True)[1].cpu()
    return numbers[: len(row_groups)], numbers[len(row_groups) :]


def _plain(value: Any) -> Any:
    """A value as JSON has it. Every field of a dataclass and of a named tuple keeps its name."""
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return _plain(value._asdict())
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, Tensor | np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    assert not isinstance(value, float) or math.isfinite(value)
    assert value is None or isinstance(value, str | int | float)
    return value
