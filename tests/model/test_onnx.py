"""What was exported is the model: the same sets, the same identity, and no torch where it is searched with."""

import shutil
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from jaxtyping import config
from made_sets import unit_sets
from PIL import Image
from second_search import arguments, second_search, write_photos
from tiny_models import SIZES, images_for, texts, tiny_model, tokenizer_for, with_statistics

from maxmatch import SetEncoder, SetIndex
from maxmatch.cli.main import main
from maxmatch.model.build import build_model
from maxmatch.model.encoders import cnn
from maxmatch.model.images import ImageError
from maxmatch.model.names import model_identity
from maxmatch.model.onnx_export import OPSET, export_tower
from maxmatch.model.onnx_runtime import FILE, OnnxEncoder, OnnxError, read_exported
from maxmatch.model.presets import PRESETS
from maxmatch.model.text import load_tokenizer

CLOSE = 1e-4
WHOLE = cnn._STAGES


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The encoders of the model that ships, tiny, exported by the command."""
    place = tmp_path_factory.mktemp("onnx")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cnn, "_STAGES", (*cnn._STAGES[:2], cnn._STAGES[-1]))  # until the end of the tests here
        model = with_statistics(tiny_model("efficientnet_lite0_bigru", vector_width=6, train_words=False, depth=2))
        model.record_pairing([0, 1, 2, 3], 0.97)
        model.save_pretrained(place / "model")
        config.update("jaxtyping_disable", True)  # in a graph, sizes are symbols, and no integers
        with pytest.raises(SystemExit) as end:
            main(["export", str(place / "model"), str(place / "exported"), "--half", "--onnx"])
        config.update("jaxtyping_disable", False)
        assert end.value.code == 0
        yield place / "exported"


@pytest.fixture(scope="module")
def parent(folder):
    """The same folder, run by torch."""
    return SetEncoder.from_pretrained(folder)


@pytest.fixture
def exported(folder):
    return OnnxEncoder.from_folder(folder)


@pytest.mark.parametrize("batch_size", [1, 7])
def test_texts_and_pictures_become_the_sets_of_torch(exported, parent, batch_size):
    some = [*texts(20), "", "dog", "a word that nobody knows: zyzzyva"]
    assert len({len(text.split()) for text in some}) > 5
    for modality, items in (("text", some), ("image", images_for(parent, 9))):
        sets, expected = exported.encode(modality, items, batch_size), parent.encode(modality, items).numpy()
        assert sets.dtype == np.float32
        np.testing.assert_allclose(sets, expected, atol=CLOSE, rtol=0)
        np.testing.assert_allclose(np.linalg.norm(sets, axis=2), 1.0, atol=1e-5)


def test_the_same_words_are_known(exported, parent):
    assert exported.known_words("a dog", "xqzzt") == parent.known_words("a dog", "xqzzt") == (["a", "dog"], ["xqzzt"])


def test_the_graphs_give_the_attention_too(folder, parent):
    graph = read_exported(folder).towers["text"]
    session = onnxruntime.InferenceSession(folder / graph.file)
    ids, mask = parent.tower("text").reader.collate(["a dog runs on the beach"])
    (attention,) = session.run(["attention"], {"ids": ids.numpy(), "mask": mask.numpy()})
    expected = parent.look("text", "a dog runs on the beach").attention
    np.testing.assert_allclose(attention[0], expected.numpy(), atol=CLOSE, rtol=0)


def test_an_index_of_one_takes_the_sets_of_the_other(exported, parent, tmp_path):
    assert exported.identity == model_identity(exported) == model_identity(parent)
    assert (exported.dim, exported.set_sizes) == (parent.dim, parent.set_sizes)
    assert exported.config == parent.config
    assert exported.exported.opset == OPSET
    some = images_for(parent, 3)
    with SetIndex.create(tmp_path / "index", dim=exported.dim, set_size=4, model=exported) as index:
        assert (index.manifest.stability, index.manifest.similarity) == (0.97, "maxmatch")
        index.add(["a", "b"], exported.encode_images(some[:2]), model=exported)
        index.add(["c"], parent.encode_images(some[2:]), model=parent)
        first, second = (index.search(model.encode_texts(["a dog"]), model=model)[0] for model in (exported, parent))
        found = {hit.id: hit.score for hit in first}  # their order may differ: scores of so small a model are all alike
        assert found == pytest.approx({hit.id: hit.score for hit in second}, abs=CLOSE)
        with pytest.raises(ValueError, match="model: "):
            index.search(exported.encode_texts(["a dog"]), model=tiny_model("efficientnet_lite0_bigru", seed=1))


def test_what_cannot_be_read_is_named_or_skipped(exported):
    picture = Image.new("RGB", (40, 30))
    with pytest.raises(ImageError, match="item 1: 3 bytes: not a readable picture"):
        exported.encode_images([picture, b"not"])
    encoded = exported.encode_images([picture, b"not", picture], errors="skip")
    assert (encoded.kept, [one.index for one in encoded.skipped]) == ([0, 2], [1])
    np.testing.assert_array_equal(encoded.sets[0], encoded.sets[1])
    with pytest.raises(ValueError, match="expected a text, got int"):
        exported.encode_texts([1])
    assert exported.encode_texts([]).shape == (0, 4, 16)


@pytest.fixture
def copied(folder, tmp_path):
    return Path(shutil.copytree(folder, tmp_path / "copied"))


@pytest.mark.parametrize("name", ["text.onnx", "tokenizer.json"])
def test_another_file_in_the_place_of_an_exported_one_is_refused(name, folder, copied):
    if name == "text.onnx":
        shutil.copy(folder / "image.onnx", copied / name)
    else:
        load_tokenizer(folder / name, max_length=7).save(str(copied / name))
    changed = OnnxEncoder.from_folder(copied)
    changed.encode_images([Image.new("RGB", (40, 30))])
    with pytest.raises(OnnxError, match=f"{name}: not the file that was exported"):
        changed.encode_texts(["a dog"])
    (copied / name).unlink()
    with pytest.raises(OnnxError, match=f"{name}: missing"):
        changed.encode_texts(["a dog"])


def test_graphs_do_not_outlive_the_weights_they_were_made_of(copied):
    tiny_model("efficientnet_lite0_bigru", seed=1).save_pretrained(copied)
    assert not (copied / FILE).exists()
    assert not list(copied.glob("*.onnx"))
    with pytest.raises(OnnxError, match="maxmatch export MODEL FOLDER --onnx"):
        OnnxEncoder.from_folder(copied)


@pytest.mark.usefixtures("without_shape_checks")
def test_a_transformer_of_texts_is_exported_as_well(tmp_path):
    bert = {**SIZES["region_bert"]["bert"], "num_hidden_layers": 1}
    model = tiny_model("region_bert", bert=bert, depth=1).eval()
    export_tower(model.tower("text"), tmp_path / "text.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "text.onnx")
    for some in (texts(1), texts(7)):
        ids, mask = model.tower("text").reader.collate(some)
        (sets,) = session.run(["vectors"], {"ids": ids.numpy(), "mask": mask.numpy()})
        torch.testing.assert_close(torch.from_numpy(sets), model.encode_texts(some), atol=CLOSE, rtol=0)


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize(("head", "tower"), [("gpo", "text"), ("gpo", "image"), ("global", "text")])
def test_heads_of_one_vector_are_exported_as_well(head, tower, tmp_path):
    config = PRESETS["region_bigru"](width=16, head=head, set_size=1, **SIZES["region_bigru"])
    model = with_statistics(build_model(config, {"text": tokenizer_for(config)}, seed=0)).eval()
    export_tower(model.tower(tower), tmp_path / "tower.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "tower.onnx")
    assert [output.name for output in session.get_outputs()] == ["vectors"]
    for count in (1, 7):
        items = texts(count) if tower == "text" else images_for(model, count)
        reader = model.tower(tower).reader
        inputs = reader.collate([reader.read(item) for item in items])
        names = [given.name for given in session.get_inputs()]
        (sets,) = session.run(["vectors"], {name: one.numpy() for name, one in zip(names, inputs, strict=True)})
        torch.testing.assert_close(torch.from_numpy(sets), model.encode(tower, items), atol=CLOSE, rtol=0)


_HEAVY = {"transformers", "lancedb", "pyarrow", "scipy", "numba", "datasets", "matplotlib", "huggingface_hub", "onnx"}


@pytest.mark.parametrize(("runtime", "spared"), [("auto", {*_HEAVY, "torch"}), ("torch", {*_HEAVY, "onnxruntime"})])
def test_a_search_in_an_indexed_folder_loads_no_more_than_it_needs(runtime, spared, folder, tmp_path, monkeypatch):
    if runtime == "torch":  # in a process of its own, whose network has all its stages
        monkeypatch.setattr(cnn, "_STAGES", WHOLE)
        folder = tiny_model("efficientnet_lite0_bigru").save_pretrained(tmp_path / "model")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    asked = arguments(write_photos(tmp_path / "photos", 0, 1, 2), folder)
    with pytest.raises(SystemExit):
        main(asked)
    found, loaded = second_search(*asked, "--runtime", runtime)
    assert len(found) == 3
    assert spared & loaded == set()


@pytest.fixture(scope="module")
def many(folder, tmp_path_factory):
    """An index of more sets than NumPy scores at once."""
    place = tmp_path_factory.mktemp("many") / "index"
    model, settings = OnnxEncoder.from_folder(folder), {"train_from": 20_000, "index": "ivf_flat"}
    with SetIndex.create(place, dim=16, set_size=4, model=model, settings=settings) as index:
        facts = [{"number": number} for number in range(20_000)]
        index.add([str(number) for number in range(20_000)], unit_sets(20_000, size=4, width=16), facts)
    return place


@pytest.mark.parametrize("more", [(), ("--exact",), ("-k", "20000", "--where", "number < 30000")])
def test_a_search_in_an_index_never_loads_torch(more, many, folder):
    found, loaded = second_search("search", "a dog", many, "--model", folder, "--json", "--runtime", "onnx", *more)
    assert found
    assert "torch" not in loaded
