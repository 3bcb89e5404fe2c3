"""Finalists compared by every measure named beforehand, corrected for all of them; and whether a goal is met."""

import itertools
import random
import statistics

import numpy as np
import pytest
from finished_jobs import finish, finish_as_before, search_of
from scipy.stats import ttest_ind

from maxmatch.evaluation.measures import mean_measures
from maxmatch.evaluation.result_tables import render
from maxmatch.evaluation.significance import paired_test_of_seeds
from maxmatch.recipe.yaml_files import load_recipe
from maxmatch.reproduce import verdict
from maxmatch.reproduce.compare import Comparison
from maxmatch.reproduce.study import Goal
from maxmatch.reproduce.targets import RESULT, PlannedLine, ReproduceOptions, TableLine, TablePlan, Target, single
from maxmatch.reproduce.verdict import against_reference, called, corrected_tests, goal_table, judge
from maxmatch.reproduce.worker import Outcome

MEASURES = ("rsum", "i2t_map_at_r", "i2t_coverage_10")


def finals_of(folder, *titles, seeds=3):
    """Finalists that are not measured yet; the first is the reference."""
    recipe, lines = load_recipe("scenes", ["data.path=here"]), []
    for place, title in enumerate(titles):
        own = [recipe.model_copy(update={"seed": 10 * place + seed}) for seed in range(seeds)]
        jobs = tuple(single(folder, one, "val", "plain") for one in own)
        lines.append(PlannedLine(TableLine((title,), {}, "scenes", reference=place == 0), jobs))
    target = Target("made", "made", "made up", "coco", tuple(line.line for line in lines))
    return TablePlan(target, ReproduceOptions([], folder, seeds=seeds), "scenes", tuple(lines))


def measured(finals, how, write=finish):
    """how: by title the arguments of `search_of` but the seed."""
    for line in finals.lines:
        for seed, job in enumerate(line.jobs):
            write(job, search_of(seed=seed, **how[line.line.title[0]]))
    return collected(finals)


def collected(finals):
    results = {job.folder: job.result() for job in finals.jobs}
    return {folder: Outcome(result, "it failed" * (result is None)) for folder, result in results.items()}


def seeds_of(finals, outcomes, title, measure):
    (line,) = (line for line in finals.lines if line.line.title == (title,))
    return [outcomes[job.folder].result["figures"][measure] for job in line.jobs]


def slow_holm(p_values):
    """The largest of (number of tests − those with a smaller p) · p over all p that are not larger; at most 1."""
    ordered = sorted(p_values)
    return [
        min(1.0, max((len(ordered) - ordered.index(other)) * other for other in ordered if other <= p))
        for p in p_values
    ]


def test_every_measure_is_tested_over_photos_and_seeds_and_corrected_for_rivals_times_measures(tmp_path):
    finals = finals_of(tmp_path, "MaxMatch", "MIL", "SetDiv")
    how = {"MaxMatch": {"easy": 0.6}, "MIL": {"easy": 0.3}, "SetDiv": {"easy": 0.5, "further": 2}}
    outcomes = measured(finals, how)
    found = against_reference(finals, MEASURES, outcomes)
    assert found.pop("MaxMatch") == {}
    assert {title: tuple(tests) for title, tests in found.items()} == {"MIL": MEASURES, "SetDiv": MEASURES}
    searches = {title: [[search_of(seed=seed, **how[title])] for seed in range(3)] for title in how}
    for title, tests in found.items():
        for measure, test in tests.items():
            own, other = (seeds_of(finals, outcomes, one, measure) for one in (title, "MaxMatch"))
            assert test.difference == pytest.approx(statistics.mean(own) - statistics.mean(other))
            assert test.p_seeds == pytest.approx(ttest_ind(own, other, equal_var=False).pvalue)
            deviation = ((statistics.variance(own) + statistics.variance(other)) / 2) ** 0.5
            assert test.effect_size == pytest.approx(test.difference / deviation)
            alone = paired_test_of_seeds(
                searches["MaxMatch"], searches[title], 2000, np.random.default_rng(0), measure=measure
            )
            assert (test.low, test.high, test.p) == pytest.approx(alone[1:])
    tests = [test for by in found.values() for test in by.values()]
    assert [test.p_holm for test in tests] == pytest.approx(slow_holm([test.p for test in tests]))
    assert [test.p_seeds_holm for test in tests] == pytest.approx(slow_holm([test.p_seeds for test in tests]))
    assert found["MIL"]["rsum"].p_holm > found["MIL"]["rsum"].p


