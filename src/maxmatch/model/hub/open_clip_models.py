"""Models that open_clip alone has (MobileCLIP and others) as SetEncoders, through the installed package open_clip.

A folder as the hub has it: open_clip_config.json, open_clip_model.safetensors and, where the model does not read CLIP's
byte pairs, its tokenizer. The network is open_clip's own. Pictures are prepared as its transforms do, by Pillow; texts
are divided by a tokenizer of ours that is compared with the model's own while the model is loaded.
"""

import copy
import json
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Shaped
from PIL import Image
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from torch import Tensor, nn

from maxmatch.core.checks import check_ids, check_images
from maxmatch.core.types import Features
from maxmatch.model.encoders.backbone import Freezable
from maxmatch.model.hub.preprocessing import ProcessorTransform
from maxmatch.model.images import ResizedMiddle, Source, value_table
from maxmatch.model.names import OPEN_CLIP_CONFIG, OPEN_CLIP_WEIGHTS, CheckpointError, open_clip

# What must be divided alike: case, punctuation, digits, contractions, other scripts, runs of spaces, long texts.
_PROBES = [
    "a photo of a dog",
    "",
    "  Two DOGS,  isn't it?\tIt's 1984!",
    "naïve café — 犬と猫 🐕",
    "under_score <b>&</b> a-b/c #1",
    "many words " * 60,
]
_RESAMPLING = {"bicubic": Image.Resampling.BICUBIC, "bilinear": Image.Resampling.BILINEAR}
_PIECES = r"<start_of_text>|<end_of_text>|'s|'t|'re|'ve|'m|'ll|'d|\p{L}+|\p{N}|[^\s\p{L}\p{N}]+"


class OpenClipTransform(ProcessorTransform):
    """Pictures as open_clip prepares them. processor: its preprocess_cfg."""

    @property
    def kept_side(self) -> int:
        """The length of the short side before the middle is cropped."""
        return self.size

    @property
    def eight_bits(self) -> Callable[[Source], np.ndarray]:
        """The pixels before they are normalised."""
        resample = _RESAMPLING[self.processor["interpolation"]]
        return ResizedMiddle(self.size, self.size, self.resize == "squash", int(resample), down=False)

    @cached_property
    def table(self) -> Float[np.ndarray, "3 256"]:
        """What a pixel of each channel becomes, by its value."""
        return value_table(self.mean, self.std)

    def _processed(self, source: Source, **options: bool) -> Shaped[np.ndarray, "3 H W"]:
        return np.moveaxis(self.eight_bits(source), 2, 0)


def open_clip_transform(options: Mapping[str, Any]) -> OpenClipTransform:
    """The preprocessing that a preprocess_cfg describes."""
    sides = options["size"]
    if options["resize_mode"] not in ("shortest", "squash") or len({*sides}) > 1 or options["mode"] != "RGB":
        raise ValueError(
            f"{OPEN_CLIP_CONFIG}: expected square pictures, cropped (shortest) or squashed; got {dict(options)}"
        )
    if options["interpolation"] not in _RESAMPLING:
        options = {**options, "interpolation": "bicubic"}  # as open_clip reads "random"
    resize: Any = "squash" if options["resize_mode"] == "squash" else "crop"
    return OpenClipTransform(sides[0], resize, tuple(options["mean"]), tuple(options["std"]), dict(options))


def read_open_clip(folder: Path) -> tuple[nn.Module, dict[str, Any], dict[str, Any], Tokenizer]:
    """The network in a folder, its config, its preprocessing, and its tokenizer. CheckpointError names the file that is
    missing, damaged or refused.
    """
    config = open_clip_config(folder)
    package = open_clip(str(folder))
    if not (folder / OPEN_CLIP_WEIGHTS).is_file():
        raise CheckpointError(
            f"{folder / OPEN_CLIP_WEIGHTS}: missing; pickles are never read. Fetch the model again, or one that has it."
        )
    whole = network(config)
    _load(whole, folder)
    try:
        theirs = package.get_tokenizer(f"local-dir:{folder}")
        tokenizer = _tokenizer(theirs, config["text_cfg"])
    except Exception as error:  # of many kinds, where a file is missing or damaged
        raise CheckpointError(f"{folder}: its tokenizer cannot be read ({error}). Fetch the model again.") from error
    if not torch.equal(theirs(_PROBES), torch.tensor([one.ids for one in tokenizer.encode_batch(_PROBES)])):
        raise CheckpointError(f"{folder}: its tokenizer divides texts in a way that MaxMatch does not know.")
    said = json.loads((folder / OPEN_CLIP_CONFIG).read_text(encoding="utf-8")).get("preprocess_cfg") or {}
    visual: Any = whole.visual
    sides = visual.image_size if isinstance(visual.image_size, list | tuple) else [visual.image_size] * 2
    preprocessing = {**_usual_preprocessing(package), **said, "size": [*sides]}
    return whole, config, preprocessing, tokenizer


