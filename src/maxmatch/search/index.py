"""SetIndex: sets with ids and metadata, kept in a folder, found by their similarity.

    index = SetIndex.create("photos.index", dim=1024, set_size=4, model=model)
    index.add(["a.jpg", "b.jpg"], model.encode_images(["a.jpg", "b.jpg"]), [{"year": 2019}, {"year": 2024}])
    for hit in index.search(model.encode_texts(["a dog"]), k=5, where="year >= 2020")[0]:
        print(hit.id, hit.score, hit.matches)
"""

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from pydantic import JsonValue, ValidationError
from torch import Tensor

from maxmatch.config import problems
from maxmatch.model import SetEncoder
from maxmatch.search.best import Best, best_of_all, score_each
from maxmatch.search.engine import Engine, Place, Rows
from maxmatch.search.engines import create_engine, open_engine
from maxmatch.search.folder import empty_folder, writing
from maxmatch.search.hit import Hit, Match
from maxmatch.search.identity import model_identity, slot_stability
from maxmatch.search.intake import checked_ids, checked_sets, rows_of
from maxmatch.search.manifest import Manifest, Tuning, read_manifest, write_manifest
from maxmatch.search.where import Condition
from maxmatch.search.where_parser import condition_of

STABLE = 0.9
"""From this share of true pairs on whose slots meet in their order, a flattened set is searched as one vector."""
_ALIGNED = ("maxmatch", "top_k", "chamfer", "smooth_chamfer", "maxsim")  # large where slot i is near slot i
_SCAN_BLOCK_BYTES = 64 * 2**20
_BATCH_BYTES = 256 * 2**20
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
        model: SetEncoder | str | None = None,
        similarity: str | None = None,
        stability: float | None = None,
        dtype: str = "float32",
        engine: str = "lance",
        settings: Mapping[str, JsonValue] | None = None,
    ) -> Self:
        """A new, empty index in a new or empty folder.

        model: what makes the sets, so that no other model's come in: a SetEncoder, or a text that names it. From a
        SetEncoder the similarity (else "maxmatch") and the stability of the slots' pairing are taken too. stability:
        how often slot i of a query meets slot i of its item; from 0.9 on a search need not scan. dtype: float32, or
        float16 for half the room. engine: "lance" (files, fast), "exhaustive" (files, every search scans) or "milvus"
        (a server); settings: the engine's own.
        """
        folder = Path(folder).expanduser().resolve()
        if isinstance(model, SetEncoder):
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
    def open(cls, folder: str | Path) -> Self:
        """The index of a folder."""
        folder = Path(folder).expanduser().resolve()
        manifest = read_manifest(folder)
        return cls(folder, manifest, open_engine(manifest.engine, _place(folder, manifest)))

    def __len__(self) -> int:
        return self.engine.count()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *problem: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of files and connections."""
        self.engine.close()

    def add(
        self,
        ids: Sequence[str],
        sets: Tensor | np.ndarray,
        metadata: Sequence[Mapping[str, Any]] | None = None,
        *,
        model: SetEncoder | str | None = None,
        optimise: bool = True,
    ) -> None:
        """Add new items: all of them, or none where one is refused. When it returns they are on the disk.

        metadata: a mapping for each, of what JSON knows. An id that is there already is refused; `upsert` replaces.
        optimise: False puts off work on the engine's index, when many calls follow each other; `compact` does it then.
        """
        self._check_model(model)
        rows = self._rows(ids, sets, metadata)
        if not rows.ids:
            return
        with writing(self.folder):
            present = self.engine.present(rows.ids)
            if present:
                first = next(name for name in rows.ids if name in present)
                raise ValueError(
                    f"ids: {first!r} is in the index already ({len(present)} of {len(rows.ids)} are). "
                    "Use upsert to replace items, or remove them first."
                )
            self.engine.add(rows)
            self._settle(optimise)

    def upsert(
        self,
        ids: Sequence[str],
        sets: Tensor | np.ndarray,
        metadata: Sequence[Mapping[str, Any]] | None = None,
        *,
        model: SetEncoder | str | None = None,
        optimise: bool = True,
    ) -> None:
        """As `add`, but items whose id is there already are replaced, metadata included."""
        self._check_model(model)
        rows = self._rows(ids, sets, metadata)
        if not rows.ids:
            return
        with writing(self.folder):
            self.engine.upsert(rows)
            self._settle(optimise)

    def remove(self, ids: Sequence[str], *, missing: str = "refuse") -> int:
        """Remove items and say how many: all, or none where one is not there. missing: "ignore" removes those there
        are.
        """
        raise NotImplementedError

    def search(
        self,
        sets: Tensor | np.ndarray,
        k: int = 10,
        where: str | Condition | None = None,
        exact: bool = False,
        *,
        candidates: int | None = None,
        effort: float | None = None,
        model: SetEncoder | str | None = None,
    ) -> list[list[Hit]]:
        """For each query set the k best items, best first, among those that pass the filter (`search.where`).

        exact: score every item, as `maxmatch.top_hits` does. Otherwise the engine proposes candidates, which are then
        scored exactly; how many, and with what effort, is as measured last (`verify`), unless it is given.
        """
        raise NotImplementedError

    def verify(
        self,
        sets: Tensor | np.ndarray | None = None,
        k: int = 10,
        *,
        sample: int = 200,
        target: float = 0.99,
        seed: int = 0,
    ) -> "Tuning":
        """Measure the recall of a search against the exhaustive scan, and keep the least costly settings that reach
        the target.

        sets: queries such as will come (captions of pictures that are not in the index); without them items are drawn
        from the index, which are easier to find than real queries.
        """
        raise NotImplementedError

    def compact(self) -> None:
        """Put the files in order: merge small ones, free the room of removed items, bring the engine's index up to
        date.
        """
        raise NotImplementedError

    def info(self) -> dict[str, JsonValue]:
        """What the index holds, how it is kept, and how well it was last measured to find."""
        raise NotImplementedError
