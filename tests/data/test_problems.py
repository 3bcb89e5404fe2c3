from pathlib import Path

import pytest

from maxmatch.data.dataset import DataError, Problem, give_up, report_first

FILE = Path("captions.csv")


def test_the_first_problems_are_printed_and_the_others_counted():
    said = []
    with report_first(said.append) as report:
        for line in range(1, 9):
            report(Problem(FILE, "an empty line", "Remove it.", line))
    assert said[:5] == [f"captions.csv:{line}: an empty line. Remove it." for line in range(1, 6)]
    assert said[5:] == ["… and 3 more problems. `maxmatch data check` lists them all."]


def test_what_is_raised_is_not_printed_as_well():
    said = []
    with pytest.raises(DataError, match="no table"), report_first(said.append) as report:
        give_up(report, Problem(FILE, "no table", "Give one."))
    assert said == []
    with report_first(said.append) as report:
        report(Problem(FILE, "a split is missing", "Fetch it.", fatal=True))
    assert said == ["captions.csv: a split is missing. Fetch it."]
