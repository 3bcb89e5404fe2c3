"""A CLIP or SigLIP in a folder as the hub has it works in every command as any model does, by its own scores."""

import json

import numpy as np
import pytest
import torch
from commands import run
from jaxtyping import config
from PIL import Image
from safetensors.torch import load_file
from scipy.io import wavfile
from starlette.testclient import TestClient
from tiny_hub import LONGEST, changed, hub_folder

from maxmatch import SetEncoder, SetIndex
from maxmatch.cli import doctor
from maxmatch.data.scenes import generate
from maxmatch.model.hub import two_towers
from maxmatch.model.onnx_runtime import OnnxEncoder
from maxmatch.search.plausible import background, calibrated
from maxmatch.server.app import create_app
from maxmatch.server.gallery import key_of

pytestmark = pytest.mark.filterwarnings("ignore::maxmatch.model.text.TextTruncated")
FAMILIES = ("clip", "siglip", "siglip2")
HALF = 2e-3  # photos are indexed in half precision


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data") / "scenes"
    generate(folder, images=12, size=64)
    return folder


@pytest.fixture(scope="module", params=FAMILIES)
def hub(request, tmp_path_factory):
    return hub_folder(tmp_path_factory.mktemp("hub") / request.param, request.param)


@pytest.fixture(autouse=True)
def home(monkeypatch, tmp_path_factory):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


def own_cosines(folder, images, texts):
    """Of each image with each text, by transformers alone: its logits without scale and bias."""
    from transformers import AutoImageProcessor, AutoModel, AutoTokenizer

    model = AutoModel.from_pretrained(folder).eval()
    padding = True if model.config.model_type == "clip" else "max_length"
    options = {"padding": padding, "truncation": True, "max_length": LONGEST, "return_tensors": "pt"}
    inputs = AutoTokenizer.from_pretrained(folder)(texts, **options)
    pictures = []
    for image in images:
        with Image.open(image) as opened:
            pictures.append(opened.convert("RGB"))
    inputs |= AutoImageProcessor.from_pretrained(folder, backend="pil")(pictures, return_tensors="pt")
    with torch.no_grad():
        bias = getattr(model, "logit_bias", 0.0)
        return (model(**inputs).logits_per_image - bias) / model.logit_scale.exp()


def test_a_folder_of_photos_is_searched_by_the_models_own_scores(hub, scenes, capsys):
    images = sorted((scenes / "images").iterdir())
    cosines = dict(
        zip((image.name for image in images), own_cosines(hub, images, ["a dog"])[:, 0].tolist(), strict=True)
    )
    for _ in range(2):  # the second time from the index
        found = run(capsys, "search", "a dog", scenes / "images", "--model", hub, "-k", 12, "--json")
        assert found.code == 0, found.err
        hits = json.loads(found.out)["hits"]
        assert {hit["id"]: hit["score"] for hit in hits} == pytest.approx(cosines, abs=HALF)
        assert [hit["score"] for hit in hits] == sorted((hit["score"] for hit in hits), reverse=True)


def test_evaluate_compares_by_the_models_own_scores_and_a_saved_model_gives_the_same(hub, scenes, tmp_path, capsys):
    ours = SetEncoder.from_pretrained(hub).save_pretrained(tmp_path / "ours")
    printed = []
    for place, folder in enumerate((hub, ours)):
        file = tmp_path / f"{place}.safetensors"
        done = run(capsys, "evaluate", folder, scenes, "--split", "train", "--json", "--save-sets", file)
        assert done.code == 0, done.err
        sets = load_file(file)
        rows = [json.loads(line) for line in (scenes / "metadata.jsonl").read_text().splitlines()]
        rows = [row for row in rows if row.get("split", "train") == "train"]
        assert len(rows) == len(sets["sets.image"])
        images, texts = [scenes / row["file_name"] for row in rows], [text for row in rows for text in row["captions"]]
        cosines = sets["sets.image"][:, 0] @ sets["sets.text"][:, 0].T
        torch.testing.assert_close(cosines.float(), own_cosines(hub, images, texts), rtol=0, atol=1e-5)
        printed.append(json.loads(done.out)["results"][0]["rsum"])
    assert printed[0] == pytest.approx(printed[1], abs=1e-6)


