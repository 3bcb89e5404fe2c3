"""From a ModelConfig to a SetEncoder. The tables here are the only place that maps names to classes."""

import json
import warnings
from collections.abc import Callable, Collection, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from maxmatch.core import machine
from maxmatch.model import config as parts
from maxmatch.model.encoder import Head, SetEncoder, Tower
from maxmatch.model.encoders import (
    ConvEncoder,
    EfficientNetLite,
    Encoder,
    GRUEncoder,
    RegionEncoder,
    ResNeXt,
    TransformerEncoder,
    backbone_from_config,
)
from maxmatch.model.encoders.backbone import weights_place
from maxmatch.model.hub.two_towers import hub_tower
from maxmatch.model.images import ImageTransform
from maxmatch.model.inputs import FeatureReader, PixelReader, Reader, TextReader
from maxmatch.model.layers import GaussianHead, GlobalHead, GPOHead, PIEHead, ResidualSetHead, SetHead
from maxmatch.model.names import hub_parts, is_hub_name
from maxmatch.model.own_code import own_part

_CHOICE = {"name", "source", "backbone", "pixels", "pretrained"}  # the rest are parameters of the class


class _Materials(NamedTuple):
    """What a tower is made of besides its config."""

    width: int
    tokenizer: Tokenizer | None
    word_vectors: Tensor | None
    pretrained: bool
    wholes: dict[str, nn.Module]
    """Two-tower models of which another tower is the other half."""
    allow: Collection[str]
    """Code outside the package that may be imported."""


def build_model(
    config: parts.ModelConfig,
    tokenizers: Mapping[str, Tokenizer] | None = None,
    *,
    word_vectors: Mapping[str, Tensor] | None = None,
    pretrained: bool = True,
    seed: int | None = None,
    allow: Collection[str] = (),
) -> SetEncoder:
    """The model of a config.

    tokenizers: one per text tower, by the tower's name. word_vectors: the initial word vectors of a Bi-GRU, by the
    tower's name (see `read_glove`). pretrained: load the weights that the config's backbones name; otherwise all
    weights are random and nothing is fetched. seed: for the random weights; torch's global state is not changed.
    allow: encoders and heads outside the package that may be imported, by name (`maxmatch.model.own_code`).
    """
    with nullcontext() if seed is None else torch.random.fork_rng(devices=[]):
        if seed is not None:
            torch.manual_seed(seed)
        towers = {}
        wholes: dict[str, nn.Module] = {}
        for name, tower in config.towers.items():
            tokenizer, vectors = (tokenizers or {}).get(name), (word_vectors or {}).get(name)
            try:
                with machine.torchvision_errors_explained():
                    encoder, reader = ENCODERS[tower.encoder.name](
                        tower.encoder, _Materials(config.width, tokenizer, vectors, pretrained, wholes, allow)
                    )
                head = build_head(tower.head, encoder.local_width, config.width, tower.set_size, allow)
            except ValueError as error:
                raise ValueError(f"tower {name!r}: {error}") from error
            towers[name] = Tower(encoder, head, reader)
    return SetEncoder(towers, config.similarity, _with_backbones(config, towers, pretrained))


def build_head(config: Any, context_width: int, width: int, set_size: int, allow: Collection[str] = ()) -> Head:
    """The head of a config, with random weights. allow: see `build_model`."""
    if isinstance(config, parts.OwnHead):
        head: Head = own_part(config, ("width", "set_size", "reorder"), allow, context_width, width, set_size)
        if (head.width, head.set_size) != (width, set_size):
            made, wanted = f"{head.set_size} × {head.width}", f"{set_size} × {width}"
            raise ValueError(f"{config.code}: expected sets of {wanted} (set_size × width), got {made}.")
        return head
    options = _options(config)
    if isinstance(config, parts.Residual):
        options["base"] = build_head(config.base, context_width, width, 1)
    return HEADS[config.name](context_width, width, set_size, **options)


def _options(part: Any) -> dict[str, Any]:
    """The parameters of the class that a part of the config names."""
    options: dict[str, Any] = part.model_dump(exclude=_CHOICE)
    return options


def _own(config: parts.OwnEncoder, given: _Materials) -> tuple[Encoder, Reader]:
    named: dict[str, int] = {}
    reader: Reader
    if config.reads == "text":
        reader = TextReader(_needed(given.tokenizer))
        named = {"vocabulary_size": reader.tokenizer.get_vocab_size()}
    elif config.reads == "features":
        reader, named = FeatureReader(config.feature_width), {"feature_width": config.feature_width}
    else:
        reader = PixelReader(ImageTransform(**config.pixels.values()))
    return own_part(config, ("width", "local_width"), given.allow, width=given.width, **named), reader


