import warnings

import numpy as np
import pytest
import torch
from PIL import Image
from test_images import encoded, noise, png_header
from tiny_models import FEATURES, SIZES, D, images_for, texts, tiny_config, tiny_model, tokenizer_for, with_audio
from tiny_models import with_statistics as trained
from torch.nn.parallel import scatter_gather

from maxmatch.core.types import Sets
from maxmatch.matching import SIMILARITIES
from maxmatch.model.build import build_model
from maxmatch.model.encoder import SetEncoder
from maxmatch.model.images import ImageError
from maxmatch.model.presets import PRESETS
from maxmatch.model.text import TextTruncated


@pytest.fixture(scope="module")
def regions():
    return trained(tiny_model("region_bigru"))


@pytest.fixture(scope="module")
def pictures():
    return trained(tiny_model("resnet152_bigru"))


@pytest.mark.parametrize("name", SIZES)
def test_an_item_does_not_depend_on_its_batch(name):
    model = trained(tiny_model(name))
    order = np.random.default_rng(1).permutation(16).tolist()
    for modality, items in (("image", images_for(model, 16)), ("text", texts(16))):
        alone = model.encode(modality, items, batch_size=1)
        for size in (5, 16):
            together = model.encode(modality, [items[i] for i in order], batch_size=size)
            assert float((together - alone[order]).abs().max()) <= 1e-5


@pytest.mark.parametrize("count", [1, 2, 3, 7, 41])
def test_sets_do_not_depend_on_how_many_threads_encode_pictures(count):
    model = trained(tiny_model("efficientnet_lite0_bigru")).train()
    items = images_for(model, count)
    before = torch.get_num_threads()
    try:
        found = []
        for threads in (1, 3):
            torch.set_num_threads(threads)
            found.append(model.encode_images([b"no picture", *items], errors="skip"))
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    one, several = found
    assert several.kept == one.kept == list(range(1, count + 1))
    assert float((several.sets - one.sets).abs().max()) <= 1e-5
    assert model.training
    several.sets.requires_grad_().sum().backward()  # no inference tensor


def test_sets_are_unit_vectors_in_float32_on_the_cpu(regions):
    sets = regions.encode_texts(texts(5))
    assert (sets.shape, sets.dtype, sets.device.type, sets.requires_grad) == ((5, 4, D), torch.float32, "cpu", False)
    torch.testing.assert_close(sets.norm(dim=-1), torch.ones(5, 4))
    assert torch.equal(sets, regions.encode_texts(texts(5)))
    sets.requires_grad_().sum().backward()  # not an inference tensor: a user may go on with it


def test_every_module_is_afterwards_in_the_mode_it_was_in():
    model = trained(tiny_model("resnet152_bigru"))
    model.train()
    model.tower("image").encoder.freeze()
    before = {name: module.training for name, module in model.named_modules()}
    statistics = {name: value.clone() for name, value in model.state_dict().items()}
    sets = model.encode_images(images_for(model, 3))
    assert {name: module.training for name, module in model.named_modules()} == before
    assert all(torch.equal(value, statistics[name]) for name, value in model.state_dict().items())
    with pytest.raises(ValueError, match="item 0"):
        model.encode_images([b"nothing"])
    assert {name: module.training for name, module in model.named_modules()} == before
    assert torch.equal(sets, model.eval().encode_images(images_for(model, 3)))


def test_encode_is_what_forward_gives(regions):
    items = images_for(regions, 5)
    inputs = torch.nn.utils.rnn.pad_sequence([torch.from_numpy(item) for item in items], batch_first=True)
    mask = torch.arange(inputs.shape[1]) < torch.tensor([len(item) for item in items])[:, None]
    regions.eval()
    with torch.no_grad():
        sets = regions("image", inputs, mask)
    torch.testing.assert_close(regions.encode_images(items), sets.vectors, rtol=0, atol=1e-6)
    assert sets.residual.shape == (5, 4, D)


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")  # torch's own
@pytest.mark.parametrize("name", [pytest.param("efficientnet_lite0_bigru", marks=pytest.mark.slow), "region_bert"])
def test_an_exported_tower_takes_any_number_of_items_and_gives_its_sets(name, tmp_path):
    model = trained(tiny_model(name)).eval()
    for modality, items in (("image", images_for(model, 5)), ("text", texts(5))):
        tower = model.tower(modality)
        values, mask = tower.reader.collate([tower.reader.read(item) for item in items])
        inputs = (values,) if mask is None else (values, mask)
        any_number = tuple({0: torch.export.Dim.DYNAMIC} for _ in inputs)
        exported = torch.export.export(tower, tuple(one[:3] for one in inputs), dynamic_shapes=any_number)
        torch.export.save(exported, tmp_path / "tower.pt2")
        found, expected = torch.export.load(tmp_path / "tower.pt2").module()(*inputs), tower(*inputs)
        assert isinstance(found, Sets)
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


