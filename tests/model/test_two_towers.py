"""A two-tower model of transformers is a SetEncoder with one vector per item, whose scores are the model's own."""

import json
import shutil
import socket
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from scipy.io import wavfile
from tiny_hub import FAMILIES, LONGEST, TEXTS, changed, hub_folder, pictures

from maxmatch import SetEncoder
from maxmatch.model.checkpoint import CheckpointError
from maxmatch.model.images import load_image
from maxmatch.model.names import model_identity
from maxmatch.model.onnx_export import export_onnx
from maxmatch.model.onnx_runtime import OnnxEncoder
from maxmatch.model.text import TextTruncated

SLOW = pytest.mark.slow  # CLIP and SigLIP are exported in tests/cli/test_clip.py


def own_logits(folder, images, texts):
    """What transformers itself gives, by its own tokenizer, processor and forward."""
    from transformers import AutoImageProcessor, AutoModel, AutoTokenizer

    model = AutoModel.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    padding = "max_length" if model.config.model_type.startswith("siglip") else True
    inputs = tokenizer(texts, padding=padding, truncation=True, max_length=LONGEST, return_tensors="pt")
    rgb = [load_image(image) for image in images]  # transparent pixels white, which transformers leaves to its caller
    inputs |= AutoImageProcessor.from_pretrained(folder, backend="pil")(rgb, return_tensors="pt")
    with torch.no_grad():
        return model(**inputs).logits_per_image


def our_logits(model, images, texts):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TextTruncated)
        return model.logits(model.encode_images(images, batch_size=3), model.encode_texts(texts, batch_size=2))


@pytest.fixture(scope="module", params=FAMILIES)
def folder(request, tmp_path_factory):
    return hub_folder(tmp_path_factory.mktemp("hub") / request.param, request.param)


def test_scores_are_those_of_transformers_before_and_after_a_save(folder, tmp_path):
    images = list(pictures().values())
    expected = own_logits(folder, images, TEXTS)
    assert min(float(expected.std(axis).min()) for axis in (0, 1)) > 1e-3  # so that equal scores mean something
    model = SetEncoder.from_pretrained(folder)
    assert model.set_sizes == {"image": 1, "text": 1}
    torch.testing.assert_close(our_logits(model, images, TEXTS), expected, rtol=1e-5, atol=1e-5)
    again = SetEncoder.from_pretrained(model.save_pretrained(tmp_path / "ours"))
    torch.testing.assert_close(our_logits(again, images, TEXTS), expected, rtol=1e-5, atol=1e-5)
    assert model_identity(again) == model_identity(model)
    assert again.config == model.config


def test_local_features_are_the_last_states_beside_the_projected_vector(folder):
    model = SetEncoder.from_pretrained(folder)
    shapes = {}
    with model.evaluating():
        for modality, items in (("image", [Image.new("RGB", (90, 40), "red")]), ("text", ["a dog", "a red bus"])):
            tower = model.tower(modality)
            inputs = tower.reader.collate([tower.reader.read(item) for item in items])
            features = tower.encoder(*inputs)
            assert features.local.shape[2] == tower.encoder.local_width
            assert features.pooled.shape[1] == tower.encoder.width == model.dim
            assert features.mask.any(1).all()
            if features.grid is not None:
                assert features.local.shape[1] == features.grid[0] * features.grid[1]
            shapes[modality] = features.local.shape
    assert shapes["image"][1] > 1
    assert shapes["text"][1] > 2


def test_an_item_is_encoded_alike_in_any_company_by_any_thread(folder):
    model = SetEncoder.from_pretrained(folder).train()
    images = list(pictures().values())
    together = model.encode_images(images, batch_size=len(images))  # read by several threads
    alone = torch.cat([model.encode_images([image]) for image in images])
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-5)
    texts = ["a dog", "", "a", "red BUS."]
    alone = torch.cat([model.encode_texts([text]) for text in texts])
    torch.testing.assert_close(model.encode_texts(texts), alone, rtol=0, atol=1e-5)


def test_nothing_is_printed_while_a_model_is_read(folder, capfd, caplog):
    SetEncoder.from_pretrained(folder)
    assert capfd.readouterr() == ("", "")
    assert caplog.text == ""