def open_clip_config(folder: Path) -> dict[str, Any]:
    """The model_cfg in a folder. CheckpointError where it is damaged, or of a kind that cannot be loaded."""
    path = folder / OPEN_CLIP_CONFIG
    try:
        config = dict(json.loads(path.read_text(encoding="utf-8"))["model_cfg"])
        text, vision = dict(config["text_cfg"]), dict(config["vision_cfg"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path}: not readable ({type(error).__name__}: {error}). Fetch it again.") from error
    if "multimodal_cfg" in config or "hf_model_name" in text:
        what = "a CoCa" if "multimodal_cfg" in config else f"a model with the text tower {text['hf_model_name']}"
        raise CheckpointError(f"{path}: {what}, which MaxMatch does not read. See `maxmatch models` for others.")
    return {**config, "text_cfg": text, "vision_cfg": {**vision, "timm_model_pretrained": False}}


def network(config: Mapping[str, Any]) -> nn.Module:
    """A network of open_clip with random weights, in float32."""
    package = open_clip("this model")
    options = copy.deepcopy({key: value for key, value in config.items() if key not in ("model_type", "custom_text")})
    if "timm_model_name" not in options["vision_cfg"]:
        options["vision_cfg"].pop("timm_model_pretrained", None)
    built: nn.Module = (package.CustomTextCLIP if config.get("custom_text") else package.CLIP)(**options)
    return built.eval()


def _load(whole: nn.Module, folder: Path) -> None:
    """Take the weights of a folder; those that are missing or of other shapes are refused, not made up."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    path = folder / OPEN_CLIP_WEIGHTS
    try:
        found = load_file(path)
        found.pop("text.transformer.embeddings.position_ids", None)  # of older transformers, and never read
        whole.load_state_dict({name: value.float() for name, value in found.items()})
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path}: not a complete safetensors file ({error}). Fetch it again.") from error
    except RuntimeError as error:
        first = "\n".join(str(error).splitlines()[1:4])
        raise CheckpointError(f"{path} does not fit {OPEN_CLIP_CONFIG}. Fetch both again:\n{first}") from error


def _usual_preprocessing(package: Any) -> dict[str, Any]:
    """What open_clip does where a config does not say."""
    mean, std = list(package.OPENAI_DATASET_MEAN), list(package.OPENAI_DATASET_STD)
    return {"mode": "RGB", "mean": mean, "std": std, "interpolation": "bicubic", "resize_mode": "shortest"}


def _tokenizer(theirs: Any, text: Mapping[str, Any]) -> Tokenizer:
    """A tokenizer that divides texts as open_clip's, all to the model's full length."""
    length = theirs.context_length
    clean = (text.get("tokenizer_kwargs") or {}).get("clean", "whitespace")
    if hasattr(theirs, "tokenizer"):
        tokenizer = Tokenizer.from_str(theirs.tokenizer.backend_tokenizer.to_str())
        padding = (theirs.tokenizer.pad_token_id, theirs.tokenizer.pad_token)
        first = [tokenizer.normalizer] if tokenizer.normalizer else []
        tokenizer.normalizer = normalizers.Sequence([*_cleaned(clean), *first])
    else:
        tokenizer = Tokenizer(models.BPE(theirs.encoder, [*theirs.bpe_ranks], end_of_word_suffix="</w>"))
        tokenizer.normalizer = normalizers.Sequence(_cleaned("lower" if clean == "whitespace" else clean))
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(_PIECES), "removed", invert=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
        tokenizer.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Replace("</w>", " ")])
        ends = [(theirs.decoder[number], number) for number in (theirs.sot_token_id, theirs.eot_token_id)]
        tokenizer.add_special_tokens([name for name, _ in ends])
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{ends[0][0]} $A {ends[1][0]}", special_tokens=ends
        )
        padding = (0, theirs.decoder[0])
    tokenizer.enable_truncation(length)
    tokenizer.enable_padding(pad_id=padding[0], pad_token=padding[1], length=length)
    return tokenizer


def _cleaned(how: str) -> list[Any]:
    """What is done to texts first. Signs that were encoded twice, and HTML's names for some, are not mended."""
    spaces = [normalizers.Replace(Regex(r"\s+"), " "), normalizers.Strip()]
    if how == "canonicalize":
        signs = [normalizers.Replace("_", " "), normalizers.Replace(Regex(r"[!-/:-@\[-`{-~]"), "")]
        return [normalizers.NFC(), *signs, normalizers.Lowercase(), *spaces]
    return [normalizers.NFC(), *spaces, *([normalizers.Lowercase()] if how == "lower" else [])]


class OpenClipHalf(Freezable):
    """One half of a model of open_clip. Global and only local feature: its projected vector."""

    def __init__(self, whole: nn.Module, width: int) -> None:
        super().__init__()
        half: Any = copy.copy(whole)
        own = {name: part for name, part in whole._modules.items() if (name == "visual") == self.visual}
        scores = ("logit_scale", "logit_bias")  # they are in the config
        weights = {} if self.visual else {key: one for key, one in whole._parameters.items() if key not in scores}
        vars(half).update(_modules=own, _parameters=weights, _buffers={} if self.visual else dict(whole._buffers))
        self.backbone: Any = half
        self.local_width = self.width = width

    visual = False
    """Whether it is the half of the pictures."""


def _features(vectors: Float[Tensor, "B D"]) -> Features:
    return Features(vectors[:, None], torch.ones(len(vectors), 1, dtype=torch.bool, device=vectors.device), vectors)


class OpenClipImageEncoder(OpenClipHalf):
    """Pictures of one size."""

    visual = True

    def forward(self, images: Float[Tensor, "B 3 H W"], mask: Tensor | None = None) -> Features:
        """The features of B pictures."""
        check_images(images)
        return _features(self.backbone.encode_image(images))


class OpenClipTextEncoder(OpenClipHalf):
    """Texts of the model's full length; the padding is read like words."""

    def forward(self, ids: Int[Tensor, "B N"], mask: Bool[Tensor, "B N"] | None = None) -> Features:
        """The features of B texts."""
        check_ids(ids, self.backbone.vocab_size)
        return _features(self.backbone.encode_text(ids))