def test_data_parallel_puts_the_sets_of_several_devices_together(monkeypatch):
    def joined(device, dim, *parts):
        return torch.cat(parts, dim)

    monkeypatch.setattr(scatter_gather.Gather, "apply", joined)  # torch's own takes tensors on GPUs alone
    model = tiny_model("region_bigru").eval()
    values, mask = model.tower("text").reader.collate(texts(4))
    parts = [model("text", values[part], mask[part]) for part in (slice(0, 2), slice(2, 4))]
    together = scatter_gather.gather(parts, "cpu")
    assert isinstance(together, Sets)
    torch.testing.assert_close(together.vectors, model("text", values, mask).vectors)


def test_a_third_modality_needs_no_other_code(tmp_path):
    base = tiny_config("region_bigru")
    model = trained(build_model(with_audio(base), {"text": tokenizer_for(base)}, seed=0))
    generator = np.random.default_rng(0)
    clips = [generator.normal(size=(n, 5)).astype("float32") for n in (3, 40, 1, 17)]
    sets = model.encode("audio", clips, batch_size=2)
    assert sets.shape == (4, 3, D)
    backwards = [np.ascontiguousarray(clip[::-1]) for clip in clips]
    assert float((model.encode("audio", backwards) - sets).abs().amax((1, 2))[1]) > 1e-4  # a sequence has an order
    assert model.similarity(sets, model.encode_texts(texts(6))).shape == (4, 6)
    model.save_pretrained(tmp_path / "model")
    assert torch.equal(SetEncoder.from_pretrained(tmp_path / "model").encode("audio", clips, batch_size=2), sets)


def test_paths_bytes_images_arrays_and_tensors_mix(pictures, tmp_path):
    pixels = noise(70, 50)
    image, tensor = Image.fromarray(pixels), torch.from_numpy(pixels)
    image.save(tmp_path / "a.png")
    files = [tmp_path / "a.png", str(tmp_path / "a.png"), encoded(image, "PNG"), image, pixels]
    sets = pictures.encode_images([*files, tensor, tensor.movedim(2, 0), tensor.movedim(2, 0) / 255])
    torch.testing.assert_close(sets, sets[:1].expand_as(sets), rtol=0, atol=1e-6)


def test_region_features_come_as_one_array_a_list_or_tensors(regions):
    block = np.random.default_rng(0).normal(size=(5, 6, FEATURES)).astype("float32")
    sets = regions.encode_images(block)
    assert torch.equal(regions.encode_images(list(block)), sets)
    assert torch.equal(regions.encode_images(torch.from_numpy(block)), sets)
    half = regions.encode_images(block.astype("float16"))
    assert float((half - sets).abs().max()) < 0.02


def test_similarity_is_the_configs():
    for name in ("maxmatch", "smooth_chamfer", "mil", "paired", "sinkhorn"):
        config = tiny_config("region_bigru").model_copy(update={"similarity": name})
        model = build_model(config, {"text": tokenizer_for(config)})
        a, b = model.encode_images(images_for(model, 3)), model.encode_texts(texts(4))
        assert torch.equal(model.similarity(a, b), SIMILARITIES[name](a, b))
        assert torch.equal(model.similarity(a.numpy(), b.numpy()), SIMILARITIES[name](a, b))


