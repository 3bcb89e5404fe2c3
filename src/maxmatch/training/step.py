"""One step: a batch becomes sets, sets become scores, scores a loss, the loss gradients, and gradients new weights."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import normalize

from maxmatch.core.devices import aside, join
from maxmatch.core.types import Batch, Inputs, Sets
from maxmatch.losses.objective import LossTerms, objective
from maxmatch.matching import SIMILARITIES
from maxmatch.matching.similarity import match_own
from maxmatch.model.encoder import SetEncoder
from maxmatch.model.encoders import RegionEncoder
from maxmatch.model.layers import PIEHead, SetHead, SlotHead
from maxmatch.recipe.schema import Recipe, Train
from maxmatch.training.distributed import add_gradients, counted_once, fewest, gather, gather_sets, several
from maxmatch.training.optim import clip_gradients
from maxmatch.training.state import TrainingState
from maxmatch.training.teachers import Teacher, teachers_scores

TrainStep = Callable[[Batch, int], LossTerms]
PairSimilarity = Callable[[Tensor, Tensor], Tensor]


class PhraseSets(NamedTuple):
    """The sets of a batch's phrases, and what each of them fits, see `Phrases`."""

    sets: Sets
    fits: Mapping[str, Tensor]


@dataclass(frozen=True)
class Criterion:
    """What is minimised: the objective between each of the pairs of modalities, added up."""

    similarity: PairSimilarity
    pairs: Sequence[tuple[str, str]]
    options: Mapping[str, Any]
    teachers: Sequence[Teacher] = ()

    def __call__(
        self,
        sets: Mapping[str, Sets],
        groups: Mapping[str, Tensor],
        places: Mapping[str, Tensor] | None = None,
        phrases: Mapping[str, PhraseSets] | None = None,
        match: tuple[Tensor, Tensor] | None = None,
    ) -> LossTerms:
        """The loss of a batch. places: of its items in the split, for teachers. match: see `objective`."""
        terms = []
        for rows, columns in self.pairs:
            named = self._phrases(sets, phrases or {}, (rows, columns))
            options = self.options if named is not None else {**self.options, "phrase_weight": 0.0}
            positive = groups[rows][:, None] == groups[columns]
            matched = options.get("caption_matching_weight", 0.0) > 0
            terms.append(
                objective(
                    self.similarity(sets[rows].vectors, sets[columns].vectors),
                    positive,
                    sets[rows],
                    sets[columns],
                    teachers=teachers_scores(self.teachers, (rows, columns), places or {}),
                    phrases=named,
                    match=match,
                    captions=slots_and_captions(sets[rows], sets[columns], positive) if matched else None,
                    **options,
                )
            )
        return terms[0] if len(terms) == 1 else _added(terms)

    def _phrases(
        self, sets: Mapping[str, Sets], phrases: Mapping[str, PhraseSets], pair: tuple[str, str]
    ) -> tuple[Tensor, Tensor] | None:
        """The scores of a pair's items with the phrases of its texts, and which fit; None where it has none."""
        for other, texts in (pair, pair[::-1]):
            if texts in phrases and other in phrases[texts].fits:
                mine = phrases[texts]
                return self.similarity(sets[other].vectors, mine.sets.vectors), mine.fits[other]
        return None


def slots_and_captions(images: Sets, texts: Sets, positive: Tensor) -> tuple[Tensor, Tensor]:
    """For `caption_matching`: the cosines (B, K, C) of each slot of every image with every caption, which is the mean
    of its set at unit length; and the caption that each slot is assigned, one to one among the image's own.
    """
    cosines = images.vectors @ normalize(texts.vectors.mean(1), dim=-1).T
    return cosines, match_own(cosines, positive)


def criterion_for(recipe: Recipe, epoch: int, teachers: Sequence[Teacher] = ()) -> Criterion:
    """What a recipe minimises in an epoch."""
    similarity = partial(SIMILARITIES[recipe.model.similarity], **recipe.model.similarity_options)
    return Criterion(similarity, recipe.objective.pairs, recipe.objective.keywords(epoch), teachers)