def _conv(config: parts.Conv, given: _Materials) -> tuple[Encoder, Reader]:
    backbone = BACKBONES[config.backbone.source](config.backbone, given.pretrained, "vision_config")
    named = config.backbone.pretrained if isinstance(config.backbone, parts.HuggingFaceBackbone) else None
    asked = given.pretrained and named is not None and None in config.pixels.model_dump().values()
    file = preprocessing(str(named)) if asked else None
    if given.pretrained and isinstance(config.backbone, parts.TimmBackbone):  # a checkpoint has them in its config
        file = _timm_preprocessing(getattr(backbone, "pretrained_cfg", None) or {})
    reader = PixelReader(ImageTransform(**config.pixels.values(file)))
    return ConvEncoder(backbone, given.width, **_options(config)), reader


def preprocessing(name: str) -> parts.Pixels:
    """What the preprocessor_config.json of a Hugging Face model, by its name or folder, says is to be done to pictures;
    nothing without one.
    """
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    place, file = weights_place(name), "preprocessor_config.json"
    try:
        path = Path(place) / file if Path(place).is_dir() else Path(hf_hub_download(place, file))
        said = json.loads(path.read_text(encoding="utf-8"))
    except LocalEntryNotFoundError:
        text = f"{name}: its {file} could not be fetched, so pictures are prepared as usual (model.config: pixels)."
        warnings.warn(text, UserWarning, stacklevel=2)
        return parts.Pixels()
    except (FileNotFoundError, EntryNotFoundError):
        return parts.Pixels()
    crop = said.get("crop_size") if said.get("do_center_crop", True) else None
    size = crop or said.get("size")
    squash = crop is None and isinstance(size, dict) and "height" in size
    return parts.Pixels(
        size=size.get("shortest_edge") or size.get("height") if isinstance(size, dict) else size,
        resize="squash" if squash else "crop",
        mean=said.get("image_mean"),
        std=said.get("image_std"),
    )


def _timm_preprocessing(said: Mapping[str, Any]) -> parts.Pixels:
    """What timm says is to be done to pictures."""
    size = (said.get("input_size") or (None,))[-1]
    resize: Any = "squash" if said.get("crop_mode") == "squash" else None
    return parts.Pixels(size=size, resize=resize, mean=said.get("mean"), std=said.get("std"))


def _region(config: parts.Region, given: _Materials) -> tuple[Encoder, Reader]:
    return RegionEncoder(width=given.width, **_options(config)), FeatureReader(config.feature_width)


def _gru(config: parts.GRU, given: _Materials) -> tuple[Encoder, Reader]:
    tokenizer = _needed(given.tokenizer)
    options = {**_options(config), "word_vectors": given.word_vectors}
    return GRUEncoder(tokenizer.get_vocab_size(), width=given.width, **options), TextReader(tokenizer)


def _transformer(config: parts.Transformer, given: _Materials) -> tuple[Encoder, Reader]:
    tokenizer = _needed(given.tokenizer)
    backbone = BACKBONES[config.backbone.source](config.backbone, given.pretrained, "text_config")
    _check_fit(tokenizer, backbone.config)
    return TransformerEncoder(backbone, given.width, **_options(config)), TextReader(tokenizer)


def _hub(config: parts.HubImage | parts.HubAudio | parts.HubText, given: _Materials) -> tuple[Encoder, Reader]:
    return hub_tower(config, given.tokenizer, given.wholes)


def _needed(tokenizer: Tokenizer | None) -> Tokenizer:
    if tokenizer is None:
        raise ValueError("a text tower needs its tokenizer: give tokenizers={name: tokenizer}.")
    return tokenizer


def _check_fit(tokenizer: Tokenizer, backbone_config: Any) -> None:
    """Refuse a tokenizer whose ids or lengths exceed what the backbone has vectors for."""
    words, longest = backbone_config.vocab_size, getattr(backbone_config, "max_position_embeddings", None)
    if tokenizer.get_vocab_size() > words:
        raise ValueError(
            f"the tokenizer has {tokenizer.get_vocab_size()} tokens, but the backbone knows {words}. "
            "Use the backbone's own tokenizer, or set vocab_size in its config."
        )
    limit = (tokenizer.truncation or {}).get("max_length")
    if longest is not None and (limit is None or limit > longest):
        raise ValueError(
            f"the tokenizer cuts at {limit} tokens, but the backbone takes at most {longest}. "
            f"Load the tokenizer with max_length={longest} or less."
        )


