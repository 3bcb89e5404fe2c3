"""How sure the differences between the finalists of a study are, by every measure named beforehand; and its goal."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from maxmatch.evaluation.result_tables import Cell, Column, Table, filled
from maxmatch.evaluation.significance import holm
from maxmatch.reproduce.compare import DRAWS, Comparison, Outcomes, between, compare_lines
from maxmatch.reproduce.study import Goal, Measure
from maxmatch.reproduce.targets import PlannedLine, TablePlan

_DRAWS_PER_TEST = 100
"""p is at least 1 / draws: with fewer, none of many tests could stay small when it is corrected for their number."""
_NAMES = {"rsum": "RSUM"} | {
    f"{way}_{name}": f"{arrow} {heading}"
    for way, arrow in (("i2t", "i→t"), ("t2i", "t→i"))
    for name, heading in (
        *((f"r{level}", f"R@{level}") for level in (1, 5, 10)),
        *(("map_at_r", "mAP@R"), ("r_precision", "R-precision")),
        *((f"coverage_{depth}", f"coverage in {depth}") for depth in (5, 10, 20)),
        *(("map", "mAP"), ("mrr", "MRR")),
        *(
            (f"{name}_{n}", f"{heading}@{n}")
            for name, heading in (("precision", "P"), ("ndcg", "nDCG"))
            for n in (5, 10)
        ),
        *((f"hardest_r{level}", f"hardest R@{level}") for level in (1, 5, 10)),
    )
}


def called(measure: str) -> str:
    """A measure for people."""
    return _NAMES[measure]


@dataclass(frozen=True)
class CorrectedTest(Comparison):
    """A `Comparison`, and its p corrected for the number of tests made with it (Holm)."""

    p_holm: float | None
    p_seeds_holm: float | None


Tests = dict[str, dict[str, CorrectedTest]]
"""By method, then by measure. What could not be tested is not there."""


def corrected_tests(
    pairs: Mapping[str, tuple[PlannedLine, PlannedLine]], measures: Sequence[str], outcomes: Outcomes
) -> Tests:
    """The first line of each pair against the second by every measure; p is corrected for pairs × measures, also where
    some of these tests could not be made.
    """
    named = [(name, measure) for name in pairs for measure in measures]
    draws = max(DRAWS, _DRAWS_PER_TEST * len(named))
    found = {name: compare_lines(*pair, outcomes, measures, draws) for name, pair in pairs.items()}
    tests = [found[name].get(measure) for name, measure in named]
    of_photos = holm([1.0 if test is None else test.p for test in tests])
    of_seeds = holm([1.0 if test is None or test.p_seeds is None else test.p_seeds for test in tests])
    whole: Tests = {name: {} for name in pairs}
    for (name, measure), test, p, p_seeds in zip(named, tests, of_photos, of_seeds, strict=True):
        if test is not None:
            seeds = None if test.p_seeds is None else p_seeds
            whole[name][measure] = CorrectedTest(**asdict(test), p_holm=p, p_seeds_holm=seeds)
    return whole


def against_reference(finals: TablePlan, measures: Sequence[str], outcomes: Outcomes) -> Tests:
    """Every method against the reference, which has none itself."""
    (reference,) = (line for line in finals.lines if line.line.reference)
    others = {title: (line, reference) for title, line in _by_title(finals).items() if line is not reference}
    return {reference.line.title[0]: {}, **corrected_tests(others, measures, outcomes)}


def _by_title(finals: TablePlan) -> dict[str, PlannedLine]:
    return {line.line.title[0]: line for line in finals.lines}


_TESTED = (
    "Against {reference}: its mean is taken off. 95 % is of a bootstrap over photos and p of a permutation test over "
    "them, what a query finds averaged over the seeds: what other photos would change. p seeds is of Welch's test over "
    "the seeds: what other seeds would change. Both p are corrected for {rivals} rivals × {measures} (Holm). d is "
    "Cohen's: the difference in standard deviations of the seeds. A difference stands where both p are small."
)


def reference_table(
    rows: Sequence[Mapping[str, Any]], reference: str, measures: Sequence[str], late: Sequence[str] = ()
) -> Table:
    """Every method against the reference, measure by measure. rows: those of `study_data`. late: named too late."""
    columns = [
        Column("measure", "measure"), Column("method", "method"), Column("difference", "difference", "+.1f"),
        Column("95 %", "interval", "s"), Column("p", "p", ".4f"), Column("p seeds", "p_seeds", ".4f"),
        Column("d", "d", "+.1f"),
    ]  # fmt: skip
    cells: list[Mapping[str, Cell]] = []
    rivals = [row for row in rows if row["title"]["method"] != reference]
    for measure in measures:
        for row in rivals:
            test = row["tests"].get(measure)
            about = {"measure": called(measure), "method": row["title"]["method"]}
            cells.append({**about, **({"difference": "not tested"} if test is None else _test_cells(test))})
    rules = [len(rivals) * place for place in range(1, len(measures))]
    named = "1 measure" if len(measures) == 1 else f"{len(measures)} measures"
    notes = [_TESTED.format(reference=reference, rivals=len(rivals), measures=named)]
    tested = [row["title"]["method"] for row in rivals if row["tests"]]
    if len(tested) < len(rivals):
        left = len(rivals) - len(tested)
        notes.append(f"Compared: {'; '.join(tested) or 'none'}. The other {left} count in the correction all the same.")
    if late:
        notes.append(f"Not named beforehand, but when values were frozen already: {', '.join(map(called, late))}.")
    return Table(columns, cells, notes, rules, f"Against {reference}")


def _test_cells(test: Mapping[str, Any]) -> dict[str, Cell]:
    sure = {"p": test["p_holm"], "p_seeds": test["p_seeds_holm"], "d": test["effect_size"]}
    return {"difference": test["difference"], "interval": between(test["low"], test["high"]), **sure}


# The goal.


def judge(goal: Goal, measures: Sequence[str], finals: TablePlan, outcomes: Outcomes) -> dict[str, Any]:
    """Whether the goal is met, as plain data: by each of our methods and each measure, and why not."""
    lines = _by_title(finals)
    tests = {
        own: corrected_tests({rival: (lines[own], lines[rival]) for rival in goal.rivals}, measures, outcomes)
        for own in goal.ours
    }
    claims = []
    for measure in goal.lead:
        for own in goal.ours:
            why = _why_not(goal, measure, tests[own])
            claims.append({"method": own, "measure": measure, "met": not why, "why_not": why})
    plain = {
        own: {rival: {name: asdict(one) for name, one in by.items()} for rival, by in of.items()}
        for own, of in tests.items()
    }
    return {
        "met": any(claim["met"] for claim in claims), **goal.model_dump(mode="json"), "claims": claims, "tests": plain
    }  # fmt: skip


def _why_not(goal: Goal, measure: Measure, tests: Tests) -> list[str]:
    """Each reason with the rivals that it is about; none if the lead over all of them is large and sure enough."""
    found: dict[str, list[str]] = {}
    for rival in goal.rivals:
        for reason, detail in _shortcomings(goal, measure, rival, tests[rival]):
            found.setdefault(reason, []).append(detail)
    return [f"{reason}: {', '.join(details)}" for reason, details in found.items()]


def _shortcomings(
    goal: Goal, measure: Measure, rival: str, tests: Mapping[str, CorrectedTest]
) -> Iterator[tuple[str, str]]:
    needed = (measure, *goal.at_equal)
    if any(one not in tests for one in needed):
        yield "not tested (failed, or not measured)", f"against {rival}"
        return
    test = tests[measure]
    if test.difference < goal.lead[measure]:
        yield "lead too small", f"{test.difference:+.2f} over {rival}"
    for of, p in (("photos", test.p_holm), ("seeds", test.p_seeds_holm)):
        if p is None:
            yield f"p over {of} not known (it takes two seeds that differ)", f"against {rival}"
        elif p >= goal.p:
            yield f"p over {of} too large", f"{p:.4f} against {rival}"
    for other, most in goal.at_equal.items():
        if other != measure and tests[other].difference < -most:
            yield f"{called(other)} not equal", f"{tests[other].difference:+.2f} to {rival}"


def goal_table(found: Mapping[str, Any], measures: Sequence[str]) -> Table:
    """What `judge` found, for people: of each claim the smallest lead and the largest p, whichever the rival."""
    rows: list[Mapping[str, Cell]] = []
    for claim in found["claims"]:
        tests = [of.get(claim["measure"]) for of in found["tests"][claim["method"]].values()]
        row: dict[str, Cell] = {
            "method": claim["method"],
            "measure": called(claim["measure"]),
            "wanted": found["lead"][claim["measure"]],
            "met": "met" if claim["met"] else "not met",
            "why": "; ".join(claim["why_not"]) or None,
        }
        if None not in tests:
            row["lead"] = min(test["difference"] for test in tests)
            for name in ("p_holm", "p_seeds_holm"):
                values = [test[name] for test in tests]
                row[name] = None if None in values else max(values)
        rows.append(row)
    columns = [
        Column("method", "method"), Column("measure", "measure"), Column("wanted", "wanted", "+g"),
        Column("smallest lead", "lead", "+.2f"), Column("largest p", "p_holm", ".4f"),
        Column("largest p seeds", "p_seeds_holm", ".4f"), Column("goal", "met"), Column("why not", "why"),
    ]  # fmt: skip
    rules = [len(found["ours"]) * place for place in range(1, len(found["lead"]))]
    title = "Goal: met" if found["met"] else "Goal: not met"
    return Table(filled(columns, rows), rows, _goal_notes(found, measures), rules, title)


def _goal_notes(found: Mapping[str, Any], measures: Sequence[str]) -> list[str]:
    wanted = " or ".join(f"{least:g} {called(measure)}" for measure, least in found["lead"].items())
    equal = "".join(
        f" A lead by another measure counts at equal {called(measure)}: at most {most:g} lower."
        for measure, most in found["at_equal"].items()
    )
    notes = [
        f"The goal: one of {', '.join(found['ours'])} leads each of {', '.join(found['rivals'])} by at least {wanted}, "
        f"with p < {found['p']:g} over photos and over seeds.{equal}"
    ]
    for measure in found["lead"]:
        by = [claim["method"] for claim in found["claims"] if claim["measure"] == measure and claim["met"]]
        notes.append(f"{called(measure)}: {'met by ' + ', '.join(by) if by else 'not met'}.")
    rivals, ours = len(found["rivals"]), len(found["ours"])
    several = f", for each of the {ours} methods on its own" if ours > 1 else ""
    named = ", ".join(map(called, measures))
    return [*notes, f"Both p are corrected for {rivals} rivals × the measures {named} (Holm){several}."]
