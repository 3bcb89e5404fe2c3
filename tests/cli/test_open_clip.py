"""A model that open_clip alone has is a SetEncoder with one vector per item, whose scores are the model's own.

The package imports torchvision, which few have beside a torch for the CPU: where open_clip cannot be imported, a small
module of the same names stands in for it, and only the tests of MaxMatch's own part run.
"""

import json
import math
import re
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

import numpy as np
import pytest
import torch
from commands import run
from PIL import Image
from safetensors.torch import load_file, save_file
from tiny_hub import TEXTS, changed, hub_folder, pictures
from torch import nn

from maxmatch import SetEncoder
from maxmatch.data.scenes import generate
from maxmatch.model.images import load_image
from maxmatch.model.names import CheckpointError, hub_model_type, model_identity

pytestmark = pytest.mark.filterwarnings("ignore::maxmatch.model.text.TextTruncated")
CONTEXT = 12
TEXT = {"context_length": CONTEXT, "vocab_size": 600, "width": 16, "heads": 2, "layers": 1}
VISION = {"image_size": 32, "patch_size": 8, "layers": 1, "width": 32, "head_width": 16}
PLAIN = {"embed_dim": 16, "vision_cfg": VISION, "text_cfg": TEXT}
HALVES = {"CLIP": PLAIN, "CustomTextCLIP": {**PLAIN, "custom_text": True, "init_logit_bias": -3.0}}
SQUASHED = {"mean": [0.5] * 3, "std": [0.25] * 3, "interpolation": "bilinear", "resize_mode": "squash"}


class Letters:
    """The part of SimpleTokenizer that is used, without merges: every letter is a token."""

    def __init__(self, context_length):
        printed = [*range(33, 127), *range(161, 173), *range(174, 256)]
        others = [byte for byte in range(256) if byte not in printed]
        self.byte = {byte: chr(byte) for byte in printed} | {byte: chr(256 + n) for n, byte in enumerate(others)}
        signs = [self.byte[byte] for byte in [*printed, *others]]
        pieces = [*signs, *(f"{one}</w>" for one in signs), "<start_of_text>", "<end_of_text>"]
        self.encoder = {piece: number for number, piece in enumerate(pieces)}
        self.decoder = dict(enumerate(pieces))
        self.bpe_ranks = {}
        self.sot_token_id, self.eot_token_id = len(pieces) - 2, len(pieces) - 1
        self.context_length = context_length

    def __call__(self, texts):
        rows = torch.zeros(len(texts), self.context_length, dtype=torch.long)
        for row, text in zip(rows, texts, strict=True):
            ids = [self.sot_token_id]
            for word in re.findall(r"'(?:s|t|re|ve|m|ll|d)|[^\W\d_]+|\d|(?:[^\w\s]|_)+", text.lower()):
                letters = [self.byte[byte] for byte in word.encode()]
                ids += [self.encoder[one] for one in [*letters[:-1], f"{letters[-1]}</w>"]]
            ids = [*ids[: self.context_length - 1], self.eot_token_id]
            row[: len(ids)] = torch.tensor(ids)
        return rows


class Visual(nn.Module):
    def __init__(self, width, image_size):
        super().__init__()
        self.image_size = (image_size, image_size)
        self.conv = nn.Conv2d(3, width, 8, 8)

    def forward(self, images):
        return self.conv(images).tanh().mean((2, 3))


class Words(nn.Module):
    def __init__(self, width, context_length, vocab_size):
        super().__init__()
        self.vocab_size = vocab_size
        self.token_embedding = nn.Embedding(vocab_size, width)
        self.positional_embedding = nn.Parameter(torch.randn(context_length, width))

    def forward(self, ids):
        states = (self.token_embedding(ids) + self.positional_embedding).tanh()
        return states.cumsum(1)[torch.arange(len(ids)), ids.argmax(1)]


