"""From sets to results: R@K both ways, RSUM, ranks; COCO's 1K and 5K protocols; ensembles; collapse; ECCV Caption."""

import contextlib
import io
import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import normalize, one_hot

from maxmatch.core.array_checks import NotFiniteError
from maxmatch.core.checks import Array, as_tensor
from maxmatch.core.types import Ranks
from maxmatch.evaluation.encoding import EncodedSplit
from maxmatch.evaluation.ranking import Fold, PairRanks, ranks_both_ways, ranks_of_parts
from maxmatch.matching.assignment import maximal_assignment
from maxmatch.matching.scoring import first_largest, score_matrix
from maxmatch.matching.similarity import Similarity

# How well each side finds the other: R@1, 5, 10 both ways, RSUM, median and mean rank.

LEVELS = (1, 5, 10)


def retrieval(
    images: Float[Array, "B K D"],
    texts: Float[Array, "C L D"],
    image_groups: Int[Array, " B"],
    text_groups: Int[Array, " C"],
    similarity: str | Similarity = "maxmatch",
) -> dict[str, float]:
    """The figures of retrieval between two collections of sets; items of one group are true answers to each other.

    Recalls in per cent. An image counts as answered by the best of its captions. Ties count against the model.
    """
    return figures(*ranks_both_ways(score_matrix(images, texts, similarity), image_groups, text_groups))


def figures(i2t: Ranks, t2i: Ranks) -> dict[str, float]:
    """The figures of two lists of ranks, by the names that are used everywhere: i2t_r1, …, rsum."""
    recalls, more, ties = dict[str, float](), dict[str, float](), dict[str, float]()
    for way, found in (("i2t", i2t), ("t2i", t2i)):
        ranks = found.ranks.cpu().numpy()
        recalls |= {f"{way}_r{level}": 100 * float((ranks <= level).mean()) for level in LEVELS}
        more |= {f"{way}_median_rank": float(np.median(ranks)), f"{way}_mean_rank": float(ranks.mean())}
        ties[f"{way}_ties"] = float((found.ties > 0).sum())
    return {**recalls, "rsum": sum(recalls.values()), **more, **ties}


def chance(image_groups: Int[Tensor, " B"], text_groups: Int[Tensor, " C"]) -> dict[str, float]:
    """The recalls and RSUM that answers in random order would give, on average."""
    numbers = torch.unique(torch.cat([image_groups, text_groups]), return_inverse=True)[1].cpu()
    images, texts = numbers[: len(image_groups)], numbers[len(image_groups) :]
    groups = int(numbers.max()) + 1
    recalls = {
        f"{way}_r{level}": 100 * _chance(torch.bincount(asked, minlength=groups)[asking], len(asked), level)
        for way, asking, asked in (("i2t", images, texts), ("t2i", texts, images))
        for level in LEVELS
    }
    return {**recalls, "rsum": sum(recalls.values())}


def _chance(true: Tensor, total: int, level: int) -> float:
    """That one of `true` answers is among the first `level` of `total`: 1 − Π_i (total − true − i)/(total − i)."""
    place = torch.arange(min(level, total), dtype=torch.float64)
    missed = (total - true[:, None] - place).clamp(min=0) / (total - place)
    return float(1 - missed.prod(1).mean())


# Whether sets collapse to a point, leave vectors unused, and which slots of two modalities meet.

_TINY = 1e-12  # a variance that float32 vectors cannot tell from zero
_BLOCK = 8_192
_SMALL_BLOCK = 512


def log_circular_variance(sets: Float[Tensor, "n K D"]) -> float:
    """log of the mean over sets of 1 − ‖mean of the set's unit vectors‖² (table tab:5): the lower, the more collapsed.

    0 where the vectors of a set cancel out; −27.6 where they are all the same, and with K = 1.
    """
    # In blocks: all of it in double precision would take twice the memory of the sets. Normalised again, for float32's
    # unit vectors are so to 1e-7 only, which would show where all vectors of a set are the same.
    units = (normalize(part.double(), dim=-1) for part in torch.split(sets, _SMALL_BLOCK))
    variance = torch.cat([1 - part.mean(1).square().sum(-1) for part in units])
    return log_of_variance(float(variance.mean()))


