import json

import pytest

from maxmatch.evaluation.result_tables import Column, Table, render

NAMES = Column("model", "model")
RECALL = Column("R@1", "i2t_r1", ".1f", over="image to text")
SECOND = Column("R@5", "i2t_r5", ".1f", over="image to text")
RSUM = Column("RSUM", "rsum", ".2f")
TABLE = Table(
    [NAMES, RECALL, SECOND, RSUM],
    [["run_1 & 50% of #2", 51.26, None, 423.456], ["b|c", "9.0 ± 1.0", 100, float("nan")]],
    notes=["R@5 of one model is not known."],
    rules=[1],
)


def test_text_has_aligned_columns_and_headings_over_what_they_span():
    assert render(TABLE).splitlines() == [
        "                    image to text",
        "model                    R@1    R@5    RSUM",
        "-----------------  ---------  -----  ------",
        "run_1 & 50% of #2       51.3         423.46",
        "-----------------  ---------  -----  ------",
        "b|c                9.0 ± 1.0  100.0",
        "R@5 of one model is not known.",
    ]


def test_markdown_escapes_the_bar_and_names_each_column_in_full():
    assert render(TABLE, "markdown").splitlines() == [
        "| model | image to text R@1 | image to text R@5 | RSUM |",
        "| :-- | --: | --: | --: |",
        "| run_1 & 50% of #2 | 51.3 |  | 423.46 |",
        "| b\\|c | 9.0 ± 1.0 | 100.0 |  |",
        "",
        "R@5 of one model is not known.",
    ]


def test_latex_is_a_booktabs_tabular_with_everything_escaped():
    assert render(TABLE, "latex").splitlines() == [
        r"\begin{tabular}{lrrr}",
        r"\toprule",
        r" & \multicolumn{2}{c}{image to text} &  \\",
        r"\cmidrule(lr){2-3}",
        r"model & R@1 & R@5 & RSUM \\",
        r"\midrule",
        r"run\_1 \& 50\% of \#2 & 51.3 &  & 423.46 \\",
        r"\midrule",
        r"b|c & 9.0 $\pm$ 1.0 & 100.0 &  \\",
        r"\bottomrule",
        r"\end{tabular}",
        "% R@5 of one model is not known.",
    ]


def test_latex_prints_each_letter_that_means_something_to_it():
    table = Table([NAMES], [[r"\{~^$<>}"]])
    written = render(table, "latex")
    escaped = (
        r"\textbackslash{}\{\textasciitilde{}\textasciicircum{}\$\textless{}\textgreater{}\}",
        r"\\",
    )
    assert " ".join(escaped) in written


def test_json_has_the_numbers_unrounded_and_no_cell_without_one():
    assert json.loads(render(TABLE, "json")) == [
        {"model": "run_1 & 50% of #2", "i2t_r1": 51.26, "rsum": 423.456},
        {"model": "b|c", "i2t_r1": "9.0 ± 1.0", "i2t_r5": 100},
    ]


def test_a_wide_heading_above_makes_room_for_itself():
    table = Table([Column("a", "a", "d", over="a very wide heading"), Column("b", "b", "d")], [[1, 2]])
    above, headings, _, row = render(table).splitlines()
    assert above == "a very wide heading"
    assert (len(headings), len(row)) == (len(above) + 3, len(above) + 3)


def test_only_neighbours_with_equal_headings_share_one():
    columns = [Column("a", "a", "d", "x"), Column("b", "b", "d"), Column("c", "c", "d"), Column("d", "d", "d", "x")]
    assert r"\multicolumn{1}{c}{x} &  &  & \multicolumn{1}{c}{x} \\" in render(Table(columns, [[1, 2, 3, 4]]), "latex")


def test_a_table_without_rows_has_its_headings():
    assert render(Table([NAMES, RSUM], [])) == "model  RSUM\n-----  ----"


def test_a_row_of_another_length_is_refused():
    with pytest.raises(ValueError, match=r"2 columns got a row of 1 cells: \['x'\]"):
        Table([NAMES, RSUM], [["x"]])