def test_what_could_not_be_tested_still_counts_in_the_correction(tmp_path):
    finals = finals_of(tmp_path, "MaxMatch", "MIL", "SetDiv", "failed")
    how = {"MaxMatch": {"easy": 0.6}, "MIL": {"easy": 0.3}, "SetDiv": {"easy": 0.5}, "failed": {"easy": 0.5}}
    outcomes = measured(finals, how, finish_as_before)
    for job in finals.lines[3].jobs:
        outcomes[job.folder] = Outcome(None, "it failed")
    found = against_reference(finals, MEASURES, outcomes)
    assert {title: list(tests) for title, tests in found.items() if tests} == {"MIL": ["rsum"], "SetDiv": ["rsum"]}
    tests = [found[title]["rsum"] for title in ("MIL", "SetDiv")]
    assert [test.p_holm for test in tests] == pytest.approx(slow_holm([*(test.p for test in tests), *[1.0] * 7])[:2])


def test_one_model_of_an_older_version_leaves_its_line_untested_by_the_measures_that_it_lacks(tmp_path):
    finals = finals_of(tmp_path, "MaxMatch", "MIL", "SetDiv")
    outcomes = measured(finals, {title: {"easy": 0.5} for title in ("MaxMatch", "MIL", "SetDiv")})
    finish_as_before(finals.lines[1].jobs[0], search_of(0.5, 0))
    found = against_reference(finals, MEASURES, outcomes | collected(finals))
    assert list(found["MIL"]) == ["rsum"]
    assert tuple(found["SetDiv"]) == MEASURES


def test_so_many_tests_leave_room_for_a_small_p(tmp_path):
    titles = ["MaxMatch", *(f"rival {n}" for n in range(7))]
    finals = finals_of(tmp_path, *titles, seeds=1)
    outcomes = measured(finals, {title: {"easy": 0.9 if title == "MaxMatch" else 0.0} for title in titles})
    measures = ["rsum", *mean_measures([search_of(0.5, 0)])]
    found = against_reference(finals, measures, outcomes)
    assert len(titles[1:]) * len(measures) / 2000 > 0.05  # with as few draws no p could be smaller
    assert all(found[title]["rsum"].p_holm < 0.05 for title in titles[1:])


def test_every_measure_has_a_name_for_people_and_no_two_the_same():
    names = [called(measure) for measure in ("rsum", *mean_measures([search_of(0.5, 0)]))]
    assert len(set(names)) == len(names)


# The goal.

GOAL = Goal.model_validate(
    {
        "ours": ["MaxMatch", "other"],
        "rivals": ["MIL", "SetDiv"],
        "lead": {"rsum": 5, "map_at_r": 2, "coverage_10": 2},
        "at_equal": {"rsum": 1},
    }
)


def claim(found, method, measure):
    (one,) = (one for one in found["claims"] if (one["method"], one["measure"]) == (method, measure))
    return one


def test_a_lead_by_all_captions_at_equal_rsum_meets_the_goal_and_one_by_rsum_does_not(tmp_path):
    finals = finals_of(tmp_path, "MaxMatch", "other", "MIL", "SetDiv")
    far = {"easy": 0.5, "further": 40, "captions": 4, "images": 80}
    outcomes = measured(finals, {"MaxMatch": {**far, "further": 1}, "other": far, "MIL": far, "SetDiv": far})
    found = judge(GOAL, MEASURES, finals, outcomes)
    assert found["met"]
    met = {(one["method"], one["measure"]) for one in found["claims"] if one["met"]}
    assert met == {("MaxMatch", "i2t_map_at_r"), ("MaxMatch", "i2t_coverage_10")}
    (small, photos, seeds) = claim(found, "MaxMatch", "rsum")["why_not"]
    assert small == "lead too small: +0.00 over MIL, +0.00 over SetDiv"
    assert photos == "p over photos too large: 1.0000 against MIL, 1.0000 against SetDiv"
    assert seeds.startswith("p over seeds too large")
    table = goal_table(found, MEASURES)
    printed = render(table).splitlines()
    assert printed[0] == "Goal: met"
    notes = list(table.notes)
    assert "i→t mAP@R: met by MaxMatch." in notes
    assert "RSUM: not met." in notes
    assert any("2 rivals × the measures RSUM, i→t mAP@R, i→t coverage in 10" in note for note in notes)


