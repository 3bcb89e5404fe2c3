"""What a recipe says of the model: a preset, a whole config, or a model to start from; and how sections are read. No
torch here, but for a two-tower model of the hub, whose own library reads its files.
"""

from inspect import signature
from types import NoneType
from typing import Annotated, Any, Self, get_args

from pydantic import (
    BeforeValidator,
    Field,
    JsonValue,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from maxmatch.core.manifest import describe
from maxmatch.model.config import (
    ConfigPart,
    GlobalFeature,
    HubAudio,
    HubImage,
    HubText,
    ModelConfig,
    Positive,
    Residual,
    SetPrediction,
    SimilarityName,
    TowerConfig,
    check_heads,
    check_set_sizes,
    check_similarity_options,
    refusal,
    unknown_key,
    with_sets,
)
from maxmatch.model.names import (
    KNOWN_MODELS,
    CheckpointError,
    cached_model,
    hub_model_type,
    hub_parts,
    is_hub_name,
    local_model,
    read_config,
)
from maxmatch.model.presets import HEADS, PRESETS


def without_null(data: Any) -> Any:
    """A mapping without the keys that were reset."""
    return {key: value for key, value in data.items() if value is not None} if isinstance(data, dict) else data


class Section(ConfigPart):
    """A part of a recipe. `null` resets what an extended recipe set: to none, where that is a value, or the default."""

    @model_validator(mode="before")
    @classmethod
    def _null_is_the_default(cls, data: Any) -> Any:
        def kept(key: str, value: Any) -> bool:
            field = cls.model_fields.get(key)
            return value is not None or field is None or NoneType in get_args(field.annotation)

        return {key: value for key, value in data.items() if kept(key, value)} if isinstance(data, dict) else data


def by_name(data: Any) -> Any:
    """A part that is given by its name alone."""
    return {"name": data} if isinstance(data, str) else data


def _config_of(start: str, required: bool = True) -> ModelConfig:
    """The config of a model on this machine: no network is asked. required: refuse one that is not here; otherwise a
    name on the hub stands for a model of one vector, of which nothing else is known before it is fetched.
    """
    try:
        folder = local_model(start)
        if folder is None and is_hub_name(start):
            folder = cached_model(start)
        if folder is not None and hub_model_type(folder) is not None:
            from maxmatch.model.hub.two_towers import two_tower_config

            return two_tower_config(folder)
        if folder is not None:
            return read_config(folder)
    except CheckpointError as error:
        raise refusal(str(error), "start") from error
    if required or not is_hub_name(start):
        text = "Give a run, a checkpoint, the name of a model that ships, or one on the hub that was fetched before"
        raise refusal(f"{start}: no such folder. {text}", "start")
    kind = next((known.kind for known in KNOWN_MODELS if known.name == hub_parts(start)[0]), None)
    modality, half = ("audio", HubAudio) if kind == "clap" else ("image", HubImage)
    towers: dict[str, Any] = {modality: half(config={}, preprocessor={}), "text": HubText(config={})}
    return ModelConfig(
        towers={name: TowerConfig(encoder=one, head=GlobalFeature(), set_size=1) for name, one in towers.items()},
        similarity="mil",
    )


SET_SIZE = 4
"""K, where `model.head` is given and `model.set_size` is not."""


class ModelSection(Section):
    """A preset of `model.presets` with `options`, a whole `config`, or a model to `start` from; and the similarity that
    it is trained with, which counts before that of the config.
    """

    preset: str | None = None
    start: str | None = None
    """A run, a checkpoint or the name of a model whose weights, config and words training starts from; also a CLIP,
    SigLIP or another two-tower model of transformers, by its folder or its name on the hub, which stays frozen
    (`train.unfreeze`, `train.lora`)."""
    head: Annotated[Residual | None, BeforeValidator(by_name)] = None
    """"residual": the model to start from makes one vector per item, and gets sets, which start as copies of it."""
    set_size: Annotated[int, Field(ge=1, le=16)] | None = None
    """With `head`, the number of vectors in a set; 4, where it is not given."""
    options: Annotated[dict[str, JsonValue], BeforeValidator(without_null)] = Field(default_factory=dict)
    similarity: SimilarityName = "maxmatch"
    similarity_options: Annotated[dict[str, int | Positive], BeforeValidator(without_null)] = Field(
        default_factory=dict
    )
    """alpha of smooth_chamfer, k of top_k, epsilon and iterations of sinkhorn; where not given, the function's own."""
    config: ModelConfig | None = None

    @model_validator(mode="before")
    @classmethod
    def _similarity_of_the_config(cls, data: Any) -> Any:
        config = data.get("config") if isinstance(data, dict) else None
        if config is None and isinstance(data, dict) and isinstance(data.get("start"), str) and not data.get("head"):
            config = _config_of(data["start"])
        known = config.model_dump() if isinstance(config, ModelConfig) else config
        if not isinstance(known, dict) or data.get("similarity") not in (None, known.get("similarity")):
            return data
        options = data.get("similarity_options") or known.get("similarity_options")
        return data | {"similarity": known.get("similarity"), "similarity_options": options}

    @field_validator("config")
    @classmethod
    def _with_the_similarity(cls, config: ModelConfig | None, info: ValidationInfo) -> ModelConfig | None:
        update: dict[str, Any] = {
            key: info.data[key] for key in ("similarity", "similarity_options") if key in info.data
        }
        return config and config.model_copy(update=update)

    @field_validator("preset")
    @classmethod
    def _known_preset(cls, name: str | None) -> str | None:
        if name is not None and name not in PRESETS:
            raise ValueError(f"expected one of {', '.join(PRESETS)}, got {name!r}")
        return name

    @field_validator("options")
    @classmethod
    def _known_options(cls, options: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        if info.data.get("preset") is not None:
            taken = signature(PRESETS[info.data["preset"]]).parameters.values()
            head = HEADS.get(str(options.get("head", "set")), SetPrediction)
            known = [one.name for one in taken if one.kind == one.KEYWORD_ONLY]
            known += ["head", *(field for field in head.model_fields if field != "name")]
            for option, value in options.items():
                if option not in known:
                    raise unknown_key(option, known)
                if option in ("backbone", "bert") and not isinstance(value, dict):
                    raise refusal(f"expected what differs in its configuration, by name, got {value!r}", option)
        return options

    @model_validator(mode="after")
    def _can_be_resolved(self) -> Self:
        check_similarity_options(self.similarity, self.similarity_options)
        if [self.preset, self.config, self.start].count(None) != 2:
            raise refusal(
                f"give either a preset ({', '.join(PRESETS)}), a whole config, or a model to start from", "preset"
            )
        if self.preset is None and self.options:
            raise refusal("options belong to a preset; change the config itself", "options")
        if self.head is not None and self.start is None:
            raise refusal("sets grow on a model that training starts from: name it in model.start", "head")
        if self.set_size is not None and self.head is None:
            raise refusal("belongs to model.head; a preset has it among its options", "set_size")
        try:
            resolved = self.resolved()
        except ValidationError as error:
            where, _, text = describe(error.errors()[0]).partition(": ")
            raise refusal(text, "options", *where.split(".")) from error
        check_heads(self.similarity, resolved.towers)
        check_set_sizes(self.similarity, {name: tower.set_size for name, tower in resolved.towers.items()})
        return self

    def resolved(self) -> ModelConfig:
        """The whole config."""
        config: ModelConfig | None
        if self.start is not None and self.head is not None:
            config = with_sets(_config_of(self.start, required=False), self.head, self.set_size or SET_SIZE)
        elif self.start is not None:
            config = _config_of(self.start)
        else:
            config = PRESETS[self.preset](**self.options) if self.preset is not None else self.config
        assert config is not None
        return config.model_copy(
            update={"similarity": self.similarity, "similarity_options": dict(self.similarity_options)}
        )
