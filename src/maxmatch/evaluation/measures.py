"""Measures beyond RSUM: all captions of an image and the hardest of them; what sets say about an item, and their size.

RSUM asks for the best of an image's captions. Sets are made to hold what different captions say, which the best one
does not show. All measures of retrieval are computed from the ranks of the true pairs: no score is looked at again.
"""

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import normalize

from maxmatch.evaluation.metrics import (
    IMAGE_TEXT,
    LEVELS,
    EvaluatedModel,
    Grades,
    ModalityPair,
    SearchRanks,
    decisive_pairs,
    log_of_variance,
    similarity_name,
)
from maxmatch.evaluation.ranking import true_pairs
from maxmatch.matching.assignment import maximal_assignment

Measures = Literal["rsum", "all"]
"""Recalls, ranks and collapse; or all measures."""

# Of retrieval. Each is a mean over queries, so that it can be resampled and tested; "rsum" is the sum of six of them.

DEPTHS = (5, 10, 20)
RECALLS = tuple(f"{way}_r{level}" for way in ("i2t", "t2i") for level in LEVELS)
_SHORT = (5, 10)  # depths of precision and nDCG; at 1 both are R@1
_SEVERAL = ("map_at_r", "r_precision", *(f"coverage_{depth}" for depth in DEPTHS))


class QueryValues(NamedTuple):
    """A measure, query by query: its value from 0 to 1, or whether it holds; and the group the query belongs to."""

    values: np.ndarray
    groups: np.ndarray


def parts_of(measure: str) -> tuple[str, ...]:
    """The means over queries that a measure is the sum of."""
    return RECALLS if measure == "rsum" else (measure,)


def mean_measures(galleries: Sequence[SearchRanks]) -> list[str]:
    """The measures of these searches that are means over queries; the recalls alone where true pairs have no ranks.

    Without `t2i_map_at_r` and its like if every caption has one image: they would repeat `t2i_r1` and its like.
    """
    if any(gallery.pairs is None for gallery in galleries):
        return list(RECALLS)
    return _that_differ(query_values(galleries[0]), galleries)


def _that_differ(names: Iterable[str], galleries: Sequence[SearchRanks]) -> list[str]:
    several = any(
        gallery.pairs is not None and len(gallery.pairs.row) > len(gallery.text_groups) for gallery in galleries
    )
    return [name for name in names if several or name not in {f"t2i_{short}" for short in _SEVERAL}]


def query_values(gallery: SearchRanks) -> dict[str, QueryValues]:
    """Every measure that is a mean over queries, query by query."""
    image_groups, text_groups = (groups.cpu().numpy() for groups in (gallery.image_groups, gallery.text_groups))
    found = dict[str, QueryValues]()
    for way, ranks, groups in (("i2t", gallery.i2t, image_groups), ("t2i", gallery.t2i, text_groups)):
        reached = ranks.ranks.cpu().numpy()
        found |= {f"{way}_r{level}": QueryValues(reached <= level, groups) for level in LEVELS}
    if gallery.pairs is None:
        return found
    for way, answers in _answers_both_ways(gallery).items():
        groups = image_groups if way == "i2t" else text_groups
        found |= {f"{way}_{name}": QueryValues(one, groups) for name, one in _all_answers(answers).items()}
    for way, rank in hardest_ranks(gallery).items():
        found |= {f"{way}_hardest_r{level}": QueryValues(rank <= level, image_groups) for level in LEVELS}
    return found


class _Answers(NamedTuple):
    """The true answers of all queries, query by query and best first.

    The n-th best true answer of a query has the place rank − 1 + n among all answers: the wrong ones that score as much
    or more stand before it, and so do n − 1 true ones; of those that score the same, the less relevant come first.
    """

    nth: Int[np.ndarray, " P"]
    place: Int[np.ndarray, " P"]
    starts: Int[np.ndarray, " n"]
    """Where the answers of each query begin."""
    true: Int[np.ndarray, " n"]
    """How many each query has."""
    gain: Float[np.ndarray, " P"] | float
    """How relevant each is; 1 where all are alike."""
    best_gain: Float[np.ndarray, " P"] | float
    """The gains in the best order: the n-th largest of the query."""

    @classmethod
    def of(cls, query: Int[np.ndarray, " P"], rank: Int[np.ndarray, " P"], grades: Grades | None) -> "_Answers":
        """Of pairs in any order, from their ranks among wrong answers. Every query has one."""
        gain: np.ndarray | float = 1.0
        best_gain: np.ndarray | float = 1.0
        if grades is None:
            order = (query * (rank.max() + 1) + rank).argsort(kind="stable")  # fast where much is in order already
        else:
            gains, score = (part.cpu().double().numpy() for part in grades)
            order = np.lexsort((gains, -score, query))
            gain, best_gain = gains[order], gains[np.lexsort((-gains, query))]
        true = np.bincount(query)
        starts = np.cumsum(true) - true
        nth = np.arange(1, len(query) + 1) - starts.repeat(true)
        return cls(nth, rank[order] - 1 + nth, starts, true, gain, best_gain)

    def total(self, values: np.ndarray) -> Float[np.ndarray, " n"]:
        """The sum over the true answers of each query."""
        if len(self.starts) == len(self.nth):  # one each
            return values.astype(np.float64)
        total: np.ndarray = np.add.reduceat(values, self.starts, dtype=np.float64)
        return total

    def at(self, *depths: int) -> dict[str, Float[np.ndarray, " n"]]:
        """Of the first answers, as many as each depth says: the share of the true ones among them (coverage), how many
        of them are true (precision), and nDCG, Σ gain / log₂(1 + place) as a share of that of the best order.
        """
        last = min(max(depths), int(self.place.max()))
        discount = np.append(1 / np.log2(np.arange(1, last + 1) + 1), 0.0)  # of each place; 0 beyond the last
        gain = self.gain * discount[np.minimum(self.place, last + 1) - 1]
        best_gain = self.best_gain * discount[np.minimum(self.nth, last + 1) - 1]
        found = dict[str, np.ndarray]()
        for depth in depths:
            within = self.place <= depth
            count = self.total(within)
            found |= {
                f"coverage_{depth}": count / self.true,
                f"precision_{depth}": count / depth,
                f"ndcg_{depth}": self.total(within * gain) / self.total((self.nth <= depth) * best_gain),
            }
        return found


