"""The halves of a recipe that a training loop reads: the objective and the training. `maxmatch.recipe` is the whole."""

from types import NoneType
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import BeforeValidator, Field, field_validator, model_validator

from maxmatch.config import Count, Part, Positive, Share, refusal, unknown_key

NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_Number = Annotated[float, Field(allow_inf_nan=False)]
Whole = Annotated[int, Field(ge=0)]
_UpToOne = Annotated[float, Field(gt=0, le=1)]
_GROUPS = ("backbone", "set_module")
_TOWERS = ("image", "text")  # for suggestions; a recipe checks against its own


def without_null(data: Any) -> Any:
    """A mapping without the keys that were taken back."""
    return {key: value for key, value in data.items() if value is not None} if isinstance(data, dict) else data


class Section(Part):
    """A part of a recipe. `null` takes back what another recipe said: none, where that is a value, or the default."""

    @model_validator(mode="before")
    @classmethod
    def _null_is_the_default(cls, data: Any) -> Any:
        def kept(key: str, value: Any) -> bool:
            field = cls.model_fields.get(key)
            return value is not None or field is None or NoneType in get_args(field.annotation)

        return {key: value for key, value in data.items() if kept(key, value)} if isinstance(data, dict) else data


class Objective(Section):
    """The training loss: the options of `maxmatch.losses.objective`, and what is compared.

    pairs: the towers between which the loss runs. mean_negatives_epochs: in the first so many epochs the triplet loss
    takes the mean over all negatives, whatever `negatives` says for later.
    """

    pairs: Annotated[tuple[tuple[str, str], ...], Field(min_length=1)] = (("image", "text"),)
    mean_negatives_epochs: Whole = 0
    margin: NotNegative = 0.2
    negatives: Literal["hardest", "mean", "semi_hard"] = "hardest"
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
    diversity: Literal["uniformity", "pvse"] = "uniformity"
    gd_on: Literal["sets", "residual"] = "sets"

    @model_validator(mode="after")
    def _ranks(self) -> Self:
        if not (self.triplet_weight or self.con_weight):
            raise refusal("nothing ranks the pairs: con_weight is 0 too", "triplet_weight")
        return self

    def keywords(self, epoch: int) -> dict[str, Any]:
        """The options of `maxmatch.losses.objective` in an epoch."""
        options = self.model_dump(exclude={"pairs", "mean_negatives_epochs"})
        return options | {"negatives": "mean"} if epoch < self.mean_negatives_epochs else options


def _by_name(data: Any) -> Any:
    return {"name": data} if isinstance(data, str) else data


class Step(Section):
    """Times `factor` every so many epochs."""

    name: Literal["step"] = "step"
    every: Count
    factor: _UpToOne = 0.1


class Cosine(Section):
    """Half a cosine down to 0, step by step."""

    name: Literal["cosine"] = "cosine"


class Constant(Section):
    """The same throughout."""

    name: Literal["constant"] = "constant"


Schedule = Annotated[Step | Cosine | Constant, Field(discriminator="name"), BeforeValidator(_by_name)]


class Train(Section):
    """How it is trained, with AdamW."""

    epochs: Count
    batch_size: Annotated[int, Field(ge=2)]
    """Images. Their captions come with them."""
    batch_captions: Count | None = None
    """Captions of an image in a batch; None for all."""
    lr: Positive
    weight_decay: NotNegative = 0.0
    lr_factors: Annotated[dict[str, NotNegative], BeforeValidator(without_null)] = Field(default_factory=dict)
    """What the learning rate is multiplied by, for a group of parameters.

    A group is `backbone`, the parameters of the network inside an encoder (a CNN, BERT), or `set_module`, the head and,
    for images, the projection before it; of all towers, or of one: `image.backbone`. All others have factor 1.
    """
    schedule: Schedule = Cosine()
    warmup_steps: Whole = 0
    """The learning rate rises from 0 over so many steps; or over so many epochs, the next option."""
    warmup_epochs: NotNegative = 0.0
    clip: Positive | None = 1.0
    """The largest norm of the gradient; None for any."""
    freeze: Annotated[dict[str, Whole | Literal["always"]], BeforeValidator(without_null)] = Field(default_factory=dict)
    """For how many epochs a backbone (all, or `image.backbone`) stays as it is: a number, or "always"."""

    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """auto: bf16 on a GPU, fp32 on a CPU."""
    accumulate: Count = 1
    """In how many chunks a batch goes through the encoders. The negatives are those of the whole batch all the same."""
    ema: Annotated[float, Field(gt=0, lt=1)] | None = None
    """How much of the averaged weights stays at each step."""
    compile: bool = False
    workers: Whole | None = None
    feed: Literal["auto", "resident", "mapped"] = "auto"
    """resident: features are read into the device's memory once, and pictures decoded once, random crops then being
    parts of the square in their middle. mapped: both come from the disk. auto: resident for features that fit."""

    size_augmentation: Share = 0.0
    """The share of the regions and of the words that is left out."""
    crop_scale: tuple[_UpToOne, _UpToOne] | None = (0.08, 1.0)
    """The share of a picture that a random crop keeps; None for the crop of evaluation."""
    flip: bool = True
    """Whether half of the pictures are mirrored."""

    early_stop: Count | None = None
    """Epochs without a better RSUM."""
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
    def _known_groups(cls, groups: dict[str, Any]) -> dict[str, Any]:
        for key in groups:
            if key.rpartition(".")[2] not in _GROUPS:
                raise unknown_key(key, [*_GROUPS, *(f"{tower}.{group}" for tower in _TOWERS for group in _GROUPS)])
        return groups

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        for key in self.freeze:
            if key.rpartition(".")[2] != "backbone":
                raise refusal("only a backbone can be frozen", "freeze", key)
        if self.warmup_steps and self.warmup_epochs:
            raise refusal("give warmup_steps or warmup_epochs, not both", "warmup_epochs")
        if self.accumulate > self.batch_size:
            raise refusal(f"a batch of {self.batch_size} images has no {self.accumulate} chunks", "accumulate")
        if self.crop_scale is not None and self.crop_scale[0] > self.crop_scale[1]:
            raise refusal(f"expected the smaller share first, got {list(self.crop_scale)}", "crop_scale")
        return self

    def lr_factor(self, tower: str, group: Literal["backbone", "set_module"]) -> float:
        """The factor of a group of a tower: what is said of the tower counts before what is said of all."""
        return self.lr_factors.get(f"{tower}.{group}", self.lr_factors.get(group, 1.0))

    def frozen(self, tower: str, epoch: int) -> bool:
        """Whether the tower's backbone is frozen in an epoch."""
        until = self.freeze.get(f"{tower}.backbone", self.freeze.get("backbone", 0))
        return until == "always" or epoch < until

    def warmup(self, steps_per_epoch: int) -> int:
        """The steps over which the learning rate rises."""
        return self.warmup_steps or round(self.warmup_epochs * steps_per_epoch)
