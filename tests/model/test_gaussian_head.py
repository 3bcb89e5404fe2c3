"""The head of PCME++: a mean of unit length and independent variances, as a set of two unit vectors."""

import json
import math

import numpy as np
import onnxruntime
import pytest
import reference_layers as reference
import torch
from jaxtyping import config as jaxtyping_config
from pydantic import ValidationError
from tiny_models import D, images_for, texts, tiny_config, tiny_model, tokenizer_for

from maxmatch import SetEncoder, SetIndex, similarity
from maxmatch.core.types import Features
from maxmatch.model.build import build_model
from maxmatch.model.config import ModelConfig
from maxmatch.model.layers import GaussianHead
from maxmatch.model.numpy_text import numpy_text_encoder
from maxmatch.model.onnx_export import export_tower
from maxmatch.model.presets import PRESETS

HEAD = {"head": "gaussian", "set_size": 2, "width": D, "word_width": 10, "feature_width": 12}


def gaussian_model(seed=0, **more):
    config = PRESETS["region_bigru"](**HEAD, **more)
    return build_model(config, {"text": tokenizer_for(config)}, seed=seed)


def some_features(seed, counts=(3, 1, 5), width=7, dim=D):
    generator = torch.Generator().manual_seed(seed)
    mask = torch.arange(max(counts)) < torch.tensor(counts)[:, None]
    local = torch.randn(len(counts), max(counts), width, generator=generator).double()
    return Features(local, mask, torch.randn(len(counts), dim, generator=generator).double())


def affine(layer, vector):
    """The layer by loops over Python floats."""
    bias = [0.0] * layer.out_features if layer.bias is None else layer.bias.tolist()
    return [
        sum(w * x for w, x in zip(row, vector, strict=True)) + b
        for row, b in zip(layer.weight.tolist(), bias, strict=True)
    ]


def gaussian_head(seed=0, **options):
    """With a GPO whose weights are as far apart as after some training, and not the same for mean and variance."""
    torch.manual_seed(seed)
    head = GaussianHead(7, D, **options).double()
    for gpo, factor in ((head.mean_gpo, 4), (head.variance_gpo, -3)):
        if gpo is not None:
            gpo.score.weight.data.mul_(factor)
    return head


def pooled_by_loops(pooling, rows, gpo):
    if pooling == "gpo":
        numbers = {name: value.tolist() for name, value in gpo.state_dict().items()}
        return reference.gpo_pool(rows, reference.gpo_weights(len(rows), numbers))
    columns = zip(*rows, strict=True)
    return [max(column) if pooling == "max" else sum(column) / len(column) for column in columns]


@pytest.mark.parametrize("pooling", ["gpo", "mean", "max"])
def test_the_head_agrees_with_loops_over_all_numbers(pooling):
    head, features = gaussian_head(pooling=pooling), some_features(0)
    made = head(features)
    assert made.attention is None
    for item, (local, mask) in enumerate(zip(features.local, features.mask, strict=True)):
        real, pooled = local[mask].tolist(), features.pooled[item].tolist()

        def both(of_local, of_pooled, gpo, real=real, pooled=pooled):
            taken = pooled_by_loops(pooling, [affine(of_local, one) for one in real], gpo)
            return [x + y for x, y in zip(taken, affine(of_pooled, pooled), strict=True)]

        raw = both(head.mean_of_local, head.mean_of_pooled, head.mean_gpo)
        length = math.sqrt(sum(x * x for x in raw))
        log_variance = both(head.variance_of_local, head.variance_of_pooled, head.variance_gpo)
        mean = [x / length for x in raw]
        certainty = 1 / (1 + sum(math.exp(s) for s in log_variance))
        half = math.sqrt(0.5)
        expected = [
            [half * x for x in mean] + [half, 0.0],
            [0.0] * (D - 2) + [certainty, math.sqrt(1 - certainty**2)],
        ]
        np.testing.assert_allclose(made.vectors[item].detach(), expected, atol=1e-12)
        np.testing.assert_allclose(made.residual[item].detach(), [mean, log_variance], atol=1e-12)


