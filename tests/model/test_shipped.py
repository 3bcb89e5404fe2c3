"""Models that ship are there by name, for every command that needs one, as soon as their folder is."""

import json
import subprocess
from pathlib import Path

import pytest
import torch
from PIL import Image
from sklearn.datasets import load_sample_images
from test_images import noise
from tiny_models import CHECKPOINT, saved_model, tiny_model

from maxmatch import SetEncoder, SetIndex
from maxmatch.cli.common import model_of
from maxmatch.cli.main import main
from maxmatch.model import names
from maxmatch.model.names import SHIPPED, model_identity, name_to_record, shipped_model, shipped_names
from maxmatch.search.index_folder import read_origin

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
    (tmp_path / "photos").mkdir()
    for seed in range(3):
        Image.fromarray(noise(50, 40, seed)).save(tmp_path / "photos" / f"{seed}.png")
    return stand_in / SHIPPED


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


def test_no_other_name_is_a_shipped_model(installed):
    for name in ("maxmatch-smal", "..", "", "small/..", "maxmatch-small/../maxmatch-small"):
        assert shipped_model(name) is None
    with pytest.raises(FileNotFoundError, match=r"smal: no such folder.*a model that ships \(maxmatch-small\)"):
        SetEncoder.from_pretrained("maxmatch-smal")


def test_an_installation_without_the_model_is_reported(installed, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(names, "MODELS", tmp_path / "nothing")
    with pytest.raises(FileNotFoundError, match="this installation lacks maxmatch-small"):
        SetEncoder.from_pretrained(SHIPPED)
    for verb, named_by in (
        ("search dog photos", "--model"),
        ("serve photos", "--model"),
        ("index build new.index --source photos", "--model"),
        ("encode photos --out sets", "MODEL, before SOURCE"),
    ):
        code, _, err = command(capsys, *verb.split())
        assert code == 1
        assert "maxmatch-small: missing" in err
        assert named_by in err


def test_search_encode_and_index_use_the_shipped_model_where_none_is_named(installed, tmp_path, capsys):
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
    tiny_model("resnet152_bigru", seed=2).save_pretrained(tmp_path / SHIPPED)  # a folder of its name is not meant
    assert command(capsys, "search", "a dog", "new.index", "--paths")[1].count("\n") == 3
    assert name_to_record(SHIPPED) == str(tmp_path / SHIPPED)


def test_an_index_that_names_no_model_is_searched_with_the_shipped_one(installed, tmp_path):
    model = SetEncoder.from_pretrained(SHIPPED)
    other = tiny_model("resnet152_bigru", seed=2)
    for name, maker in (("ours", model), ("others", other), ("unknown", None)):
        SetIndex.create(tmp_path / name, dim=model.dim, set_size=4, model=maker).close()
    with SetIndex.open(tmp_path / "ours") as index:
        assert model_identity(model_of(index, tmp_path / "ours", None, "cpu")) == model_identity(model)
    for name in ("others", "unknown"):
        with SetIndex.open(tmp_path / name) as index, pytest.raises(ValueError, match="Name it with --model"):
            model_of(index, tmp_path / name, None, "cpu")


def test_its_files_are_published_and_take_at_most_25_megabytes():
    files = [shipped_model(SHIPPED) / name for name in CHECKPOINT]
    asked = subprocess.run(["git", "check-ignore", *files], cwd=ROOT, capture_output=True, text=True, check=False)
    assert asked.returncode == 128 or asked.stdout == ""  # 128: not a checkout
    assert sum(file.stat().st_size for file in files) <= 25_000_000


def test_its_slots_pair_as_search_needs_and_it_tells_what_sentences_and_photos_are_about():
    model = SetEncoder.from_pretrained(SHIPPED)
    assert model.set_sizes == {"image": 4, "text": 4}
    assert model.config.pairing == [0, 1, 2, 3]
    assert model.config.pairing_stability > 0.99
    # Words that no caption had lie near their neighbours.
    pairs = [("a photo of a penguin", "a photo of a bird"), ("a violin player", "a guitar player")]
    for unseen, seen in pairs:
        texts = model.encode_texts([unseen, seen, "a snowboarder in the air"])
        scores = model.similarity(texts[:1], texts[1:])[0]
        assert scores[0] > scores[1], (unseen, seen)
    sentences = ["a palace in China", "a pink flower", "two dogs run across a field", "a man on a bicycle"]
    photos = load_sample_images().images  # a Chinese palace and a flower, neither from its training data
    scores = model.similarity(model.encode_images(photos), model.encode_texts(sentences))
    assert scores.argmax(1).tolist() == [0, 1]