def log_of_variance(variance: float) -> float:
    """−27.6 for one that float32 vectors cannot tell from zero."""
    return math.log(max(variance, _TINY))


class Pairing(NamedTuple):
    """Which slots of two modalities meet in true pairs."""

    partner: list[int]
    """The slot of the second modality that slot i of the first meets most of the time; −1: none."""
    stability: float
    """The share of true pairs whose best matching is exactly that."""
    used: float
    """The share of slots, of both modalities, that ever decide a true pair's score."""
    counts: Int[Tensor, "K L"]
    """How often each slot was matched with each."""


def slot_pairing(
    images: Float[Tensor, "B K D"],
    texts: Float[Tensor, "C L D"],
    partner: Int[Tensor, " C"],
    similarity: str,
    k: int | None = None,
) -> Pairing:
    """How the slots of true pairs meet: text c with image partner[c].

    similarity decides what "used" means: by the one best pair ("mil"), by the k best ("top_k"), by the best one-to-one
    matching ("maxmatch", and "sinkhorn", which softens it), by slot i with slot i ("paired"), by all pairs ("mean",
    "csd"), by what is nearest to an image's vector ("maxsim"), else by the nearest vector of the other set. The partner
    of slot i is slot i for "paired", whatever would match better.
    """
    counts = torch.zeros(images.shape[1], texts.shape[1], dtype=torch.long)
    decisive = torch.zeros_like(counts)
    matchings = []
    for start in range(0, len(texts), _BLOCK):
        part = slice(start, start + _BLOCK)
        cosines = (images[partner[part]].float() @ texts[part].float().transpose(1, 2)).cpu()
        matched = maximal_assignment(cosines)
        matchings.append(matched)
        counts += _pairs(matched, texts.shape[1]).sum(0)
        decisive += decisive_pairs(cosines, matched, similarity, k).sum(0)
    usual = torch.arange(len(counts)) if similarity == "paired" else maximal_assignment(counts.double())
    stable = (torch.cat(matchings) == usual).all(1).double().mean() if matchings else torch.tensor(0.0)
    used = torch.cat([decisive.any(1), decisive.any(0)]).double().mean()
    return Pairing(usual.tolist(), float(stable), float(used), counts)


def _pairs(matched: Tensor, columns: int) -> Tensor:
    """A matching as a matrix of zeros and ones."""
    return one_hot(matched + 1, columns + 1)[..., 1:]


def decisive_pairs(cosines: Tensor, matched: Tensor, similarity: str, k: int | None) -> Tensor:
    """Which pairs of slots the score of each true pair is made of."""
    flat = cosines.flatten(1)
    if similarity == "mil":
        return one_hot(flat.argmax(1), flat.shape[1]).view(cosines.shape)
    if similarity == "top_k":
        best = flat.topk(min(k or min(cosines.shape[1:]), flat.shape[1]), dim=1).indices
        return one_hot(best, flat.shape[1]).sum(1).view(cosines.shape)
    if similarity == "paired":
        return torch.eye(*cosines.shape[1:], dtype=torch.long).expand_as(cosines)
    if similarity in ("maxmatch", "sinkhorn"):
        return _pairs(matched, cosines.shape[2])
    if similarity in ("mean", "csd"):
        return torch.ones_like(cosines, dtype=torch.long)
    nearest = cosines == cosines.amax(2, keepdim=True)
    if similarity != "maxsim":  # which does not ask what is nearest to the second set's vectors
        nearest |= cosines == cosines.amax(1, keepdim=True)
    return nearest.long()


# The scores of a model, or of several together, on a split: held where they fit in memory, else made block by block.
#
# Memory, in addition to the sets: `max_memory` for scores, and 1 GiB for the tiles at work, more on a large GPU.