def test_a_head_that_reads_local_features_alone_agrees_with_loops_and_ignores_the_global_one():
    head, features = gaussian_head(reads="local", log_variance=-3.0), some_features(4)
    torch.nn.init.normal_(head.mean_of_pooled.bias)
    layers = (head.mean_of_local, head.variance_of_local)
    made = head(features).residual.detach()
    for item, (local, mask) in enumerate(zip(features.local, features.mask, strict=True)):
        means, spreads = ([affine(layer, one) for one in local[mask].tolist()] for layer in layers)
        raw = np.add(pooled_by_loops("gpo", means, head.mean_gpo), head.mean_of_pooled.bias.tolist())
        log_variance = np.add(pooled_by_loops("gpo", spreads, head.variance_gpo), -3)
        np.testing.assert_allclose(made[item], [raw / np.linalg.norm(raw), log_variance], atol=1e-12)
    other = Features(features.local, features.mask, features.pooled[:, :2])
    torch.testing.assert_close(head(other).residual.detach(), made)
    bound = math.sqrt(6 / (7 + D - 2))
    assert all(0.8 * bound < layer.weight.abs().max() <= bound for layer in layers)


def test_the_start_of_the_variances_is_not_rounded_in_mixed_precision():
    """bfloat16 knows no number between −8 and −8.0625."""
    head = GaussianHead(7, D, log_variance=-8.03, reads="local")
    torch.nn.init.zeros_(head.variance_of_local.weight)
    features = some_features(5)
    with torch.autocast("cpu", torch.bfloat16):
        made = head(Features(features.local.float(), features.mask, features.pooled.float()))
    torch.testing.assert_close(made.residual[:, 1], torch.full((3, D - 2), -8.03))


def with_scores(gpo, scores):
    """The GPO with given scores of ranks in place of its GRU's."""
    given = torch.tensor(scores, dtype=torch.float64)
    gpo.states = lambda codes, ranked: given[: codes.shape[1], None, None].expand(len(codes), -1, 2, 32)
    torch.nn.init.constant_(gpo.score.weight, 1 / 32)


def test_the_numbers_that_were_computed_by_hand_of_the_definition():
    """Features 3, 1, 2 become (3, −3), (1, −1), (2, −2) for the mean and (3, 0), (1, 0), (2, 0) for the variance. Ranks
    weigh 0.5761, 0.2119, 0.2119 for the mean (of two 0.7311, 0.2689), and the reverse for the variance (0.5, 0.5).
    """
    head = GaussianHead(1, 4, log_variance=-4.0).double()
    with_scores(head.mean_gpo, [0.1, 0.0, 0.0])
    with_scores(head.variance_gpo, [0.0, 0.0, 0.1])
    with torch.no_grad():
        head.mean_of_local.weight.copy_(torch.tensor([[1.0], [-1.0]]))
        head.variance_of_local.weight.copy_(torch.tensor([[1.0], [0.0]]))
        for layer in (head.mean_of_pooled, head.variance_of_pooled):
            layer.weight.zero_()
        head.mean_of_pooled.bias.zero_()
    column = torch.tensor([3.0, 1.0, 2.0], dtype=torch.float64)[None, :, None].expand(2, -1, -1)
    mask = torch.tensor([[True, True, True], [True, True, False]])
    made = head(Features(column, mask, torch.zeros(2, 4, dtype=torch.float64))).residual.detach()
    whole, short = [2.3642, -1.6358], [2.4621, -1.5379]
    for item, (raw, log_variance) in enumerate([(whole, [1.6358 - 4, -4]), (short, [2.0 - 4, -4])]):
        np.testing.assert_allclose(made[item, 0], np.array(raw) / math.hypot(*raw), atol=5e-5)
        np.testing.assert_allclose(made[item, 1], log_variance, atol=5e-5)


@pytest.mark.parametrize("pooling", ["gpo", "mean", "max"])
def test_padding_may_be_anywhere_and_hold_anything(pooling):
    head, features = gaussian_head(pooling=pooling), some_features(2)
    expected = head(features)
    order = torch.tensor([3, 0, 4, 2, 1])
    mask = features.mask[:, order]
    for filling in (0.0, 1e30, -1e30):
        local = features.local[:, order].masked_fill(~mask[..., None], filling).requires_grad_()
        made = head(Features(local, mask, features.pooled))
        torch.testing.assert_close(made.residual, expected.residual, rtol=1e-10, atol=1e-12)
        (gradient,) = torch.autograd.grad(made.residual[..., 0].sum(), local)
        assert gradient[mask].any()
        assert not gradient[~mask].any()