def test_encode_index_search_verify_and_serve(hub, scenes, tmp_path, capsys):
    sets, index = tmp_path / "sets", tmp_path / "index"
    assert run(capsys, "encode", hub, scenes / "images", "--out", sets).code == 0
    assert run(capsys, "index", "build", index, "--from", sets).code == 0
    found = run(capsys, "search", "a dog", index, "--json")  # by the model that the index names
    assert found.code == 0, found.err
    first = json.loads(found.out)["hits"][0]
    assert run(capsys, "index", "verify", index).code == 0
    with SetIndex.open(index) as opened:
        model = SetEncoder.from_pretrained(hub)
        assert opened.search(model.encode_texts(["a dog"]), k=1)[0][0].id == first["id"]
        app = create_app(opened, picture=lambda name: scenes / "images" / name)
        with TestClient(app, base_url="http://127.0.0.1:8765", client=("127.0.0.1", 50000)) as client:
            hit = client.get("/api/v1/search", params={"q": "a dog"}).json()["hits"][0]
            assert hit["score"] == pytest.approx(first["score"], abs=1e-4)
            with (scenes / "images" / "000003.png").open("rb") as picture:
                sent = client.post("/api/v1/search/image", files={"file": picture})
            assert sent.status_code == 200, sent.text


def test_the_page_shows_why_a_picture_of_any_shape_was_found(hub, tmp_path):
    shapes = {"square.png": (64, 64), "wide.png": (120, 40), "tall.png": (9, 200), "dot.png": (1, 1)}
    for name, size in shapes.items():
        pixels = np.random.default_rng(0).integers(0, 256, (*size[::-1], 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / name)
    model = SetEncoder.from_pretrained(hub)
    with SetIndex.create(tmp_path / "index", dim=model.dim, set_size=1, model=model, engine="exhaustive") as index:
        index.add(list(shapes), model.encode_images([tmp_path / name for name in shapes]))
        app = create_app(index, model, lambda name: tmp_path / name)
        with TestClient(app, base_url="http://127.0.0.1:8765", client=("127.0.0.1", 50000)) as client:
            for name in shapes:
                address = f"/api/v1/items/{key_of(name)}/explain"
                answer = client.get(address, params={"q": "a dog"})
                assert answer.status_code == 200, answer.text
                expected = model.explain(Image.open(tmp_path / name), "a dog")
                [part] = answer.json()["parts"]
                assert part["score"] == pytest.approx(expected.score, abs=1e-4)
                assert part["words"] == expected.words
                np.testing.assert_allclose(part["word_attention"], expected.text_attention, atol=1e-3)
                np.testing.assert_allclose(answer.json()["slots"]["attention"], expected.image_attention, atol=1e-3)
                left, top, right, bottom = answer.json()["slots"]["box"]
                assert 0 <= left < right <= 1
                assert 0 <= top < bottom <= 1
                if hub.name != "clip":  # all of the picture is seen
                    assert [left, top, right, bottom] == [0, 0, 1, 1]
                assert client.get(address).status_code == 200
                [part] = client.get(address, params={"like": key_of("square.png")}).json()["parts"]
                assert sum(map(sum, part["picture"]["attention"][0])) == pytest.approx(1, abs=1e-3)


def test_analyse_shows_what_windows_and_words_the_scores_are_due_to(scenes, tmp_path, capsys):
    hub = hub_folder(tmp_path / "hub", "siglip2")  # whose pictures have grids of their own
    done = run(capsys, "analyse", hub, scenes, "--split", "train", "--out", tmp_path / "report", "--examples", 2)
    assert done.code == 0, done.err
    assert "does without" not in done.err
    page = (tmp_path / "report" / "report.html").read_text()
    assert "What each slot looks at" in page
    assert 'alt="What each image slot looks at"' in page


def test_export_halves_the_weights_and_keeps_the_scores(hub, scenes, tmp_path, capsys):
    done = run(capsys, "export", hub, tmp_path / "small", "--half", "--json")
    assert done.code == 0, done.err
    files = json.loads(done.out)["files"]
    assert files["model.safetensors"] < 0.6 * (hub / "model.safetensors").stat().st_size
    images = sorted((scenes / "images").iterdir())[:3]
    small = SetEncoder.from_pretrained(tmp_path / "small")
    found = small.similarity(small.encode_images(images), small.encode_texts(["a dog", "a cat"]))
    torch.testing.assert_close(found, own_cosines(hub, images, ["a dog", "a cat"]), rtol=0, atol=2e-3)


def test_encode_takes_texts_and_an_index_of_them_is_searched(hub, tmp_path, capsys):
    (tmp_path / "captions.txt").write_text("a dog\na cat\ntwo people ride\n")
    arguments = ("encode", hub, tmp_path / "captions.txt", "--out", tmp_path / "sets", "--dtype", "fp32")
    assert run(capsys, *arguments).code == 0
    assert run(capsys, "index", "build", tmp_path / "index", "--from", tmp_path / "sets").code == 0
    found = run(capsys, "search", "a cat", tmp_path / "index", "-k", 1, "--json")
    hit = json.loads(found.out)["hits"][0]
    assert (hit["id"], hit["score"]) == ("2", pytest.approx(1, abs=1e-4))


def test_sounds_are_encoded_and_found_by_words(tmp_path, capsys):
    clap = hub_folder(tmp_path / "clap", "clap")
    folder = tmp_path / "sounds"
    (folder / "more").mkdir(parents=True)
    sounds = {f"{name}.wav": np.sin(np.arange(4000) * pitch) for name, pitch in (("low", 0.1), ("more/high", 0.9))}
    for name, sound in sounds.items():
        wavfile.write(folder / name, 8000, sound.astype(np.float32))
    (folder / "broken.wav").write_bytes(b"no sound")
    done = run(capsys, "encode", clap, folder, "--modality", "audio", "--out", tmp_path / "sets", "--dtype", "fp32")
    assert done.code == 0, done.err
    assert run(capsys, "index", "build", tmp_path / "index", "--from", tmp_path / "sets").code == 0
    found = json.loads(run(capsys, "search", "a dog", tmp_path / "index", "--json").out)["hits"]
    model = SetEncoder.from_pretrained(clap)
    scores = model.similarity(model.encode_texts(["a dog"]), model.encode("audio", list(sounds.values())))[0]
    assert {hit["id"]: hit["score"] for hit in found} == pytest.approx(
        dict(zip(sounds, scores.tolist(), strict=True)), abs=1e-4
    )
    for command in (("search", "a dog", folder, "--model", clap), ("encode", clap, tmp_path, "--out", tmp_path / "x")):
        done = run(capsys, *command)
        assert done.code == 1
        assert "Traceback" not in done.err
    done = run(capsys, "encode", clap, clap, "--modality", "audio", "--out", tmp_path / "none")
    assert done.code == 1
    assert ".wav" in done.err


def test_graphs_of_onnx_give_the_same_sets_or_the_model_is_refused(hub, scenes, tmp_path, capsys):
    config.update("jaxtyping_disable", True)  # in a graph, sizes are symbols, and no integers
    done = run(capsys, "export", hub, tmp_path / "fast", "--onnx")
    config.update("jaxtyping_disable", False)
    if hub.name == "siglip2":
        assert done.code == 1
        assert "own proportions (SigLIP 2), cannot be exported" in done.err
        return
    assert done.code == 0, done.err
    exported, model = OnnxEncoder.from_folder(tmp_path / "fast"), SetEncoder.from_pretrained(hub)
    texts = ["a dog", "", "a red bus runs on the beach", "a dog isn't a cat, it's a bird " * 9]
    images = sorted((scenes / "images").iterdir())[:3]
    np.testing.assert_allclose(exported.encode_texts(texts), model.encode_texts(texts).numpy(), rtol=0, atol=1e-4)
    np.testing.assert_allclose(exported.encode_images(images), model.encode_images(images).numpy(), rtol=0, atol=1e-4)
    found = [run(capsys, "search", "a dog", scenes / "images", "--model", one).out for one in (tmp_path / "fast", hub)]
    assert found[0] == found[1] != ""


@pytest.mark.parametrize(
    ("damage", "file", "cure"),
    [
        (lambda f: (f / "preprocessor_config.json").unlink(), "preprocessor_config.json", "fetch the model again"),
        (lambda f: changed(f, "config.json", model_type="bert"), "config.json", "Known are clip"),
        (lambda f: changed(f, "config.json", auto_map={"AutoModel": "a.B"}), "config.json", "Choose a model"),
        (lambda f: changed(f, "config.json", projection_dim=20), "model.safetensors", "Fetch both again"),
        (lambda f: (f / "model.safetensors").unlink(), "model.safetensors", "Fetch the model again"),
        (lambda f: (f / "tokenizer.json").write_text("{}"), "tokenizer.json", "Fetch it again"),
    ],
    ids=["no preprocessor", "text only", "code", "mismatch", "half of it", "tokenizer"],
)
def test_a_folder_that_cannot_be_used_is_named_with_the_cure(damage, file, cure, tmp_path, scenes, capsys):
    folder = hub_folder(tmp_path / "clip", "clip")
    damage(folder)
    for command in (
        ("search", "a dog", scenes / "images", "--model", folder),
        ("encode", folder, scenes / "images", "--out", tmp_path / "sets"),
        ("serve", scenes / "images", "--model", folder),
        ("evaluate", folder, scenes),
    ):
        done = run(capsys, *command)
        assert done.code == 1
        assert file in done.err
        assert cure in done.err
        assert "Traceback" not in done.err


@pytest.mark.parametrize(
    ("kind", "cure"), [("GatedRepoError", "Accept its terms"), ("RepositoryNotFoundError", "hf auth")]
)
def test_a_name_that_is_gated_or_missing_is_named_with_the_cure(kind, cure, scenes, capsys, monkeypatch):
    import huggingface_hub

    def refused(*_, **__):
        raise type(kind, (OSError,), {})("no")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refused)
    done = run(capsys, "search", "a dog", scenes / "images", "--model", "someone/clip")
    assert done.code == 1
    assert "someone/clip" in done.err
    assert cure in done.err


