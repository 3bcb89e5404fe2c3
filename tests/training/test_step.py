"""Gradients of a batch taken in chunks are those of the whole batch; which steps a GPU records."""

from contextlib import contextmanager, nullcontext
from dataclasses import replace

import pytest
import torch
from scipy.optimize import linear_sum_assignment
from small_runs import recipe_for
from tiny_models import images_for, texts, tiny_model, with_audio
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from maxmatch.core.types import Batch, Inputs, Sets
from maxmatch.losses import caption_matching
from maxmatch.losses.objective import LossTerms, objective
from maxmatch.matching import SIMILARITIES
from maxmatch.matching.similarity import maxmatch
from maxmatch.model.build import build_model
from maxmatch.model.encoders.vision import MaskedBatchNorm
from maxmatch.training.step import Criterion, RecordedSteps, can_record, criterion_for, gradients, padded, split

EVERY_TERM = {"gd_weight": 0.1, "isd_weight": 0.2, "mmd_weight": 0.3, "div_weight": 0.4, "con_weight": 0.5}
OWNERS = [0, 0, 1, 2, 2, 2, 3, 4, 4, 5, 6, 6]
PAIR = [("image", "text")]


def batch_for(model, groups=7, owners=OWNERS):
    """Pictures numbered in another order than they stand in, with one to three captions each."""
    image, text = model.tower("image").reader, model.tower("text").reader
    pictures = image.collate([image.read(one) for one in images_for(model, groups)])
    captions = text.collate([text.read(one) for one in texts(len(owners))])
    names = torch.tensor([31, 4, 15, 92, 65, 35, 8][:groups])
    if pictures.values.is_floating_point():
        pictures = pictures._replace(values=pictures.values.to(next(model.parameters()).dtype))
    return Batch({"image": pictures, "text": captions}, {"image": names, "text": names[torch.tensor(owners)]})


def model_without_norms(preset, dropout):
    """In float64, with BatchNorm replaced by nothing: its statistics would be those of a chunk."""
    model = tiny_model(preset, seed=1).double().train()

    class Nothing(nn.Module):
        def forward(self, x, mask=None):
            return x

    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, MaskedBatchNorm | nn.BatchNorm2d):
                setattr(module, name, Nothing())
            elif isinstance(child, nn.Dropout):
                child.p = dropout
    return model


def grads(model):
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize(("preset", "negatives"), [("region_bigru", "mean"), ("resnet152_bigru", "hardest")])
def test_chunks_have_the_gradients_of_the_whole_batch_with_its_negatives(preset, negatives):
    model = model_without_norms(preset, dropout=0.0)
    batch = batch_for(model)
    criterion = Criterion(maxmatch, PAIR, {**EVERY_TERM, "negatives": negatives})
    found = []
    for chunks in (1, 3, 50):
        model.zero_grad()
        terms = gradients(model, batch, criterion, seed=3, chunks=chunks)
        found.append((float(terms.total), grads(model)))
    for loss, gradient in found[1:]:
        assert loss == pytest.approx(found[0][0], abs=1e-9)
        assert gradient.keys() == found[0][1].keys()
        for name, value in found[0][1].items():
            torch.testing.assert_close(gradient[name], value, rtol=0, atol=1e-6, msg=name)


@pytest.mark.parametrize("preset", ["region_bigru", "region_bert"])
@pytest.mark.parametrize("length", [4, 8])  # 8: so much of the width that one pass is as good
def test_short_texts_encoded_by_themselves_have_the_gradients_of_the_whole_batch(preset, length):
    model = model_without_norms(preset, dropout=0.0)
    batch, count = batch_for(model), 9
    ids, mask = (torch.nn.functional.pad(tensor, (0, max(9 - tensor.shape[1], 0))) for tensor in batch.inputs["text"])
    mask[:count, length:] = False
    batch = replace(batch, inputs={**batch.inputs, "text": Inputs(ids, mask)})
    criterion = Criterion(maxmatch, PAIR, EVERY_TERM)
    widths, found = [], []
    model.tower("text").encoder.register_forward_pre_hook(lambda encoder, inputs: widths.append(inputs[0].shape))
    for short in ({}, {"text": (count, length)}):
        model.zero_grad()
        terms = gradients(model, replace(batch, short=short), criterion, seed=3)
        found.append((terms.total, grads(model)))
    width = ids.shape[1]
    parts = [(count, length), (len(ids) - count, width)] if 4 * length <= 3 * width else [(len(ids), width)]
    assert widths == [(len(ids), width), *parts]
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=1e-9)


