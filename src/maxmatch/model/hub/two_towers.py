"""Two-tower models of transformers (CLIP, SigLIP, CLAP …) as SetEncoders: one vector per item, compared by cosine.

`load_two_towers` reads a folder as the Hugging Face Hub has it; `hub_tower` builds a tower from what a checkpoint of
ours says. Tokenizer, preprocessor and network are those of transformers; no code of a folder is ever run.

    config.json                 a `model_type` of FAMILIES
    model.safetensors           or the parts that model.safetensors.index.json lists
    preprocessor_config.json    what is done to pictures, or to sound
    tokenizer.json              and tokenizer_config.json
"""

import copy
import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from safetensors import SafetensorError, safe_open
from tokenizers import Regex, Tokenizer, normalizers
from torch import Tensor, nn
from torch.nn.functional import pad

from maxmatch.core import machine
from maxmatch.core.checks import check_ids, check_images, check_width
from maxmatch.core.types import Features
from maxmatch.model.config import GlobalFeature, HubAudio, HubImage, HubText, ModelConfig, TowerConfig
from maxmatch.model.encoder import SetEncoder, Tower
from maxmatch.model.encoders import Encoder
from maxmatch.model.encoders.backbone import Freezable, mask_for
from maxmatch.model.hub.open_clip_models import OpenClipImageEncoder, OpenClipTextEncoder, network, read_open_clip
from maxmatch.model.hub.preprocessing import AudioReader, PatchReader, PatchTransform, processor_transform
from maxmatch.model.inputs import PixelReader, Reader, TextReader
from maxmatch.model.layers import GlobalHead
from maxmatch.model.names import CONFIG, WEIGHTS, CheckpointError, hub_model_type

IMAGE, AUDIO, TEXT = "image", "audio", "text"
_INDEX = f"{WEIGHTS}.index.json"
_PREPROCESSOR = "preprocessor_config.json"
_UNUSUAL = "a\U0010fffd"  # a letter, and a sign that no vocabulary has
_VOCABULARIES = ("tokenizer.json", "vocab.json", "vocab.txt", "*.model")
_SETTINGS = (CONFIG, "tokenizer_config.json", _PREPROCESSOR, "processor_config.json")
_HALVES = {
    IMAGE: ("vision_model", "visual_projection"),
    AUDIO: ("audio_model", "audio_projection"),
    TEXT: ("text_model", "text_projection"),
}
Half = HubImage | HubAudio | HubText


class Family(NamedTuple):
    """What all models of one `model_type` have in common."""

    other: Literal["image", "audio"] = "image"
    """What is beside texts."""
    fixed_length: bool = False
    """Whether texts are padded to the full length, and the padding is read like words."""
    longest: int | None = None
    """The most tokens it was trained on, where neither its tokenizer nor its config says so."""
    offset: bool = False
    """Whether positions are counted from after the padding token's number, as in RoBERTa."""
    projected: bool = True
    """Whether the picture's vector goes through a projection to the joint width."""


FAMILIES = {
    "clip": Family(),
    "siglip": Family(fixed_length=True, projected=False),
    "siglip2": Family(fixed_length=True, projected=False),
    "altclip": Family(offset=True),
    "chinese_clip": Family(),
    "metaclip_2": Family(),
    "align": Family(longest=64, projected=False),
    "clap": Family(other="audio", offset=True),
    "open_clip": Family(),
}
"""The models that can be loaded, by the `model_type` in their config.json; "open_clip": those that only open_clip
has."""


# From a folder to a model.


def load_two_towers(folder: Path) -> SetEncoder:
    """The model in a folder as the hub has it. CheckpointError names the file that is missing, damaged or refused."""
    if hub_model_type(folder) == "open_clip":
        return _load_open_clip(folder)
    other = _family(folder).other
    with machine.torchvision_errors_explained(), _quietly():
        processor, tokenizer = _processor(folder, other), _tokenizer(folder)
        whole = _weights(folder)
    config: Any = whole.config
    _set_lengths(tokenizer, config, folder)
    scale, bias = _logits(whole)
    described = _described(folder, config, processor).model_copy(update={"logit_scale": scale, "logit_bias": bias})
    try:
        towers = {
            name: _tower(tower.encoder, whole, tokenizer.backend_tokenizer)  # type: ignore[arg-type]
            for name, tower in described.towers.items()
        }
    except ValueError as error:
        raise _misfit(folder, error) from error
    return SetEncoder(towers, described.similarity, described)