def _hugging_face(config: parts.HuggingFaceBackbone, pretrained: bool, half: str) -> nn.Module:
    """A model of transformers. Of one for pictures and texts (CLIP, SigLIP), `half` names the half that is meant."""
    from transformers import AutoConfig, AutoModel

    if config.pretrained is None or (config.config is not None and not pretrained):
        options = dict(config.config or {})
        return backbone_from_config(AutoConfig.for_model(str(options.pop("model_type")), **options))
    place = weights_place(config.pretrained)
    whole = AutoConfig.from_pretrained(place)
    part = getattr(whole, half, whole)
    if not pretrained:
        return backbone_from_config(part)
    model: nn.Module
    try:  # without the pooling layer, as backbone_from_config, which rebuilds it from a checkpoint
        model = AutoModel.from_pretrained(place, config=part, dtype=torch.float32, add_pooling_layer=False)
    except TypeError:
        model = AutoModel.from_pretrained(place, config=part, dtype=torch.float32)
    return model


def text_backbone(name: str) -> nn.Module:
    """A pretrained text encoder of transformers: a folder, `package:NAME/FOLDER`, or a name on the hub."""
    return _hugging_face(parts.HuggingFaceBackbone(pretrained=name), True, "text_config")


def tokenizer_file(name: str) -> Path:
    """The tokenizer.json of a pretrained text encoder: in its folder, or on the hub."""
    place = weights_place(name)
    if Path(place).is_dir():
        return Path(place) / "tokenizer.json"
    from huggingface_hub import hf_hub_download

    return Path(hf_hub_download(place, "tokenizer.json"))


def _efficientnet_lite(config: parts.EfficientNetLiteBackbone, pretrained: bool, _: str) -> nn.Module:
    return (EfficientNetLite.pretrained if pretrained and config.pretrained else EfficientNetLite)(config.variant)


def _resnext(config: parts.ResNeXtBackbone, pretrained: bool, _: str) -> nn.Module:
    backbone = ResNeXt(**_options(config))
    if pretrained and config.pretrained is not None:
        from safetensors.torch import load_file

        file = config.pretrained
        if not Path(file).is_file():
            if not is_hub_name(file):
                raise FileNotFoundError(f"{file}: no such file. Give a safetensors file or a name on the hub.")
            from huggingface_hub import hf_hub_download

            repository, revision = hub_parts(file)
            file = hf_hub_download(repository, "model.safetensors", revision=revision)
        backbone.load_published(load_file(file))
    return backbone


def _timm(config: parts.TimmBackbone, pretrained: bool, _: str) -> nn.Module:
    try:
        import timm
    except ImportError as error:
        raise ImportError(f"the backbone {config.model!r} is one of timm's: pip install timm ({error}).") from error
    model: nn.Module = timm.create_model(config.model, pretrained=pretrained and config.pretrained, num_classes=0)
    return model


def _with_backbones(config: parts.ModelConfig, towers: Mapping[str, Tower], pretrained: bool) -> parts.ModelConfig:
    """The config with what its backbones say on the hub, configuration and preprocessing, written out: a checkpoint
    needs no hub.
    """
    known = config.model_dump(mode="json")
    for name, tower in config.towers.items():
        backbone: Any = getattr(tower.encoder, "backbone", None)
        named = isinstance(backbone, parts.HuggingFaceBackbone) and backbone.pretrained is not None
        asked = named and (pretrained or backbone.config is None)
        if asked:
            built: Any = towers[name].encoder
            found = built.backbone.config
            options = {**found.to_diff_dict(), "model_type": found.model_type}
            known["towers"][name]["encoder"]["backbone"]["config"] = options
        reader = towers[name].reader
        timms = pretrained and isinstance(backbone, parts.TimmBackbone)
        if (asked or timms) and isinstance(reader, PixelReader):
            values = {key: getattr(reader.transform, key) for key in parts.Pixels.model_fields}
            known["towers"][name]["encoder"]["pixels"] = values
    return parts.ModelConfig.model_validate(known)


BACKBONES: dict[str, Callable[[Any, bool, str], nn.Module]] = {
    "huggingface": _hugging_face,
    "efficientnet_lite": _efficientnet_lite,
    "resnext": _resnext,
    "timm": _timm,
}
ENCODERS: dict[str, Callable[[Any, _Materials], tuple[Encoder, Reader]]] = {
    "conv": _conv,
    "region": _region,
    "gru": _gru,
    "transformer": _transformer,
    "hub_image": _hub,
    "hub_audio": _hub,
    "hub_text": _hub,
    "own": _own,
}
HEADS: dict[str, Callable[..., Head]] = {
    "set": SetHead,
    "pie": PIEHead,
    "gpo": GPOHead,
    "global": GlobalHead,
    "gaussian": GaussianHead,
    "residual": ResidualSetHead,
}