def _answers_both_ways(gallery: SearchRanks) -> dict[str, _Answers]:
    assert gallery.pairs is not None
    row, column, in_row, in_column = (part.cpu().numpy() for part in gallery.pairs)
    return {"i2t": _Answers.of(row, in_row, gallery.grades), "t2i": _Answers.of(column, in_column, gallery.grades)}


def _all_answers(answers: _Answers) -> dict[str, Float[np.ndarray, " n"]]:
    """mAP@R, R-precision, coverage, mAP, precision, MRR and nDCG of each query."""
    nth, place, starts, true, *_ = answers
    within, precision = place <= true.repeat(true), nth / place
    at = answers.at(*sorted({*DEPTHS, *_SHORT}))
    return {
        "map_at_r": answers.total(within * precision) / true,
        "r_precision": answers.total(within) / true,
        **{name: at[name] for name in (f"coverage_{depth}" for depth in DEPTHS)},
        "map": answers.total(precision) / true,
        **{name: at[name] for name in (f"precision_{depth}" for depth in _SHORT)},
        "mrr": precision[starts],
        **{name: at[name] for name in (f"ndcg_{depth}" for depth in _SHORT)},
    }


def figures_at(galleries: Sequence[SearchRanks], depth: int) -> dict[str, float]:
    """R@depth, coverage, precision and nDCG both ways, in per cent: the mean over galleries."""
    found = []
    for gallery in galleries:
        one = dict[str, float]()
        for way, answers in _answers_both_ways(gallery).items():
            ranks = (gallery.i2t if way == "i2t" else gallery.t2i).ranks.cpu().numpy()
            values = {f"r{depth}": ranks <= depth, **answers.at(depth)}
            one |= {f"{way}_{name}": 100 * float(value.mean()) for name, value in values.items()}
        found.append(one)
    return {name: float(np.mean([one[name] for one in found])) for name in found[0]}


def hardest_ranks(gallery: SearchRanks) -> dict[str, Int[np.ndarray, " B"]]:
    """For each image the rank of its hardest caption, by direction.

    i2t: of the caption that scores least, among captions of other images: 1 if all its own stand before all others.
    t2i: as of `t2i_r1`, of the caption that finds it latest, among images.
    """
    assert gallery.pairs is not None
    row, column, in_row, _ = (part.cpu().numpy() for part in gallery.pairs)
    found = {}
    for way, ranks in (("i2t", in_row), ("t2i", gallery.t2i.ranks.cpu().numpy()[column])):
        found[way] = np.zeros(len(gallery.image_groups), np.int64)
        np.maximum.at(found[way], row, ranks)
    return found


def beyond_rsum(galleries: Sequence[SearchRanks]) -> dict[str, float]:
    """The mean over galleries of the measures of retrieval that RSUM does not show, in per cent; and median ranks."""
    found = []
    for gallery in galleries:
        values = query_values(gallery)
        names = [name for name in _that_differ(values, galleries) if name not in RECALLS]
        medians = {f"{way}_hardest_median_rank": np.median(ranks) for way, ranks in hardest_ranks(gallery).items()}
        found.append({**{name: 100 * values[name].values.mean() for name in names}, **medians})
    return {name: float(np.mean([one[name] for one in found])) for name in found[0]}


# Of the sets alone, and of those of true pairs.

_BLOCK = 512
_PAIRS = 8_192
_SAME = 1e-6  # terms of float32 scores closer than this count as equal
_EXPONENTIAL = ("maxmatch", "top_k", "paired", "sinkhorn")  # whose scores are made of exp(cosine) − 1