@pytest.mark.parametrize(
    "family",
    [pytest.param(name, marks=SLOW) for name in ("chinese_clip", "altclip", "metaclip_2", "align", "clap")],
)
def test_graphs_of_onnx_give_the_same_sets_or_the_model_is_refused(family, tmp_path, without_shape_checks):
    model = SetEncoder.from_pretrained(hub_folder(tmp_path / "hub", family))
    folder = model.save_pretrained(tmp_path / "ours")
    if family == "clap":
        with pytest.raises(ValueError, match=r"sounds \(CLAP\).*without --onnx"):
            export_onnx(folder)
        return
    export_onnx(folder)
    exported = OnnxEncoder.from_folder(folder)
    texts, images = ["a dog", "", "red BUS."], list(pictures().values())
    np.testing.assert_allclose(exported.encode_texts(texts), model.encode_texts(texts).numpy(), rtol=0, atol=1e-4)
    np.testing.assert_allclose(exported.encode_images(images), model.encode_images(images).numpy(), rtol=0, atol=1e-4)


# --- pictures as the library reads them -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    return hub_folder(tmp_path_factory.mktemp("clip") / "clip", "clip")


def test_a_picture_is_turned_upright_and_the_limit_on_pixels_holds(clip, tmp_path, monkeypatch):
    model = SetEncoder.from_pretrained(clip)
    upright = pictures()["portrait"]
    exif = Image.Exif()
    exif[0x0112] = 6
    upright.transpose(Image.Transpose.ROTATE_90).save(tmp_path / "turned.png", exif=exif)
    torch.testing.assert_close(model.encode_images([tmp_path / "turned.png"]), model.encode_images([upright]))
    (tmp_path / "broken.jpg").write_bytes(b"no picture")
    found = model.encode_images([upright, tmp_path / "broken.jpg"], errors="skip")
    assert (found.kept, [one.index for one in found.skipped]) == ([0], [1])


def test_of_a_picture_without_end_only_the_middle_is_resized(clip):
    transform = SetEncoder.from_pretrained(clip).tower("image").reader.transform
    long = Image.new("RGB", (400_000, 2), "red")
    long.paste("blue", (199_990, 0, 200_010, 2))
    assert transform.seen(long).getpixel((16, 16))[2] > 200
    assert transform.seen(long).size == (32, 32)
    assert transform.box(400, 100) == (150.0, 0.0, 250.0, 100.0)


def test_pixels_are_those_of_the_processor_to_the_bit(folder):
    from transformers import AutoImageProcessor

    processor = AutoImageProcessor.from_pretrained(folder, backend="pil")
    transform = SetEncoder.from_pretrained(folder).tower("image").reader.transform
    for name, picture in pictures().items():
        expected = processor(load_image(picture), return_tensors="np")["pixel_values"][0]
        found = transform.pixels(picture)
        found = found[:, :-1] if folder.name == "siglip2" else found  # the last column is the row of a patch
        np.testing.assert_array_equal(found, expected.astype(np.float32), err_msg=name)


def test_what_the_model_sees_is_the_part_in_its_box(folder):
    reader = SetEncoder.from_pretrained(folder).tower("image").reader
    assert (
        reader.collate([reader.blank()]).values.shape
        == reader.collate([reader.read(Image.new("L", (9, 5)))]).values.shape
    )
    left, top, right, bottom = reader.transform.box(60, 40)
    assert 0 <= left < right <= 60
    assert 0 <= top < bottom <= 40


# --- what the files of real models look like ------------------------------------------------------------------------


def test_a_preprocessor_of_old_means_the_same(clip, tmp_path):
    folder = Path(shutil.copytree(clip, tmp_path / "clip"))
    data = json.loads((folder / "preprocessor_config.json").read_text())
    del data["image_processor_type"]
    old = {**data, "feature_extractor_type": "CLIPFeatureExtractor", "size": 32, "crop_size": 32}
    (folder / "preprocessor_config.json").write_text(json.dumps(old))
    images = list(pictures().values())
    expected = SetEncoder.from_pretrained(clip).encode_images(images)
    torch.testing.assert_close(SetEncoder.from_pretrained(folder).encode_images(images), expected)


def test_a_preprocessor_may_be_a_part_of_the_processors_file(clip, tmp_path):
    from transformers import AutoImageProcessor, AutoTokenizer, CLIPProcessor

    folder = Path(shutil.copytree(clip, tmp_path / "clip"))
    processor = CLIPProcessor(
        image_processor=AutoImageProcessor.from_pretrained(folder, backend="pil"),
        tokenizer=AutoTokenizer.from_pretrained(folder),
    )
    (folder / "preprocessor_config.json").unlink()
    processor.save_pretrained(folder)
    assert not (folder / "preprocessor_config.json").exists()
    images = list(pictures().values())
    expected = SetEncoder.from_pretrained(clip).encode_images(images)
    torch.testing.assert_close(SetEncoder.from_pretrained(folder).encode_images(images), expected)
    changed(folder, "processor_config.json", image_processor={"auto_map": {"AutoImageProcessor": "code.Own"}})
    with pytest.raises(CheckpointError, match=r"processor_config\.json: asks to run code"):
        SetEncoder.from_pretrained(folder)


