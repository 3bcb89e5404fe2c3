"""An encoder or a head of one's own, named in a config: it trains, resumes, loads and serves where the user allows it,
and is refused everywhere else.
"""

import json
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from small_runs import recipe_for, write_data
from starlette.testclient import TestClient
from tiny_models import FEATURES

from maxmatch import SetEncoder, SetIndex
from maxmatch.cli.main import main
from maxmatch.model.build import build_model
from maxmatch.model.checkpoint import CheckpointError
from maxmatch.model.config import ModelConfig
from maxmatch.model.onnx_export import export_onnx
from maxmatch.model.onnx_runtime import OnnxEncoder
from maxmatch.model.own_code import ALLOWED
from maxmatch.model.text import word_tokenizer
from maxmatch.recipe.schema import Recipe
from maxmatch.server.app import create_app
from maxmatch.server.gallery import key_of
from maxmatch.training.loop import Interrupted, Trainer, train

MODULE = """
import torch
from torch import nn

from maxmatch.core.types import Features, Sets
from maxmatch.model.layers import masked_mean, unit_vectors


class Regions(nn.Module):
    def __init__(self, width, feature_width, hidden=8):
        super().__init__()
        self.width = self.local_width = width
        self.network = nn.Sequential(nn.Linear(feature_width, hidden), nn.Tanh(), nn.Linear(hidden, width))

    def forward(self, features, mask=None):
        local = self.network(features)
        mask = torch.ones(local.shape[:2], dtype=torch.bool, device=local.device) if mask is None else mask
        return Features(local, mask, masked_mean(local, mask))


class Patches(nn.Module):
    def __init__(self, width, patch):
        super().__init__()
        self.width = self.local_width = width
        self.patches = nn.Conv2d(3, width, patch, patch)

    def forward(self, pixels, mask=None):
        cells = self.patches(pixels)
        local = cells.flatten(2).transpose(1, 2)
        real = torch.ones(local.shape[:2], dtype=torch.bool, device=local.device)
        return Features(local, real, local.mean(1), grid=tuple(cells.shape[2:]))


class Words(nn.Module):
    def __init__(self, width, vocabulary_size):
        super().__init__()
        self.width = self.local_width = width
        self.words = nn.Embedding(vocabulary_size, width)

    def forward(self, ids, mask=None):
        local = self.words(ids)
        mask = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask
        return Features(local, mask, masked_mean(local, mask))


class Head(nn.Module):
    def __init__(self, local_width, width, set_size, scale=1.0):
        super().__init__()
        self.width, self.set_size = width, set_size
        self.slots = nn.Parameter(scale * torch.randn(set_size, local_width))
        self.out = nn.Linear(local_width, width)

    def forward(self, features):
        weights = (features.local @ self.slots.T).masked_fill(~features.mask[..., None], -torch.inf).softmax(1)
        residual = self.out(weights.transpose(1, 2) @ features.local)
        vectors = unit_vectors(residual + features.pooled[:, None])
        return Sets(vectors, residual, features.pooled, weights.transpose(1, 2))

    def reorder(self, order):
        self.slots.data = self.slots.data[list(order)]


class NoWidth(nn.Module):
    def __init__(self, width, feature_width):
        super().__init__()


WideHead = lambda local_width, width, set_size: Head(local_width, width + 1, set_size)
number = 5
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A module that is installed, and allowed nowhere."""
    name = "own_parts_of_a_test"
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / f"{name}.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.delenv(ALLOWED, raising=False)
    yield name
    sys.modules.pop(name, None)


def config_of(own, image="Regions", head="Head", **options):
    kind = {"Patches": "pixels"}.get(image, "features")
    encoder = {"name": "own", "code": f"{own}:{image}", "reads": kind, "options": options, "feature_width": FEATURES}
    heads = {"name": "own", "code": f"{own}:{head}"}
    return ModelConfig.model_validate(
        {
            "width": 16,
            "towers": {
                "image": {"encoder": encoder | {"pixels": {"size": 32}}, "head": heads, "set_size": 2},
                "text": {
                    "encoder": {"name": "own", "code": f"{own}:Words", "reads": "text"},
                    "head": {"name": "set", "heads": 2, "head_width": 8, "depth": 1},
                    "set_size": 2,
                },
            },
        }
    )


