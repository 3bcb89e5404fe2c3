"""Any sequence of writes, reopens and compactions leaves what a dict would hold, and an exact search is `top_hits`."""

import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from made_sets import ENGINES, axis_sets

from maxmatch import SetIndex, top_hits

_POOL = axis_sets(12, seed=3)  # few enough that many scores are equal: their order is promised too
_NAMES = st.lists(st.sampled_from("abcdefghijklmnop"), min_size=1, max_size=6, unique=True)
_SETS = st.lists(st.integers(0, len(_POOL) - 1), min_size=6, max_size=6)
_YEARS = st.lists(st.one_of(st.none(), st.integers(0, 3)), min_size=6, max_size=6)


class Sequences(RuleBasedStateMachine):
    """The index beside a dict of id -> (set, metadata), in the order in which the items were added."""

    engine = ""

    @initialize()
    def begin(self):
        self.place = tempfile.TemporaryDirectory()
        self.known = {}
        self.index = SetIndex.create(
            Path(self.place.name) / "index", dim=8, set_size=2, engine=self.engine, settings=ENGINES[self.engine]
        )

    def teardown(self):
        if hasattr(self, "index"):
            self.index.close()
            self.place.cleanup()

    @rule(names=_NAMES, sets=_SETS, years=_YEARS)
    def add(self, names, sets, years):
        items, metadata = self._items(names, sets, years)
        if any(name in self.known for name in names):
            with pytest.raises(ValueError, match="in the index already"):
                self.index.add(names, items, metadata)
        else:
            self.index.add(names, items, metadata)
            self._note(names, items, metadata)

    @rule(names=_NAMES, sets=_SETS, years=_YEARS)
    def upsert(self, names, sets, years):
        items, metadata = self._items(names, sets, years)
        self.index.upsert(names, items, metadata)
        self._note(names, items, metadata)

    @rule(names=_NAMES)
    def remove(self, names):
        present = [name for name in names if name in self.known]
        if present != names:
            with pytest.raises(ValueError, match="not in the index"):
                self.index.remove(names)
        self.index.remove(present)
        for name in present:
            del self.known[name]

    @rule()
    def reopen(self):
        self.index.close()
        self.index = SetIndex.open(self.index.folder)

    @rule()
    def compact(self):
        self.index.compact()

    @rule(query=st.integers(0, len(_POOL) - 1), k=st.integers(1, 20), year=st.integers(0, 3))
    def search(self, query, k, year):
        everything = list(self.known)
        self._agrees(query, k, everything, None)
        recent = [name for name in everything if self.known[name][1].get("year", -1) >= year]
        self._agrees(query, k, recent, f"year >= {year}")

    @invariant()
    def holds_as_many_items(self):
        if hasattr(self, "index"):
            assert len(self.index) == len(self.known)

    def _items(self, names, sets, years):
        metadata = [
            {} if year is None else {"year": year, "name": name} for name, year in zip(names, years, strict=False)
        ]
        return _POOL[sets[: len(names)]], metadata

    def _note(self, names, items, metadata):
        for name, item, values in zip(names, items, metadata, strict=True):
            self.known.pop(name, None)
            self.known[name] = item, values

    def _agrees(self, query, k, names, where):
        (hits,) = self.index.search(_POOL[query : query + 1], k=k, where=where, exact=True)
        if not names:
            assert hits == []
            return
        expected = top_hits(_POOL[query : query + 1], torch.stack([self.known[name][0] for name in names]), k)
        assert [hit.id for hit in hits] == [names[place] for place in expected.indices[0].tolist()]
        assert [hit.score for hit in hits] == pytest.approx(expected.scores[0].tolist(), abs=1e-6)  # exp: NumPy, torch
        assert [hit.metadata for hit in hits] == [self.known[hit.id][1] for hit in hits]


def test_any_sequence_leaves_what_a_dict_would_hold(engine):
    machine = type("SequencesOn", (Sequences,), {"engine": engine})
    count = 3 if engine == "milvus" else 6  # where a compaction takes seconds
    examples = settings(max_examples=count, stateful_step_count=15, suppress_health_check=list(HealthCheck))
    run_state_machine_as_test(machine, settings=examples)