def test_an_explanation_of_paired_slots_shows_slot_i_with_slot_i():
    config = tiny_config("region_bigru").model_copy(update={"similarity": "paired"})
    model = build_model(config, {"text": tokenizer_for(config)})
    why = model.explain(images_for(model, 1)[0], "a dog runs")
    assert [(pair.image_slot, pair.text_slot) for pair in why.pairs] == [(slot, slot) for slot in range(4)]
    assert np.mean([np.expm1(pair.cosine) for pair in why.pairs]) == pytest.approx(why.score, abs=1e-5)


@pytest.mark.parametrize("name", ["region_bigru", "resnext101_bert"])
def test_an_explanation_agrees_with_the_score(name):
    model = trained(tiny_model(name))
    image, text = images_for(model, 1)[0], "a dog runs"
    why = model.explain(image, text)
    a, b = model.encode_images([image]), model.encode_texts([text])
    assert why.score == pytest.approx(float(model.similarity(a, b)), abs=1e-6)
    torch.testing.assert_close(why.cosines, a[0] @ b[0].T, rtol=0, atol=1e-5)
    assert np.mean([np.expm1(pair.cosine) for pair in why.pairs]) == pytest.approx(why.score, abs=1e-5)
    for pair in why.pairs:
        assert pair.cosine == float(why.cosines[pair.image_slot, pair.text_slot])
    assert sorted(pair.text_slot for pair in why.pairs) == [0, 1, 2, 3]
    assert [word for word in why.words if word[0] not in "<["] == ["a", "dog", "runs"]
    assert why.text_attention.shape == (4, len(why.words))
    assert why.image_attention.shape == ((4, len(image)) if name == "region_bigru" else (4, 8, 8))
    for attention in (why.image_attention, why.text_attention):
        torch.testing.assert_close(attention.flatten(1).sum(1), torch.ones(4), rtol=0, atol=1e-4)


@pytest.mark.parametrize("head", ["gpo", "global"])
def test_a_head_without_attention_encodes_and_scores(head):
    config = PRESETS["resnet152_bigru"](width=D, head=head, set_size=1, **SIZES["resnet152_bigru"])
    model = trained(build_model(config, {"text": tokenizer_for(config)}, seed=0))
    image = images_for(model, 1)[0]
    a, b = model.encode_images([image]), model.encode_texts(["a dog runs", "two people"])
    assert (a.shape, b.shape) == ((1, 1, D), (2, 1, D))
    assert torch.isfinite(model.similarity(a, b)).all()


def test_no_items_give_no_sets(regions, pictures):
    assert regions.encode_images([]).shape == regions.encode_texts([]).shape == (0, 4, D)
    nothing = pictures.encode_images([], errors="skip")
    assert (nothing.sets.shape, nothing.kept, nothing.skipped) == ((0, 4, D), [], [])
    assert regions.similarity(regions.encode_images([]), regions.encode_texts(["a"])).shape == (0, 1)


@pytest.mark.parametrize("name", ["region_bigru", "region_bert"])
def test_any_text_has_a_set_and_one_warning_tells_of_texts_cut_short(name):
    strange = ["", " ", "\U0001f436\u200d\U0001f9ba", "犬が走る", "مرحبا", "\ud83d", "\x00", "a\n\tdog"]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        sets = tiny_model(name).encode_texts([*strange, "dog " * 10_000, "cat " * 9_000], batch_size=1)
    assert [warning.category for warning in caught] == [TextTruncated]
    assert sets.isfinite().all()
    torch.testing.assert_close(sets.norm(dim=-1), torch.ones(len(strange) + 2, 4))


def test_what_cannot_be_read_is_named(pictures, tmp_path):
    good = noise(40, 40)
    (tmp_path / "empty.jpg").touch()
    (tmp_path / "cut.jpg").write_bytes(encoded(Image.fromarray(good), "JPEG")[:300])
    (tmp_path / "giant.png").write_bytes(png_header(30_000, 30_000))
    for name, message in (("empty", "empty"), ("cut", "not a readable picture"), ("giant", "decompression bomb")):
        path = next(tmp_path.glob(f"{name}.*"))
        with pytest.raises(ImageError, match=rf"item 2: .*{path.name}.*{message}"):
            pictures.encode_images([good, good, path, good])
    with pytest.raises(FileNotFoundError, match=r"item 0: .*gone\.jpg: no such file"):
        pictures.encode_images([tmp_path / "gone.jpg"])