ModalityPair = tuple[str, str]
IMAGE_TEXT: ModalityPair = ("image", "text")
MAX_MEMORY = 2 * 2**30
"""Bytes that scores may take: COCO 5K takes a quarter of it."""


def choose_pair(names: Iterable[str]) -> ModalityPair:
    """The two modalities to compare: images and texts where both are there, else the first two."""
    known = list(names)
    if set(IMAGE_TEXT) <= set(known):
        return IMAGE_TEXT
    if len(known) < 2:
        raise ValueError(f"MODEL: expected two modalities to compare, got {', '.join(known) or 'none'}.")
    return known[0], known[1]


GIVEN = "given scores"
"""The similarity of a model that is known by its scores alone."""
SINGLE_VECTORS = ("cosine", "dot")
"""Similarities of single vectors, beside those of sets in `maxmatch.matching.SIMILARITIES`."""


@dataclass(frozen=True)
class EvaluatedModel:
    """A model as it is evaluated: its name, what it made of a split, and the similarity its sets are compared by.

    given: the scores of some rows (n, C), for a model that has scores and no sets.
    """

    name: str
    encoded: EncodedSplit
    similarity: str | Similarity = "maxmatch"
    given: Callable[[slice], Float[Tensor, "n C"]] | None = None

    @property
    def has_sets(self) -> bool:
        """Whether there are sets of one size: not padded ones, and not vectors of another library."""
        return self.given is None and self.similarity not in SINGLE_VECTORS and not self.encoded.masks

    @property
    def has_slots(self) -> bool:
        """Whether there are sets whose slots can be looked at: not Gaussians, which have a mean and a variance."""
        return self.has_sets and self.similarity != "csd"


@dataclass(frozen=True)
class Scores:
    """All scores of a split (B, C), `height` rows at a time. A block asked for again is the same bit for bit."""

    rows: Callable[[slice], Float[Tensor, "n C"]]
    shape: tuple[int, int]
    height: int

    def blocks(self) -> list[slice]:
        """The rows of each block."""
        return [slice(start, min(start + self.height, self.shape[0])) for start in range(0, self.shape[0], self.height)]


