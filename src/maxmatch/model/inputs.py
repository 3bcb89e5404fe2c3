"""From raw items (pictures, features, texts) to the batches that an encoder takes."""

from collections.abc import Sequence
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from maxmatch.core.types import Inputs
from maxmatch.model.config import InputKind
from maxmatch.model.images import ImageTransform, describe
from maxmatch.model.text import as_text, encode, text_length


@runtime_checkable
class Reader(Protocol):
    """How one modality is read. `read` refuses a bad item; `collate` takes what it returned."""

    def length(self, item: Any) -> int:
        """Roughly how long an item is, without reading it: items of similar length share a batch."""
        ...

    def read(self, item: Any) -> Any:
        """One item, checked."""
        ...

    def collate(self, items: Sequence[Any]) -> Inputs:
        """A batch of items that were read."""
        ...


class PixelReader:
    """Pictures: see `maxmatch.model.images`."""

    reads: ClassVar[InputKind] = "pixels"

    def __init__(self, transform: ImageTransform) -> None:
        self.transform = transform

    def length(self, item: Any) -> int:
        """All pictures become the same size."""
        return 1

    def read(self, item: Any) -> Tensor:
        """A picture as normalised pixels. A tensor may have its channels first, as torch likes them."""
        if isinstance(item, Tensor):
            channels_first = item.ndim == 3 and item.shape[0] in (1, 3, 4) and item.shape[2] not in (1, 3, 4)
            item = (item.movedim(0, 2) if channels_first else item).detach().cpu().numpy()
        return self.transform(item)

    def collate(self, items: Sequence[Tensor]) -> Inputs:
        """The pictures, stacked."""
        return Inputs(torch.stack(list(items)), None)


class FeatureReader:
    """Features extracted beforehand: an array or tensor (count, width) per item."""

    reads: ClassVar[InputKind] = "features"

    def __init__(self, feature_width: int) -> None:
        self.feature_width = feature_width

    def length(self, item: Any) -> int:
        """How many features the item has."""
        return len(item) if isinstance(item, Tensor | np.ndarray) and item.ndim else 0

    def read(self, item: Any) -> Tensor:
        """The item's features in float32."""
        if not isinstance(item, Tensor | np.ndarray):
            raise ValueError(
                f"{describe(item)}: this model reads features extracted beforehand, an array "
                f"(count, {self.feature_width}) per item. Extract them, or use a model that reads pixels."
            )
        if item.ndim != 2 or item.shape[1] != self.feature_width or not len(item):
            raise ValueError(
                f"features: expected (count, {self.feature_width}) with at least one, got {tuple(item.shape)}. "
                "Use the features that the model was trained on."
            )
        features = torch.as_tensor(np.array(item, dtype=np.float32) if isinstance(item, np.ndarray) else item.float())
        if not bool(torch.isfinite(features).all()):
            raise ValueError("features: NaN or infinite values. Extract them again, or leave the item out.")
        return features

    def collate(self, items: Sequence[Tensor]) -> Inputs:
        """Padded to the longest item."""
        values = torch.nn.utils.rnn.pad_sequence(list(items), batch_first=True)
        lengths = torch.tensor([len(item) for item in items], device=values.device)
        return Inputs(values, torch.arange(values.shape[1], device=values.device) < lengths[:, None])


class TextReader:
    """Texts, through a tokenizer."""

    reads: ClassVar[InputKind] = "text"

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer

    def length(self, item: Any) -> int:
        """How many characters the text has."""
        return text_length(item)

    def read(self, item: Any) -> str:
        """The text itself, which may be empty."""
        return as_text(item)

    def collate(self, items: Sequence[str]) -> Inputs:
        """Token ids, padded to the longest text."""
        return Inputs(*encode(self.tokenizer, items))

    def words(self, ids: Tensor) -> list[str]:
        """The tokens of a text, for people to read."""
        return [self.tokenizer.id_to_token(int(token)) or "" for token in ids]