TOKENIZERS = {"text": word_tokenizer(["a dog runs", "a cat"], min_count=1)}


def items(image):
    generator = np.random.default_rng(0)
    if image == "Regions":
        return [generator.normal(size=(n, FEATURES)).astype(np.float32) for n in (3, 1, 5)]
    return [Image.fromarray(generator.integers(0, 256, (h, 40, 3), dtype=np.uint8)) for h in (30, 50)]


@pytest.mark.parametrize(("image", "options"), [("Regions", {"hidden": 5}), ("Patches", {"patch": 8})])
def test_a_model_of_own_parts_is_saved_and_loads_the_same_where_it_is_allowed(
    own, tmp_path, monkeypatch, image, options
):
    model = build_model(config_of(own, image, **options), TOKENIZERS, seed=0, allow=[own]).eval()
    folder = model.save_pretrained(tmp_path / "model")
    expected = model.encode_images(items(image)), model.encode_texts(["a dog", "a cat runs"])
    allowed = [f"{own}:{image}", f"{own}:Head", f"{own}:Words"]
    monkeypatch.setenv(ALLOWED, f"another.module, {own}")
    by_environment = SetEncoder.from_pretrained(folder)
    monkeypatch.delenv(ALLOWED)
    for loaded in (by_environment, SetEncoder.from_pretrained(folder, allow=allowed)):
        torch.testing.assert_close(loaded.encode_images(items(image)), expected[0])
        torch.testing.assert_close(loaded.encode_texts(["a dog", "a cat runs"]), expected[1])
    why = by_environment.explain(items(image)[0], "a dog")
    assert why.image_attention.shape == ((2, 4, 4) if image == "Patches" else (2, 3))


def test_nothing_is_imported_without_permission_and_the_message_tells_how_to_give_it(own, tmp_path, monkeypatch):
    folder = build_model(config_of(own), TOKENIZERS, allow=[own]).save_pretrained(tmp_path / "model")
    sys.modules.pop(own)
    for allow in ((), (f"{own}:Head",), (own.upper(), f"{own}s", f"{own}:Region", "*", "")):
        with pytest.raises(CheckpointError, match=rf"(?s)image.*{own}:Regions.*allow=\[.{own}:Regions.*{ALLOWED}"):
            SetEncoder.from_pretrained(folder, allow=allow)
        assert own not in sys.modules
    with pytest.raises(CheckpointError, match=f"{own}:Words"):
        SetEncoder.from_pretrained(folder, allow=[f"{own}:Regions", f"{own}:Head"])


def test_code_in_the_folder_of_a_checkpoint_is_never_imported(own, tmp_path, monkeypatch):
    folder = build_model(config_of(own), TOKENIZERS, allow=[own]).save_pretrained(tmp_path / "model")
    sys.modules.pop(own)
    (tmp_path / "site" / f"{own}.py").rename(folder / f"{own}.py")
    monkeypatch.syspath_prepend(str(folder))  # as where Python is started in it
    with pytest.raises(CheckpointError, match="the checkpoint's own folder"):
        SetEncoder.from_pretrained(folder, allow=[own])
    assert own not in sys.modules


@pytest.mark.parametrize(
    ("image", "head", "message"),
    [
        ("NoWidth", "Head", "NoWidth: expected a torch module with width, local_width"),
        ("Regions", "WideHead", r"WideHead: expected sets of 2 × 16 .*got 2 × 17"),
        ("Absent", "Head", "has no Absent"),
        ("number", "Head", "number: expected a class, got int"),
    ],
)
def test_a_part_that_does_not_fit_is_named(own, image, head, message):
    with pytest.raises(ValueError, match=message):
        build_model(config_of(own, image, head), TOKENIZERS, allow=[own])


def test_wrong_options_and_wrong_names_are_refused(own):
    with pytest.raises(ValueError, match=r"Regions: cannot be built .*depth"):
        build_model(config_of(own, depth=3), TOKENIZERS, allow=[own])
    with pytest.raises(ValueError, match=r"absent_of_a_test:Regions: cannot be imported"):
        build_model(config_of("absent_of_a_test"), TOKENIZERS, allow=["absent_of_a_test"])
    for code in ("os.system", "../own:Regions", "own/parts:Regions", ":Regions", "own:", "own:a b"):
        data = config_of(own).model_dump()
        data["towers"]["image"]["encoder"]["code"] = code
        with pytest.raises(ValueError, match="code"):
            ModelConfig.model_validate(data)