def test_texts_for_siglip_lose_case_and_punctuation_without_sentencepiece(tmp_path):
    folder = hub_folder(tmp_path / "siglip", "siglip")
    changed(folder, "tokenizer_config.json", tokenizer_class="SiglipTokenizer")
    model = SetEncoder.from_pretrained(folder)
    plain, written = (
        model.tower("text").reader.collate(["a dog runs on the beach", " A dog (runs),  on the_ BEACH! "]).values
    )
    assert torch.equal(plain, written)
    again = SetEncoder.from_pretrained(model.save_pretrained(tmp_path / "ours"))
    assert torch.equal(
        again.tower("text").reader.collate(["A dog!"]).values, model.tower("text").reader.collate(["a dog"]).values
    )
    (folder / "tokenizer.json").rename(folder / "spiece.model")
    with pytest.raises(CheckpointError, match=r"tokenizer\.json: missing; a SigLIP needs it"):
        SetEncoder.from_pretrained(folder)


# --- what is refused ------------------------------------------------------------------------------------------------


def cut(path, share):
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])


def without_weight(folder):
    weights = load_file(folder / "model.safetensors")
    del weights["visual_projection.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def as_pickle(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def of_another_size(folder):
    data = json.loads((folder / "config.json").read_text())
    data["projection_dim"] = 20
    (folder / "config.json").write_text(json.dumps(data))


def half_an_index(folder):
    (folder / "model.safetensors").unlink()
    index = {"weight_map": {"logit_scale": "model-00001-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: (f / "preprocessor_config.json").unlink(), r"preprocessor_config\.json is missing.*fetch"),
        (lambda f: (f / "preprocessor_config.json").write_text("{"), r"preprocessor_config\.json: not readable.*etch"),
        (lambda f: (f / "tokenizer.json").unlink(), r"tokenizer\.json is missing.*Copy the whole folder"),
        (lambda f: (f / "tokenizer.json").write_text("{}"), r"tokenizer\.json: not readable"),
        (
            lambda f: shutil.copy(hub_folder(f.parent / "other", "siglip") / "tokenizer.json", f),
            r"tokenizer\.json: not readable.*vocabulary.*etch",
        ),
        (lambda f: (f / "model.safetensors").unlink(), r"model\.safetensors: missing.*Fetch the model again"),
        (as_pickle, r"model\.safetensors: missing.*pytorch_model\.bin is a pickle"),
        (half_an_index, r"model-00001-of-00002\.safetensors: missing"),
        *(
            (lambda f, share=share: cut(f / "model.safetensors", share), r"model\.safetensors: not a complete.*fetch")
            for share in (0.0, 0.001, 0.5, 0.999)
        ),
        (without_weight, r"(?s)model\.safetensors does not fit config\.json.*visual_projection\.weight: missing"),
        (of_another_size, r"(?s)does not fit config\.json.*\(12, .*in the file, \(20, .*in the config"),
        (lambda f: changed(f, "config.json", model_type="bert"), r"config\.json: .*'bert'\. Known are clip"),
        (
            lambda f: changed(f, "config.json", model_type="clip_text_model"),
            r"config\.json: .*'clip_text_model'\. It is one tower alone.*Known are clip",
        ),
        (lambda f: changed(f, "config.json", auto_map={"AutoModel": "code.Model"}), r"config\.json: asks to run code"),
        (
            lambda f: changed(f, "tokenizer_config.json", auto_map={"AutoTokenizer": ["code.Fast", None]}),
            r"tokenizer_config\.json: asks to run code.*auto_map",
        ),
        (
            lambda f: changed(f, "preprocessor_config.json", trust_remote_code=True),
            r"preprocessor_config\.json: asks to run code.*trust_remote_code",
        ),
        (
            lambda f: changed(f, "preprocessor_config.json", crop_size={"height": 24, "width": 24}),
            r"pictures of 24 pixels, but the model takes 32",
        ),
        (lambda f: changed(f, "preprocessor_config.json", do_center_crop=False), "expected square pictures"),
    ],
)
def test_a_folder_that_cannot_be_used_is_refused_and_the_file_is_named(clip, tmp_path, damage, message):
    folder = Path(shutil.copytree(clip, tmp_path / "clip"))
    damage(folder)
    with pytest.raises(CheckpointError, match=message) as refused:
        SetEncoder.from_pretrained(folder)
    assert str(folder) in str(refused.value)


def test_a_checkpoint_of_ours_that_asks_for_code_or_another_type_is_refused(clip, tmp_path):
    folder = SetEncoder.from_pretrained(clip).save_pretrained(tmp_path / "ours")
    whole = json.loads((folder / "config.json").read_text())
    assert str(clip) not in json.dumps(whole)
    for change, message in (({"auto_map": {}}, "asks to run code"), ({"model_type": "bert"}, "model_type: expected")):
        data = json.loads(json.dumps(whole))
        data["towers"]["image"]["encoder"]["config"] |= change
        (folder / "config.json").write_text(json.dumps(data))
        with pytest.raises(CheckpointError, match=message):
            SetEncoder.from_pretrained(folder)


def test_towers_of_two_widths_are_refused(tmp_path):
    folder = hub_folder(
        tmp_path / "siglip", "siglip", vision_config={**FAMILIES["siglip"][2]["vision_config"], "hidden_size": 20}
    )
    with pytest.raises(CheckpointError, match=r"do not fit each other.*'image': 20, 'text': 24"):
        SetEncoder.from_pretrained(folder)


def test_a_model_that_memory_cannot_hold_is_refused_before_it_is_read(clip, monkeypatch):
    monkeypatch.setattr("maxmatch.core.machine.free_memory", lambda: 1000)
    with pytest.raises(ValueError, match=r"GiB of memory, but .* free.*smaller model"):
        SetEncoder.from_pretrained(clip)


def test_weights_in_half_precision_are_computed_in_float32(clip, tmp_path):
    from transformers import AutoModel

    folder = Path(shutil.copytree(clip, tmp_path / "half"))
    AutoModel.from_pretrained(folder).half().save_pretrained(folder)
    model = SetEncoder.from_pretrained(folder)
    assert {value.dtype for value in model.state_dict().values() if value.is_floating_point()} == {torch.float32}
    expected = SetEncoder.from_pretrained(clip).encode_texts(TEXTS[:3])
    torch.testing.assert_close(model.encode_texts(TEXTS[:3]), expected, rtol=0, atol=2e-3)


def test_weights_in_several_files_are_read(clip, tmp_path):
    from transformers import AutoModel

    folder = Path(shutil.copytree(clip, tmp_path / "parts"))
    (folder / "model.safetensors").unlink()
    AutoModel.from_pretrained(clip).save_pretrained(folder, max_shard_size="30KB")
    assert not (folder / "model.safetensors").exists()
    assert model_identity(SetEncoder.from_pretrained(folder)) == model_identity(SetEncoder.from_pretrained(clip))


# --- sound ----------------------------------------------------------------------------------------------------------

RATE = 8000


@pytest.fixture(scope="module")
def clap(tmp_path_factory):
    return hub_folder(tmp_path_factory.mktemp("clap") / "clap", "clap")


def sounds():
    """From one sample to all that the model hears."""
    return [0.5 * np.sin(np.arange(count) * pitch) for count, pitch in ((RATE, 0.1), (3000, 0.3), (9, 0.5), (1, 1.0))]


def test_scores_of_sounds_are_those_of_transformers_before_and_after_a_save(clap, tmp_path):
    from transformers import AutoFeatureExtractor, AutoModel, AutoTokenizer

    inputs = AutoTokenizer.from_pretrained(clap)(
        TEXTS, padding=True, truncation=True, max_length=LONGEST, return_tensors="pt"
    )
    inputs |= AutoFeatureExtractor.from_pretrained(clap)(sounds(), sampling_rate=RATE, return_tensors="pt")
    with torch.no_grad():
        expected = AutoModel.from_pretrained(clap).eval()(**inputs).logits_per_audio
    assert min(float(expected.std(axis).min()) for axis in (0, 1)) > 1e-3
    model = SetEncoder.from_pretrained(clap)
    for one in (model, SetEncoder.from_pretrained(model.save_pretrained(tmp_path / "ours"))):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TextTruncated)
            found = one.logits(one.encode("audio", sounds(), batch_size=3), one.encode_texts(TEXTS))
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
        assert model_identity(one) == model_identity(model)
        assert one.set_sizes == {"audio": 1, "text": 1}
        assert one.tower("audio").reads == "audio"