def test_caption_matching_gives_slots_and_captions_to_each_other_and_is_the_same_in_chunks():
    model = model_without_norms("region_bigru", dropout=0.0)
    batch = batch_for(model)
    criterion = Criterion(maxmatch, PAIR, {**EVERY_TERM, "caption_matching_weight": 0.6, "temperature": 0.2})
    found = []
    for chunks in (1, 3):
        model.zero_grad()
        terms = gradients(model, batch, criterion, seed=3, chunks=chunks)
        found.append((float(terms.caption_matching), float(terms.total), grads(model)))
    with torch.no_grad():
        image, text = (model(name, *batch.inputs[name]).vectors for name in ("image", "text"))
    cosines = image @ nn.functional.normalize(text.mean(1), dim=-1).T
    positive = batch.groups["image"][:, None] == batch.groups["text"]
    partners = torch.full(cosines.shape[:2], -1)
    for place, own in enumerate(positive):
        slots, columns = linear_sum_assignment(cosines[place][:, own].numpy(), maximize=True)
        partners[place, slots] = own.nonzero()[columns, 0]
    expected = caption_matching(cosines, positive, partners, 0.2)
    assert found[0][0] == pytest.approx(expected.item(), rel=1e-9)
    assert found[1][:2] == pytest.approx(found[0][:2], abs=1e-9)
    for name, value in found[0][2].items():
        torch.testing.assert_close(found[1][2][name], value, rtol=0, atol=1e-6, msg=name)
    plain = Criterion(maxmatch, PAIR, {**EVERY_TERM, "temperature": 0.2})
    model.zero_grad()
    assert gradients(model, batch, plain, seed=3).caption_matching is None
    assert any(not torch.equal(found[0][2][name], value) for name, value in grads(model).items())


def test_the_gradient_is_that_of_the_loss_written_out():
    model = model_without_norms("region_bigru", dropout=0.0)
    batch = batch_for(model)
    terms = gradients(model, batch, Criterion(maxmatch, PAIR, EVERY_TERM), seed=0, chunks=3)
    found = grads(model)
    model.zero_grad()
    image, text = (model(name, *batch.inputs[name]) for name in ("image", "text"))
    positive = batch.groups["image"][:, None] == batch.groups["text"]
    loss = objective(maxmatch(image.vectors, text.vectors), positive, image, text, **EVERY_TERM)
    loss.total.backward()
    assert float(terms.total) == pytest.approx(loss.total.item())
    assert not terms.total.requires_grad  # who keeps the losses of many steps does not keep their graphs
    for name, value in grads(model).items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=1e-9)


def test_dropout_is_the_same_in_both_passes_over_a_chunk():
    """Then each chunk's gradient is that at the very point where the loss was taken."""
    model = model_without_norms("region_bigru", dropout=0.5)
    batch = batch_for(model)
    seen = {"image": [], "text": []}
    for name, sides in seen.items():
        model.tower(name).register_forward_hook(lambda *call, sides=sides: sides.append(call[2].vectors.detach()))
    gradients(model, batch, Criterion(maxmatch, PAIR, EVERY_TERM), seed=5, chunks=3)
    for sides in seen.values():
        assert len(sides) == 6
        for first, second in zip(sides[:3], sides[3:], strict=True):
            assert torch.equal(first, second)
    assert not torch.equal(seen["image"][0][:1], seen["image"][1][:1])
    first = grads(model)
    model.zero_grad()
    gradients(model, batch, Criterion(maxmatch, PAIR, EVERY_TERM), seed=5, chunks=3)
    again = grads(model)
    model.zero_grad()
    gradients(model, batch, Criterion(maxmatch, PAIR, EVERY_TERM), seed=6, chunks=3)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert any(not torch.equal(first[name], value) for name, value in grads(model).items())


def test_the_statistics_of_batchnorm_change_once_for_each_chunk():
    model, reference = (tiny_model("resnet152_bigru", seed=1).train() for _ in range(2))
    batch = batch_for(model)
    gradients(model, batch, Criterion(maxmatch, PAIR, EVERY_TERM), seed=2, chunks=3)
    for place, part in enumerate(split(batch, 3)):
        torch.manual_seed(2 + place)
        for name in ("image", "text"):
            reference(name, *part.inputs[name])
    buffers = dict(reference.named_buffers())
    assert any(name.endswith("running_var") for name in buffers)
    for name, value in model.named_buffers():
        assert torch.equal(value, buffers[name]), name
    assert all(int(value) == 3 for name, value in buffers.items() if name.endswith("num_batches_tracked"))