def test_a_lead_at_lower_rsum_is_none(tmp_path):
    finals = finals_of(tmp_path, "MaxMatch", "other", "MIL", "SetDiv")
    far = {"easy": 0.6, "further": 40, "captions": 4, "images": 80}
    ours = {"easy": 0.4, "further": 0, "captions": 4, "images": 80}
    found = judge(GOAL, MEASURES, finals, measured(finals, {"MaxMatch": ours, "other": far, "MIL": far, "SetDiv": far}))
    assert not found["met"]
    (why,) = claim(found, "MaxMatch", "i2t_coverage_10")["why_not"]
    assert why.startswith("RSUM not equal: -")
    free = GOAL.model_copy(update={"at_equal": {}})
    assert judge(free, MEASURES, finals, collected(finals))["met"]


def test_one_seed_or_a_rival_that_failed_leave_the_goal_open(tmp_path):
    finals = finals_of(tmp_path, "MaxMatch", "other", "MIL", "SetDiv", seeds=1)
    weak = {"easy": 0.0, "images": 80}
    how = {"MaxMatch": {"easy": 0.9, "images": 80}, "other": weak, "MIL": weak, "SetDiv": weak}
    measured(finals, how)
    (finals.lines[3].jobs[0].folder / RESULT).unlink()
    found = judge(GOAL, MEASURES, finals, collected(finals))
    assert not found["met"]
    unknown, untested = claim(found, "MaxMatch", "rsum")["why_not"]
    assert unknown.startswith("p over seeds not known")
    assert unknown.endswith(": against MIL")
    assert untested.startswith("not tested")
    assert untested.endswith(": against SetDiv")
    assert render(goal_table(found, MEASURES)).startswith("Goal: not met")


def slow_verdict(tests):
    """Whether one of ours leads every rival, from (difference, p, p over seeds) by own, rival and measure."""
    for own, measure in itertools.product(GOAL.ours, GOAL.lead):
        mine = {(rival, name): tests[own, rival, name] for rival in GOAL.rivals for name in MEASURES}
        corrected = [
            dict(zip(mine, slow_holm([test[place] for test in mine.values()]), strict=True)) for place in (1, 2)
        ]
        enough = all(
            mine[rival, measure][0] >= (5 if measure == "rsum" else 2)
            and (measure == "rsum" or mine[rival, "rsum"][0] >= -1)
            and corrected[0][rival, measure] < 0.05
            and corrected[1][rival, measure] < 0.05
            for rival in GOAL.rivals
        )
        if enough:
            return True
    return False


def test_the_verdict_is_that_of_the_definition_whatever_the_tests_found(tmp_path, monkeypatch):
    finals = finals_of(tmp_path, "MaxMatch", "other", "MIL", "SetDiv")
    draw, verdicts = random.Random(0), []
    for _ in range(300):
        keys = itertools.product(GOAL.ours, GOAL.rivals, MEASURES)
        small = draw.choice([0.001, 0.004, 0.01])
        tests = {key: (draw.uniform(-1.5, 12), draw.uniform(0, 3 * small), draw.uniform(0, 3 * small)) for key in keys}

        def compared(line, other, outcomes, measures, draws, tests=tests):
            own, rival = line.line.title[0], other.line.title[0]
            found = {name: tests[own, rival, name] for name in measures}
            return {
                name: Comparison(lead, lead - 1, lead + 1, p, seeds, 1.0) for name, (lead, p, seeds) in found.items()
            }

        monkeypatch.setattr(verdict, "compare_lines", compared)
        found = judge(GOAL, MEASURES, finals, {})
        assert found["met"] == slow_verdict(tests)
        assert all(one["met"] == (not one["why_not"]) for one in found["claims"])
        verdicts.append(found["met"])
    assert 30 < sum(verdicts) < 270


def test_of_one_measure_and_one_rival_nothing_is_corrected(tmp_path):
    finals = finals_of(tmp_path, "MaxMatch", "MIL")
    outcomes = measured(finals, {"MaxMatch": {"easy": 0.6}, "MIL": {"easy": 0.4}})
    first, second = finals.lines
    test = corrected_tests({"MIL": (second, first)}, ["rsum"], outcomes)["MIL"]["rsum"]
    assert (test.p_holm, test.p_seeds_holm) == (test.p, test.p_seeds)