def _load_open_clip(folder: Path) -> SetEncoder:
    """A model that open_clip alone has."""
    whole, config, preprocessing, tokenizer = read_open_clip(folder)
    options = {"model_type": "open_clip", **config}
    encoders: dict[str, Half] = {
        IMAGE: HubImage(config=options, preprocessor=preprocessing),
        TEXT: HubText(config=options),
    }
    parts = {name: TowerConfig(encoder=one, head=GlobalFeature(), set_size=1) for name, one in encoders.items()}
    scale, bias = _logits(whole)
    described = ModelConfig(
        width=config["embed_dim"], towers=parts, similarity="mil", pairing=[0], pairing_stability=1.0,
        logit_scale=scale, logit_bias=bias,
    )  # fmt: skip
    try:
        towers = {name: _tower(encoder, whole, tokenizer) for name, encoder in encoders.items()}
    except ValueError as error:
        raise CheckpointError(f"{folder}: {error}.") from error
    return SetEncoder(towers, described.similarity, described)


def two_tower_config(folder: Path) -> ModelConfig:
    """What the model in a folder as the hub has it is made of, without reading its weights."""
    from transformers import AutoConfig

    if hub_model_type(folder) == "open_clip":
        raise CheckpointError(
            f"{folder}: a model of open_clip, which is used as it is: it shows nothing of its patches and "
            "words that sets could be made of. Choose one that transformers has: see `maxmatch models`."
        )
    other = _family(folder).other
    with machine.torchvision_errors_explained(), _quietly():
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
        return _described(folder, config, _processor(folder, other))


def _family(folder: Path) -> Family:
    """The family of the model in a folder. CheckpointError where it is none that is known, or asks for code."""
    _refuse_code(folder)
    settings = _json(folder / CONFIG)
    model_type = settings.get("model_type")
    if model_type not in FAMILIES:
        alone = str(model_type).endswith(("_text_model", "_vision_model", "_audio_model"))
        half = "It is one tower alone: take the whole model. " if alone else ""
        raise CheckpointError(
            f"{folder / CONFIG}: not a checkpoint of MaxMatch, nor a two-tower model that it knows: its model_type is "
            f"{model_type!r}. {half}Known are {', '.join(FAMILIES)}."
        )
    if (settings.get("audio_config") or {}).get("enable_fusion"):
        raise CheckpointError(
            f"{folder / CONFIG}: a CLAP with enable_fusion hears random parts of a sound, and makes another set of it "
            "each time. Choose one without, such as laion/clap-htsat-unfused."
        )
    return FAMILIES[model_type]


def _described(folder: Path, config: Any, processor: Any) -> ModelConfig:
    """The config of ours for a config and a preprocessor of transformers."""
    options = json.loads(config.to_json_string(use_diff=False))
    options.pop("_name_or_path", None)  # the folder, which a checkpoint does not need
    other = FAMILIES[config.model_type].other
    first = HubImage if other == IMAGE else HubAudio
    encoders: dict[str, Half] = {
        other: first(config=options, preprocessor=json.loads(processor.to_json_string())),
        TEXT: HubText(config=options),
    }
    widths = {modality: _widths(config, modality)[1] for modality in encoders}
    if len(set(widths.values())) > 1:
        raise _misfit(folder, f"expected towers that make vectors of one width, got {widths}")
    parts = {name: TowerConfig(encoder=encoder, head=GlobalFeature(), set_size=1) for name, encoder in encoders.items()}
    return ModelConfig(width=widths[TEXT], towers=parts, similarity="mil", pairing=[0], pairing_stability=1.0)


def _misfit(folder: Path, why: object) -> CheckpointError:
    return CheckpointError(f"{folder}: its files do not fit each other: {why}. Fetch it again.")