def test_a_chunk_has_whole_groups_and_every_item_is_in_one():
    model = tiny_model("region_bigru")
    batch = batch_for(model)
    parts = split(batch, 3)
    assert [len(part.groups["image"]) for part in parts] == [3, 2, 2]
    for name in ("image", "text"):
        assert sorted(torch.cat([part.groups[name] for part in parts]).tolist()) == sorted(batch.groups[name].tolist())
    for part in parts:
        assert set(part.groups["image"].tolist()) == set(part.groups["text"].tolist())
        for name, inputs in part.inputs.items():
            assert len(inputs.values) == len(inputs.mask) == len(part.groups[name])
    assert len(split(batch, 100)) == 7


@torch.no_grad()
def test_with_several_pairs_of_modalities_the_losses_are_added():
    config = with_audio(tiny_model("region_bigru").config)
    torch.manual_seed(0)
    model = build_model(config, {"text": tiny_model("region_bigru").tower("text").reader.tokenizer}, seed=0).eval()
    two = batch_for(model)
    audio = model.tower("audio").reader
    heard = audio.collate([audio.read(torch.randn(n, 5).numpy()) for n in (3, 4, 1, 2)])
    batch = Batch({**two.inputs, "audio": heard}, {**two.groups, "audio": two.groups["image"][:4]})
    pairs = [("image", "text"), ("audio", "text")]
    few = {"mmd_weight": 0.0, "div_weight": 0.0}
    sets = {name: model(name, *inputs) for name, inputs in batch.inputs.items()}
    whole = Criterion(maxmatch, pairs, few)(sets, batch.groups)
    parts = [Criterion(maxmatch, [pair], few)(sets, batch.groups) for pair in pairs]
    for term in ("total", "triplet", "global_discriminative", "intra_set_divergence"):
        assert float(getattr(whole, term)) == pytest.approx(sum(float(getattr(part, term)) for part in parts))
    assert whole.mmd is whole.contrastive is None


def test_half_precision_is_close_and_the_loss_is_float32():
    model = tiny_model("region_bigru", seed=1).train()
    batch = batch_for(model)
    criterion = Criterion(SIMILARITIES["smooth_chamfer"], PAIR, EVERY_TERM)
    exact = gradients(model, batch, criterion, seed=0)
    for chunks in (1, 2):
        model.zero_grad()
        mixed = gradients(model, batch, criterion, seed=0, precision=torch.float16, chunks=chunks)
        assert mixed.total.dtype == torch.float32
        assert float(mixed.total) == pytest.approx(float(exact.total), rel=0.1)
        assert all(p.grad is None or (p.grad.dtype == p.dtype and p.grad.isfinite().all()) for p in model.parameters())


def test_the_loss_is_scaled_before_the_gradient_is_taken_and_reported_unscaled():
    model = model_without_norms("region_bigru", dropout=0.0)
    batch, criterion = batch_for(model), Criterion(maxmatch, PAIR, EVERY_TERM)
    plain = gradients(model, batch, criterion, seed=0)
    expected = grads(model)
    for chunks in (1, 2):
        model.zero_grad()
        scaled = gradients(model, batch, criterion, seed=0, chunks=chunks, scale=lambda loss: 8 * loss)
        assert float(scaled.total) == pytest.approx(float(plain.total))
        for name, value in grads(model).items():
            torch.testing.assert_close(value, 8 * expected[name], rtol=0, atol=1e-6)


def test_texts_are_padded_to_a_multiple_of_eight_and_nothing_else_is_touched():
    ids, mask = torch.arange(1, 23).view(2, 11), torch.arange(11) < torch.tensor([[11], [4]])
    pictures = Inputs(torch.randn(2, 3, 4, 4), None)
    regions = Inputs(torch.randn(2, 5, 6), torch.ones(2, 5, dtype=torch.bool))
    batch = Batch({"text": Inputs(ids, mask), "image": pictures, "region": regions}, {"text": torch.arange(2)})
    found = padded(batch)
    for before, after in zip((ids, mask), found.inputs["text"], strict=True):
        assert after.shape == (2, 16)
        assert torch.equal(after[:, :11], before)
        assert not after[:, 11:].any()
    assert found.inputs["image"] is pictures
    assert found.inputs["region"] is regions
    assert found.groups is batch.groups