def test_a_wav_file_is_the_sound_in_it_at_any_rate_and_depth(clap, tmp_path):
    model = SetEncoder.from_pretrained(clap)
    sound = sounds()[1]
    expected = model.encode("audio", [sound])
    depths = {"int16": 32767 * sound, "int32": 2**31 * sound, "uint8": 128 * sound + 128, "float32": sound}
    for dtype, values in depths.items():
        wavfile.write(tmp_path / f"{dtype}.wav", RATE, values.astype(dtype))
        cosine = float((model.encode("audio", [tmp_path / f"{dtype}.wav"]) * expected).sum())
        assert cosine > (0.9 if dtype == "uint8" else 0.999), dtype
    wavfile.write(tmp_path / "stereo.wav", 2 * RATE, np.stack([np.repeat(sound, 2)] * 2, 1).astype("float32"))
    assert float((model.encode("audio", [str(tmp_path / "stereo.wav")]) * expected).sum()) > 0.9


def test_of_a_long_sound_the_beginning_is_heard_every_time(clap):
    model = SetEncoder.from_pretrained(clap)
    long = np.random.default_rng(0).uniform(-1, 1, 3 * RATE)
    assert torch.equal(model.encode("audio", [long]), model.encode("audio", [long]))
    assert torch.equal(model.encode("audio", [long]), model.encode("audio", [long[:RATE]]))