class StandIn(nn.Module):
    """As CLIP and CustomTextCLIP: pictures in `visual`, texts in the model itself or in `text`."""

    def __init__(self, embed_dim, vision_cfg, text_cfg, init_logit_bias=None):
        super().__init__()
        self.visual = Visual(embed_dim, vision_cfg["image_size"])
        words = Words(embed_dim, text_cfg["context_length"], text_cfg["vocab_size"])
        if init_logit_bias is None:
            self.token_embedding, self.positional_embedding = words.token_embedding, words.positional_embedding
        else:
            self.text = words
        self.vocab_size = words.vocab_size
        self.logit_scale = nn.Parameter(torch.tensor(math.log(10.0)))
        self.logit_bias = None if init_logit_bias is None else nn.Parameter(torch.tensor(init_logit_bias))

    def encode_image(self, images):
        return self.visual(images)

    def encode_text(self, ids):
        return self.text(ids) if hasattr(self, "text") else Words.forward(self, ids)


@pytest.fixture
def package(monkeypatch):
    """What stands for open_clip."""
    made = ModuleType("open_clip")
    made.__spec__ = ModuleSpec("open_clip", None)
    made.CLIP = made.CustomTextCLIP = StandIn
    made.OPENAI_DATASET_MEAN, made.OPENAI_DATASET_STD = (0.48, 0.46, 0.41), (0.27, 0.26, 0.28)
    made.get_tokenizer = lambda name: Letters(CONTEXT)
    made.get_pretrained_cfg = lambda model, tag: {"hf_hub": "someone/small/"} if (model, tag) == ("S", "best") else {}
    made.list_pretrained_tags_by_model = lambda model: ["best"] if model == "S" else []
    monkeypatch.setitem(sys.modules, "open_clip", made)
    return made


