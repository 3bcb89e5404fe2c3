"""SetIndex: sets with ids and metadata, kept in a folder, found by their similarity."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import JsonValue, ValidationError

from maxmatch.core.array_checks import Array
from maxmatch.core.manifest import problems
from maxmatch.model.identity import AnyModel, check_same_model, model_identity, slot_stability
from maxmatch.search.engine import Engine, Hit, Location
from maxmatch.search.engines import create_engine, open_engine
from maxmatch.search.filters import Condition, Value, condition_of
from maxmatch.search.index_folder import (
    Manifest,
    Tuning,
    checked_count,
    checked_ids,
    checked_sets,
    empty_folder,
    read_manifest,
    refuse_known,
    refuse_unknown,
    rows_of,
    write_manifest,
    writing,
)
from maxmatch.search.rerank import by_candidates, hits_of, reason_to_scan, scan, settings_for
from maxmatch.search.verify import Verification, measure

if TYPE_CHECKING:
    from torch import Tensor

_SCAN_BELOW = 10_000
_TUNED_WITH = 100  # items
_TARGET = 0.995  # surely, of items of the index, which are easier to find than real queries
_log = logging.getLogger("maxmatch")


class SetIndex:
    """Sets of `set_size` unit vectors of width `dim`, with string ids and metadata, in a folder.

    Several processes may read while one writes; two that write wait for each other. Equal scores come in the order in
    which the items were added; an item that was replaced counts as added anew.
    """

    def __init__(self, folder: Path, manifest: Manifest, engine: Engine) -> None:
        self.folder = folder
        self.manifest = manifest
        self.engine = engine
        self._last_added = 0
        self._said: set[str] = set()

    @classmethod
    def create(
        cls,
        folder: str | Path,
        dim: int,
        set_size: int,
        *,
        model: AnyModel | str | None = None,
        similarity: str | None = None,
        stability: float | None = None,
        dtype: str = "float32",
        engine: str = "lance",
        settings: Mapping[str, JsonValue] | None = None,
    ) -> "SetIndex":
        """A new, empty index in a new or empty folder.

        model: what makes the sets, so that no other model's come in: a SetEncoder, or a text that names it. From a
        SetEncoder the similarity (else "maxmatch") and the stability of the slots' pairing are taken too. stability:
        how often slot i of a query meets slot i of its item; from 0.9 on a search need not scan. dtype: float32, or
        float16 for half the room. engine: "lance" (files, fast), "exhaustive" (files, every search scans) or "milvus"
        (a server); settings: the engine's own.
        """
        folder = Path(folder).expanduser().resolve()
        if model is not None and not isinstance(model, str):
            similarity = model.similarity_name if similarity is None else similarity
            stability = slot_stability(model) if stability is None else stability
        try:
            manifest = Manifest.model_validate(
                {
                    "set_size": set_size,
                    "dim": dim,
                    "dtype": dtype,
                    "similarity": similarity or "maxmatch",
                    "model": None if model is None else model_identity(model),
                    "stability": stability,
                    "engine": engine,
                    "settings": dict(settings or {}),
                }
            )
        except ValidationError as error:
            raise ValueError(problems(error)) from error
        empty_folder(folder)
        with writing(folder):
            empty_folder(folder)  # again, now that nobody else can be making one
            opened = create_engine(engine, _place(folder, manifest))
            write_manifest(folder, manifest)  # last: a folder without it is no index
        return cls(folder, manifest, opened)

    @classmethod
    def open(cls, folder: str | Path) -> "SetIndex":
        """The index of a folder."""
        folder = Path(folder).expanduser().resolve()
        manifest = read_manifest(folder)
        return cls(folder, manifest, open_engine(manifest.engine, _place(folder, manifest)))

    def __len__(self) -> int:
        return self.engine.count()

    def __enter__(self) -> "SetIndex":
        return self

    def __exit__(self, *problem: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of files and connections."""
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

        metadata: a mapping or None for each, of what JSON knows. A known id is refused; `upsert` replaces it.
        optimise: False puts off work on the engine's index, when many calls follow each other; `compact` does it then.
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
        """As `add`, but items whose id is there already are replaced, metadata included."""
        self._store(ids, sets, metadata, model, optimise, replace=True)

    def remove(self, ids: Sequence[str]) -> None:
        """Remove items: all of them, or none where one is not there."""
        names = checked_ids(ids)
        if not names:
            return
        with writing(self.folder):
            refuse_unknown(names, self.engine.present(names))
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
        """For each query set the k best items, best first, among those that pass the filter (`search.where`).

        exact: score every item, as `maxmatch.top_hits` does. Otherwise the engine proposes candidates, which are then
        scored exactly; how many, and with what effort, is as measured last (`verify`), unless it is given.
        """
        k = checked_count("k", k)
        check_same_model(self.manifest.model, model)
        queries = np.array(checked_sets(self.manifest, "sets", sets), dtype=np.float32)
        condition, tuning = condition_of(where), self.manifest.tuning
        if (held := condition is None and self.engine.held) and tuning is not None and not tuning.real_queries:
            tuning = None  # it was to make up for what the engine's index misses, which is not asked
        chosen = settings_for(tuning, k, candidates, effort, held)
        if len(queries) == 0:
            return []
        if exact or self._must_scan(queries.shape[1], condition):
            best = scan(self.engine, queries, k, condition, self.manifest)
        else:
            best = by_candidates(self.engine, queries, k, condition, self.manifest, chosen)
        return hits_of(best, self.engine)

    def fetch(self, ids: Sequence[str]) -> "dict[str, Tensor]":
        """The sets (K, D) of items by their ids, float32; an id that is not there is left out."""
        import torch

        found = self.engine.fetch(checked_ids(ids))
        vectors = torch.from_numpy(np.array(found.vectors, dtype=np.float32))
        return dict(zip(found.ids, vectors.view(-1, self.manifest.set_size, self.manifest.dim), strict=True))

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

        sets: queries such as will come (captions of pictures that are not in the index). Without them items are drawn
        from the index itself, which are easier to find than real queries are.
        """
        self.engine.check()
        real = sets is not None
        drawn = self.engine.sample(sample, seed).vectors if sets is None else checked_sets(self.manifest, "sets", sets)
        if real and drawn.shape[1] != self.manifest.set_size:
            raise ValueError(f"sets: expected sets of {self.manifest.set_size} vectors, got {drawn.shape[1]}.")
        queries = np.array(drawn, dtype=np.float32).reshape(-1, self.manifest.set_size, self.manifest.dim)
        if not len(queries):
            raise ValueError("verify: the index is empty, or no queries were given: there is nothing to measure.")
        result = measure(self.engine, queries, k, self.manifest, target, real)
        if self.engine.approximate:
            with writing(self.folder):
                self._keep(result.chosen)
        return result

    def compact(self) -> None:
        """Merge small files, bring the engine's index up to date and measure it, free the room of what was replaced or
        removed (what was within the last ten minutes, next time: someone may be reading it).
        """
        with writing(self.folder):
            self._tune(self.engine.optimise(thorough=True))

    def info(self) -> dict[str, JsonValue]:
        """What the index holds, how it is kept, and how well it was last measured to find."""
        facts, reason = self.manifest.model_dump(mode="json"), reason_to_scan(self.manifest, self.manifest.set_size)
        how = f"scans all items: {reason}" if reason else "candidates of the engine, scored exactly"
        return {"folder": str(self.folder), "items": len(self), **facts, "search": how, "storage": self.engine.info()}

    def _store(
        self,
        ids: Sequence[str],
        sets: Array,
        metadata: Sequence[Mapping[str, Any] | None] | None,
        model: AnyModel | str | None,
        optimise: bool,
        replace: bool,
    ) -> None:
        check_same_model(self.manifest.model, model)
        rows = rows_of(self.manifest, ids, sets, metadata, self._last_added)
        if not rows.ids:
            return
        self._last_added = int(rows.added[-1])
        with writing(self.folder):
            if not replace:
                refuse_known(rows.ids, self.engine.present(rows.ids))
            (self.engine.upsert if replace else self.engine.add)(rows)
            self._settle(optimise)

    def _settle(self, optimise: bool) -> None:
        """After a write: the engine's own work. The items are safe, so that a failure here is only told."""
        if not optimise:
            return
        try:
            self._tune(self.engine.optimise())
        except OSError as error:
            _log.warning("%s: the items are stored, but were not put in order: %s", self.folder, error)

    def _tune(self, trained: bool) -> None:
        """Measure the recall anew when the engine's index is new. What real queries have shown is kept."""
        if not trained or reason_to_scan(self.manifest, self.manifest.set_size) is not None:
            return
        known = self.manifest.tuning
        if known is not None and known.real_queries:
            return
        drawn = np.array(self.engine.sample(_TUNED_WITH, seed=0).vectors, dtype=np.float32)
        queries = drawn.reshape(-1, self.manifest.set_size, self.manifest.dim)
        self._keep(measure(self.engine, queries, 10, self.manifest, _TARGET, real_queries=False).chosen)

    def _keep(self, tuning: Tuning) -> None:
        self.manifest = self.manifest.model_copy(update={"tuning": tuning})
        write_manifest(self.folder, self.manifest)

    def _must_scan(self, set_size: int, condition: Condition | None) -> bool:
        """Whether all items are to be scored; why is said once, unless it is only that there are few."""
        if not self.engine.approximate:
            return True
        reason = reason_to_scan(self.manifest, set_size)
        if reason is not None:
            if reason not in self._said:
                _log.warning("%s: every search scans all items: %s", self.folder, reason)
                self._said.add(reason)
            return True
        # Of few items that pass, an index over all of them finds hardly any.
        return condition is not None and self.engine.count(condition) <= _SCAN_BELOW


def _place(folder: Path, manifest: Manifest) -> Location:
    return Location(folder, manifest.set_size * manifest.dim, manifest.dtype, manifest.settings)
