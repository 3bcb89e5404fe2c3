"""Do the tests notice when the losses or the matching are changed by one thing? `make mutants`.

    python tests/mutants.py [how many, 150] [seed, 0] [share, 1/1]     1/2 beside 2/2: two processes at once

A mutant is the sources with one operator, constant or call changed; a seed draws them from all there are. pytest is
started once and then divides, once for each: the child sees the changed file and runs the tests that reach the changed
statement until one fails. Which tests reach what, and how long they take, is measured once without a change. What is
found is appended to .cache/mutants/found.jsonl: a run that was interrupted goes on, and survivors are tried again when
a test or a source has changed. (mutmut finds no test for any mutant here: shapes are checked by an import hook.)
"""

import ast
import hashlib
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
from mutations import Mutant, mutant_at, places

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "src" / "maxmatch"
PARTS = ("matching", "losses")
NOTES = ROOT / ".cache" / "mutants"
# The tests of a file are those of its name, but for these.
OWN = {"matching/tiles.py": "scoring", "matching/scorers.py": "scoring", "matching/backend.py": "compiled"}
COMPILED = "matching/compiled.py"  # Python never runs its lines: any test that reaches the file may notice
PATIENCE = (
    20  # seconds for the tests of other files, the fastest first: a mutant that only the rest would kill survives
)
MEMORY = 8 * 2**30


Surveyed = dict[str, dict[str, Any]]
"""Of each test its "seconds", and the "lines" it reaches of each file."""


class Run:
    """A plugin for a child: the tests to run in their order, and which of them failed."""

    def __init__(self, notes: Path, order: list[str]) -> None:
        self.notes = notes
        self.rank = {test: place for place, test in enumerate(order)}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        chosen = [item for item in items if item.nodeid in self.rank]
        items[:] = sorted(chosen, key=lambda item: self.rank[item.nodeid])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.notes.write_text(report.nodeid, encoding="utf-8")


class Survey:
    """A plugin for a child: what every test reaches of the package as it is, and how long it takes."""

    def __init__(self, notes: Path) -> None:
        import coverage

        self.notes = notes
        self.seconds: Counter[str] = Counter()
        watched = [str(SOURCES / part / "*") for part in PARTS]
        self.coverage = coverage.Coverage(data_file=None, config_file=False, include=watched)
        self.coverage.start()

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        self.coverage.switch_context(item.nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] += report.duration

    def pytest_sessionfinish(self) -> None:
        self.coverage.stop()
        data = self.coverage.get_data()
        found: Surveyed = {test: {"seconds": seconds, "lines": {}} for test, seconds in self.seconds.items()}
        for file in data.measured_files():
            for line, tests in data.contexts_by_lineno(file).items():
                for test in filter(None, tests):
                    found[test]["lines"].setdefault(Path(file).relative_to(SOURCES).as_posix(), []).append(line)
        self.notes.write_text(json.dumps(found), encoding="utf-8")


def overlay(folder: Path, mutant: Mutant) -> None:
    """The package in a folder: links to what it is made of, but for one file."""
    here, there = SOURCES, folder / "maxmatch"
    for part in Path(mutant.file).parts:
        there.mkdir()
        for entry in here.iterdir():
            # Numba must not find what it made of the file as it was, nor put the mutant in its place.
            if entry.name != part and not (mutant.file == COMPILED and entry.name == "__pycache__"):
                (there / entry.name).symlink_to(entry)
        here, there = here / part, there / part
    there.write_text(mutant.text, encoding="utf-8")


def divide(
    session: pytest.Session, mutant: Mutant | None, plugin: Callable[[Path], object], files: list[str], seconds: float
) -> tuple[int, str] | None:
    """None in the child, which goes on to run tests; in the parent the child's exit status and notes at its end."""
    folder = Path(tempfile.mkdtemp())  # not a context: the child must not remove it
    if mutant is not None:
        overlay(folder, mutant)
    notes = folder / "notes"
    child = os.fork()
    if child:
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        text = notes.read_text(encoding="utf-8") if notes.exists() else f"exit status {code}"
        shutil.rmtree(folder)
        return code, text
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    # Time on the processor: other work on the machine must not kill a mutant. The alarm is for one that waits.
    resource.setrlimit(resource.RLIMIT_CPU, (int(seconds), int(seconds)))
    signal.alarm(20 * int(seconds))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    sys.dont_write_bytecode = True
    os.environ["PYTEST_DEBUG_TEMPROOT"] = str(folder)
    sys.path.insert(0, str(folder))
    session.config.args = files
    session.config.pluginmanager.register(plugin(notes))
    return None


