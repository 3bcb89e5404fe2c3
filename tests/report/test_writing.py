import json

import pytest
from made_report import RECORDS, made_sets

from maxmatch.evaluation.analysis import analyse
from maxmatch.evaluation.report import make_report as writing
from maxmatch.evaluation.report import write_report

PAIR = ("image", "text")


@pytest.fixture
def found():
    return analyse(made_sets(size=2), PAIR, "maxmatch", examples=1, worst=1)


@pytest.fixture
def quick(monkeypatch):
    """Figures that take no time: what is written where is the question here."""
    monkeypatch.setattr("maxmatch.evaluation.report.figures.render", lambda figure, kind: f"a {kind}".encode())


def names(folder):
    return sorted(str(file.relative_to(folder)) for file in folder.rglob("*"))


def test_a_report_is_a_page_its_figures_in_two_formats_and_its_numbers(found, tmp_path):
    page = write_report(found, tmp_path / "new" / "report", title="model", facts={"split": "test"})
    folder = tmp_path / "new" / "report"
    assert page == folder / "report.html"
    figures = ["elements", "heatmap", "pairing", "usage", "within-sets"]
    expected = [f"figures/{name}.{kind}" for name in figures for kind in ("pdf", "png")]
    assert names(folder) == sorted(["analysis.json", "figures", "report.html", *expected])
    assert (folder / "figures" / "heatmap.png").read_bytes().startswith(b"\x89PNG")
    assert (folder / "figures" / "heatmap.pdf").read_bytes().startswith(b"%PDF")
    assert page.read_text(encoding="utf-8").count("data:image/png;base64,") == len(figures)
    numbers = json.loads((folder / "analysis.json").read_text())
    assert numbers == {"title": "model", "facts": {"split": "test"}, **found.to_json()}


@pytest.mark.usefixtures("quick")
def test_a_second_report_replaces_the_first_one_wholly(found, tmp_path):
    write_report(found, tmp_path, title="the old one", records=RECORDS)
    assert (tmp_path / "figures" / "training.png").exists()
    (tmp_path / "mine.txt").write_text("stays")
    write_report(found, tmp_path, title="second")
    assert not (tmp_path / "figures" / "training.png").exists()
    assert "the old one" not in (tmp_path / "report.html").read_text()
    assert json.loads((tmp_path / "analysis.json").read_text())["title"] == "second"
    assert not [name for name in names(tmp_path) if "part" in name]
    assert (tmp_path / "mine.txt").read_text() == "stays"


@pytest.mark.usefixtures("quick")
def test_a_report_that_fails_leaves_the_one_before(found, tmp_path, monkeypatch):
    write_report(found, tmp_path, title="first")
    before = {name: (tmp_path / name).read_bytes() for name in names(tmp_path) if (tmp_path / name).is_file()}

    def fail(figure, kind):
        raise KeyboardInterrupt

    monkeypatch.setattr("maxmatch.evaluation.report.figures.render", fail)
    with pytest.raises(KeyboardInterrupt):
        write_report(found, tmp_path, title="second")
    assert before == {name: (tmp_path / name).read_bytes() for name in names(tmp_path) if (tmp_path / name).is_file()}


def test_figures_that_are_not_ours_are_not_overwritten(found, tmp_path):
    (tmp_path / "figures").mkdir()
    with pytest.raises(FileExistsError, match=r"figures: .*analysis\.json"):
        write_report(found, tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(FileExistsError, match="is a file"):
        write_report(found, tmp_path / "file")


def test_without_matplotlib_nothing_is_written_and_the_cure_is_named(found, tmp_path, monkeypatch):
    monkeypatch.setattr(writing, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"^figures need matplotlib.*pip install 'maxmatch\[plots\]'$"):
        write_report(found, tmp_path / "report")
    assert not (tmp_path / "report").exists()


@pytest.mark.usefixtures("quick")
def test_one_vector_a_set_has_no_histogram(tmp_path):
    alone = analyse(made_sets(images=3, captions=1, size=1), PAIR, "maxmatch")
    write_report(alone, tmp_path)
    assert not (tmp_path / "figures" / "within-sets.png").exists()
    assert (tmp_path / "figures" / "heatmap.png").exists()
