"""SetIndex: sets with ids and metadata, kept in a folder, found by their similarity."""

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import JsonValue, ValidationError

from maxmatch.core.array_checks import Array, check_equal_sizes
from maxmatch.core.manifest import problems
from maxmatch.core.ragged_array import RaggedArray
from maxmatch.model.names import AnyModel, check_same_model, model_identity, slot_stability
from maxmatch.search.engine import (
    Engine,
    Hit,
    Location,
    check_files,
    checked_condition,
    create_engine,
    open_engine,
    present,
    proposes,
    sample,
)
from maxmatch.search.filters import Condition, Value
from maxmatch.search.index_folder import (
    ANY_SIZE,
    Manifest,
    Tuning,
    as_sets,
    checked_count,
    checked_ids,
    checked_ragged,
    checked_sets,
    empty_folder,
    read_manifest,
    refuse_replaced,
    rows_of,
    write_manifest,
    writing,
)
from maxmatch.search.rerank import Best, by_candidates, hits_of, rank_all, reason_to_scan, scan, settings_for
from maxmatch.search.verify import Verification, measure

if TYPE_CHECKING:
    from torch import Tensor

    from maxmatch.search.engines.on_device import ItemsOnDevice

_SCAN_BELOW = 10_000
_TUNED_WITH = 100  # items
_TARGET = 0.995  # surely, of items of the index, which are easier to find than real queries
_log = logging.getLogger("maxmatch")