def saved(folder, config, preprocessing, package, seed=0):
    """A folder as open_clip puts it on the hub, with random weights."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(seed)
    options = {key: value for key, value in config.items() if key != "custom_text"}
    whole = (package.CustomTextCLIP if config.get("custom_text") else package.CLIP)(**json.loads(json.dumps(options)))
    for name, value in whole.named_parameters():  # as after training: none zero
        if "logit" not in name:
            value.data += 0.05 * torch.randn_like(value)
    weights = {name: value.contiguous() for name, value in whole.eval().state_dict().items()}
    save_file(weights, folder / "open_clip_model.safetensors")
    described = {"model_cfg": config, "preprocess_cfg": preprocessing}
    (folder / "open_clip_config.json").write_text(json.dumps(described))
    return whole


def ours(model, images, texts):
    return model.logits(model.encode_images(images, batch_size=3), model.encode_texts(texts, batch_size=2))


@pytest.mark.parametrize("preprocessing", [{}, SQUASHED], ids=["cropped", "squashed"])
@pytest.mark.parametrize("config", HALVES.values(), ids=HALVES)
def test_scores_are_the_models_own_before_and_after_a_save(package, config, preprocessing, tmp_path):
    whole = saved(tmp_path / "hub", config, preprocessing, package)
    model = SetEncoder.from_pretrained(tmp_path / "hub")
    mean, std = preprocessing.get("mean", (0.48, 0.46, 0.41)), preprocessing.get("std", (0.27, 0.26, 0.28))
    pixels = []
    for image in map(load_image, pictures().values()):  # as torchvision does: resize, crop the middle, normalise
        if preprocessing:
            image = image.resize((32, 32), Image.Resampling.BILINEAR)
        else:
            short = min(image.size)
            image = image.resize([int(32 * side / short) for side in image.size], Image.Resampling.BICUBIC)
            left, top = (round((side - 32) / 2) for side in image.size)
            image = image.crop((left, top, left + 32, top + 32))
        values = torch.from_numpy(np.array(image, np.float32)) / 255
        pixels.append(((values - torch.tensor(mean)) / torch.tensor(std)).permute(2, 0, 1))
    with torch.no_grad():
        images, texts = whole.encode_image(torch.stack(pixels)), whole.encode_text(Letters(CONTEXT)(TEXTS))
        cosines = nn.functional.normalize(images, dim=-1) @ nn.functional.normalize(texts, dim=-1).T
    expected = 10 * cosines + config.get("init_logit_bias", 0.0)
    assert min(float(expected.std(axis).min()) for axis in (0, 1)) > 1e-3
    again = SetEncoder.from_pretrained(model.save_pretrained(tmp_path / "ours"))
    for one in (model, again):
        torch.testing.assert_close(ours(one, list(pictures().values()), TEXTS), expected, rtol=1e-5, atol=1e-5)
    assert model_identity(again) == model_identity(model)
    shown = model.explain(pictures()["landscape"], "a dog")
    assert shown.words[0] == "<start_of_text>"
    assert shown.image_attention.shape == (1, 4, 4)


def test_a_name_of_open_clip_is_searched_and_evaluated(package, tmp_path, monkeypatch, capsys):
    import huggingface_hub

    place = tmp_path / "cache" / "models--someone--small"
    (place / "refs").mkdir(parents=True)
    (place / "refs" / "main").write_text("a" * 40)
    saved(place / "snapshots" / ("a" * 40), PLAIN, {}, package)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    generate(tmp_path / "scenes", images=6, size=32)
    found = []
    for name in ("open_clip:S/best", "someone/small"):
        done = run(capsys, "search", "a dog", tmp_path / "scenes" / "images", "--model", name, "--json")
        assert done.code == 0, done.err
        found.append([(hit["id"], hit["score"]) for hit in json.loads(done.out)["hits"]])
        assert run(capsys, "evaluate", name, tmp_path / "scenes", "--split", "train", "--json").code == 0
    assert found[0] == found[1] != []
    assert ("someone/small", "open_clip") in [
        (one["name"], one["kind"]) for one in json.loads(run(capsys, "models", "--json").out)["cached"]
    ]
    done = run(capsys, "search", "a dog", tmp_path / "scenes" / "images", "--model", "open_clip:S/worst")
    assert (done.code, "Tags of 'S': best" in done.err) == (1, True)


def test_without_the_package_the_cure_is_named(tmp_path, monkeypatch, capsys, package):
    saved(tmp_path / "hub", PLAIN, {}, package)
    monkeypatch.setitem(sys.modules, "open_clip", None)
    Image.new("RGB", (40, 40)).save(tmp_path / "a.png")
    for name in (tmp_path / "hub", "open_clip:S/best"):
        done = run(capsys, "search", "a dog", tmp_path, "--model", name)
        assert done.code == 1
        assert "pip install open_clip_torch" in done.err
        assert "Traceback" not in done.err


def cut(folder):
    data = (folder / "open_clip_model.safetensors").read_bytes()
    (folder / "open_clip_model.safetensors").write_bytes(data[: len(data) // 2])


def without_weight(folder):
    weights = load_file(folder / "open_clip_model.safetensors")
    del weights["visual.conv.weight"]
    save_file(weights, folder / "open_clip_model.safetensors")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: (f / "open_clip_model.safetensors").unlink(), r"open_clip_model\.safetensors: missing.*Fetch"),
        (cut, r"open_clip_model\.safetensors: not a complete.*Fetch"),
        (without_weight, r"(?s)does not fit open_clip_config\.json.*visual\.conv\.weight"),
        (lambda f: (f / "open_clip_config.json").write_text("{"), r"open_clip_config\.json: not readable.*Fetch"),
        (lambda f: (f / "open_clip_config.json").write_text("{}"), r"open_clip_config\.json: not readable.*model_cfg"),
        (lambda f: changed(f, "open_clip_config.json", model_cfg={**PLAIN, "multimodal_cfg": {}}), "a CoCa"),
        (
            lambda f: changed(
                f, "open_clip_config.json", model_cfg={**PLAIN, "text_cfg": {**TEXT, "hf_model_name": "xlm"}}
            ),
            "the text tower xlm",
        ),
        (
            lambda f: changed(f, "open_clip_config.json", preprocess_cfg={"resize_mode": "longest"}),
            r"open_clip_config\.json: expected square pictures.*longest",
        ),
    ],
)
def test_a_folder_that_cannot_be_used_is_refused_and_the_file_is_named(package, tmp_path, damage, message):
    saved(tmp_path / "hub", PLAIN, {}, package)
    damage(tmp_path / "hub")
    with pytest.raises(CheckpointError, match=message) as refused:
        SetEncoder.from_pretrained(tmp_path / "hub")
    assert str(tmp_path / "hub") in str(refused.value)


def test_a_tokenizer_that_divides_texts_otherwise_is_refused(package, tmp_path):
    class Upper(Letters):
        def __call__(self, texts):
            return super().__call__([text.replace("dog", "cat") for text in texts])

    saved(tmp_path / "hub", PLAIN, {}, package)
    package.get_tokenizer = lambda name: Upper(CONTEXT)
    with pytest.raises(CheckpointError, match="tokenizer divides texts in a way"):
        SetEncoder.from_pretrained(tmp_path / "hub")


def test_what_such_a_model_cannot_do_is_said(package, tmp_path, capsys):
    saved(tmp_path / "hub", PLAIN, {}, package)
    generate(tmp_path / "scenes", images=6, size=32)
    commands = {
        "cannot be exported to ONNX": ("export", tmp_path / "hub", tmp_path / "out", "--onnx"),
        "has no backbone whose features": (
            "data", "features", tmp_path / "scenes", tmp_path / "store", "--model", tmp_path / "hub",
        ),
        "model of open_clip, which is used as it is": (
            "train", "clip_sets", f"data.path={tmp_path / 'scenes'}", f"model.start={tmp_path / 'hub'}", "--dry-run",
        ),
    }  # fmt: skip
    for message, command in commands.items():
        done = run(capsys, *command)
        assert done.code == 1
        assert message in done.err
        assert "Traceback" not in done.err


def test_a_folder_with_files_of_both_is_read_by_transformers(tmp_path, package):
    folder = hub_folder(tmp_path / "clip", "clip")
    assert hub_model_type(folder) == "clip"
    (folder / "open_clip_config.json").write_text(json.dumps({"model_cfg": PLAIN}))
    assert hub_model_type(folder) == "clip"
    (folder / "config.json").write_text(json.dumps({"architecture": "vit_base_patch16_clip_224"}))  # as timm's
    assert hub_model_type(folder) == "open_clip"


# --- open_clip itself, where it can be imported -----------------------------------------------------------------------

FULL = {**TEXT, "context_length": 20, "vocab_size": 49408}
TIMM = {"timm_model_name": "fastvit_mci0", "timm_model_pretrained": False, "timm_pool": "avg", "timm_proj": None}
REAL = {
    "vit": ({**PLAIN, "text_cfg": FULL}, {}),
    "quick": ({**PLAIN, "quick_gelu": True, "text_cfg": FULL}, SQUASHED),
    "resnet": (
        {
            **PLAIN,
            "vision_cfg": {"image_size": 64, "layers": [1, 1, 1, 1], "width": 16, "patch_size": None},
            "text_cfg": FULL,
        },
        {},
    ),
    "mobile": (
        {
            "embed_dim": 512,
            "custom_text": True,
            "vision_cfg": {**TIMM, "image_size": 64},
            "text_cfg": {**FULL, "no_causal_mask": True},
            "init_logit_bias": -10,
        },
        {"mean": [0.0] * 3, "std": [1.0] * 3, "interpolation": "bilinear", "resize_mode": "shortest"},
    ),
}


def test_scores_are_those_of_open_clip_itself(tmp_path):
    open_clip = pytest.importorskip(
        "open_clip",
        reason="open_clip brings torchvision, which does not load beside every build of torch",
        exc_type=(ImportError, RuntimeError),
    )
    images = list(pictures().values())
    for kind, (config, preprocessing) in REAL.items():
        folder = tmp_path / kind
        saved(folder, config, preprocessing, open_clip)
        theirs, prepared = open_clip.create_model_from_pretrained(f"local-dir:{folder}")
        ids = open_clip.get_tokenizer(f"local-dir:{folder}")(TEXTS)
        with torch.no_grad():
            expected = theirs.eval().get_logits(torch.stack([prepared(load_image(image)) for image in images]), ids)[0]
        model = SetEncoder.from_pretrained(folder)
        for one in (model, SetEncoder.from_pretrained(model.save_pretrained(tmp_path / f"{kind}-ours"))):
            torch.testing.assert_close(ours(one, images, TEXTS), expected, rtol=1e-5, atol=1e-5)