class Mutants:
    """A plugin: pytest is configured and what is heavy imported, but nothing collected, when it divides."""

    def __init__(self, chosen: list[Mutant]) -> None:
        self.chosen = chosen
        self.sources = b"".join(file.read_bytes() for file in sorted(SOURCES.rglob("*.py")))
        tests = sorted(file for part in PARTS for file in (ROOT / "tests" / part).glob("test_*.py"))
        self.tests = {file.relative_to(ROOT).as_posix(): self.digest(file.read_bytes()) for file in tests}
        self.state = self.digest("".join(self.tests.values()).encode())
        NOTES.mkdir(parents=True, exist_ok=True)
        self.found: list[dict[str, Any]] = []
        if (NOTES / "found.jsonl").exists():
            self.found = [json.loads(line) for line in (NOTES / "found.jsonl").read_text("utf-8").splitlines()]

    def digest(self, tests: bytes) -> str:
        """Another when the tests or the package are."""
        return hashlib.sha256(self.sources + tests).hexdigest()[:16]

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self, session: pytest.Session) -> None:
        import numba
        import scipy.optimize  # noqa: F401
        import torch  # noqa: F401

        numba.njit("f4(f4)")(lambda x: x)  # Numba's first function takes a second
        assert "maxmatch" not in sys.modules, "the children would not see their mutants"
        surveyed: Surveyed = {}
        for file, digest in self.tests.items():
            survey = NOTES / f"{digest}.json"
            if not survey.exists():
                print(f"{file} without a change ...", flush=True)
                ended = divide(session, None, Survey, [file], 3600)
                if ended is None:
                    return
                assert ended[0] == 0, f"{file} ends with {ended[0]} without a change: the tests have to pass first"
                survey.write_text(ended[1], encoding="utf-8")
            surveyed |= json.loads(survey.read_text(encoding="utf-8"))
        outcome: Counter[tuple[str, bool]] = Counter()
        for number, mutant in enumerate(self.chosen, 1):
            one = self.known(mutant) or self.tried(session, mutant, surveyed)
            if one is None:
                return
            outcome[mutant.file, one["killed"]] += 1
            verdict = "killed" if one["killed"] else "SURVIVED"
            print(f"{number:>4} {verdict:<9}{mutant.file} {mutant.what} [{one['by']}; {one['seconds']} s]", flush=True)
        for file in sorted({mutant.file for mutant in self.chosen}):
            print(f"{outcome[file, True]:>4} of {outcome[file, True] + outcome[file, False]:>3} killed in {file}")
        killed = sum(count for (_, dead), count in outcome.items() if dead)
        pytest.exit(f"{killed} of {len(self.chosen)} killed ({killed / len(self.chosen):.1%})", 0)

    def known(self, mutant: Mutant) -> dict[str, Any] | None:
        """What was found of a mutant before, if it still holds."""
        same = [one for one in self.found if one["name"] == mutant.name]
        return next((one for one in same if one["killed"] or one["state"] == self.state), None)

    def tried(self, session: pytest.Session, mutant: Mutant, surveyed: Surveyed) -> dict[str, Any] | None:
        """What the tests say of a mutant; None in the child."""
        start = time.perf_counter()
        code, by = 0, "no test reaches it"
        for order in self.stages(mutant, surveyed):
            files = sorted({test.partition("::")[0] for test in order})
            limit = 30 + 5 * sum(surveyed[test]["seconds"] for test in order)
            ended = divide(session, mutant, partial(Run, order=order), files, limit)
            if ended is None:
                return None
            code, by = ended
            if code != 0:
                break
        # 1: a test failed; 2: not even imported; below 0: a crash, or an endless loop that ran into the limit
        assert code in (0, 1, 2) or code < 0, f"pytest ended with {code}: {mutant.file} {mutant.what}"
        one = {"name": mutant.name, "state": self.state, "file": mutant.file, "what": mutant.what}
        one |= {"killed": code != 0, "by": by, "seconds": round(time.perf_counter() - start, 1)}
        with (NOTES / "found.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(one) + "\n")
        self.found.append(one)
        return one

    def stages(self, mutant: Mutant, surveyed: Surveyed) -> Iterator[list[str]]:
        """The tests that can notice a change: first those of the file itself, then others.

        In each those come first that noticed a change in this file before, then the fastest.
        """
        if mutant.file == COMPILED:
            able = [test for test, one in surveyed.items() if COMPILED in one["lines"]]
        elif mutant.lines is None:
            able = list(surveyed)
        else:
            able = [t for t, one in surveyed.items() if set(mutant.lines) & set(one["lines"].get(mutant.file, []))]
        part, name = Path(mutant.file).parts[:2]
        own = f"tests/{part}/test_{OWN.get(mutant.file, Path(name).stem)}.py::"
        kills = Counter(one["by"] for one in self.found if one["file"] == mutant.file and one["killed"])
        able.sort(key=lambda test: (-kills[test], surveyed[test]["seconds"]))
        first = [test for test in able if test.startswith(own)]
        others = [test for test in able if not test.startswith(own)]
        spent = list(accumulate(surveyed[test]["seconds"] for test in others))
        yield from (stage for stage in (first, others[: bisect_right(spent, PATIENCE)]) if stage)


def main(count: str = "150", seed: str = "0", share: str = "1/1") -> None:
    """Draw mutants and try them, or every nth of them."""
    first, step = map(int, share.split("/"))
    files = sorted(file for part in PARTS for file in (SOURCES / part).rglob("*.py"))
    trees = {file.relative_to(SOURCES).as_posix(): ast.parse(file.read_text(encoding="utf-8")) for file in files}
    every = [(file, place) for file, tree in trees.items() for place in places(tree)]
    drawn = random.Random(int(seed)).sample(every, min(int(count), len(every)))
    chosen = [mutant_at(file, trees[file], place) for file, place in drawn[first - 1 :: step]]
    print(f"{len(chosen)} of {len(every)} mutants", flush=True)
    sys.path.insert(0, str(SOURCES.parent))
    os.chdir(ROOT)
    options = ["-xqs", "-pno:cacheprovider", "-pno:faulthandler", "-Wignore::pytest.PytestAssertRewriteWarning"]
    os._exit(pytest.main(options, plugins=[Mutants(chosen)]))


if __name__ == "__main__":
    main(*sys.argv[1:])