def hub_tower(config: Half, tokenizer: Tokenizer | None, wholes: dict[str, nn.Module]) -> tuple[Encoder, Reader]:
    """A tower as a checkpoint describes it, with random weights. wholes: what was built before; two towers are the
    halves of one model.
    """
    from transformers import AutoConfig, AutoModel

    if tokenizer is None and isinstance(config, HubText):
        raise ValueError("a text tower needs its tokenizer: give tokenizers={name: tokenizer}.")
    key = json.dumps(config.config, sort_keys=True)
    if key not in wholes:
        options = dict(config.config)
        model_type = str(options.pop("model_type", ""))
        if model_type not in FAMILIES:
            raise ValueError(f"config: model_type: expected one of {', '.join(FAMILIES)}, got {model_type!r}.")
        if "auto_map" in options:
            raise ValueError(
                "config: asks to run code that comes with the model (auto_map), which MaxMatch never does."
            )
        with _quietly():
            if model_type == "open_clip":
                wholes[key] = network(options)
            else:
                wholes[key] = AutoModel.from_config(AutoConfig.for_model(model_type, **options))  # type: ignore[no-untyped-call]
    return _encoder_and_reader(config, wholes[key], tokenizer)


def _tower(config: Half, whole: nn.Module, tokenizer: Tokenizer) -> Tower:
    encoder, reader = _encoder_and_reader(config, whole, tokenizer)
    return Tower(encoder, GlobalHead(encoder.local_width, encoder.width), reader)


def _encoder_and_reader(config: Half, whole: nn.Module, tokenizer: Tokenizer | None) -> tuple[Encoder, Reader]:
    if config.config.get("model_type") == "open_clip":
        width = int(config.config["embed_dim"])  # type: ignore[arg-type]
        if isinstance(config, HubText):
            assert tokenizer is not None
            return OpenClipTextEncoder(whole, width), TextReader(tokenizer)
        return OpenClipImageEncoder(whole, width), PixelReader(processor_transform(config.preprocessor))
    described: Any = whole.config
    if isinstance(config, HubText):
        assert tokenizer is not None
        return HubTextEncoder(half_of(whole, TEXT), *_widths(described, TEXT)), TextReader(tokenizer)
    if isinstance(config, HubAudio):
        return HubAudioEncoder(half_of(whole, AUDIO), *_widths(described, AUDIO)), AudioReader(config.preprocessor)
    transform = processor_transform(config.preprocessor)
    half, widths = half_of(whole, IMAGE), _widths(described, IMAGE)
    if isinstance(transform, PatchTransform):
        return HubPatchEncoder(half, *widths), PatchReader(transform)
    takes = getattr(described.vision_config, "image_size", None)
    if hasattr(described.vision_config, "patch_size") and takes != transform.size:
        raise ValueError(f"the preprocessor makes pictures of {transform.size} pixels, but the model takes {takes}")
    return HubImageEncoder(half, *widths), PixelReader(transform)


def half_of(whole: nn.Module, modality: str) -> nn.Module:
    """One half of a model: the same object but for the parts of the other half, which it lacks."""
    half = copy.copy(whole)
    own = {name: part for name, part in whole._modules.items() if name in _HALVES[modality]}
    vars(half).update(_modules=own, _parameters={})  # the scale and bias of scores are in the config
    return half


def _widths(config: Any, modality: str) -> tuple[int, int]:
    """The width of the local features, and of the vector that items are compared by."""
    joint: Any = getattr(config, "projection_dim", None)
    if modality == TEXT:
        text = config.text_config
        return getattr(text, "project_dim", text.hidden_size), getattr(text, "projection_size", joint)
    if modality == AUDIO:
        return config.audio_config.hidden_size, joint
    vision = config.vision_config
    local = vision.hidden_dim if hasattr(vision, "hidden_dim") else vision.hidden_size
    return local, joint if FAMILIES[config.model_type].projected else local


def _logits(whole: Any) -> tuple[float, float]:
    """What a cosine is multiplied by, and what is added to it, for the model's own scores."""
    if hasattr(whole, "temperature"):
        return 1 / whole.temperature.item(), 0.0
    scale = whole.logit_scale_a if hasattr(whole, "logit_scale_a") else whole.logit_scale
    bias = getattr(whole, "logit_bias", None)
    return math.exp(scale.item()), 0.0 if bias is None else bias.item()