def test_models_lists_what_ships_what_is_cached_and_what_can_be_fetched(tmp_path, capsys, monkeypatch):
    import huggingface_hub
    from tiny_models import saved_model

    def snapshot(name):
        place = tmp_path / "cache" / f"models--{name.replace('/', '--')}"
        (place / "refs").mkdir(parents=True)
        (place / "refs" / "main").write_text("a" * 40)
        return place / "snapshots" / ("a" * 40)

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    assert json.loads(run(capsys, "models", "--json").out)["cached"] == []
    clip = hub_folder(snapshot("openai/clip-vit-base-patch32"), "clip")
    (clip / "README.md").write_text("---\ntags: [vision]\nlicense: mit\n---\n# CLIP\n")
    saved_model(snapshot("someone/ours"))
    changed(hub_folder(snapshot("someone/bert"), "clip"), "config.json", model_type="bert")
    (hub_folder(snapshot("someone/half"), "clip") / "model.safetensors").unlink()
    listed = json.loads(run(capsys, "models", "--json").out)
    found = {place: [(model["name"], model["kind"]) for model in models] for place, models in listed.items()}
    assert ("maxmatch-small", "maxmatch") in found["ships"]
    assert listed["ships"][0]["licence"]
    assert found["cached"] == [("openai/clip-vit-base-patch32", "clip"), ("someone/ours", "maxmatch")]
    assert listed["cached"][0]["licence"] == "mit"
    assert listed["cached"][0]["size"] > 10_000
    assert ("openai/clip-vit-base-patch32", "clip") not in found["hub"]
    assert {kind for _, kind in [*found["hub"], ("", "clip")]} == set(two_towers.FAMILIES)
    parts = tmp_path / "cache" / "models--someone--half" / "blobs"
    parts.mkdir()
    (parts / "abc.incomplete").write_bytes(b"half of it")
    monkeypatch.setattr(doctor, "_DIFFICULT", {})
    findings = {one["name"]: one for one in json.loads(run(capsys, "doctor", "--json").out)}
    assert "4 models" in findings["hub cache"]["detail"]
    detail = findings["cached models"]["detail"]
    assert "openai/clip-vit-base-patch32 (clip, 0.0 GiB), someone/ours (maxmatch" in detail
    assert (findings["half-fetched models"]["status"], "someone/half" in findings["half-fetched models"]["detail"]) == (
        "note", True,
    )  # fmt: skip
    printed = run(capsys, "models").out
    assert all(name in printed for models in found.values() for name, _ in models)


def test_what_fits_is_told_by_the_folders_own_background(hub, tmp_path):
    model = SetEncoder.from_pretrained(hub)
    sets = torch.nn.functional.normalize(
        torch.randn(40, 1, model.dim, generator=torch.Generator().manual_seed(0)), dim=-1
    )
    with SetIndex.create(tmp_path / "index", dim=model.dim, set_size=1, model=model) as index:
        index.add([str(place) for place in range(40)], sets)
        cut_off = calibrated(index, model)
    for count, texts in background(model).items():
        best = model.similarity(model.encode_texts(texts), sets).max(1).values
        assert cut_off.background[count] == pytest.approx((float(best.mean()), float(best.std(correction=0))), abs=1e-4)