def own_recipe(own, data, epochs=2):
    recipe = recipe_for(data, epochs=epochs, batch_size=8).model_dump(mode="json")
    recipe["model"] = {"config": config_of(own, hidden=6).model_dump(mode="json")}
    return Recipe.model_validate(recipe)


def test_a_recipe_of_own_parts_trains_resumes_and_evaluates_where_it_is_allowed(own, tmp_path, monkeypatch, capsys):
    data = write_data(tmp_path / "data", train=24, val=8)
    recipe = own_recipe(own, data)
    with pytest.raises(ValueError, match=f"{own}:Regions.*{ALLOWED}"):
        train(recipe, tmp_path / "refused")
    monkeypatch.setenv(ALLOWED, own)
    train(recipe, tmp_path / "whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "_asked_to_stop", lambda self: self.progress.step == 4)
        with pytest.raises(Interrupted):
            train(recipe, tmp_path / "run")
    train(recipe, tmp_path / "run", resume=True)
    one, other = (SetEncoder.from_pretrained(tmp_path / name / "last").state_dict() for name in ("whole", "run"))
    assert all(torch.equal(one[name], other[name]) for name in one)
    for code, allowed in ((0, own), (1, "")):
        monkeypatch.setenv(ALLOWED, allowed)
        with pytest.raises(SystemExit) as end:
            main(["evaluate", str(tmp_path / "run"), str(data), "--split", "val", "--json"])
        said = capsys.readouterr()
        assert (end.value.code, ALLOWED in said.err) == (code, bool(code)), said.err
    assert "Traceback" not in said.err


def test_a_model_of_own_parts_is_served(own, tmp_path, monkeypatch):
    monkeypatch.setenv(ALLOWED, own)
    model = build_model(config_of(own, "Patches", patch=8), TOKENIZERS, seed=0)
    folder = model.save_pretrained(tmp_path / "model")
    for place, picture in enumerate(items("Patches")):
        picture.save(tmp_path / f"{place}.png")
    for arguments in (
        ["encode", str(folder), str(tmp_path), "--format", "folder", "--out", str(tmp_path / "sets")],
        ["index", "build", str(tmp_path / "index"), "--from", str(tmp_path / "sets")],
    ):
        with pytest.raises(SystemExit) as end:
            main(arguments)
        assert end.value.code == 0
    with SetIndex.open(tmp_path / "index") as index:
        app = create_app(index, picture=lambda name: tmp_path / name)
        with TestClient(app, base_url="http://127.0.0.1:8765", client=("127.0.0.1", 50000)) as client:
            hits = client.get("/api/v1/search", params={"q": "a dog"}).json()["hits"]
            assert len(hits) == 2
            why = client.get(f"/api/v1/items/{key_of('0.png')}/explain", params={"q": "a dog"})
            assert why.status_code == 200, why.text
        monkeypatch.delenv(ALLOWED)
        with pytest.raises(CheckpointError, match=ALLOWED):
            create_app(index, picture=lambda name: tmp_path / name)
    assert json.loads((folder / "config.json").read_text())["towers"]["image"]["encoder"]["code"] == f"{own}:Patches"


def test_graphs_of_onnx_run_without_the_code(own, tmp_path, monkeypatch, without_shape_checks):
    monkeypatch.setenv(ALLOWED, own)
    model = build_model(config_of(own, "Patches", patch=8), TOKENIZERS, seed=0).eval()
    folder = model.save_pretrained(tmp_path / "model")
    export_onnx(folder)
    monkeypatch.delenv(ALLOWED)
    exported, images, texts = OnnxEncoder.from_folder(folder), items("Patches"), ["a dog", "a cat runs"]
    np.testing.assert_allclose(exported.encode_images(images), model.encode_images(images).numpy(), rtol=0, atol=1e-4)
    np.testing.assert_allclose(exported.encode_texts(texts), model.encode_texts(texts).numpy(), rtol=0, atol=1e-4)