class SetIndex:
    """Sets of `set_size` unit vectors of width `dim` (None: of any number), with string ids and metadata, in a folder.

    `SetIndex.create` makes one and `SetIndex.open` opens one. Several processes may read while one writes; two that
    write wait for each other. Equal scores come in the order in which the items were added; an item that was replaced
    counts as added anew. It may be pickled: the other process opens the same folder.

    Args:
        folder: where it is.
        manifest: what its index.json holds.
        engine: what stores its items.
        device: where to keep all items for searching, as in `open`; None: they are not kept.
        device_dtype: in what precision, as in `open`.

    Examples:
        >>> import torch
        >>> from torch.nn.functional import normalize
        >>> from maxmatch import SetIndex
        >>> sets = normalize(torch.randn(3, 4, 64), dim=-1)  # three items, each four unit vectors
        >>> index = SetIndex.create("photos.index", dim=64, set_size=4)
        >>> index.add(["a.jpg", "b.jpg", "c.jpg"], sets, [{"year": 2023}, {"year": 2024}, {"year": 2025}])
        >>> [hits] = index.search(sets[1:2], k=2, where="year >= 2024")
        >>> hits[0].id, round(hits[0].score, 3), hits[0].metadata
        ('b.jpg', 1.718, {'year': 2024})
        >>> index.close()
    """

    def __init__(
        self,
        folder: Path,
        manifest: Manifest,
        engine: Engine,
        device: str | None = None,
        device_dtype: str | None = None,
    ) -> None:
        self.folder = folder
        self.manifest = manifest
        self.engine = engine
        self.device, self.device_dtype = device, device_dtype
        self._on_device = None if device is None else _items_on(device, device_dtype, folder, engine, manifest)
        self._last_added = 0
        self._warned: set[str] = set()
        self._seen: set[Condition] = set()
        """What any item passed, of `checked_condition`."""
        self._checked: object = None
        """The state of index.json when its model was last compared."""

    @classmethod
    def create(
        cls,
        folder: str | Path,
        dim: int,
        set_size: int | None,
        *,
        model: AnyModel | str | None = None,
        similarity: str | None = None,
        similarity_options: Mapping[str, int | float] | None = None,
        stability: float | None = None,
        dtype: str = "float32",
        engine: str = "lance",
        settings: Mapping[str, JsonValue] | None = None,
        device: str | None = None,
        device_dtype: str | None = None,
    ) -> "SetIndex":
        """A new, empty index in a new or empty folder.

        Args:
            folder: a new or empty folder.
            dim: the width D of the vectors.
            set_size: the number K of vectors per item; None: any number, each item its own, as of a model with a vector
                per token. Every search then scans all items.
            model: what makes the sets, so that those of another model are refused: a SetEncoder, or a name for it. A
                SetEncoder also gives `similarity` with its options, and `stability`.
            similarity: a name of `maxmatch.similarity.SIMILARITIES`; None: the model's, or "maxmatch".
            similarity_options: the similarity's options, as {"alpha": 8}; None: the model's, or the defaults.
            stability: how often slot i of a query meets slot i of its item, 0 to 1; from 0.9 on a search need not scan
                all items. None: the model's, or unknown.
            dtype: "float32", or "float16" for half the space.
            engine: "lance" (files, fast), "exhaustive" (files, every search scans) or "milvus" (a server).
            settings: the engine's own settings.
            device: where to keep all items for searching, as in `open`. The folder does not remember it.
            device_dtype: in what precision, as in `open`.

        Returns:
            The index, open.

        Examples:
            >>> from maxmatch import SetIndex
            >>> index = SetIndex.create("photos.index", dim=64, set_size=4, dtype="float16")
            >>> len(index)
            0
        """
        folder = Path(folder).expanduser().resolve()
        if model is not None and not isinstance(model, str):
            similarity = model.similarity_name if similarity is None else similarity
            if similarity_options is None and model.config is not None and similarity == model.config.similarity:
                similarity_options = model.config.similarity_options
            stability = slot_stability(model) if stability is None else stability
        try:
            manifest = Manifest.model_validate(
                {
                    "schema_version": ANY_SIZE if set_size is None else 1,
                    "set_size": set_size,
                    "dim": dim,
                    "dtype": dtype,
                    "similarity": similarity or "maxmatch",
                    "similarity_options": dict(similarity_options or {}),
                    "model": None if model is None else model_identity(model),
                    "stability": stability,
                    "engine": engine,
                    "settings": dict(settings or {}),
                }
            )
        except ValidationError as error:
            raise ValueError(problems(error)) from error
        if device is not None:
            _check_device(device, device_dtype, folder, manifest)  # before there is an index that could not be opened
        empty_folder(folder)
        with writing(folder):
            empty_folder(folder)  # again, now that nobody else can be making one
            opened = create_engine(engine, _place(folder, manifest))
            write_manifest(folder, manifest)  # last: a folder without it is no index
        return cls(folder, manifest, opened, device, device_dtype)

    @classmethod
    def open(cls, folder: str | Path, device: str | None = None, device_dtype: str | None = None) -> "SetIndex":
        """Open the index in a folder.

        Args:
            folder: where `create` made it.
            device: keep all items in the memory of a device, as "cuda", and score all of them in every search there.
                They are read again after they have changed. "cpu" keeps them in memory. None: the engine searches.
            device_dtype: what they are kept in there: "float32", "float16", "bfloat16", or "int8" for half the space of
                float16, with scores of what is kept. None: float16; on a CPU the index's own.

        Returns:
            The index; a context manager that closes it.

        Examples:
            >>> from maxmatch import SetIndex
            >>> SetIndex.create("photos.index", dim=64, set_size=4).close()
            >>> with SetIndex.open("photos.index") as index:
            ...     len(index)
            0
        """
        folder = Path(folder).expanduser().resolve()
        manifest = read_manifest(folder)
        return cls(folder, manifest, open_engine(manifest.engine, _place(folder, manifest)), device, device_dtype)

    def __reduce__(self) -> tuple[Callable[..., "SetIndex"], tuple[Path, str | None, str | None]]:
        """Pickled as its folder, which the other process opens for itself."""
        return type(self).open, (self.folder, self.device, self.device_dtype)

    def __len__(self) -> int:
        return self.engine.count()

    def __enter__(self) -> "SetIndex":
        return self

    def __exit__(self, *problem: object) -> None:
        self.close()

    def close(self) -> None:
        """Close files and connections.

        Examples:
            >>> from maxmatch import SetIndex
            >>> index = SetIndex.create("photos.index", dim=64, set_size=4)
            >>> index.close()
        """
        self._on_device = None
        self.engine.close()

    def add(
        self,
        ids: Sequence[str],
        sets: Array,
        metadata: Sequence[Mapping[str, Any] | None] | None = None,
        *,
        model: AnyModel | str | None = None,
        optimise: bool = True,
    ) -> None:
        """Add new items: all of them, or none where one is refused. When it returns they are on the disk.

        Args:
            ids: one string per item; one that the index has already is refused (`upsert` replaces it).
            sets: the items' sets (n, K, D), unit vectors: a tensor or an array; of any size, a list of (n_i, D).
            metadata: a mapping or None per item, of values that JSON has; None: no metadata.
            model: what made the sets; refused if it is not the index's model. None: not checked.
            optimise: False puts off maintenance of the engine's index while many calls follow each other; `compact`
                then does it.

        Examples:
            >>> import torch
            >>> from torch.nn.functional import normalize
            >>> from maxmatch import SetIndex
            >>> sets = normalize(torch.randn(3, 4, 64), dim=-1)
            >>> index = SetIndex.create("photos.index", dim=64, set_size=4)
            >>> index.add(["a", "b", "c"], sets, [{"year": 2024}, {"year": 2025}, None])
            >>> len(index)
            3
        """
        self._store(ids, sets, metadata, model, optimise, replace=False)

    def upsert(
        self,
        ids: Sequence[str],
        sets: Array,
        metadata: Sequence[Mapping[str, Any] | None] | None = None,
        *,
        model: AnyModel | str | None = None,
        optimise: bool = True,
    ) -> None:
        """As `add`, but items whose id the index has already are replaced, metadata included.

        Args:
            ids: one string per item.
            sets: the items' sets (n, K, D), unit vectors: a tensor or an array.
            metadata: a mapping or None per item, of values that JSON has; None: no metadata.
            model: what made the sets; refused if it is not the index's model. None: not checked.
            optimise: False puts off maintenance of the engine's index while many calls follow each other; `compact`
                then does it.

        Examples:
            >>> import torch
            >>> from torch.nn.functional import normalize
            >>> from maxmatch import SetIndex
            >>> sets = normalize(torch.randn(3, 4, 64), dim=-1)
            >>> index = SetIndex.create("photos.index", dim=64, set_size=4)
            >>> index.add(["a", "b", "c"], sets)
            >>> index.upsert(["c", "d"], sets[:2])
            >>> len(index)
            4
        """
        self._store(ids, sets, metadata, model, optimise, replace=True)

    def remove(self, ids: Sequence[str]) -> None:
        """Remove items: all of them, or none where the index lacks one.

        Args:
            ids: the items' ids.

        Examples:
            >>> import torch
            >>> from torch.nn.functional import normalize
            >>> from maxmatch import SetIndex
            >>> sets = normalize(torch.randn(3, 4, 64), dim=-1)
            >>> index = SetIndex.create("photos.index", dim=64, set_size=4)
            >>> index.add(["a", "b", "c"], sets)
            >>> index.remove(["a", "c"])
            >>> len(index)
            1
        """
        names = checked_ids(ids)
        if not names:
            return
        with writing(self.folder):
            self._refuse_replaced()
            there = present(self.engine, names)
            if unknown := [name for name in names if name not in there]:
                raise ValueError(
                    f"ids: {unknown[0]!r} is not in the index ({len(unknown)} of {len(names)} are not). "
                    "Nothing was removed."
                )
            self.engine.delete(names)
            self._settle(optimise=True)

    def search(
        self,
        sets: Array,
        k: int = 10,
        where: str | Mapping[str, Value] | Condition | None = None,
        exact: bool = False,
        *,
        candidates: int | None = None,
        effort: float | None = None,
        model: AnyModel | str | None = None,
    ) -> list[list[Hit]]:
        """The best items for each query, best first.

        Unless every item is scored, the engine proposes candidates, which are then scored exactly. An index that was
        opened on a device scores every item there.

        Args:
            sets: the queries' sets (n, K, D), unit vectors: a tensor or an array. In an index of sets of any size also
                a list of (n_i, D).
            k: how many items per query.
            where: only items that pass this filter over their metadata: an expression such as "year >= 2024", a
                mapping of names to values, or a condition of `maxmatch.search.filters`. ValueError where no item has
                a key, or has it with values of another type only; a condition is taken as it is.
            exact: score every item, as `maxmatch.top_hits` does, as it is stored.
            candidates: how many items the engine proposes per query; None: as last measured by `verify`.
            effort: how thoroughly the engine looks for them; None: as last measured.
            model: what made the queries' sets; refused if it is not the index's model. None: not checked.

        Returns:
            For each query its hits: id, score, matched slots and metadata.

        Examples:
            >>> import torch
            >>> from torch.nn.functional import normalize
            >>> from maxmatch import SetIndex
            >>> sets = normalize(torch.randn(3, 4, 64), dim=-1)
            >>> index = SetIndex.create("photos.index", dim=64, set_size=4)
            >>> index.add(["a", "b", "c"], sets)
            >>> [hits] = index.search(sets[:1], k=2, exact=True)
            >>> hits[0].id, [match.item_slot for match in hits[0].matches]
            ('a', [0, 1, 2, 3])
        """
        best = self.best(sets, k, where, exact, candidates=candidates, effort=effort, model=model, metadata=True)
        return hits_of(best, self.engine)

    def best(
        self,
        sets: Array,
        k: int = 10,
        where: str | Mapping[str, Value] | Condition | None = None,
        exact: bool = False,
        *,
        candidates: int | None = None,
        effort: float | None = None,
        model: AnyModel | str | None = None,
        metadata: bool = False,
    ) -> list[Best]:
        """As `search`, but as arrays, and without reading metadata: for a caller who needs none, or has them.

        Args:
            sets: as in `search`, and so is everything else.
            k: how many items per query.
            where: only items that pass this filter.
            exact: score every item.
            candidates: how many items the engine proposes per query.
            effort: how thoroughly the engine looks for them.
            model: what made the queries' sets.
            metadata: read them too, where the engine reads its candidates from a table.

        Returns:
            For each query ids, exact scores and matched slots, best first.

        Examples:
            >>> import torch
            >>> from torch.nn.functional import normalize
            >>> from maxmatch import SetIndex
            >>> sets = normalize(torch.randn(3, 4, 64), dim=-1)
            >>> index = SetIndex.create("photos.index", dim=64, set_size=4)
            >>> index.add(["a", "b", "c"], sets)
            >>> [best] = index.best(sets[:1], k=2, exact=True)
            >>> best.ids[0], best.partners[0].tolist()
            ('a', [0, 1, 2, 3])
        """
        k = checked_count("k", k)
        check_same_model(self.manifest.model, model, self.folder)
        self._refuse_replaced()
        queries = self._queries(sets)
        if self.manifest.scoring.in_order and isinstance(queries, np.ndarray):
            check_equal_sizes(queries.shape[1], self.manifest.set_size or 0)
        condition = checked_condition(where, self.engine, self._seen)
        tuning = self.manifest.tuning
        in_memory = condition is None and self.engine.in_memory
        if in_memory and tuning is not None and not tuning.real_queries:
            tuning = None  # it was to make up for what the engine's index misses, which is not asked
        chosen = settings_for(tuning, k, candidates, effort, in_memory)
        if len(queries) == 0:
            return []
        held = self._on_device
        if held is not None and not exact and isinstance(queries, np.ndarray) and queries.shape[1] == held.set_size:
            return held.best(queries, k, condition)
        if isinstance(queries, RaggedArray) or exact or self._must_scan(queries.shape[1], condition):
            return scan(self.engine, queries, k, condition, self.manifest)
        return by_candidates(self.engine, queries, k, condition, self.manifest, chosen, metadata)

    def rank(self, query: Array, where: str | Mapping[str, Value] | Condition | None = None) -> Best:
        """All items for one query, best first: for long lists, of which only a part is shown at a time.

        Args:
            query: the query's set (K, D), unit vectors: a tensor or an array.
            where: only items that pass this filter, as in `search`.

        Returns:
            Ids, exact scores and matched slots of every item, without metadata.

        Examples:
            >>> import torch
            >>> from torch.nn.functional import normalize
            >>> from maxmatch import SetIndex
            >>> sets = normalize(torch.randn(3, 4, 64), dim=-1)
            >>> index = SetIndex.create("photos.index", dim=64, set_size=4)
            >>> index.add(["a", "b", "c"], sets)
            >>> index.rank(sets[1]).ids[0]
            'b'
        """
        self._refuse_replaced()
        queries, condition = self._queries(query[None]), checked_condition(where, self.engine, self._seen)
        if not isinstance(queries, np.ndarray):
            return scan(self.engine, queries, max(1, len(self)), condition, self.manifest)[0]
        if self.manifest.scoring.in_order:
            check_equal_sizes(queries.shape[1], self.manifest.set_size or 0)
        return rank_all(self.engine, queries[0], condition, self.manifest)

    def fetch(self, ids: Sequence[str]) -> "dict[str, Tensor]":
        """The sets of items by their ids.

        Args:
            ids: the items' ids.

        Returns:
            Each id with its set (K, D), float32; without the ids that the index lacks.

        Examples:
            >>> import torch
            >>> from torch.nn.functional import normalize
            >>> from maxmatch import SetIndex
            >>> sets = normalize(torch.randn(3, 4, 64), dim=-1)
            >>> index = SetIndex.create("photos.index", dim=64, set_size=4)
            >>> index.add(["a", "b", "c"], sets)
            >>> {id: tuple(vectors.shape) for id, vectors in index.fetch(["b", "unknown"]).items()}
            {'b': (4, 64)}
        """
        import torch

        found = self.engine.fetch(checked_ids(ids))
        sets = as_sets(self.manifest, found.vectors)
        return {name: torch.from_numpy(np.array(one)) for name, one in zip(found.ids, sets, strict=True)}

    def check_files(self) -> None:
        """Compare every file with its checksum. `verify` does so too, and then measures.

        Raises:
            ValueError: a file has changed since it was written. It is named, with what to do.

        Examples:
            >>> import torch
            >>> from torch.nn.functional import normalize
            >>> from maxmatch import SetIndex
            >>> index = SetIndex.create("photos.index", dim=64, set_size=4)
            >>> index.add(["a", "b"], normalize(torch.randn(2, 4, 64), dim=-1))
            >>> index.check_files()
        """
        check_files(self.manifest.engine, _place(self.folder, self.manifest))

    def verify(
        self,
        sets: Array | None = None,
        k: int = 10,
        *,
        sample: int = 200,
        target: float = 0.99,
        seed: int = 0,
    ) -> Verification:
        """Check the files, measure the recall of a search against the exhaustive scan, and keep the least costly
        settings that reach the target for the searches to come.

        Args:
            sets: queries like those to come (captions of pictures that are not in the index). None: items of the index
                itself, which are easier to find than real queries.
            k: how many items per query.
            sample: how many items to draw from the index where no queries are given.
            target: the recall to reach, 0 to 1.
            seed: of that draw.

        Returns:
            The recall with its interval, the settings that were kept, and what else was tried.

        Examples:
            >>> import torch
            >>> from torch.nn.functional import normalize
            >>> from maxmatch import SetIndex
            >>> sets = normalize(torch.randn(3, 4, 64), dim=-1)
            >>> index = SetIndex.create("photos.index", dim=64, set_size=4)
            >>> index.add(["a", "b", "c"], sets)
            >>> index.verify(k=1).chosen.recall
            1.0
        """
        self._refuse_replaced()
        self.check_files()
        queries = self._drawn(sample, seed) if sets is None else self._queries(sets)
        if isinstance(queries, np.ndarray) and queries.shape[1] != self.manifest.set_size:
            reason = reason_to_scan(self.manifest, queries.shape[1])
            raise ValueError(f"sets: {reason} A scan misses nothing: there is nothing to measure.")
        if not len(queries):
            raise ValueError("verify: the index is empty, or no queries were given: there is nothing to measure.")
        result = measure(self.engine, queries, k, self.manifest, target, real_queries=sets is not None)
        if result.trials:
            with writing(self.folder):
                self._keep(result.chosen)
        return result

    def compact(self) -> None:
        """Merge small files, bring the engine's index up to date and measure it, and free the space of items that were
        replaced or removed more than ten minutes ago (others may still be reading newer ones).

        Examples:
            >>> import torch
            >>> from torch.nn.functional import normalize
            >>> from maxmatch import SetIndex
            >>> sets = normalize(torch.randn(3, 4, 64), dim=-1)
            >>> index = SetIndex.create("photos.index", dim=64, set_size=4)
            >>> for id, one in zip("abc", sets):
            ...     index.add([id], one[None], optimise=False)
            >>> index.compact()
        """
        with writing(self.folder):
            self._refuse_replaced()
            self._tune(self.engine.flush(thorough=True))

    def info(self) -> dict[str, JsonValue]:
        """What the index holds, how it is stored, and the recall that was last measured.

        Returns:
            Facts that JSON can hold.

        Examples:
            >>> import torch
            >>> from torch.nn.functional import normalize
            >>> from maxmatch import SetIndex
            >>> sets = normalize(torch.randn(3, 4, 64), dim=-1)
            >>> index = SetIndex.create("photos.index", dim=64, set_size=4)
            >>> index.add(["a", "b", "c"], sets)
            >>> facts = index.info()
            >>> facts["items"], facts["set_size"], facts["dim"], facts["similarity"]
            (3, 4, 64, 'maxmatch')
        """
        facts, reason = self.manifest.model_dump(mode="json"), reason_to_scan(self.manifest, self.manifest.set_size)
        how = f"scans all items: {reason}" if reason else "candidates of the engine, scored exactly"
        return {
            "folder": str(self.folder),
            "items": len(self),
            **facts,
            "search": how,
            "storage": self.engine.facts(),
        }

    def _store(
        self,
        ids: Sequence[str],
        sets: Array,
        metadata: Sequence[Mapping[str, Any] | None] | None,
        model: AnyModel | str | None,
        optimise: bool,
        replace: bool,
    ) -> None:
        check_same_model(self.manifest.model, model, self.folder)
        rows = rows_of(self.manifest, ids, sets, metadata, self._last_added)
        if not rows.ids:
            return
        self._last_added = int(rows.added[-1])
        with writing(self.folder):
            self._refuse_replaced()
            if replace:
                self.engine.upsert(rows)
            else:
                there = present(self.engine, rows.ids)
                if known := [name for name in rows.ids if name in there]:
                    raise ValueError(
                        f"ids: {known[0]!r} is in the index already ({len(known)} of {len(rows.ids)} are). "
                        "Use upsert to replace items, or remove them first."
                    )
                self.engine.add(rows)
            self._settle(optimise)

    def _refuse_replaced(self) -> None:
        self._checked = refuse_replaced(self.folder, self.manifest.model, self._checked)

    def _settle(self, optimise: bool) -> None:
        """After a write: the engine's own work. The items are safe, so that a failure here is only logged."""
        if not optimise:
            return
        try:
            self._tune(self.engine.flush())
        except OSError as error:
            _log.warning("%s: the items are stored, but the index was not updated: %s", self.folder, error)

    def _tune(self, trained: bool) -> None:
        """Measure the recall anew when the engine's index is new. What real queries have shown is kept."""
        if not trained or reason_to_scan(self.manifest, self.manifest.set_size) is not None:
            return
        known = self.manifest.tuning
        if known is not None and known.real_queries:
            return
        queries = self._drawn(_TUNED_WITH)
        self._keep(measure(self.engine, queries, 10, self.manifest, _TARGET, real_queries=False).chosen)

    def _keep(self, tuning: Tuning) -> None:
        self._refuse_replaced()
        self.manifest = self.manifest.model_copy(update={"tuning": tuning})
        write_manifest(self.folder, self.manifest)

    def _drawn(self, count: int, seed: int = 0) -> np.ndarray | RaggedArray:
        """The sets (n, K, D) of some items, or those of any size, drawn at random."""
        return as_sets(self.manifest, sample(self.engine, count, seed).vectors)

    def _queries(self, sets: Any) -> np.ndarray | RaggedArray:
        """Checked, in float32: (n, L, D), or where items are of any size those, too."""
        if self.manifest.set_size is not None:
            return np.array(checked_sets(self.manifest, sets), dtype=np.float32)
        rows = checked_ragged(self.manifest, sets)
        return RaggedArray(np.array(rows.values, np.float32), rows.starts)

    def _must_scan(self, set_size: int, condition: Condition | None) -> bool:
        """Whether all items are scored; the reason is logged once, unless it is only that there are few."""
        if not proposes(self.engine):
            return True
        reason = reason_to_scan(self.manifest, set_size)
        if reason is not None:
            if reason not in self._warned:
                _log.warning("%s: every search scans all items: %s", self.folder, reason)
                self._warned.add(reason)
            return True
        # Of few items that pass, an index over all of them finds hardly any.
        return condition is not None and not self.engine.sure_of_few and self.engine.count(condition) <= _SCAN_BELOW


def _items_on(device: str, dtype: str | None, folder: Path, engine: Engine, manifest: Manifest) -> "ItemsOnDevice":
    from maxmatch.search.engines.on_device import ItemsOnDevice

    return ItemsOnDevice(folder, engine, manifest, device, dtype)


def _check_device(device: str, dtype: str | None, folder: Path, manifest: Manifest) -> None:
    from maxmatch.search.engines.on_device import checked_place

    checked_place(folder, manifest, device, dtype)


def _place(folder: Path, manifest: Manifest) -> Location:
    width = (manifest.set_size or 0) * manifest.dim
    return Location(folder, width, manifest.dtype, manifest.settings)
