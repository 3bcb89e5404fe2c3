"""A report: a page that stands alone, its figures and its numbers; written as a whole or not at all."""

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch
from made_splits import PAIR, split_of
from PIL import Image

from maxmatch.data.dataset import Items, Split
from maxmatch.evaluation.analysis import analyse
from maxmatch.evaluation.encoding import EncodedSplit, raw_items
from maxmatch.evaluation.report import make_report, write_report
from maxmatch.evaluation.report.make_report import an, number, page
from maxmatch.evaluation.slots import Attention, Projection, attention_summary
from maxmatch.model.encoder import Explanation, Pair

EVIL = "<script>alert(1)</script> & a dog"
ALWAYS = {"retrieval", "collapse", "meeting", "elements", "by-slot", "failures", "about"}
RED = Image.new("RGB", (40, 30), "red")


class Reader(HTMLParser):
    """What a browser would take from a page."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.ids, self.addresses, self.texts, self.open = [], [], [], [], []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        if ("http-equiv", "Content-Security-Policy") in attrs:
            self.policy = dict(attrs)["content"]
        self.ids += [value for key, value in attrs if key == "id"]
        self.addresses += [value for key, value in attrs if key in ("src", "href", "srcset", "action")]
        assert not any(key.startswith("on") or key == "style" for key, _ in attrs)
        if tag not in ("img", "meta"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


@pytest.fixture(scope="module")
def sets():
    return split_of(12, 2, 3, 8)


@pytest.fixture(scope="module")
def found(sets):
    facets = ["size" if n % 2 else "place" for n in range(len(sets.sets["text"]))]
    return analyse(sets, PAIR, "maxmatch", facets=facets, examples=2, worst=2, answers=3)


@pytest.fixture(scope="module")
def whole(sets, found):
    """Makes a page with everything that there can be: all pictures as given, and captions, one of them evil."""

    def make(picture, **pictures):
        captions = [EVIL if n % 3 == 0 else f"caption number {n}" for n in range(len(sets.sets["text"]))]
        sides = {"image": [picture] * len(sets.sets["image"]), "text": captions}
        split = Split({name: Items(some, sets.groups[name].numpy(), sets.ids[name]) for name, some in sides.items()})
        looks, reads = torch.rand(3, 2, 2), torch.rand(3, 3)
        pair = Explanation(0.5, [Pair(0, 1, -0.25)], torch.eye(3), looks, reads, ["<start>", "dog", "</b>"])
        seen = Attention([pair], {"image": attention_summary([looks]), "text": attention_summary([reads])})
        points = Projection("tsne", np.zeros((2, 2)), ["image", "text"], [0, 0], [0, 0], [0, 0])
        items = raw_items(split, sets)
        text = page(found, pictures, "run <1>", {"data": "folder & more"}, items, points, seen)
        return text, Reader(text)

    return make


def test_a_page_has_all_sections_with_links_and_loads_nothing_from_elsewhere(whole):
    text, seen = whole(RED, training=b"png", heatmap=b"png")
    assert set(seen.ids) == ALWAYS | {"training", "vectors", "facets", "attention"}
    assert {address for address in seen.addresses if address.startswith("#")} == {f"#{name}" for name in seen.ids}
    assert text.count("data:image/png;base64,cG5n") == 2
    assert all(address.startswith(("data:image/", "#")) for address in seen.addresses)
    assert not re.search(r"(src|href|url|@import)\s*[=(:]?\s*[\"']?(https?:)?//", text)
    assert not {"script", "link", "iframe", "object", "embed", "base", "form"} & set(seen.tags)
    digest = base64.b64encode(hashlib.sha256(re.search("<style>(.*?)</style>", text, re.DOTALL)[1].encode()).digest())
    assert seen.policy.startswith("default-src 'none'; img-src data:;")
    assert f"style-src 'sha256-{digest.decode()}'" in seen.policy
    assert not re.search("script|unsafe", seen.policy)


def test_captions_and_names_are_shown_as_they_are_and_never_run(whole):
    text, seen = whole(RED)
    assert "script" not in seen.tags
    assert "<script" not in text
    assert any(EVIL in text for text in seen.texts)
    assert {"What run <1> has learnt", "</b>", "folder & more"} <= set(seen.texts)


def test_pictures_are_small_and_in_the_page(whole):
    large = Image.fromarray(np.random.default_rng(0).integers(0, 256, (900, 1200, 3), dtype=np.uint8))
    text, seen = whole(large)
    thumbnails = [address for address in seen.addresses if address.startswith("data:image/jpeg")]
    # Queries of images, and answers to queries of texts: two examples with three answers by three slots, and failures.
    assert len(thumbnails) >= 2 + 2 * 3 * 3
    assert max(map(len, thumbnails)) < 40_000
    assert len(text) < 2_000_000


@pytest.mark.parametrize("picture", [np.zeros((4, 2048), np.float32), Path("/nowhere/gone.jpg")])
def test_names_stand_in_place_of_features_and_of_pictures_that_are_gone(whole, found, picture):
    text, seen = whole(picture)
    assert not any(address.startswith("data:image/jpeg") for address in seen.addresses)
    assert all(query.id in seen.texts for query in found.by_slot[0].examples)
    assert 'class="name"' in text


def test_the_page_has_the_numbers_of_the_analysis_and_marks_true_answers(whole, found):
    text, seen = whole(None)
    assert f"{found.retrieval['rsum']:.1f}" in seen.texts
    for name in PAIR:
        assert f"{found.log_variance[name]:.2f}".replace("-", "−") in seen.texts
        assert {f"{kept:.1f}" for kept in found.elements.rsum(name)} <= set(seen.texts)
    assert f"{found.facets[0].specialisation:.3f}".replace("-", "−") in seen.texts
    answers = [answer for way in found.by_slot for one in way.examples for row in one.answers for answer in row]
    failures = sum(len(way.worst) for way in found.failures)
    assert text.count("✓</span>") == sum(answer.true for answer in answers) + failures
    assert text.count('class="item wrong"') >= sum(not answer.true for answer in answers)


def bare(split):
    """The page of an analysis alone."""
    return Reader(page(analyse(split, PAIR, "maxmatch", examples=1, worst=1), {}, "model", {}, {}, None, None))


def test_an_analysis_alone_makes_a_page_with_numbers_for_names(sets):
    seen = bare(EncodedSplit(sets.sets, sets.groups))
    assert set(seen.ids) == ALWAYS
    assert any(text.startswith("number ") for text in seen.texts)


def test_one_pair_of_one_vector_makes_a_page():
    seen = bare(split_of(1, 1, 1, 8))
    assert "With one vector in each set there is nothing to compare." in seen.texts
    assert any("a set of 1 vector with 8 numbers" in text for text in seen.texts)
    assert "0 of 1 queries have a wrong answer first." in seen.texts


def test_numbers_and_nouns_are_written_as_people_write_them():
    assert number(-0.256, ".2f") == "−0.26"
    assert [an("image"), an("text")] == ["an image", "a text"]


# On disk.


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Figures that take no time; those of test_figures are real."""
    monkeypatch.setattr("maxmatch.evaluation.report.figures.render", lambda figure, kind: f"a {kind}".encode())