def test_what_cannot_be_read_is_skipped_and_reported(pictures, regions, tmp_path):
    items = [noise(40, 40, seed) for seed in range(5)]
    (tmp_path / "empty.jpg").touch()
    mixed = [items[0], tmp_path / "empty.jpg", *items[1:4], b"no picture", "gone.jpg", items[4]]
    for size in (1, 3, 64):
        got = pictures.encode_images(mixed, batch_size=size, errors="skip")
        assert got.kept == [0, 2, 3, 4, 7]
        assert [skipped.index for skipped in got.skipped] == [1, 5, 6]
        assert "empty.jpg" in got.skipped[0].reason
        torch.testing.assert_close(got.sets, pictures.encode_images(items), rtol=0, atol=1e-5)
    nothing = pictures.encode_images([b""], errors="skip")
    assert (nothing.sets.shape, nothing.kept) == ((0, 4, D), [])
    unequal = [np.full((count, FEATURES), value, "float32") for count, value in ((3, 1), (2, np.nan), (5, np.inf))]
    assert [skipped.index for skipped in regions.encode_images(unequal, errors="skip").skipped] == [1, 2]


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (
            np.zeros((4, FEATURES + 1), "float32"),
            rf"item 0: .*expected \(count, {FEATURES}\).*got \(4, {FEATURES + 1}\)",
        ),
        (np.zeros((0, FEATURES), "float32"), "at least one"),
        (np.zeros(FEATURES, "float32"), "expected .count"),
        (np.full((4, FEATURES), np.nan, "float32"), "NaN or infinite"),
        ("a.jpg", r"a\.jpg: this model reads features extracted beforehand"),
    ],
)
def test_features_that_do_not_fit_are_refused(regions, item, message):
    with pytest.raises(ValueError, match=message):
        regions.encode_images([item])


@pytest.mark.usefixtures("without_shape_checks")
def test_one_item_in_place_of_a_list_is_refused_and_not_taken_apart(regions, pictures):
    picture = np.zeros((20, 30, 3), np.uint8)
    for encode, item in [(regions.encode_texts, "a dog")] + [
        (pictures.encode_images, one) for one in (Image.fromarray(picture), torch.from_numpy(picture), picture)
    ]:
        with pytest.raises(ValueError, match=r"expected a list, got one \w+\. For one item use \[item\]"):
            encode(item)


@pytest.mark.usefixtures("without_shape_checks")
def test_wrong_arguments_are_refused_with_the_choices(regions):
    wider = tiny_model("region_bigru", width=24)
    for wrong, message in (
        (lambda: regions.encode("audio", []), "this model has image, text, got 'audio'"),
        (lambda: regions.encode_texts(["a dog", 7]), "item 1: expected a text, got int"),
        (lambda: regions.encode_texts(["a"], batch_size=0), "batch_size"),
        (lambda: regions.encode_images([], errors="ignore"), "'raise' or 'skip'"),
        (lambda: SetEncoder(dict(regions.towers), similarity="cosine"), "expected one of maxmatch"),
        (lambda: SetEncoder({}), "one width for all"),
        (lambda: regions.similarity(regions.encode_texts(["a"]), wider.encode_texts(["a"])), "different spaces"),
    ):
        with pytest.raises(ValueError, match=message):
            wrong()


def test_progress_is_shown_when_asked_for(regions, capsys):
    regions.encode_texts(texts(3), show_progress=True)
    assert "3/3" in capsys.readouterr().err
    regions.encode_texts(texts(3))
    assert capsys.readouterr().err == ""


def test_a_pairing_is_noted_and_checked():
    model = tiny_model("region_bigru")
    model.record_pairing([2, 0, 1, 3], 0.97)
    assert (model.config.pairing, model.config.pairing_stability) == ([2, 0, 1, 3], 0.97)
    with pytest.raises(ValueError, match="distinct"):
        model.record_pairing([0, 0, 1, 2], 0.9)


def test_a_model_in_half_precision_still_gives_float32():
    model = tiny_model("region_bigru").half()
    sets = model.encode_images(images_for(model, 2))
    assert sets.dtype == torch.float32
    torch.testing.assert_close(sets.norm(dim=-1), torch.ones(2, 4))