# The files of a folder.


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise CheckpointError(f"{path}: missing. Copy the whole folder, or fetch the model again.")
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError(f"{path}: not readable as JSON ({error}). Fetch it again.") from error
    if not isinstance(found, dict):
        raise CheckpointError(f"{path}: expected keys with values. Fetch it again.")
    return found


def _refuse_code(folder: Path) -> None:
    for name in _SETTINGS:
        if not (folder / name).is_file():
            continue
        found = _json(folder / name)
        parts = [found, *(part for part in found.values() if isinstance(part, dict))]
        asked = [key for key in ("auto_map", "trust_remote_code") if any(part.get(key) for part in parts)]
        if asked:
            raise CheckpointError(
                f"{folder / name}: asks to run code that comes with the model ({asked[0]}), which MaxMatch never does. "
                f"Choose a model that transformers itself has: {', '.join(FAMILIES)}."
            )


def _processor(folder: Path, modality: str) -> Any:
    import transformers

    if not any((folder / name).is_file() for name in (_PREPROCESSOR, "processor_config.json")):
        raise CheckpointError(
            f"{folder}: {_PREPROCESSOR} is missing, which says how pictures or sounds are prepared. Copy the whole "
            "folder, or fetch the model again."
        )
    try:
        if modality == AUDIO:
            return transformers.ClapFeatureExtractor.from_pretrained(folder, local_files_only=True)
        reader: Any = transformers.AutoImageProcessor
        return reader.from_pretrained(folder, backend="pil", local_files_only=True)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{folder / _PREPROCESSOR}: not readable ({error}). Fetch it again.") from error


def _tokenizer(folder: Path) -> Any:
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    if not any(any(folder.glob(pattern)) for pattern in _VOCABULARIES):  # transformers would invent an empty one
        raise CheckpointError(
            f"{folder}: tokenizer.json is missing, which divides texts. Copy the whole folder, or fetch the model "
            "again."
        )
    file, settings = folder / "tokenizer.json", folder / "tokenizer_config.json"
    options = _json(settings) if settings.is_file() else {}
    siglip = options.get("tokenizer_class") == "SiglipTokenizer"  # it needs sentencepiece; tokenizer.json does not
    if siglip and not file.is_file():
        raise CheckpointError(
            f"{file}: missing; a SigLIP needs it. Choose a model that has it, or save it from another."
        )
    kind: Any = PreTrainedTokenizerFast if siglip else AutoTokenizer
    try:
        tokenizer = kind.from_pretrained(folder, local_files_only=True)
        if not isinstance(getattr(tokenizer, "backend_tokenizer", None), Tokenizer):
            raise ValueError(f"{type(tokenizer).__name__} has no such file")
        tokenizer.backend_tokenizer.encode(_UNUSUAL)  # fails where its special tokens are those of another model
    except Exception as error:  # `tokenizers` raises nothing more special
        raise CheckpointError(f"{file}: not readable ({error}). Fetch it again.") from error
    if siglip:
        _canonicalise(tokenizer.backend_tokenizer, bool(options.get("do_lower_case", True)))
    return tokenizer


def _canonicalise(tokenizer: Tokenizer, lower_case: bool) -> None:
    """Do to texts what SiglipTokenizer does, in case tokenizer.json does not: a second time it changes nothing."""
    steps: list[Any] = [normalizers.Lowercase()] if lower_case else []
    steps += [
        normalizers.Replace(Regex(r"[!-/:-@\[-`{-~]"), ""),  # ASCII punctuation
        normalizers.Replace(Regex(r"\s+"), " "),
        normalizers.Strip(),
    ]
    tokenizer.normalizer = normalizers.Sequence([*steps, *([tokenizer.normalizer] if tokenizer.normalizer else [])])