def names(folder):
    return sorted(str(file.relative_to(folder)) for file in folder.rglob("*"))


def contents(folder):
    return {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_a_report_is_a_page_its_figures_in_two_formats_and_its_numbers(tmp_path):
    alone = analyse(split_of(3, 1, 1, 8), PAIR, "maxmatch")  # one vector per set: no histogram
    folder = tmp_path / "new" / "report"
    written = write_report(alone, folder, title="model", facts={"split": "test"})
    assert written == folder / "report.html"
    figures = ["elements", "heatmap", "pairing", "usage"]
    expected = [f"figures/{name}.{kind}" for name in figures for kind in ("pdf", "png")]
    assert names(folder) == sorted(["analysis.json", "figures", "report.html", *expected])
    assert (folder / "figures" / "heatmap.pdf").read_bytes() == b"a pdf"
    assert written.read_text(encoding="utf-8").count("data:image/png;base64,") == len(figures)
    numbers = json.loads((folder / "analysis.json").read_text())
    assert numbers == {"title": "model", "facts": {"split": "test"}, **alone.to_json()}


def test_a_second_report_replaces_the_first_one_or_fails_and_leaves_it(found, tmp_path, monkeypatch):
    write_report(found, tmp_path, title="the old one", records=[{"kind": "val", "step": 1, "rsum": 2.0}])
    assert {"figures/training.png", "figures/within-sets.pdf"} <= set(names(tmp_path))
    (tmp_path / "mine.txt").write_text("stays")
    (tmp_path / "figures" / ".ipynb_checkpoints").mkdir()
    write_report(found, tmp_path, title="second")
    assert not (tmp_path / "figures" / "training.png").exists()
    assert "the old one" not in (tmp_path / "report.html").read_text()
    assert json.loads((tmp_path / "analysis.json").read_text())["title"] == "second"
    assert not [name for name in names(tmp_path) if "part" in name]
    before = contents(tmp_path)

    drawn = []

    def fail(figure, kind):
        drawn.append(kind)
        if len(drawn) == 4:  # the first figure is ready, the second is not
            raise KeyboardInterrupt
        return b"a figure"

    monkeypatch.setattr("maxmatch.evaluation.report.figures.render", fail)
    with pytest.raises(KeyboardInterrupt):
        write_report(found, tmp_path, title="third")
    assert contents(tmp_path) == before


def test_what_is_not_a_report_is_not_overwritten(found, tmp_path):
    (tmp_path / "figures").mkdir()
    with pytest.raises(FileExistsError, match=r"figures: .*analysis\.json"):
        write_report(found, tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(FileExistsError, match="is a file"):
        write_report(found, tmp_path / "file")


def test_without_matplotlib_nothing_is_written_and_the_cure_is_named(found, tmp_path, monkeypatch):
    monkeypatch.setattr(make_report, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"^figures need matplotlib.*pip install 'maxmatch\[plots\]'$"):
        write_report(found, tmp_path / "report")
    assert not (tmp_path / "report").exists()
