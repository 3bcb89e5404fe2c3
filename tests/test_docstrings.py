"""What most users call explains every argument and shows an example that runs."""

import doctest
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import maxmatch
from maxmatch import evaluation, losses
from maxmatch.matching import SIMILARITIES

# Of a class also its public methods; a class of data lists its fields under Args.
PUBLIC = [
    maxmatch.SetEncoder,
    maxmatch.SetIndex,
    maxmatch.score_matrix,
    maxmatch.top_hits,
    maxmatch.top_hits_both,
    maxmatch.maximal_assignment,
    *(entry.torch for entry in SIMILARITIES.values()),
    maxmatch.Recipe,
    evaluation.evaluate_scores,
    evaluation.evaluate_embeddings,
    evaluation.compute_metrics,
    *(getattr(losses, name) for name in losses.__all__),
]


def methods(thing: Any) -> list[Any]:
    own = vars(thing) if inspect.isclass(thing) else {}
    return [
        getattr(thing, name) for name in own if not name.startswith("_") and inspect.isroutine(getattr(thing, name))
    ]


each = pytest.mark.parametrize(
    "thing", [each for thing in PUBLIC for each in (thing, *methods(thing))], ids=lambda thing: thing.__qualname__
)


def sections(thing: Any) -> dict[str, str]:
    """The docstring's sections by their headings."""
    heading = re.compile(r"^(Args|Returns|Examples):$", re.MULTILINE)
    _, *found = heading.split(inspect.getdoc(thing) or "")
    return dict(zip(found[::2], found[1::2], strict=True))


@each
def test_every_argument_and_the_result_are_explained(thing: Any) -> None:
    found = sections(thing)
    signature = inspect.signature(thing)
    explained = re.findall(r"^    (\w+): ", found.get("Args", ""), re.MULTILINE)
    assert explained == [name for name in signature.parameters if name != "self"]
    returns = signature.return_annotation
    assert ("Returns" in found) == (not inspect.isclass(thing) and returns not in (None, "None"))


@each
def test_the_examples_run(thing: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    test = doctest.DocTestParser().get_doctest(sections(thing)["Examples"], {}, thing.__qualname__, None, 0)
    assert test.examples
    report: list[str] = []
    assert doctest.DocTestRunner().run(test, out=report.append).failed == 0, "".join(report)
