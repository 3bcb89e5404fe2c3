"""Models that ship are there by name, for every command that needs one, as soon as their folder is."""

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_sample_images
from tiny_models import saved_model, tiny_model

from maxmatch import SetEncoder, SetIndex
from maxmatch.cli.common import model_of
from maxmatch.cli.main import main
from maxmatch.model import names
from maxmatch.model.names import SHIPPED, model_identity, name_to_record, shipped_model, shipped_names
from maxmatch.search.encode_files import read_origin

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    saved_model(folder / SHIPPED)
    return folder


@pytest.fixture
def installed(stand_in, tmp_path, monkeypatch):
    """The package with a small model in the place of the shipped one, and photos in the current folder."""
    monkeypatch.setattr(names, "MODELS", stand_in)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    write_photos(tmp_path / "photos")
    return stand_in / SHIPPED


@pytest.fixture
def lacking(tmp_path, monkeypatch):
    monkeypatch.setattr(names, "MODELS", tmp_path / "models")
    monkeypatch.chdir(tmp_path)
    write_photos(tmp_path / "photos")


def write_photos(folder):
    folder.mkdir()
    for seed in range(3):
        pixels = np.random.default_rng(seed).integers(0, 256, (40, 50, 3), np.uint8)
        Image.fromarray(pixels).save(folder / f"{seed}.png")


def command(capsys, *arguments):
    """The exit code, stdout and stderr."""
    with pytest.raises(SystemExit) as end:
        main(list(arguments))
    printed = capsys.readouterr()
    return end.value.code or 0, printed.out, printed.err


def test_a_shipped_model_is_loaded_by_name_and_a_folder_of_that_name_comes_first(installed, tmp_path):
    assert shipped_names() == [SHIPPED]
    assert shipped_model(SHIPPED) == installed
    expected = SetEncoder.from_pretrained(installed).encode_texts(["a dog"])
    assert torch.equal(SetEncoder.from_pretrained(SHIPPED).encode_texts(["a dog"]), expected)
    other = tiny_model("resnet152_bigru", seed=2)
    other.save_pretrained(tmp_path / SHIPPED)
    assert torch.equal(SetEncoder.from_pretrained(SHIPPED).encode_texts(["a dog"]), other.encode_texts(["a dog"]))


@pytest.mark.parametrize("name", ["maxmatch-smal", "..", "", "small/..", "maxmatch-small/../maxmatch-small"])
def test_no_other_name_is_a_shipped_model(installed, name):
    assert shipped_model(name) is None


def test_an_unknown_name_is_refused_with_those_that_ship_and_a_folder_is_asked_for(installed):
    with pytest.raises(FileNotFoundError, match=r"smal: no such folder.*a model that ships \(maxmatch-small\)"):
        SetEncoder.from_pretrained("maxmatch-smal")


def test_an_installation_without_the_model_says_so(lacking, capsys):
    with pytest.raises(FileNotFoundError, match="this installation lacks maxmatch-small"):
        SetEncoder.from_pretrained(SHIPPED)
    for verb in (
        ["search", "a dog", "photos"],
        ["serve", "photos"],
        ["index", "build", "new.index", "--source", "photos"],
    ):
        code, _, err = command(capsys, *verb)
        assert code == 1
        assert "maxmatch-small: missing" in err
        assert "--model" in err
    code, _, err = command(capsys, "encode", "photos", "--out", "sets")
    assert code == 1
    assert "Name another one (MODEL, before SOURCE)" in err


def test_search_encode_and_index_use_the_shipped_model_where_none_is_named(installed, capsys):
    code, found, err = command(capsys, "search", "a dog", "photos")
    assert code == 0, err
    assert sorted(found.split()) == ["photos/0.png", "photos/1.png", "photos/2.png"]
    code, printed, err = command(capsys, "encode", "photos", "--out", "sets", "--device", "cpu", "--json")
    assert code == 0, err
    assert json.loads(printed)["encoded"] == 3
    code, _, err = command(capsys, "index", "build", "new.index", "--source", "photos", "--device", "cpu")
    assert code == 0, err
    # By name: the package may be installed elsewhere tomorrow.
    assert read_origin(Path("new.index")).model == SHIPPED
    assert command(capsys, "search", "a dog", "new.index", "--paths")[1].count("\n") == 3


def test_a_note_of_the_shipped_model_does_not_mean_a_folder_of_its_name(installed, tmp_path, capsys):
    assert command(capsys, "index", "build", "new.index", "--source", "photos", "--device", "cpu")[0] == 0
    tiny_model("resnet152_bigru", seed=2).save_pretrained(tmp_path / SHIPPED)
    code, _, err = command(capsys, "search", "a dog", "new.index")
    assert code == 0, err
    assert name_to_record(SHIPPED) == str(tmp_path / SHIPPED)


def test_an_index_without_a_named_model_is_searched_with_the_shipped_one_that_made_it(installed, tmp_path):
    model = SetEncoder.from_pretrained(SHIPPED)
    other = tiny_model("resnet152_bigru", seed=2)
    for name, maker in (("ours", model), ("others", other), ("unknown", None)):
        SetIndex.create(tmp_path / name, dim=model.dim, set_size=4, model=maker).close()
    with SetIndex.open(tmp_path / "ours") as index:
        assert model_identity(model_of(index, tmp_path / "ours", None, "cpu")) == model_identity(model)
    for name in ("others", "unknown"):
        with SetIndex.open(tmp_path / name) as index, pytest.raises(ValueError, match="Name it with --model"):
            model_of(index, tmp_path / name, None, "cpu")


def test_the_folder_of_shipped_models_is_not_left_out_of_what_is_published():
    files = [
        f"src/maxmatch/model/shipped/{SHIPPED}/{name}"
        for name in ("config.json", "model.safetensors", "tokenizer.json")
    ]
    asked = subprocess.run(["git", "check-ignore", *files], cwd=ROOT, capture_output=True, text=True, check=False)
    if asked.returncode == 128:  # not a checkout: what is here was published
        return
    assert asked.stdout == ""


def test_it_takes_at_most_25_megabytes_on_the_disk():
    folder = shipped_model(SHIPPED)
    assert folder is not None
    assert sum(file.stat().st_size for file in folder.iterdir()) <= 25_000_000


def test_it_loads_by_name_and_its_slots_pair_as_search_needs():
    model = SetEncoder.from_pretrained(SHIPPED)
    assert model.set_sizes == {"image": 4, "text": 4}
    assert model.config.pairing == [0, 1, 2, 3]
    assert model.config.pairing_stability > 0.99


def test_words_that_no_caption_had_lie_near_their_neighbours():
    model = SetEncoder.from_pretrained(SHIPPED)
    pairs = [("a photo of a penguin", "a photo of a bird"), ("a violin player", "a guitar player")]
    for unseen, seen in pairs:
        texts = model.encode_texts([unseen, seen, "a snowboarder in the air"])
        scores = model.similarity(texts[:1], texts[1:])[0]
        assert scores[0] > scores[1], (unseen, seen)


def test_it_says_which_of_some_sentences_is_about_a_photo():
    model = SetEncoder.from_pretrained(SHIPPED)
    sentences = ["a palace in China", "a pink flower", "two dogs run across a field", "a man on a bicycle"]
    photos = load_sample_images().images  # a Chinese palace and a flower, neither from its training data
    scores = model.similarity(model.encode_images(photos), model.encode_texts(sentences))
    assert scores.argmax(1).tolist() == [0, 1]