@pytest.mark.parametrize("reads", ["both", "local"])
def test_every_parameter_has_a_gradient(reads):
    head = gaussian_head(reads=reads)
    made = head(some_features(3)).residual
    (made * torch.randn(made.shape, dtype=torch.float64)).sum().backward()
    assert [name for name, p in head.named_parameters() if p.grad is None or not p.grad.any()] == []


@pytest.mark.parametrize("pooling", ["gpo", "mean"])
@pytest.mark.parametrize(("start", "low", "high"), [(0.0, -13_000, -10_000), (-4.0, -260, -150), (-8.0, -14, -4)])
def test_the_start_of_the_variances_decides_where_the_logits_start(start, low, high, pooling):
    """At log σ² = 0 and D = 1,024 the logits −5·CSD + 5 would start near −10,240."""
    torch.manual_seed(0)
    head = GaussianHead(7, 1024, log_variance=start, pooling=pooling).double()
    sets = head(some_features(1, counts=(4,) * 6, dim=1024)).vectors
    logits = 5 * similarity.csd(sets[:3], sets[3:]) + 5
    assert low < float(logits.detach().mean()) < high


def test_a_set_is_the_same_alone_in_a_batch_and_after_loading(tmp_path):
    model = gaussian_model().eval()
    images, captions = images_for(model, 5), texts(6)
    sets = model.encode_images(images), model.encode_texts(captions)
    torch.testing.assert_close(sets[0].norm(dim=-1), torch.ones(5, 2))
    torch.testing.assert_close(torch.cat([model.encode_texts([one]) for one in captions]), sets[1])
    torch.nn.init.constant_(model.match.scale, 7.5)
    model.save_pretrained(tmp_path / "model")
    read = SetEncoder.from_pretrained(tmp_path / "model")
    assert torch.equal(read.encode_images(images), sets[0])
    assert torch.equal(read.similarity(*sets), similarity.csd(*sets))
    assert (read.match.scale.item(), read.match.shift.item()) == (7.5, 5.0)
    assert "`csd`" in (tmp_path / "model" / "README.md").read_text()
    assert numpy_text_encoder(tmp_path / "model", lambda: read) is None  # torch then encodes the texts


@pytest.mark.parametrize("preset", ["region_bigru", "efficientnet_lite0_bigru"])
def test_a_new_model_pools_by_gpo_unless_told_otherwise(preset):
    def pooling(**options):
        towers = PRESETS[preset](head="gaussian", set_size=2, **options).towers
        return [tower.head.pooling for tower in towers.values()]

    assert pooling() == ["gpo", "gpo"]
    assert pooling(local_pooling="mean") == ["mean", "mean"]
    with pytest.raises(ValidationError, match="'gpo', 'mean' or 'max'"):
        pooling(local_pooling="median")


def test_encoders_are_those_of_vse_infinity_but_for_cells_where_local_features_alone_are_read(tmp_path):
    options = {"set_size": 2, "width": D, "word_width": 10, "pretrained": False}
    config = PRESETS["efficientnet_lite0_bigru"](head="gaussian", reads="local", **options)
    image, text = config.towers["image"].encoder, config.towers["text"].encoder
    assert (image.projection, image.pooling) == ("none", "none")
    assert text == PRESETS["efficientnet_lite0_bigru"](head="gpo", **{**options, "set_size": 1}).towers["text"].encoder
    assert (text.local, text.directions, text.word_init, text.dropout) == ("states", "mean", "uniform", 0.0)
    model = build_model(config, {"text": tokenizer_for(config)}, seed=0).eval()
    parts = {name.split(".")[3] for name, _ in model.named_parameters() if name.startswith("towers.image.encoder")}
    assert parts == {"backbone"}
    cells = torch.randn(3, 4, 1280, generator=torch.Generator().manual_seed(0))
    sets = model("image", cells)
    model.save_pretrained(tmp_path / "model")
    torch.testing.assert_close(SetEncoder.from_pretrained(tmp_path / "model")("image", cells).vectors, sets.vectors)
    both = config.model_dump()
    both["towers"]["image"]["head"]["reads"] = "both"
    with pytest.raises(ValidationError, match="needs a global feature of the model's width"):
        ModelConfig.model_validate(both)