def _added(terms: Sequence[LossTerms]) -> LossTerms:
    """The sum of several losses, term by term."""
    columns = [each.computed() for each in terms]
    names = dict.fromkeys(name for column in columns for name in column)
    return LossTerms(**{name: torch.stack([one[name] for one in columns if name in one]).sum() for name in names})


def gradients(
    model: SetEncoder, batch: Batch, criterion: Criterion, seed: int, precision: torch.dtype | None = None,
    chunks: int = 1, scale: Callable[[Tensor], Tensor] = lambda loss: loss,
) -> LossTerms:  # fmt: skip
    """The loss of a batch, and its gradient in the parameters. precision: of the encoders' work; the loss is float32.

    A batch too large for the memory is encoded in chunks without losing negatives: first all sets are made without
    gradient, then the loss and its gradient with respect to them; then each chunk is encoded again and the gradient
    continues from its sets. Dropout is drawn from the batch's seed, so that a chunk is encoded alike both times.

    scale: what the loss is passed through before the gradient is taken (fp16's loss scaling).
    """
    device = batch.tensors()[0].device
    mixed = torch.autocast(device.type, precision) if precision is not None else nullcontext()
    if chunks == 1:
        torch.manual_seed(seed)
        with mixed:
            sets, phrases = _sets(model, batch), _phrase_sets(model, batch)
        whole = {name: gather_sets(side) for name, side in sets.items()}
        places = _gathered(batch.places) if criterion.teachers else None
        terms = criterion(whole, _gathered(batch.groups), places, phrases, _match(model))
        torch.autograd.backward(scale(terms.total))
        return terms.map(Tensor.detach)  # the graph of the step is not kept
    return _in_chunks(model, batch, criterion, seed, mixed, chunks, scale)


def _in_chunks(
    model: SetEncoder, batch: Batch, criterion: Criterion, seed: int, mixed: AbstractContextManager[object],
    chunks: int, scale: Callable[[Tensor], Tensor],
) -> LossTerms:  # fmt: skip
    parts = split(batch, chunks)
    first = []
    with torch.no_grad(), _buffers_unchanged(model), mixed:
        for place, part in enumerate(parts):
            torch.manual_seed(seed + place)
            first.append(_sets(model, part))
        torch.manual_seed(seed + len(parts))
        encoded = _phrase_sets(model, batch)
    whole = {name: _leaves([sets[name] for sets in first]) for name in batch.inputs}
    groups = {name: torch.cat([part.groups[name] for part in parts]) for name in batch.groups}
    places = {name: torch.cat([part.places[name] for part in parts]) for name in batch.places}
    everyone = {name: gather_sets(side) for name, side in whole.items()}
    order = {
        name: torch.cat([torch.isin(mine, part.groups[name]).nonzero()[:, 0] for part in parts])
        for name, mine in batch.groups.items()
    }
    phrases = {
        name: PhraseSets(_leaves([one.sets]), {other: fits[order[other]] for other, fits in one.fits.items()})
        for name, one in encoded.items()
    }
    known = _gathered(places) if criterion.teachers else None
    terms = criterion(everyone, _gathered(groups), known, phrases, _match(model))
    torch.autograd.backward(scale(terms.total))
    torch.manual_seed(seed + len(parts))
    with mixed:
        again = _phrase_sets(model, batch)
    for name, one in again.items():
        gradient = phrases[name].sets.vectors.grad
        assert gradient is not None
        torch.autograd.backward(one.sets.vectors, gradient.to(one.sets.vectors.dtype))
    taken = dict.fromkeys(whole, 0)
    for place, part in enumerate(parts):
        torch.manual_seed(seed + place)
        with mixed:
            sets = _sets(model, part)
        outputs, arriving = [], []
        for name, side in sets.items():
            rows = slice(taken[name], taken[name] + len(side.vectors))
            taken[name] = rows.stop
            for output, leaf in zip(_tensors(side), _tensors(whole[name]), strict=True):
                if leaf.grad is not None and output.requires_grad:  # not of a tower that is kept as it is
                    outputs.append(output)
                    arriving.append(leaf.grad[rows].to(output.dtype))
        torch.autograd.backward(outputs, arriving)
    return terms.map(Tensor.detach)  # the graph of the step is not kept


