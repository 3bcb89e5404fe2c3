"""SetEncoder, the model that users work with: towers by name, one per modality, turn items into sets of K vectors."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Literal, Protocol, overload, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from maxmatch.core.checks import as_tensor
from maxmatch.core.devices import batches_at_once
from maxmatch.core.types import Features, Inputs, Sets
from maxmatch.matching import SIMILARITIES, similarity_named
from maxmatch.matching.similarity import Similarity, with_options
from maxmatch.model.config import InputKind, ModelConfig
from maxmatch.model.encoders import Encoder
from maxmatch.model.encoders.cnn import EfficientNetLite
from maxmatch.model.explanation import Explanation as Explanation
from maxmatch.model.explanation import Look as Look
from maxmatch.model.explanation import NoAttentionError as NoAttentionError
from maxmatch.model.explanation import Pair as Pair
from maxmatch.model.explanation import look_at, partners
from maxmatch.model.inputs import Encoded as Encoded
from maxmatch.model.inputs import PixelReader, Reader, TextReader, encode_items, moved
from maxmatch.model.layers import MatchProbability
from maxmatch.model.text import Words, known_words


@runtime_checkable
class Head(Protocol):
    """A module that turns the features of B items into B sets."""

    width: int
    set_size: int

    def __call__(self, features: Features, /) -> Sets:
        """The sets."""

    def reorder(self, order: Sequence[int], /) -> None:
        """Put the vectors of every set into another order: vector i becomes what vector order[i] was."""


class Tower(nn.Module):
    """One modality: a reader of raw items, an encoder and a head."""

    def __init__(self, encoder: Encoder, head: Head, reader: Reader) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = head
        self.reader = reader
        self.given_sets = False
        """Whether its inputs are sets that it made before, as in a training that keeps the tower as it is."""
        self.fixed: list[nn.Module] = []
        """Parts whose weights do not learn: they stay in evaluation mode (`maxmatch.model.adaptation`)."""

    def train(self, mode: bool = True) -> "Tower":
        """As for any module, but what does not learn stays in evaluation mode."""
        super().train(mode)
        for part in self.fixed:
            part.eval()
        return self

    @property
    def reads(self) -> InputKind | None:
        """What its reader reads: "pixels", "features", "text" or "audio"; None where that is something else."""
        return getattr(self.reader, "reads", None)

    def forward(self, inputs: Tensor, mask: Tensor | None = None) -> Sets:
        """The sets of B items."""
        if self.given_sets:
            return Sets(inputs, inputs, inputs.mean(1))
        return self.head(self.encoder(inputs, mask))


class SetEncoder(nn.Module):
    """Images, texts and whatever else has a tower -> sets of K unit vectors in one space of width D.

    `SetEncoder.from_pretrained` reads one from a folder, `build_model` makes one from a ModelConfig. One put together
    from towers works as well, but cannot be saved without its config.

    Args:
        towers: one tower per modality, by the modality's name; all of one width.
        similarity: how its sets are compared: a name of `maxmatch.similarity.SIMILARITIES`.
        config: what the towers were built from; None where they were not built from one.

    Examples:
        >>> from maxmatch import SetEncoder
        >>> model = SetEncoder.from_pretrained("maxmatch-small")
        >>> model.set_sizes, model.dim, model.similarity_name
        ({'image': 4, 'text': 4}, 384, 'maxmatch')
    """

    def __init__(
        self, towers: Mapping[str, Tower], similarity: str = "maxmatch", config: ModelConfig | None = None
    ) -> None:
        super().__init__()
        widths = {name: tower.head.width for name, tower in towers.items()}
        if len(set(widths.values())) != 1:
            raise ValueError(f"towers: expected at least one, and one width for all; got {widths}.")
        similarity_named(similarity)
        self.towers = nn.ModuleDict(dict(towers))
        self.dim: int = next(iter(widths.values()))
        self.similarity_name: str = similarity
        self.similarity_options = {} if config is None else dict(config.similarity_options)
        self.config: ModelConfig | None = config
        self.match = MatchProbability() if similarity == "csd" else None
        self.notes = ""  # Markdown for the model card: what it was trained on, how well it does

    @property
    def set_sizes(self) -> dict[str, int]:
        """K of each tower."""
        return {name: self.tower(name).head.set_size for name in self.towers}

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return next(self.parameters()).device

    def tower(self, modality: str) -> Tower:
        """The tower of a modality.

        Args:
            modality: its name, such as "image" or "text".

        Returns:
            The tower itself, not a copy.

        Examples:
            >>> from maxmatch import SetEncoder
            >>> model = SetEncoder.from_pretrained("maxmatch-small")
            >>> model.tower("text").head.set_size
            4
        """
        if modality not in self.towers:
            raise ValueError(f"modality: this model has {', '.join(self.towers)}, got {modality!r}.")
        tower = self.towers[modality]
        assert isinstance(tower, Tower)
        return tower

    def forward(self, modality: str, inputs: Tensor, mask: Tensor | None = None) -> Sets:
        """The sets of one batch that was read already, with gradient: what training calls.

        Args:
            modality: the tower's name.
            inputs: pixels (B, 3, H, W), features (B, count, width) or token ids (B, length), on the model's device.
            mask: which features or tokens are real (True) and which are padding; None: all are real.

        Returns:
            The vectors (B, K, D), and what each was taken from where the head reports it.

        Examples:
            >>> from maxmatch import SetEncoder
            >>> model = SetEncoder.from_pretrained("maxmatch-small")
            >>> inputs = model.tower("text").reader.collate(["a dog", "two dogs in the snow"])
            >>> model("text", inputs.values, inputs.mask).vectors.shape
            torch.Size([2, 4, 384])
        """
        sets: Sets = self.tower(modality)(inputs, mask)
        return sets

    @overload
    def encode(
        self,
        modality: str,
        items: Iterable[Any],
        batch_size: int = 64,
        show_progress: bool | None = None,
        errors: Literal["raise"] = "raise",
    ) -> Float[Tensor, "n K D"]: ...

    @overload
    def encode(
        self,
        modality: str,
        items: Iterable[Any],
        batch_size: int = 64,
        show_progress: bool | None = None,
        *,
        errors: Literal["skip"],
    ) -> Encoded: ...

    def encode(
        self,
        modality: str,
        items: Iterable[Any],
        batch_size: int = 64,
        show_progress: bool | None = None,
        errors: Literal["raise", "skip"] = "raise",
    ) -> Float[Tensor, "n K D"] | Encoded:
        """The sets of any number of raw items, in their order.

        An item's set does not depend on the other items or on whether the model is in training mode. Items of similar
        length share a batch.

        Args:
            modality: the name of a tower.
            items: what that tower reads: pictures, features or texts.
            batch_size: how many items go through the model at once. It does not change an item's set.
            show_progress: whether to show a progress bar; None: from 1,000 items on, in a terminal.
            errors: "raise" stops at an item that cannot be read and names it; "skip" leaves it out.

        Returns:
            The sets (n, K, D): unit vectors, float32, on the CPU. With errors="skip" an `Encoded`, which also lists the
            items that were left out, and why.

        Examples:
            >>> from maxmatch import SetEncoder
            >>> model = SetEncoder.from_pretrained("maxmatch-small")
            >>> encoded = model.encode("text", ["a dog", "two dogs in the snow"], errors="skip")
            >>> encoded.sets.shape, encoded.kept, encoded.skipped
            (torch.Size([2, 4, 384]), [0, 1], [])
        """
        tower = self.tower(modality)
        reader = tower.reader
        pictures = isinstance(reader, PixelReader)
        sets: Tensor | Encoded = encode_items(
            modality,
            items,
            batch_size,
            show_progress,
            errors,
            reader=reader.for_device(self.device) if isinstance(reader, PixelReader) else reader,
            empty=lambda count: torch.empty(count, tower.head.set_size, self.dim),
            encode_batch=lambda inputs: self.sets_of(modality, inputs),
            fetch=None if self.device.type == "cpu" else Tensor.cpu,
            within=self.evaluating(),
            # On a processor pictures are decoded beside the network, too: neither keeps all cores busy by itself.
            ahead=self.device.type != "cpu" or pictures,
            threads=batches_at_once(self.device) if pictures else 1,
        )
        return sets

    @overload
    def encode_images(
        self,
        items: Iterable[Any],
        batch_size: int = 64,
        show_progress: bool | None = None,
        errors: Literal["raise"] = "raise",
    ) -> Float[Tensor, "n K D"]: ...

    @overload
    def encode_images(
        self,
        items: Iterable[Any],
        batch_size: int = 64,
        show_progress: bool | None = None,
        *,
        errors: Literal["skip"],
    ) -> Encoded: ...

    def encode_images(
        self,
        items: Iterable[Any],
        batch_size: int = 64,
        show_progress: bool | None = None,
        errors: Literal["raise", "skip"] = "raise",
    ) -> Float[Tensor, "n K D"] | Encoded:
        """The sets of pictures: `encode` for the tower "image".

        Args:
            items: paths, bytes, PIL images or arrays (H, W, 3); region features where the model reads those.
            batch_size: how many items go through the model at once. It does not change an item's set.
            show_progress: whether to show a progress bar; None: from 1,000 items on, in a terminal.
            errors: "raise" stops at an item that cannot be read and names it; "skip" leaves it out.

        Returns:
            As `encode`: the sets (n, K, D), or an `Encoded` with errors="skip".

        Examples:
            >>> from PIL import Image
            >>> from maxmatch import SetEncoder
            >>> model = SetEncoder.from_pretrained("maxmatch-small")
            >>> model.encode_images([Image.new("RGB", (64, 48), "red")]).shape
            torch.Size([1, 4, 384])
        """
        return self.encode("image", items, batch_size, show_progress, errors=errors)

    def encode_texts(
        self, texts: Iterable[str], batch_size: int = 64, show_progress: bool | None = None
    ) -> Float[Tensor, "n K D"]:
        """The sets of texts: `encode` for the tower "text".

        Args:
            texts: the texts; an empty one is a text too.
            batch_size: how many items go through the model at once. It does not change an item's set.
            show_progress: whether to show a progress bar; None: from 1,000 items on, in a terminal.

        Returns:
            The sets (n, K, D): unit vectors, float32, on the CPU.

        Examples:
            >>> from maxmatch import SetEncoder
            >>> model = SetEncoder.from_pretrained("maxmatch-small")
            >>> model.encode_texts(["a dog runs in the snow"]).shape
            torch.Size([1, 4, 384])
        """
        return self.encode("text", texts, batch_size, show_progress)

    def known_words(self, *texts: str) -> Words:
        """Which words of texts the model knows. It can only guess what a text without any of them means.

        A model of words knows those of its vocabulary. A model of word pieces knows every word that it can spell.

        Args:
            texts: the texts, for instance the parts of a query.

        Returns:
            The known words and the unknown ones, as they are written, each once. Punctuation makes no words.

        Examples:
            >>> from maxmatch import SetEncoder
            >>> model = SetEncoder.from_pretrained("maxmatch-small")
            >>> model.known_words("a dog and a xqzzt!")
            Words(known=['a', 'dog', 'and'], unknown=['xqzzt'])
        """
        reader = self.tower("text").reader
        if not isinstance(reader, TextReader):  # it has no words that could be unknown
            return Words(list(dict.fromkeys(word for text in texts for word in text.split())), [])
        return known_words(reader.tokenizer, *texts)

    def similarity(self, a: Tensor | np.ndarray, b: Tensor | np.ndarray) -> Float[Tensor, "n m"]:
        """The score of every set of `a` with every set of `b`, by the similarity the model was trained with.

        For more sets than fit into memory at once: `maxmatch.score_matrix` and `maxmatch.top_hits`.

        Args:
            a: n sets, as `encode` returns them.
            b: m sets.

        Returns:
            The scores (n, m).

        Examples:
            >>> from maxmatch import SetEncoder
            >>> model = SetEncoder.from_pretrained("maxmatch-small")
            >>> texts = model.encode_texts(["a dog", "a dog runs", "a car on a road"])
            >>> int(model.similarity(texts[:1], texts[1:]).argmax())
            0
        """
        return SIMILARITIES[self.similarity_name](as_tensor(a, "a"), as_tensor(b, "b"), **self.similarity_options)

    def logits(self, a: Tensor | np.ndarray, b: Tensor | np.ndarray) -> Float[Tensor, "n m"]:
        """The scores as a two-tower model of transformers gives them: `similarity` × its logit scale + its bias.

        For SigLIP their sigmoid is the probability that a pair matches; for CLIP the softmax over texts is which of
        them fits. A model without a logit scale gives `similarity` itself.

        Args:
            a: n sets, as `encode` returns them.
            b: m sets.

        Returns:
            The logits (n, m).

        Examples:
            >>> from maxmatch import SetEncoder
            >>> model = SetEncoder.from_pretrained("openai/clip-vit-base-patch32")  # doctest: +SKIP
            >>> model.logits(model.encode_images(["dog.jpg"]), model.encode_texts(["a dog", "a cat"]))  # doctest: +SKIP
        """
        scale = bias = None
        if self.config is not None:
            scale, bias = self.config.logit_scale, self.config.logit_bias
        return self.similarity(a, b) * (1.0 if scale is None else scale) + (bias or 0.0)

    def similarity_like(self, name: str) -> str | Similarity:
        """A similarity by its name, with the options of this model where it is the model's own.

        Args:
            name: one of `maxmatch.similarity.SIMILARITIES`.

        Returns:
            What `maxmatch.score_matrix` takes: the name where there are no options, otherwise a function.

        Examples:
            >>> from maxmatch import SetEncoder
            >>> model = SetEncoder.from_pretrained("maxmatch-small")
            >>> model.similarity_like("chamfer")
            'chamfer'
        """
        return with_options(name, self.similarity_options if name == self.similarity_name else {})

    def explain(self, image: Any, text: str) -> Explanation:
        """Which slots of an image and a text were matched, how well, and what each of them attended to.

        A model whose head has no attention, such as CLIP, is asked how much the cosine falls without each part of
        the image and without each word: part p counts max(0, ⟨s, t⟩ − ⟨s without p, t⟩), to sum 1.

        Args:
            image: what `encode_images` takes, one of it.
            text: a text.

        Returns:
            The score, the matched slots, all cosines, and each slot's attention to the parts of the image and the
            words.

        Examples:
            >>> from PIL import Image
            >>> from maxmatch import SetEncoder
            >>> model = SetEncoder.from_pretrained("maxmatch-small")
            >>> explained = model.explain(Image.new("RGB", (64, 48), "red"), "a red wall")
            >>> [pair.image_slot for pair in explained.pairs]
            [0, 1, 2, 3]
        """
        if self.tower("text").reads != "text":
            raise ValueError("explain: the tower named 'text' reads no texts, so there are no words to show.")
        seen = self.look("image", image, lambda: self.encode_texts([text])[0])
        read = self.look("text", text, lambda: seen.vectors)
        cosines = seen.vectors @ read.vectors.T
        pairs = [
            Pair(i, int(j), float(cosines[i, j]))
            for i, j in enumerate(partners(self.similarity_name, cosines))
            if j >= 0
        ]
        score = self.similarity(seen.vectors[None], read.vectors[None])
        return Explanation(float(score), pairs, cosines, seen.attention, read.attention, read.words or [])

    def look(self, modality: str, item: Any, against: Callable[[], Float[Tensor, "L D"]] | None = None) -> Look:
        """One item's set, and what each of its vectors was taken from.

        Args:
            modality: the name of a tower.
            item: what that tower reads, one of it.
            against: makes the set that the item is compared with. It is called where the head has no attention: then
                a part counts as much as the cosine falls without it. None: the cosine with the item's own set.

        Returns:
            The set (K, D), each slot's attention, and the words of a text.

        Examples:
            >>> from maxmatch import SetEncoder
            >>> model = SetEncoder.from_pretrained("maxmatch-small")
            >>> seen = model.look("text", "two dogs")
            >>> seen.vectors.shape, seen.attention.shape == (4, len(seen.words))
            (torch.Size([4, 384]), True)
        """
        return look_at(self, modality, item, against)

    def record_pairing(self, pairing: Sequence[int], stability: float) -> None:
        """Record in the config which slots meet, as measured after training, so that a checkpoint has it.

        Args:
            pairing: for each image slot the text slot that it meets most often.
            stability: the share of true pairs in which they meet, 0 to 1.

        Examples:
            >>> from maxmatch import SetEncoder
            >>> model = SetEncoder.from_pretrained("maxmatch-small")
            >>> model.record_pairing([0, 1, 2, 3], stability=0.99)
            >>> model.config.pairing_stability
            0.99
        """
        if self.config is None:
            raise ValueError("pairing: this model was built without a config to record it in.")
        measured = {"pairing": list(pairing), "pairing_stability": float(stability)}
        self.config = ModelConfig.model_validate({**self.config.model_dump(), **measured})

    def save_pretrained(self, folder: str | Path, dtype: torch.dtype | str | None = None, notes: str = "") -> Path:
        """Write the model into a folder: weights, config, tokenizers and a model card.

        Args:
            folder: a new or empty folder, or one that holds a model, which is replaced, whole or not at all.
            dtype: "float16" halves the file and rounds the weights, which makes it another model; "int8" does the same
                and keeps word vectors in eight bits, with a scale for each; None: "float32".
            notes: Markdown for the model card: what the model was trained on, how well it does.

        Returns:
            The folder.

        Examples:
            >>> from maxmatch import SetEncoder
            >>> model = SetEncoder.from_pretrained("maxmatch-small")
            >>> folder = model.save_pretrained("my-model", dtype="float16")
            >>> SetEncoder.from_pretrained(folder).dim
            384
        """
        from maxmatch.model.checkpoint import save

        return save(self, folder, dtype, notes)

    @classmethod
    def from_pretrained(
        cls, folder: str | Path, device: str | torch.device | None = None, allow: Collection[str] = ()
    ) -> "SetEncoder":
        """Load a model.

        Args:
            folder: a folder that `save_pretrained` wrote, the name of a model that ships ("maxmatch-small"), or
                "organisation/name" on the Hugging Face Hub; there a CLIP, SigLIP or another two-tower model of
                transformers will do, too. "hf:" before a name: never a folder; "@revision" behind it: that one.
            device: where to put it; None: the CPU.
            allow: encoders and heads outside the package that the model may import, as "module:Class". The environment
                variable MAXMATCH_ALLOW_CODE lists more.

        Returns:
            The model, in evaluation mode.

        Examples:
            >>> from maxmatch import SetEncoder
            >>> model = SetEncoder.from_pretrained("maxmatch-small")
            >>> model.training
            False
        """
        from maxmatch.model.checkpoint import load

        return load(folder, device, allow)

    def push_to_hub(self, name: str, private: bool = True) -> str:
        """Upload the model to the Hugging Face Hub.

        Args:
            name: "organisation/name".
            private: whether only you and your organisation may see it, where the repository is new.

        Returns:
            The address of the upload.

        Examples:
            >>> from maxmatch import SetEncoder
            >>> model = SetEncoder.from_pretrained("maxmatch-small")
            >>> model.push_to_hub("organisation/name")  # doctest: +SKIP
        """
        from maxmatch.model.checkpoint import push

        return push(self, name, private)

    def sets_of(self, modality: str, inputs: Inputs) -> Float[Tensor, "B K D"]:
        """The sets of one batch that was read already, without gradient. Call it within `evaluating`.

        Args:
            modality: the tower's name.
            inputs: what the tower's reader has collated, on any device; of pictures also their pixels of eight bits,
                (B, H, W, 3), which are normalised here.

        Returns:
            The sets in float32, on the model's device.

        Examples:
            >>> from maxmatch import SetEncoder
            >>> model = SetEncoder.from_pretrained("maxmatch-small")
            >>> with model.evaluating():
            ...     sets = model.sets_of("text", model.tower("text").reader.collate(["a dog"]))
            >>> sets.shape
            torch.Size([1, 4, 384])
        """
        reader, weight = self.tower(modality).reader, next(self.parameters())
        inputs = moved(inputs, weight)
        if inputs.values.dtype == torch.uint8 and isinstance(reader, PixelReader):
            inputs = Inputs(reader.normalised(inputs.values).to(weight.dtype), None)
        made: Sets = self(modality, *inputs)
        return made.vectors.float()

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """A context of evaluation and inference mode, after which every module is as it was before. Weights must not
        change within it.

        Returns:
            A context manager.

        Examples:
            >>> from maxmatch import SetEncoder
            >>> model = SetEncoder.from_pretrained("maxmatch-small").train()
            >>> with model.evaluating():
            ...     model.training
            False
        """
        # Neither `eval()` nor `modules()`: each takes as long as a short text.
        every: list[nn.Module] = [self]
        for module in every:
            every += filter(None, module._modules.values())
        in_training = [module for module in every if module.training]
        for module in in_training:
            module.training = False
        try:
            with torch.inference_mode(), ExitStack() as held:
                for module in every:
                    if isinstance(module, EfficientNetLite):
                        held.enter_context(module.weights_held())
                yield
        finally:
            for module in in_training:
                module.training = True
