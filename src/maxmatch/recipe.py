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

from maxmatch.config import PIE, Count, ModelConfig, SetPrediction, SimilarityName, problems, unknown_key
from maxmatch.presets import PRESETS
from maxmatch.recipe_train import Objective, Positive, Section, Train, Whole, without_null

__all__ = ["Data", "Evaluate", "Model", "Objective", "Recipe", "Scenes", "Train"]

_SIMILARITY_OPTIONS = {"smooth_chamfer": ("alpha",), "top_k": ("k",)}
_TOKENIZERS = ("words", "wordpiece", "pretrained")


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

    tokenizer: str = "words"
    """"words", "wordpiece" (both learned from the training captions), the backbone's own, "pretrained", or a path to a
    tokenizer.json."""
    min_count: Count = 4
    """How often a word must occur ("words")."""
    vocabulary_size: Count = 8000
    """How many pieces are learned ("wordpiece")."""
    max_length: Count = 128
    """Of a caption, in tokens."""
    word_vectors: str | None = None
    """A text file of GloVe that the words of a Bi-GRU start from."""

    scenes: Scenes | None = None
    """Generate these where `path` is empty."""

    @field_validator("tokenizer")
    @classmethod
    def _known_tokenizer(cls, name: str) -> str:
        if name not in _TOKENIZERS and not name.endswith(".json"):
            raise ValueError(f"expected {', '.join(_TOKENIZERS)} or a path to a tokenizer.json, got {name!r}")
        return name


class Model(Section):
    """A preset of `maxmatch.presets` with `options`, or a whole `config`; and the similarity it is trained with."""

    preset: str | None = None
    options: Annotated[dict[str, JsonValue], BeforeValidator(without_null)] = Field(default_factory=dict)
    config: ModelConfig | None = None
    similarity: SimilarityName = "maxmatch"
    similarity_options: Annotated[dict[str, int | Positive], BeforeValidator(without_null)] = Field(
        default_factory=dict
    )
    """alpha of smooth_chamfer, k of top_k; where not given, the function's own."""

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
            for option in options:
                if option not in known:
                    raise unknown_key(option, known)
        return options

    @model_validator(mode="after")
    def _can_be_resolved(self) -> Self:
        for option in self.similarity_options:
            if option not in _SIMILARITY_OPTIONS.get(self.similarity, ()):
                takes = ", ".join(_SIMILARITY_OPTIONS.get(self.similarity, ())) or "none"
                raise ValueError(f"similarity_options: {self.similarity} takes {takes}, got {option!r}")
        if (self.preset is None) == (self.config is None):
            raise ValueError(f"give either a preset ({', '.join(PRESETS)}) or a whole config")
        if self.config is not None:
            if self.options:
                raise ValueError("options belong to a preset; change the config itself")
            if "similarity" in self.config.model_fields_set and self.config.similarity != self.similarity:
                raise ValueError("config.similarity: say it once, as model.similarity")
            return self
        try:
            self.resolved()
        except ValidationError as error:
            raise ValueError(f"options: {problems(error)}") from error
        except TypeError as error:
            raise ValueError(f"options: {error}") from error
        return self

    def resolved(self) -> ModelConfig:
        """The whole config."""
        config = PRESETS[self.preset](**self.options) if self.preset is not None else self.config
        assert config is not None
        return config.model_copy(update={"similarity": self.similarity})


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

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        towers = self.model.resolved().towers
        _check_pairs(self.objective.pairs, towers)
        for option, groups in (("lr_factors", self.train.lr_factors), ("freeze", self.train.freeze)):
            for key in groups:
                _check_group(f"train.{option}: {key}", key, towers)
        text = towers.get("text")
        transformer = text is not None and text.encoder.name == "transformer"
        if transformer and self.data.tokenizer == "words":
            raise ValueError(
                "data.tokenizer: a transformer does not read words; take 'pretrained', its own, or 'wordpiece'"
            )
        if self.data.tokenizer == "pretrained" and not transformer:
            raise ValueError(
                "data.tokenizer: 'pretrained' is the tokenizer of a transformer; take 'words' for a Bi-GRU"
            )
        return self


def _check_pairs(pairs: Sequence[tuple[str, str]], towers: Mapping[str, Any]) -> None:
    for pair in pairs:
        absent = [name for name in pair if name not in towers]
        if absent or pair[0] == pair[1]:
            raise ValueError(f"objective.pairs: expected two of the towers {', '.join(towers)}, got {list(pair)}")


def _check_group(where: str, key: str, towers: Mapping[str, Any]) -> None:
    tower, _, group = key.rpartition(".")
    if tower and tower not in towers:
        raise ValueError(f"{where}: the model has the towers {', '.join(towers)}, not {tower!r}")
    meant = [towers[tower]] if tower else list(towers.values())
    if group == "backbone" and not any(hasattr(part.encoder, "backbone") for part in meant):
        raise ValueError(f"{where}: {f'the tower {tower!r}' if tower else 'the model'} has no backbone")