def split(batch: Batch, chunks: int) -> list[Batch]:
    """The batch in chunks of whole groups; as many in every process, since they may wait for each other in a chunk."""
    order = torch.unique(next(iter(batch.groups.values())))
    parts = []
    for groups in order.tensor_split(min(chunks, fewest(len(order), order.device))):
        kept = {name: torch.isin(mine, groups) for name, mine in batch.groups.items()}
        inputs = {
            name: Inputs(values[kept[name]], None if mask is None else mask[kept[name]])
            for name, (values, mask) in batch.inputs.items()
        }
        numbers, places = ({name: mine[kept[name]] for name, mine in of.items()} for of in (batch.groups, batch.places))
        parts.append(Batch(inputs, numbers, places))
    return parts


def _sets(model: SetEncoder, batch: Batch) -> dict[str, Sets]:
    """The sets of all modalities. On a GPU the first ones run beside the last one, forwards and backwards: the texts,
    whose GRU reads word by word, leave most of it idle.
    """
    *first, last = batch.inputs
    made = {}
    for name in first:
        with aside(*(one for one in batch.inputs[name] if one is not None)):
            made[name] = _sets_of(model, name, batch.inputs[name], batch.short.get(name))
    made[last] = _sets_of(model, last, batch.inputs[last], batch.short.get(last))
    if first:
        join(batch.tensors()[0].device)
    return made


def _sets_of(model: SetEncoder, name: str, inputs: Inputs, short: tuple[int, int] | None) -> Sets:
    """The sets of one modality. short: see `Batch`; where these are much shorter, in two parts."""
    values, mask = inputs
    if short is None or mask is None or 4 * short[1] > 3 * mask.shape[1]:
        sets: Sets = model(name, values, mask)
        return sets
    count, length = short
    parts = (values[:count, :length], mask[:count, :length]), (values[count:], mask[count:])
    tower = model.tower(name)
    if isinstance(tower.head, SetHead):
        of_parts = getattr(tower.encoder, "of_parts", None)
        features = [tower.encoder(*part) for part in parts] if of_parts is None else of_parts(*parts)
        together: Sets = tower.head(*features)
        return together
    each = (_tensors(tower(*part)) for part in parts)
    return Sets(*(torch.cat(tensors) for tensors in zip(*each, strict=True)))


def _match(model: SetEncoder) -> tuple[Tensor, Tensor] | None:
    """The scale and the shift that a model with a match probability learns."""
    return None if model.match is None else (counted_once(model.match.scale), counted_once(model.match.shift))


def _phrase_sets(model: SetEncoder, batch: Batch) -> dict[str, PhraseSets]:
    return {name: PhraseSets(model(name, *one.inputs), one.fits) for name, one in batch.phrases.items()}


def _gathered(numbers: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: gather(mine) for name, mine in numbers.items()}


def _tensors(sets: Sets) -> tuple[Tensor, Tensor, Tensor]:
    return sets.vectors, sets.residual, sets.pooled


def _leaves(parts: Sequence[Sets]) -> Sets:
    """The sets of all chunks, as what the gradient is taken with respect to."""
    joined = (torch.cat(tensors).detach().requires_grad_() for tensors in zip(*map(_tensors, parts), strict=True))
    return Sets(*joined)


@contextmanager
def _buffers_unchanged(model: SetEncoder) -> Iterator[None]:
    """Restore the buffers afterwards: BatchNorm learns from a chunk when it is encoded with gradient, not twice."""
    before = [(buffer, buffer.clone()) for buffer in model.buffers()]
    try:
        yield
    finally:
        for buffer, value in before:
            buffer.copy_(value)


def make_step(
    state: TrainingState,
    criterion: Criterion,
    *,
    precision: torch.dtype | None = None,
    chunks: int = 1,
    clip: float | None = None,
) -> TrainStep:
    """A function that takes one step of training with a batch and a seed for dropout."""
    model, adam, scaler = state.model, state.adam, state.scaler

    def step(batch: Batch, seed: int) -> LossTerms:
        adam.zero_grad(set_to_none=True)
        with _fast_products(precision is not None):
            terms = gradients(model, batch, criterion, seed, precision, chunks, scaler.scale)
        add_gradients(model)
        scaler.unscale_(adam)
        clip_gradients(state.groups, clip)
        scaler.step(adam)
        scaler.update()
        if state.average is not None:
            state.average.update(model)
        return terms

    return step


