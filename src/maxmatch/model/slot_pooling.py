"""The set head as a module of sentence-transformers: a model with a vector per token becomes one with K slots."""

from collections.abc import MutableMapping, Sequence
from typing import Any

from sentence_transformers.base.modules import Module
from torch import Tensor

from maxmatch.core.types import Features
from maxmatch.model.layers import SetHead, masked_mean

TASKS = ("query", "document")


class SlotPooling(Module):
    """Learned pooling of a multi-vector model: the vectors of any number of tokens or patches become K unit vectors.

    It is the paper's set head (`maxmatch.model.layers.SetHead`) on the model's token vectors, with their mean as the
    global feature: K learned slots compete for the tokens. Append it to a `MultiVectorEncoder`, after its mask; it is
    trained, saved and loaded with the model. To load it, sentence-transformers asks for `trust_remote_code=True`, as
    for every module that is not its own; the code is this package's.

    Args:
        width: The width D of the model's vectors, and of the slots.
        set_size: The number K of slots.
        heads: Of the slot attention.
        head_width: The width of each; None: D / heads, at least 16.
        depth: How often the slots attend; the weights are shared.
        dropout: In training.
        tasks: What is pooled: "query", "document" or both; others keep their tokens. No task counts as "document".

    Examples:
        >>> import torch
        >>> from maxmatch.model.slot_pooling import SlotPooling
        >>> pooling = SlotPooling(width=32, set_size=4)
        >>> tokens = {"token_embeddings": torch.randn(2, 9, 32), "attention_mask": torch.ones(2, 9)}
        >>> pooling(tokens)["token_embeddings"].shape
        torch.Size([2, 4, 32])
    """

    config_keys = ["width", "set_size", "heads", "head_width", "depth", "dropout", "tasks"]  # noqa: RUF012
    forward_kwargs = {"task"}  # noqa: RUF012

    def __init__(
        self,
        width: int,
        set_size: int = 8,
        heads: int = 4,
        head_width: int | None = None,
        depth: int = 2,
        dropout: float = 0.1,
        tasks: str | Sequence[str] = TASKS,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.width, self.set_size, self.heads, self.depth, self.dropout = width, set_size, heads, depth, dropout
        self.head_width = max(16, width // heads) if head_width is None else head_width
        self.tasks = [tasks] if isinstance(tasks, str) else list(tasks)
        if not self.tasks or not set(self.tasks) <= set(TASKS):
            raise ValueError(f"tasks: expected {' or '.join(TASKS)}, or both, got {tasks!r}.")
        self.head = SetHead(width, width, set_size, heads, self.head_width, depth, dropout)

    def forward(self, features: MutableMapping[str, Any], task: str | None = None, **others: Any) -> Any:
        """The same features with (B, K, D) in place of token vectors; an item without real tokens has no slots."""
        if (task or "document") in self.tasks:
            tokens, mask = features["token_embeddings"], features["attention_mask"].bool()
            features["token_embeddings"] = self.pooled(tokens, mask)
            features["attention_mask"] = mask.any(1, keepdim=True).expand(-1, self.set_size)
        return features

    def pooled(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """The slots (B, K, D) of token vectors (B, N, D) of which those under the mask (B, N) are real."""
        local = tokens.masked_fill(~mask[..., None], 0.0)
        some = mask | ~mask.any(1, keepdim=True)  # an item without tokens: of zeros, and not a number
        slots: Tensor = self.head(Features(local, some, masked_mean(local, some))).vectors
        return slots

    def get_embedding_dimension(self) -> int:
        """The width of the slots."""
        return self.width

    def save(self, output_path: str, *args: Any, **kwargs: Any) -> None:
        """Write config.json and model.safetensors; never a pickle, whatever is asked for."""
        self.save_config(output_path)
        self.save_torch_weights(output_path)

    @classmethod
    def load(cls, model_name_or_path: str, *args: Any, **kwargs: Any) -> "SlotPooling":
        """Read them."""
        known = ("subfolder", "token", "cache_folder", "revision", "local_files_only")
        where = {name: value for name, value in kwargs.items() if name in known}
        loaded = cls(**cls.load_config(model_name_or_path, **where))
        cls.load_torch_weights(model_name_or_path, model=loaded, **where)
        return loaded