def test_a_checkpoint_from_before_there_was_gpo_is_pooled_by_the_mean(tmp_path):
    model = gaussian_model(local_pooling="mean").eval()
    images = images_for(model, 3)
    sets = model.encode_images(images)
    model.save_pretrained(tmp_path / "model")
    file = tmp_path / "model" / "config.json"
    config = json.loads(file.read_text())
    for tower in config["towers"].values():
        assert tower["head"].pop("pooling") == "mean"
    file.write_text(json.dumps(config))
    read = SetEncoder.from_pretrained(tmp_path / "model")
    assert not [name for name in read.state_dict() if "gpo" in name]
    assert torch.equal(read.encode_images(images), sets)


def test_only_gaussians_have_a_match_probability():
    assert tiny_model("region_bigru").match is None
    assert not [name for name in tiny_model("region_bigru").state_dict() if name.startswith("match")]
    assert [name for name in gaussian_model().state_dict() if name.startswith("match")] == [
        "match.scale",
        "match.shift",
    ]


def test_an_index_scans_and_finds_what_all_scores_say(tmp_path):
    model = gaussian_model().eval()
    images, queries = model.encode_images(images_for(model, 30)), model.encode_texts(texts(4))
    expected = model.similarity(queries, images)
    with SetIndex.create(tmp_path / "index", dim=D, set_size=2, model=model) as index:
        index.add([str(place) for place in range(30)], images, model=model)
        for exact in (False, True):
            found = index.search(queries, k=5, model=model, exact=exact)
            for hits, scores in zip(found, expected, strict=True):
                assert [int(hit.id) for hit in hits] == scores.topk(5).indices.tolist()
                np.testing.assert_allclose([hit.score for hit in hits], scores.topk(5).values, atol=1e-4)
        with pytest.raises(ValueError, match="csd compares Gaussians, sets of 2 vectors, got 1 and 2"):
            index.search(queries[:, :1])
    with pytest.raises(ValueError, match="csd compares sets of 2 vectors, got 4"):
        SetIndex.create(tmp_path / "other", dim=D, set_size=4, similarity="csd")


@pytest.mark.slow  # the export of other heads is not
def test_a_tower_is_exported_to_onnx(tmp_path):
    model = gaussian_model().eval()
    jaxtyping_config.update("jaxtyping_disable", True)
    try:
        export_tower(model.tower("text"), tmp_path / "text.onnx")
    finally:
        jaxtyping_config.update("jaxtyping_disable", False)
    session = onnxruntime.InferenceSession(tmp_path / "text.onnx")
    some = texts(7)
    ids, mask = model.tower("text").reader.collate(some)
    (sets,) = session.run(["vectors"], {"ids": ids.numpy(), "mask": mask.numpy()})
    torch.testing.assert_close(torch.from_numpy(sets), model.encode_texts(some), atol=1e-4, rtol=0)


def test_what_a_gaussian_cannot_do_is_refused():
    model = gaussian_model().eval()
    with pytest.raises(ValueError, match="the head of the tower 'image' gives no attention"):
        model.explain(images_for(model, 1)[0], "a dog")
    head = model.tower("text").head
    head.reorder([0, 1])
    with pytest.raises(ValueError, match="cannot be reordered"):
        head.reorder([1, 0])
    with pytest.raises(ValueError, match="set_size: a Gaussian is a set of 2 vectors, got 4"):
        GaussianHead(7, D, 4)
    with pytest.raises(ValueError, match="width: a Gaussian takes two coordinates"):
        GaussianHead(7, 2)


def test_a_config_with_a_head_and_a_similarity_that_do_not_fit_is_refused():
    config = PRESETS["region_bigru"](**HEAD)
    assert config.similarity == "csd"
    assert ModelConfig.model_validate_json(config.model_dump_json()) == config
    with pytest.raises(ValidationError, match="a Gaussian is a set of 2 vectors, got 4"):
        PRESETS["region_bigru"](**{**HEAD, "set_size": 4})
    with pytest.raises(ValidationError, match="maxmatch does not compare what the 'gaussian' head of 'image' makes"):
        ModelConfig.model_validate({**config.model_dump(), "similarity": "maxmatch"})
    with pytest.raises(ValidationError, match="takes Gaussian heads"):
        ModelConfig.model_validate({**tiny_config("region_bigru").model_dump(), "similarity": "csd"})