@contextmanager
def _fast_products(mixed: bool) -> Iterator[None]:
    """In mixed precision the float32 products of the losses may be made by tensor cores (TF32), too."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if mixed else before)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


# CUDA graphs: a step is recorded once and replayed, so that a GPU gets its thousands of small kernels in one call.
_WARM_UP = 3  # steps before recording, in which kernels are compiled and buffers get their size
_MOST_RECORDS = 8  # batches of further shapes are not recorded


class RecordedSteps:
    """Replays a step for batches of a shape that was seen before; records it for one that was not.

    Dropout stays random: its seed is read when a record is replayed.

    step(batch, seed): everything from the batch to the changed weights. The host must not read values in it.
    """

    def __init__(self, step: TrainStep) -> None:
        self.step = step
        # By shape: the batch that the step reads, the graph, and the losses that it writes.
        self._records: dict[object, tuple[Batch, torch.cuda.CUDAGraph, LossTerms]] = {}
        self._seen = Counter[object]()
        self._pool: Any = None
        # Gradients are collected on the stream where a parameter was first used: it must be the recording one.
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def __call__(self, batch: Batch, seed: int) -> LossTerms:
        """One step."""
        batch = padded(batch)
        shape = (*((tensor.shape, tensor.dtype) for tensor in batch.tensors()), *batch.short.items())
        if shape not in self._records:
            self._seen[shape] += 1
            if self._seen[shape] <= _WARM_UP or len(self._records) >= _MOST_RECORDS:
                return self._unrecorded(batch, seed)
            self._record(shape, batch, seed)
        mine, graph, terms = self._records[shape]
        torch.manual_seed(seed)
        for old, new in zip(mine.tensors(), batch.tensors(), strict=True):
            old.copy_(new)
        graph.replay()
        return terms

    def _unrecorded(self, batch: Batch, seed: int) -> LossTerms:
        here = torch.cuda.current_stream()
        self._stream.wait_stream(here)
        with torch.cuda.stream(self._stream):
            terms = self.step(batch, seed)
        here.wait_stream(self._stream)
        return terms

    def _record(self, shape: object, batch: Batch, seed: int) -> None:
        batch, graph = batch.map(Tensor.clone), torch.cuda.CUDAGraph()
        torch.manual_seed(seed)  # the step does so too; while recording it may only be the seed that is set already
        # Meanwhile another thread may pin the memory of the next batches: by default that would end the recording.
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
            terms = self.step(batch, seed)
        self._pool = graph.pool()
        self._records[shape] = (batch, graph, terms)


def padded(batch: Batch) -> Batch:
    """Texts padded to a multiple of eight tokens, the short ones too, so that few shapes occur."""

    def pad(inputs: Inputs) -> Inputs:
        if inputs.mask is None or inputs.values.is_floating_point():
            return inputs
        more = (0, -inputs.mask.shape[1] % 8)
        return Inputs(torch.nn.functional.pad(inputs.values, more), torch.nn.functional.pad(inputs.mask, more))

    phrases = {name: one._replace(inputs=pad(one.inputs)) for name, one in batch.phrases.items()}
    short = {name: (count, length + -length % 8) for name, (count, length) in batch.short.items()}
    inputs = {name: pad(inputs) for name, inputs in batch.inputs.items()}
    return replace(batch, inputs=inputs, phrases=phrases, short=short)


def can_record(train: Train, negatives: str, device: torch.device) -> bool:
    """Whether steps can be recorded: on one GPU, where the host reads no values. It does for semi-hard negatives, whose
    pairs are written down, for fp16's loss scaling and for chunks.
    """
    plain = train.precision != "fp16" and train.accumulate == 1 and negatives != "semi_hard"
    return plain and device.type == "cuda" and not several()


def compile_layers(model: SetEncoder) -> None:
    """Let the compiler fuse the small operations of our own layers."""
    for module in model.modules():
        if isinstance(module, SlotHead | PIEHead | RegionEncoder):
            module.compile()
