"""mteb: models of this package on its image–text retrieval tasks, and its tasks from data in any of our formats.

    import mteb
    from maxmatch.evaluation.mteb_adapter import MtebModel, local_tasks

    mteb.evaluate(MtebModel("maxmatch-small"), mteb.get_tasks(tasks=["Flickr30kT2IRetrieval"]))
    mteb.evaluate(MtebModel("maxmatch-small"), local_tasks("flickr8k", "test"), cache=None)

Nothing here needs mteb's extra "image", which would bring torchvision.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from maxmatch import __version__
from maxmatch.core.checks import Array, as_tensor
from maxmatch.core.devices import chosen_device
from maxmatch.data.dataset import IMAGE, TEXT, Split
from maxmatch.evaluation.encoding import EncodedSplit, find_models, load_for
from maxmatch.evaluation.leaderboard import data_digest
from maxmatch.matching.scoring import score_matrix
from maxmatch.matching.similarity import with_options
from maxmatch.model.encoder import SetEncoder
from maxmatch.model.images import load_image
from maxmatch.model.names import model_identity

_NEEDS = "this needs mteb: pip install mteb (without its extra 'image', which brings torchvision)"
Way = Literal["t2i", "i2t"]
WAYS: dict[Way, tuple[str, str]] = {"t2i": (TEXT, IMAGE), "i2t": (IMAGE, TEXT)}


class MtebModel:
    """A model as mteb calls it (its `EncoderProtocol`): items become sets, which the model's own similarity compares.

    Args:
        model: A `SetEncoder`, or the name of anything that `SetEncoder.from_pretrained` loads: a checkpoint, a run, a
            model that ships, a CLIP or SigLIP of transformers.
        device: None: a GPU if there is one. Ignored where a `SetEncoder` is given.
        name: "organisation/name", under which mteb stores results. None: "maxmatch/" and the folder's name.

    Example:
        >>> mteb.evaluate(MtebModel("maxmatch-small"), local_tasks("flickr8k"), cache=None)  # doctest: +SKIP
    """

    def __init__(self, model: SetEncoder | str | Path, device: str | None = None, name: str | None = None) -> None:
        if isinstance(model, SetEncoder):
            self.model, own = model, "model"
        else:
            (source,) = find_models([model])
            self.model, own = SetEncoder.from_pretrained(source.path, chosen_device(device)), source.name
        for modality in (IMAGE, TEXT):
            if modality not in self.model.towers:
                raise ValueError(f"{own}: reads {', '.join(self.model.towers)}, but mteb's tasks have {modality}s.")
        self.name = name or f"maxmatch/{own.replace('/', '-')}"
        self._queries = TEXT

    @property
    def mteb_model_meta(self) -> Any:
        """What mteb writes into its results: name, the hash of the weights as revision, sizes."""
        try:
            from mteb.models.model_meta import ModelMeta
        except ImportError as error:
            raise ImportError(_NEEDS) from error
        sizes = self.model.set_sizes
        options = {
            "name": self.name,
            "revision": model_identity(self.model)[:16],
            "n_parameters": sum(one.numel() for one in self.model.parameters()),
            "embed_dim": self.model.dim * max(sizes.values()),
            "framework": ["PyTorch"],
            "modalities": ["image", "text"],
            "loader_kwargs": {"similarity": self.model.similarity_name, "maxmatch": __version__},
        }
        return ModelMeta.create_empty(overwrites=options)

    def encode(self, inputs: Iterable[Mapping[str, Any]], **options: Any) -> Float[Tensor, "n K D"]:
        """The sets of mteb's batches, of which each has pictures or texts.

        Args:
            inputs: Batches: dictionaries with a list under "image" or "text".
            **options: mteb's: `prompt_type` tells queries from documents; `batch_size`. The rest is not needed.
        """
        parts, modality = [], TEXT
        for batch in inputs:
            found = [name for name in (IMAGE, TEXT) if name in batch]
            if len(found) != 1:
                raise ValueError(
                    f"mteb: expected batches of images or of texts, got {', '.join(found) or 'neither'} in one item. "
                    "Choose tasks of the categories t2i, i2t, i2i or t2t."
                )
            (modality,) = found
            items = [load_image(one) for one in batch[IMAGE]] if modality == IMAGE else list(batch[TEXT])
            parts.append(self.model.encode(modality, items, int(options.get("batch_size", 64)), show_progress=False))
        if not parts:
            raise ValueError("mteb: there is nothing to encode.")
        if str(getattr(options.get("prompt_type"), "value", options.get("prompt_type"))) == "query":
            self._queries = modality
        return torch.cat(parts)

    def similarity(self, queries: Float[Array, "B K D"], documents: Float[Array, "C L D"]) -> Float[Tensor, "B C"]:
        """The scores of all queries with all documents. The first argument of the model's similarity is the image's."""
        a, b = as_tensor(queries), as_tensor(documents)
        similarity = with_options(self.model.similarity_name, dict(self.model.similarity_options))
        if self._queries == TEXT:
            return score_matrix(b, a, similarity).T
        return score_matrix(a, b, similarity)

    def similarity_pairwise(
        self, queries: Float[Array, "B K D"], documents: Float[Array, "B L D"]
    ) -> Float[Tensor, " B"]:
        """The scores of query i with document i."""
        pairs = zip(as_tensor(queries), as_tensor(documents), strict=True)
        return torch.stack([self.similarity(a[None], b[None])[0, 0] for a, b in pairs])


def local_tasks(data: str | Path, split: str | None = None, name: str | None = None, **options: Any) -> list[Any]:
    """mteb's retrieval tasks of a split in any of our formats: texts find images, and images find texts.

    Args:
        data: A data set with pictures, as `maxmatch evaluate` takes it.
        split: None: "test", or "val" where there is none.
        name: Of the tasks, to which T2IRetrieval and I2TRetrieval are added. None: that of the folder.
        **options: Changes to how the data is read, by the keys of a recipe's `data`: format, images, …

    Returns:
        Two tasks, for `mteb.evaluate(model, tasks, cache=None)`.
    """
    loaded = load_for([], data, split, options)
    title = name or "".join(one for one in Path(data).expanduser().resolve().stem.title() if one.isalnum())
    digest = _digest(loaded.part)
    return [_task(way, title, loaded.part, loaded.split, str(loaded.dataset.path), digest) for way in WAYS]


def _digest(part: Split) -> str:
    groups = {name: torch.from_numpy(np.ascontiguousarray(part[name].groups)) for name in (IMAGE, TEXT)}
    ids = {name: [str(one) for one in part[name].ids] for name in groups}
    return data_digest(EncodedSplit({}, groups, ids), [str(one) for one in part[TEXT].values])


def _task(way: Way, title: str, part: Split, split: str, path: str, digest: str) -> Any:
    try:
        from mteb.abstasks.retrieval import AbsTaskRetrieval
        from mteb.abstasks.task_metadata import TaskMetadata
    except ImportError as error:
        raise ImportError(_NEEDS) from error

    described = TaskMetadata(
        name=f"{title}{way.upper()}Retrieval",
        description=f"{way} retrieval on {path}",
        dataset={"path": path, "revision": digest[:16]},
        type="Any2AnyRetrieval",
        category=way,
        modalities=["text", "image"],
        eval_splits=[split],
        eval_langs=["eng-Latn"],
        main_score="ndcg_at_10",
    )

    def load_data(self: Any, **_: Any) -> None:
        if not self.data_loaded:
            self.dataset = {"default": {split: _split_data(way, part)}}
            self.data_loaded = True

    return type(described.name, (AbsTaskRetrieval,), {"metadata": described, "load_data": load_data})()


def _split_data(way: Way, part: Split) -> dict[str, Any]:
    """Queries and documents as mteb's tables, and which belong together."""
    queries, documents = WAYS[way]
    members: dict[int, list[str]] = {}
    for place, group in enumerate(part[documents].groups.tolist()):
        members.setdefault(group, []).append(f"d{place}")
    return {
        "queries": _table(part, queries, "q"),
        "corpus": _table(part, documents, "d"),
        "relevant_docs": {
            f"q{place}": dict.fromkeys(members[group], 1) for place, group in enumerate(part[queries].groups.tolist())
        },
        "top_ranked": None,
    }


def _table(part: Split, modality: str, prefix: str) -> Any:
    """A table of mteb: "id", and "text" or "image"; pictures are read when they are asked for."""
    from datasets import Dataset, Features, Image, Value

    values = part[modality].values
    ids = [f"{prefix}{place}" for place in range(len(values))]
    if modality == TEXT:
        return Dataset.from_dict({"id": ids, "text": [str(one) for one in values]})
    column = []
    for value in values:
        if isinstance(value, np.ndarray) and value.ndim == 2:
            raise ValueError("mteb: the data has features in place of pictures, which mteb's models read.")
        stored = {"bytes": value, "path": None} if isinstance(value, bytes) else {"bytes": None, "path": str(value)}
        column.append(stored if isinstance(value, bytes | Path | str) else value)
    return Dataset.from_dict({"id": ids, "image": column}, features=Features({"id": Value("string"), "image": Image()}))