def set_measures(member: EvaluatedModel, pair: ModalityPair = IMAGE_TEXT) -> dict[str, float]:
    """Of one model with sets: content variance, the share of each slot in true scores and which decides, where there
    are slots; bytes per item.
    """
    found: dict[str, float] = {}
    if member.has_slots:
        found |= {f"{name}_content_log_variance": content_log_variance(member.encoded.sets[name]) for name in pair}
        found |= slot_shares(member, pair)
    for name in pair:
        numbers = member.encoded.sets[name][0].numel()
        found |= {f"{name}_bytes_float32": 4.0 * numbers, f"{name}_bytes_float16": 2.0 * numbers}
    return found


def content_log_variance(sets: Float[Tensor, "n K D"]) -> float:
    """log of the mean over sets of mean_k ‖y_k‖² − ‖mean_k y_k‖², y_k = x_k − the mean of slot k over all sets.

    With x_k in place of y_k this is `log_circular_variance`: that variance is the sum of this one, and that of the
    slots' means. A set may be spread out by constant offsets alone, which say nothing about the item: then −27.6.
    """
    variance, total = 0.0, torch.zeros(sets.shape[1:], dtype=torch.float64, device=sets.device)
    for part in torch.split(sets, _BLOCK):
        units = normalize(part.double(), dim=-1)
        variance += float((1 - units.mean(1).square().sum(-1)).sum())
        total += units.sum(0)
    offsets = total / len(sets)
    of_offsets = offsets.square().sum(-1).mean() - offsets.mean(0).square().sum()
    return log_of_variance(variance / len(sets) - float(of_offsets))


def slot_shares(member: EvaluatedModel, pair: ModalityPair = IMAGE_TEXT) -> dict[str, float]:
    """What each slot adds to the scores of true pairs, and whether another slot decides for another caption.

    A score is made of terms, one for each pair of slots that it takes (exp(cosine) − 1, or the cosine); negative ones
    count as 0. `image_slot_1_share`: what the terms of that slot add up to, as a share, averaged over true pairs.

    The slot of the image that adds most decides; the first of those that add the same. `slot_variation`: how often two
    captions of one image are decided by different slots, averaged over images that have two. `slot_variation_chance`:
    the same if the deciding slots were dealt to the captions at random. Neither is there without such images.
    """
    images, texts = (member.encoded.sets[name] for name in pair)
    row, column = true_pairs(*(member.encoded.groups[name].to(images.device).contiguous() for name in pair))
    name, options = similarity_name(member).split("(")[0], getattr(member.similarity, "keywords", {})
    shares = [torch.zeros(sets.shape[1], dtype=torch.float64) for sets in (images, texts)]
    deciding = []
    for start in range(0, len(row), _PAIRS):
        part = slice(start, start + _PAIRS)
        cosines = (images[row[part]].float() @ texts[column[part]].float().transpose(1, 2)).cpu()
        taken = decisive_pairs(cosines, maximal_assignment(cosines), name, options.get("k"))
        terms = (cosines.expm1() if name in _EXPONENTIAL else cosines).clamp(min=0) * taken
        for total, axis in zip(shares, (2, 1), strict=True):
            added = terms.sum(axis).double()
            whole = added.sum(1, keepdim=True)
            total += torch.where(whole > 0, added / whole.clamp(min=1e-30), 1 / len(total)).sum(0)
        of_slots = terms.sum(2)
        deciding.append((of_slots >= of_slots.amax(1, keepdim=True) - _SAME).int().argmax(1))
    found = {
        f"{side}_slot_{slot}_share": share / len(row)
        for side, total in zip(pair, shares, strict=True)
        for slot, share in enumerate(total.tolist(), start=1)
    }
    return found | _variation(row.cpu().numpy(), torch.cat(deciding).numpy(), images.shape[1])


def _variation(image: Int[np.ndarray, " P"], slot: Int[np.ndarray, " P"], slots: int) -> dict[str, float]:
    """Of true pairs, in the order of their images, and the slot that decides each."""
    captions = np.bincount(image)
    several = captions[image] > 1
    if not several.any():
        return {}
    image = np.unique(image[several], return_inverse=True)[1]
    counts = np.bincount(image * slots + slot[several], minlength=(image.max() + 1) * slots).reshape(-1, slots)
    return {
        "slot_variation": float(_differing(counts).mean()),
        "slot_variation_chance": float(_differing(counts.sum(0, keepdims=True))[0]),
    }


def _differing(counts: Int[np.ndarray, "n K"]) -> Float[np.ndarray, " n"]:
    """The share of pairs of captions with different slots: 1 − Σ_k n_k (n_k − 1) / (n (n − 1))."""
    captions = counts.sum(1)
    shares: np.ndarray = 1 - (counts * (counts - 1)).sum(1) / (captions * (captions - 1))
    return shares