def _set_lengths(tokenizer: Any, config: Any, folder: Path) -> None:
    """Let the tokenizer itself truncate and pad as the model expects."""
    family, text = FAMILIES[config.model_type], config.text_config
    if len(tokenizer) > text.vocab_size:
        raise CheckpointError(
            f"{folder / 'tokenizer.json'}: has {len(tokenizer)} tokens, but the model knows {text.vocab_size} "
            f"({CONFIG}). Take the tokenizer of this model."
        )
    positions = text.max_position_embeddings - (text.pad_token_id + 1 if family.offset else 0)
    longest = min(positions, tokenizer.model_max_length, family.longest or positions)
    if tokenizer.pad_token is None:
        raise CheckpointError(f"{folder / 'tokenizer_config.json'}: no pad_token. Take the tokenizer of this model.")
    backend = tokenizer.backend_tokenizer
    backend.enable_truncation(longest, direction=tokenizer.truncation_side)
    backend.enable_padding(
        direction=tokenizer.padding_side,
        pad_id=tokenizer.pad_token_id,
        pad_type_id=tokenizer.pad_token_type_id,
        pad_token=tokenizer.pad_token,
        length=longest if family.fixed_length else None,
    )


def _weights(folder: Path) -> nn.Module:
    """The network, in float32. Weights that are missing or of other shapes are refused, not made up."""
    from transformers import AutoModel

    _check_weights(folder)
    try:
        whole, found = AutoModel.from_pretrained(
            folder,
            dtype=torch.float32,
            use_safetensors=True,
            local_files_only=True,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise CheckpointError(f"{folder}: the model cannot be loaded ({error}). Fetch it again.") from error
    lines = [
        f"{name}: {tuple(has)} in the file, {tuple(wants)} in the config"
        for name, has, wants in sorted(found["mismatched_keys"])
    ]
    needed = {name for name, _ in whole.named_parameters()}  # buffers are computed, but for those of BatchNorm
    absent = [name for name in sorted(found["missing_keys"]) if name in needed or ".running_" in name]
    lines += [f"{name}: missing in the file" for name in absent]
    if lines:
        more = f"\n… and {len(lines) - 5} more" if len(lines) > 5 else ""
        raise CheckpointError(
            f"{folder / WEIGHTS} does not fit {CONFIG}. The two are of different models, or the file is that of one "
            "tower. Fetch both again:\n" + "\n".join(lines[:5]) + more
        )
    loaded: nn.Module = whole
    return loaded


def _check_weights(folder: Path) -> None:
    """Refuse files that are missing, incomplete, pickles, or more than memory holds."""
    if (folder / _INDEX).is_file():
        files = sorted(set(_json(folder / _INDEX).get("weight_map", {}).values()))
    else:
        files = [WEIGHTS]
    count = 0
    for name in files:
        path = folder / name
        if not path.is_file():
            pickled = next(folder.glob("*.bin"), None)
            only = "" if pickled is None else f" {pickled.name} is a pickle, which can run code and is never read."
            raise CheckpointError(
                f"{path}: missing.{only} Fetch the model again, or one that has its weights as safetensors."
            )
        try:
            with safe_open(path, "pt") as stored:
                count += sum(math.prod(stored.get_slice(key).get_shape()) for key in stored.keys())  # noqa: SIM118
        except (SafetensorError, OSError) as error:
            raise CheckpointError(
                f"{path}: not a complete safetensors file ({error}). Its download may have been interrupted: remove it "
                "and fetch the model again."
            ) from error
    free = machine.free_memory()
    if free is not None and 4 * count > free:
        raise ValueError(
            f"{folder}: the model takes {4 * count / 2**30:.1f} GiB of memory, but {free / 2**30:.1f} GiB are free. "
            "Close other programs, or choose a smaller model."
        )


@contextmanager
def _quietly() -> Iterator[None]:
    """Without the progress bars and advice that transformers prints while it reads files."""
    logging: Any = import_module("transformers.utils.logging")
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    try:
        logging.set_verbosity_error()
        logging.disable_progress_bar()
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


# The halves of a model.


class HubHalf(Freezable):
    """One half of a two-tower model. Global feature: its projected vector. Local features: its last states."""

    def __init__(self, half: nn.Module, local_width: int, width: int) -> None:
        super().__init__()
        self.backbone: Any = half
        self.local_width = local_width
        self.width = width
        self._vector_rows = -(-width // local_width)

    def stored(self, features: Features) -> list[Float[Tensor, "n W"]]:
        """What is kept of each item in a store of features: its vector, filled up with zeros to whole rows of the local
        features' width, then the real ones of these.
        """
        missing = self._vector_rows * self.local_width - self.width
        vectors = pad(features.pooled, (0, missing)).view(len(features.pooled), -1, self.local_width)
        rows = zip(vectors, features.local, features.mask, strict=True)
        return [torch.cat([vector, local[real]]) for vector, local, real in rows]

    def from_store(self, rows: Float[Tensor, "B n W"], mask: Bool[Tensor, "B n"]) -> Features:
        """The features that `stored` kept: the backbone has to see each item only once."""
        check_width("features", rows, ("items", "rows"), self.local_width)
        head = self._vector_rows
        local, mask = rows[:, head:], mask[:, head:]
        side = math.isqrt(local.shape[1])
        grid = (side, side) if self.square and side * side == local.shape[1] else None
        return Features(local, mask, rows[:, :head].flatten(1)[:, : self.width], grid=grid)

    square = False
    """Whether all local features of an item are the cells of a square grid."""


class HubImageEncoder(HubHalf):
    """Pictures of one size. Local features: the cells of the last grid; a class token is dropped."""

    square = True

    def forward(
        self, images: Float[Tensor, "B 3 H W"] | Float[Tensor, "B n w"], mask: Tensor | None = None
    ) -> Features:
        """The features of B pictures, or what is stored of them."""
        if images.ndim == 3 and mask is not None:
            return self.from_store(images, mask)
        check_images(images)
        output = self.backbone.get_image_features(pixel_values=images)
        states = output.last_hidden_state
        if states.ndim == 4:
            rows, columns = states.shape[2:]
            cells = states.flatten(2).transpose(1, 2)
        else:
            patch = self.backbone.config.vision_config.patch_size
            rows, columns = images.shape[2] // patch, images.shape[3] // patch
            cells = states[:, states.shape[1] - rows * columns :]
        return Features(cells, mask_for(cells, None), output.pooler_output, grid=(rows, columns))


class HubPatchEncoder(HubHalf):
    """Pictures of any shape as patches. Local features: the patches' states."""

    def forward(self, patches: Float[Tensor, "B N P"], rows: Int[Tensor, "B N"] | Bool[Tensor, "B N"]) -> Features:
        """The features of B pictures, or what is stored of them (with a mask). rows: the row that each patch is in, 1
        and up, and 0 for padding.
        """
        if rows.dtype == torch.bool:
            return self.from_store(patches, rows)
        real = rows > 0
        height = rows.amax(1)
        shapes = torch.stack([height, real.sum(1) // height.clamp(min=1)], 1)
        output = self.backbone.get_image_features(
            pixel_values=patches, pixel_attention_mask=real.int(), spatial_shapes=shapes
        )
        return Features(output.last_hidden_state, real, output.pooler_output)


class HubAudioEncoder(HubHalf):
    """Sounds. Local features: the cells of the last grid."""

    def forward(self, spectrograms: Float[Tensor, "B 1 T F"], mask: Tensor | None = None) -> Features:
        """The features of B sounds."""
        output = self.backbone.get_audio_features(input_features=spectrograms)
        cells = output.last_hidden_state.flatten(2).transpose(1, 2)
        return Features(cells, mask_for(cells, None), output.pooler_output)


class HubTextEncoder(HubHalf):
    """Texts. Local features: the tokens' states."""

    def forward(
        self, ids: Int[Tensor, "B N"] | Float[Tensor, "B n w"], mask: Bool[Tensor, "B N"] | None = None
    ) -> Features:
        """The features of B texts, or what is stored of them."""
        if ids.is_floating_point() and mask is not None:
            return self.from_store(ids, mask)
        check_ids(ids, self.backbone.config.text_config.vocab_size)
        mask = mask_for(ids, mask)
        output = self.backbone.get_text_features(input_ids=ids, attention_mask=mask.long())
        return Features(output.last_hidden_state, mask, output.pooler_output)