@pytest.mark.parametrize(
    ("options", "negatives", "device", "can"),
    [
        ({}, "hardest", "cuda", True),
        ({"precision": "bf16"}, "hardest", "cuda", True),
        ({}, "hardest", "cpu", False),
        ({}, "mean", "cuda", True),
        ({}, "semi_hard", "cuda", False),
        ({"precision": "fp16"}, "hardest", "cuda", False),
        ({"accumulate": 2}, "hardest", "cuda", False),
    ],
)
def test_steps_are_recorded_on_a_gpu_if_the_host_reads_no_values(options, negatives, device, can):
    assert can_record(recipe_for("nowhere", **options).train, negatives, torch.device(device)) is can


class Operations(TorchDispatchMode):
    """Notes the names of what torch carries out."""

    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.add(func._schema.name)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("objective", "reads"),
    [
        ({}, False),
        ({"gd_isd_centred": True}, False),
        ({"caption_matching_weight": 0.3}, False),
        ({"negatives": "mean"}, False),
        ({"negatives": "semi_hard"}, True),
    ],
    ids=str,
)
def test_the_loss_of_a_recorded_step_needs_no_value_on_the_host(objective, reads, monkeypatch):
    """By tensors without values, as a GPU's would be while a step is recorded; its kernels stand aside."""

    class Kernels:
        MAX_PLANES = 8

        @staticmethod
        def plane_assignment(cosines):
            return torch.empty(len(cosines), *cosines.shape[2:], dtype=torch.long)

    monkeypatch.setattr("maxmatch.matching.similarity.kernels_for", lambda cosines: Kernels)
    monkeypatch.setattr("maxmatch.matching.similarity._check_values", lambda *given, **options: None)
    criterion = criterion_for(recipe_for("nowhere", objective=objective), 0)
    assert can_record(recipe_for("nowhere").train, criterion.options["negatives"], torch.device("cuda")) is not reads
    with FakeTensorMode(), Operations() as done, pytest.raises(RuntimeError) if reads else nullcontext():
        shapes = {"image": 6, "text": 13}
        sets = {
            name: Sets(*(torch.empty(*shape, requires_grad=True) for shape in ((n, 4, 8), (n, 4, 8), (n, 8))))
            for name, n in shapes.items()
        }
        criterion(sets, {name: torch.empty(n, dtype=torch.long) for name, n in shapes.items()}).total.backward()
    assert "aten::lift_fresh" not in done.names  # a constant that the host would have to send


class Graph:
    """A recording in the sense of CUDA: what ran is run again, on the tensors it was given then."""

    now = None

    def __init__(self):
        self.replay = None

    def pool(self):
        return "pool"


class Stream:
    def wait_stream(self, other):
        pass


@contextmanager
def recording(graph, pool, stream, capture_error_mode="global"):
    assert capture_error_mode == "thread_local"  # by default a recording ends where another thread pins memory
    Graph.now = graph
    yield
    Graph.now = None


def test_a_recorded_step_reads_each_new_batch_and_seed(monkeypatch):
    for name, value in {"CUDAGraph": Graph, "Stream": Stream, "graph": recording, "current_stream": Stream}.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    taken = []

    def step(batch, seed):
        """Its loss depends on every tensor of the batch, and on the seed."""
        total, record = torch.zeros(()), Graph.now
        taken.append("run" if record is None else "recorded")

        def run():
            total.copy_(sum(place * one.sum() for place, one in enumerate(batch.tensors(), 1)) + torch.rand(()))

        if record is None:
            torch.manual_seed(seed)
            run()
        else:
            record.replay = run
        return LossTerms(total=total, triplet=total)

    recorded, generator = RecordedSteps(step), torch.Generator().manual_seed(0)
    for seed in range(60):
        count, length = (2, 5) if seed < 6 else (3 + seed % 11, 5 + seed % 3)  # many shapes after the first
        ids = torch.randint(1, 50, (count, length), generator=generator)
        texts, pictures = Inputs(ids, ids > 9), Inputs(torch.rand(count, 4, 3, generator=generator), None)
        batch = Batch({"image": pictures, "text": texts}, {"image": torch.arange(count), "text": ids[:, 0]})
        found = recorded(batch, seed).total.clone()
        torch.testing.assert_close(found, step(padded(batch), seed).total)
        del taken[-1]
        if seed == 5:  # three runs, one recording, and it is replayed from there on
            assert taken == ["run"] * 3 + ["recorded"]
    assert taken.count("recorded") == 8  # each takes memory