def test_what_is_no_sound_is_refused_and_named(clap, tmp_path):
    model = SetEncoder.from_pretrained(clap)
    (tmp_path / "broken.wav").write_bytes(b"RIFFxxxxWAVEfmt ")
    bad = [tmp_path / "broken.wav", np.zeros(0), np.array([np.nan]), np.zeros((2, 2, 2)), np.zeros(5, "int16")]
    found = model.encode("audio", [*bad, tmp_path / "none.wav", sounds()[0]], errors="skip")
    assert found.kept == [6]
    assert "broken.wav: not a readable .wav" in found.skipped[0].reason
    assert all("8,000 Hz" in one.reason for one in found.skipped[1:5])
    assert "none.wav: no such file" in found.skipped[5].reason


def test_a_clap_that_listens_to_random_parts_is_refused(clap, tmp_path):
    folder = Path(shutil.copytree(clap, tmp_path / "clap"))
    audio = json.loads((folder / "config.json").read_text())["audio_config"]
    changed(folder, "config.json", audio_config={**audio, "enable_fusion": True, "fusion_type": None})
    with pytest.raises(CheckpointError, match="enable_fusion"):
        SetEncoder.from_pretrained(folder)


# --- the hub's cache ------------------------------------------------------------------------------------------------


@pytest.fixture
def cached(clip, tmp_path, monkeypatch):
    """A cache of the hub's with two versions of a model, and no network."""
    import huggingface_hub

    place = tmp_path / "cache" / "models--someone--clip"
    for revision, commit in (("main", "a" * 40), ("v1", "b" * 40)):
        (place / "refs").mkdir(parents=True, exist_ok=True)
        (place / "refs" / revision).write_text(commit)
        shutil.copytree(clip, place / "snapshots" / commit)
    hub_folder(place / "snapshots" / ("b" * 40), "clip", seed=7)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    for name in ("connect", "sendto"):
        monkeypatch.setattr(socket.socket, name, lambda *_: pytest.fail("asked the network"))
    return place


def test_a_model_in_the_cache_is_used_without_a_network_and_a_revision_is_pinned(cached, clip):
    newest = model_identity(SetEncoder.from_pretrained(clip))
    assert model_identity(SetEncoder.from_pretrained("someone/clip")) == newest
    assert model_identity(SetEncoder.from_pretrained("hf:someone/clip@main")) == newest
    pinned = model_identity(SetEncoder.from_pretrained("someone/clip@v1"))
    assert pinned != newest
    assert model_identity(SetEncoder.from_pretrained(f"someone/clip@{'b' * 40}")) == pinned
    with pytest.raises(FileNotFoundError, match=r"someone/clip@v2: .*HF_HUB_OFFLINE"):
        SetEncoder.from_pretrained("someone/clip@v2")


@pytest.mark.parametrize("file", ["config.json", "model.safetensors", "preprocessor_config.json", "tokenizer.json"])
@pytest.mark.parametrize("left", ["nothing", "a link to nothing", "half of it"])
def test_a_download_that_was_interrupted_is_named(cached, file, left):
    path = cached / "snapshots" / ("a" * 40) / file
    data = path.read_bytes()
    path.unlink()
    if left == "a link to nothing":
        path.symlink_to("../../blobs/abc")
    elif left == "half of it":
        path.write_bytes(data[: len(data) // 2])
    with pytest.raises(CheckpointError, match=file.replace(".", r"\.")) as refused:
        SetEncoder.from_pretrained("someone/clip")
    assert any(word in str(refused.value) for word in ("etch", "Copy"))