def scores_of(
    members: Sequence[EvaluatedModel], pair: ModalityPair = IMAGE_TEXT, max_memory: int = MAX_MEMORY
) -> Scores:
    """The scores of one model, or of an ensemble: the mean of its members' scores, who may differ in K and D.

    Members must hold the same items in the same order.
    """
    check_members(members, pair)
    height, width = (len(members[0].encoded.groups[name]) for name in pair)
    matrices = 1 if len(members) == 1 else 2  # the sum so far, and what is added to it
    fitting = max(1, max_memory // (4 * max(width, 1) * matrices))
    if fitting < height:
        return Scores(lambda rows: _mean(members, pair, rows), (height, width), fitting)
    held = _mean(members, pair, slice(0, height))
    return Scores(lambda rows: held[rows], (height, width), max(height, 1))


def _mean(members: Sequence[EvaluatedModel], pair: ModalityPair, rows: slice) -> Tensor:
    first, *others = members
    total = _scores(first, pair, rows)
    if others and first.given is not None:  # they may be rows of a matrix that is kept
        total = total.clone()
    for member in others:
        total += _scores(member, pair, rows).to(total.device)
    return total.div_(len(members)) if others else total


def _scores(member: EvaluatedModel, pair: ModalityPair, rows: slice) -> Tensor:
    if member.given is not None:
        return member.given(rows)
    a, b = (member.encoded.sets[name] for name in pair)
    masks = [member.encoded.masks.get(name) for name in pair]
    single = a.shape[1] == b.shape[1] == 1 and masks == [None, None]
    try:
        if single and member.similarity in (*SINGLE_VECTORS, *_COSINE_IF_SINGLE):
            return products(a[rows], b, member.similarity == "cosine", a.device)
        return score_matrix(
            a[rows], b, member.similarity, a_mask=None if masks[0] is None else masks[0][rows], b_mask=masks[1]
        )
    except NotFiniteError as error:
        raise NotFiniteError(f"{member.name}: {_culprit(member.encoded, pair) or error}") from error


_COSINE_IF_SINGLE = ("mil", "mean", "maxsim")
"""Similarities that are the cosine where each set has one vector."""


def products(
    a: Float[Array, "B 1 D"], b: Float[Array, "C 1 D"], normalise: bool, device: torch.device
) -> Float[Tensor, "B C"]:
    """The inner products of single vectors, or their cosines: one large product for a part of b at a time, where
    `score_matrix` makes many small ones.
    """
    double = any(vectors.dtype in (torch.float64, np.float64) for vectors in (a, b))
    precision = torch.float64 if double else torch.float32

    def load(vectors: Array) -> Tensor:
        single = as_tensor(vectors).detach()[:, 0].to(device, precision)
        return normalize(single, dim=-1) if normalise else single

    left = load(a)
    scores, total = left.new_empty(len(a), len(b)), left.sum()
    for start in range(0, len(b), _COLUMNS):
        part = slice(start, start + _COLUMNS)
        right = load(b[part])
        torch.mm(left, right.T, out=scores[:, part])
        total = total + right.sum()
    if not bool(total.isfinite()):
        raise NotFiniteError(
            "vectors: NaN or infinite values among them. Find what made them, or leave such items out."
        )
    return scores


_COLUMNS = 8192


def _culprit(encoded: EncodedSplit, pair: ModalityPair) -> str | None:
    """The first item whose vectors are NaN or infinite."""
    for name in pair:
        bad = ~torch.isfinite(encoded.sets[name]).flatten(1).all(1)
        if bool(bad.any()):
            place = int(bad.nonzero()[0])
            known = f" ({encoded.ids[name][place]})" if encoded.ids.get(name) else ""
            return (
                f"the vectors of {name} {place}{known} hold NaN or infinite values. The model has diverged, or the "
                "item's features are damaged: look at its training, or check the data with `maxmatch data check`."
            )
    return None


def check_members(members: Sequence[EvaluatedModel], pair: ModalityPair) -> None:
    """Refuse what cannot be evaluated, and members of an ensemble that were not encoded from the same items."""
    for member in members:
        for name in pair:
            if name not in member.encoded.groups:
                raise ValueError(f"{member.name}: has {', '.join(member.encoded.groups) or 'no sets'}, but no {name}.")
            if not len(member.encoded.groups[name]):
                raise ValueError(f"{member.name}: the split is empty: there is nothing to measure.")
            if member is not members[0]:
                _check_same(members[0], member, name)


def _check_same(first: EvaluatedModel, other: EvaluatedModel, name: str) -> None:
    """The first difference between two members' items is named."""
    advice = "Encode both from the same split of the same data."
    splits = [member.encoded.notes.get("split") for member in (first, other)]
    if None not in splits and splits[0] != splits[1]:
        raise ValueError(f"{first.name} is of the split {splits[0]!r} and {other.name} of {splits[1]!r}. {advice}")
    one, two = (member.encoded.ids.get(name) for member in (first, other))
    if one is not None and two is not None:
        for place, (mine, theirs) in enumerate(zip_longest(one, two)):
            if mine != theirs:
                seen, there = ("missing" if one is None else repr(one) for one in (mine, theirs))
                raise ValueError(
                    f"{name} {place} is {seen} in {first.name} and {there} in {other.name}: scores of different items, "
                    f"or of the same in another order, cannot be averaged or compared. {advice}"
                )
    groups = [member.encoded.groups[name].cpu() for member in (first, other)]
    if len(groups[0]) != len(groups[1]):
        raise ValueError(f"{first.name} has {len(groups[0])} {name}s and {other.name} {len(groups[1])}. {advice}")
    if not torch.equal(*groups):
        place = int((groups[0] != groups[1]).nonzero()[0])
        raise ValueError(
            f"{name} {place} belongs to group {int(groups[0][place])} in {first.name} and to {int(groups[1][place])} "
            f"in {other.name}. {advice}"
        )


# From the sets of a split to results: the plain protocol, and COCO's of 1K and 5K; of one model or an ensemble.

ProtocolName = Literal["auto", "plain", "coco"]
FOLDS, FOLD_SIZE = 5, 1000
GALLERIES = {"": "all", "coco_1k_": "1K", "coco_5k_": "5K"}
"""What each protocol searches among, by the prefix of its figures."""


class Grades(NamedTuple):
    """How relevant each true pair is, and its score: for nDCG, where some answers are better than others."""

    gain: Float[Tensor, " P"]
    score: Float[Tensor, " P"]


@dataclass(frozen=True)
class SearchRanks:
    """One search: the ranks of all queries both ways, and the group that each query belongs to.

    pairs: the ranks of all true pairs, where they were asked for: `maxmatch.evaluation.measures` needs them. grades: of
    the same pairs; None: all are equally relevant.
    """

    i2t: Ranks
    t2i: Ranks
    image_groups: Int[Tensor, " B"]
    text_groups: Int[Tensor, " C"]
    pairs: PairRanks | None = None
    grades: Grades | None = None

    def cpu(self) -> "SearchRanks":
        """In the memory of the host, where measures are computed."""
        return SearchRanks(
            Ranks(*(part.cpu() for part in self.i2t)),
            Ranks(*(part.cpu() for part in self.t2i)),
            self.image_groups.cpu(),
            self.text_groups.cpu(),
            None if self.pairs is None else PairRanks(*(part.cpu() for part in self.pairs)),
            None if self.grades is None else Grades(*(part.cpu() for part in self.grades)),
        )


@dataclass(frozen=True)
class Result:
    """What was measured. galleries: the searches that the figures of each prefix were taken from."""

    name: str
    similarity: str
    members: int
    figures: Mapping[str, float]
    galleries: Mapping[str, Sequence[SearchRanks]]

    @property
    def kind(self) -> str:
        """ "single" or "ensemble of n"."""
        return "single" if self.members == 1 else f"ensemble of {self.members}"


def evaluate(
    members: Sequence[EvaluatedModel],
    *,
    name: str | None = None,
    pair: ModalityPair = IMAGE_TEXT,
    protocol: ProtocolName = "auto",
    max_memory: int = MAX_MEMORY,
    scores: Scores | None = None,
    fold_size: int = FOLD_SIZE,
    pairs: bool = False,
) -> Result:
    """The figures of one model, or of an ensemble of several.

    scores: those of the members, where they are there already (`scores_of`). pairs: keep the ranks of all true pairs.
    """
    scores = scores_of(members, pair, max_memory) if scores is None else scores
    first = members[0].encoded
    where = [first.sets[name].device if name in first.sets else first.groups[name].device for name in pair]
    images, texts = (first.groups[name].to(device) for name, device in zip(pair, where, strict=True))  # as the scores
    galleries = search(scores, images, texts, protocol, fold_size, first.notes.get("groups"), pairs)
    found = {f"{prefix}{key}": value for prefix, some in galleries.items() for key, value in averaged(some).items()}
    if len(members) == 1 and members[0].has_slots:
        found |= collapse(members[0], pair)
    similarity = " + ".join(dict.fromkeys(similarity_name(member) for member in members))
    return Result(name or " + ".join(member.name for member in members), similarity, len(members), found, galleries)


def similarity_name(member: EvaluatedModel) -> str:
    """The name of a member's similarity, with its options."""
    return name_of_similarity(member.similarity)


def name_of_similarity(similarity: str | Similarity) -> str:
    """The name of a similarity, with its options."""
    if isinstance(similarity, str):
        return similarity
    function = getattr(similarity, "func", similarity)
    options = getattr(similarity, "keywords", {})
    listed = ", ".join(f"{option}={value:g}" for option, value in options.items())
    return getattr(function, "__name__", "own") + (f"({listed})" if listed else "")


def search(
    scores: Scores,
    image_groups: Int[Tensor, " B"],
    text_groups: Int[Tensor, " C"],
    protocol: ProtocolName = "auto",
    fold_size: int = FOLD_SIZE,
    size: int | None = None,
    pairs: bool = False,
) -> dict[str, list[SearchRanks]]:
    """The ranks that a protocol asks for, by the prefix of its figures: "", or "coco_1k_" and "coco_5k_".

    size: how many groups the split has, where some may have been left out. pairs: also the ranks of all true pairs.

    COCO 1K: five folds of `fold_size` groups, as they follow each other; each fold is a search of its own.
    """
    whole = Fold(slice(0, len(image_groups)), slice(0, len(text_groups)))
    if chosen(protocol, image_groups, fold_size, size) == "plain":
        named = {"": [whole]}
    else:
        named = {"coco_1k_": coco_folds(image_groups, text_groups, fold_size), "coco_5k_": [whole]}
    parts = [part for some in named.values() for part in some]
    ranks = iter(ranks_of_parts(scores.rows, scores.height, image_groups, text_groups, parts, pairs))

    def one(part: Fold) -> SearchRanks:
        found = next(ranks)
        return SearchRanks(found.rows, found.columns, image_groups[part.rows], text_groups[part.columns], found.pairs)

    return {prefix: [one(part) for part in some] for prefix, some in named.items()}


def check_protocol(protocol: str) -> None:
    """Refuse a name that is not one of a protocol."""
    if protocol not in get_args(ProtocolName):
        known = ", ".join(get_args(ProtocolName))
        raise ValueError(f"protocol: expected one of {known}, got {protocol!r}.")


def chosen(
    protocol: ProtocolName, image_groups: Int[Tensor, " B"], fold_size: int = FOLD_SIZE, size: int | None = None
) -> str:
    """The protocol that "auto" stands for: COCO's for its 5,000 images (some may have been left out), else plain."""
    check_protocol(protocol)
    size = int(image_groups.max()) + 1 if size is None else size
    if protocol == "coco" and size != FOLDS * fold_size:
        raise ValueError(
            f"protocol 'coco': takes {FOLDS} folds of {fold_size:,} images, but this split has {size:,}. "
            "Choose 'plain'."
        )
    return protocol if protocol != "auto" else "coco" if size == FOLDS * fold_size else "plain"


def coco_folds(image_groups: Tensor, text_groups: Tensor, fold_size: int = FOLD_SIZE) -> list[Fold]:
    """Five parts of so many groups each, as they follow each other."""
    ends = torch.arange(FOLDS + 1, device=image_groups.device) * fold_size
    bounds = []
    for name, groups in (("images", image_groups), ("captions", text_groups)):
        if bool((groups.diff() < 0).any()):
            raise ValueError(
                f"protocol 'coco': the {name} are not in the order of their groups, so folds mean nothing. "
                "Captions come in the order of their images; or choose 'plain'."
            )
        bounds.append(torch.searchsorted(groups.contiguous(), ends).tolist())
    rows, columns = bounds
    for fold in range(FOLDS):
        if rows[fold] == rows[fold + 1]:
            raise ValueError(f"protocol 'coco': all images of fold {fold + 1} were left out. Mend the data.")
    return [Fold(slice(*rows[fold : fold + 2]), slice(*columns[fold : fold + 2])) for fold in range(FOLDS)]


def averaged(galleries: Sequence[SearchRanks]) -> dict[str, float]:
    """The mean of the galleries' figures, RSUM among them; ties are added up."""
    found = [figures(gallery.i2t, gallery.t2i) for gallery in galleries]
    return {key: sum(each[key] for each in found) / (1 if key.endswith("_ties") else len(found)) for key in found[0]}


def collapse(member: EvaluatedModel, pair: ModalityPair = IMAGE_TEXT) -> dict[str, float]:
    """Whether the sets of a model collapse: log circular variance of both sides, slots used, pairing stability."""
    images, texts = (member.encoded.sets[name] for name in pair)
    name = similarity_name(member).split("(")[0]
    options = getattr(member.similarity, "keywords", {})
    pairing = slot_pairing(images, texts, member.encoded.partners(pair), name, options.get("k"))
    return {
        f"{pair[0]}_log_variance": log_circular_variance(images),
        f"{pair[1]}_log_variance": log_circular_variance(texts),
        "slots_used": pairing.used,
        "pairing_stability": pairing.stability,
    }


# ECCV Caption and CxC: COCO's test set with the answers that its captions miss, through the package `eccv_caption`.
#
# Both know items by COCO's ids of images and captions, which Karpathy's JSON keeps. Equal scores are ranked in the
# order of the data: for collapsed models, look at the ties of the plain figures first.

_CURE = "CxC and ECCV Caption are measured on COCO's test split, read from Karpathy's dataset_coco.json."


class NotCoco(ValueError):
    """Items that are not those of COCO's test set."""


def load_metrics() -> Any:
    """The package's own measures with their answers. ImportError with the cure if it is not installed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a faster JSON, which changes nothing
        try:
            from eccv_caption import Metrics
        except ImportError as error:
            cure = "ECCV Caption and CxC need the package eccv_caption: pip install 'maxmatch[eccv]'"
            raise ImportError(cure) from error
        return Metrics()


def extended(scores: Scores, image_ids: Sequence[str], caption_ids: Sequence[str], metrics: Any) -> dict[str, float]:
    """The figures of CxC (recalls, RSUM) and ECCV Caption (R@1, mAP@R, R-precision) both ways, in per cent.

    metrics: that of `load_metrics`, which reads its files once for several models. NotCoco for items of other data.
    """
    answers = {"CxC": metrics.cxc_gts, "ECCV Caption": metrics.eccv_gts}
    numbers = []
    for what, way, ids in (("image", "i2t", image_ids), ("caption", "t2i", caption_ids)):
        for name in ids:
            if not (name.isascii() and name.isdigit()):
                raise NotCoco(f"{what} {name!r} has no id of COCO. {_CURE}")
        numbers.append(np.array([int(name) for name in ids]))
        for data, known in answers.items():
            total, missing = len(known[way]), len(known[way].keys() - set(numbers[-1].tolist()))
            if missing:
                raise NotCoco(f"{missing:,} of the {total:,} {what}s that {data} asks about are not here. {_CURE}")
    listed = (some for known in answers.values() for way in known.values() for some in way.values())
    images, captions = numbers
    retrieved = best_answers(scores, images, captions, max(LEVELS[-1], *map(len, listed)))
    found = {
        f"cxc_{way}_r{level}": 100 * float(value)
        for level in LEVELS
        for way, value in metrics.cxc_recalls(retrieved, "all", K=level).items()
    }
    found["cxc_rsum"] = sum(found.values())
    with contextlib.redirect_stderr(io.StringIO()):  # a bar that cannot be turned off
        measured = metrics.eccv_metrics(retrieved, "all")
    for short in ("r1", "map_at_r", "rprecision"):
        found |= {f"eccv_{way}_{short}": 100 * float(value) for way, value in measured[f"eccv_{short}"].items()}
    return found


def best_answers(
    scores: Scores, images: np.ndarray, captions: np.ndarray, depth: int
) -> dict[str, dict[int, list[int]]]:
    """Of each image the ids of its best captions, best first, and of each caption those of its best images."""
    forth = []
    values = places = None  # of each caption the best images so far
    for block in scores.blocks():
        part = scores.rows(block)
        forth.append(first_largest(part, min(depth, part.shape[1]))[1])
        more, where = first_largest(part.T, min(depth, part.shape[0]))
        where = where + block.start
        if values is not None and places is not None:
            more, where = torch.cat([values, more], 1), torch.cat([places, where], 1)
            order = more.sort(dim=1, descending=True, stable=True).indices[:, :depth]
            more, where = more.gather(1, order), where.gather(1, order)
        values, places = more, where
    assert places is not None
    return {
        "i2t": dict(zip(images.tolist(), captions[torch.cat(forth).cpu().numpy()].tolist(), strict=True)),
        "t2i": dict(zip(captions.tolist(), images[places.cpu().numpy()].tolist(), strict=True)),
    }
