import base64
import hashlib
import re
from functools import cache
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch
from made_report import RECORDS, made_sets
from PIL import Image

from maxmatch.data.dataset import Items, Split
from maxmatch.evaluation.analysis import analyse
from maxmatch.evaluation.report.make_report import ReportContents, an, displayed_items, number, page
from maxmatch.evaluation.slots import Attention, Projection, attention_summary
from maxmatch.model.encoder import Explanation, Pair

EVIL = "<script>alert(1)</script> & a dog"
PAIR = ("image", "text")
ALWAYS = {"retrieval", "collapse", "meeting", "elements", "by-slot", "failures", "about"}


class Reader(HTMLParser):
    """What a browser would take from a page."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.ids, self.addresses, self.texts, self.open = [], [], [], [], []
        self.feed(text)

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


def read(contents, pictures=None):
    text = page(contents, pictures or {})
    found = Reader(text)
    assert not found.open
    return text, found


@pytest.fixture(scope="module")
def encoded():
    return made_sets()


@cache
def analysis():
    sets = made_sets()
    facets = ["size" if n % 2 else "place" for n in range(len(sets.sets["text"]))]
    return analyse(sets, PAIR, "maxmatch", facets=facets, examples=2, worst=2, answers=3)


def split_with(encoded, picture):
    """The split of some encoded items: pictures as given, and captions, one of them evil."""
    captions = [EVIL if n % 3 == 0 else f"caption number {n}" for n in range(len(encoded.sets["text"]))]
    pictures = [picture] * len(encoded.sets["image"])
    sides = {"image": pictures, "text": captions}
    return Split(
        {name: Items(values, encoded.groups[name].numpy(), encoded.ids[name]) for name, values in sides.items()}
    )


def full(encoded, picture, **options):
    """A report with everything that there can be."""
    found = analysis()
    size = found.set_sizes["image"]
    looks, reads = torch.rand(size, 2, 2), torch.rand(size, 3)
    pair = Explanation(0.5, [Pair(0, 1, -0.25)], torch.eye(size), looks, reads, ["<start>", "dog", "</b>"])
    seen = Attention([pair], attention_summary([looks]), attention_summary([reads]))
    points = Projection("tsne", np.zeros((2, 2)), ["image", "text"], [0, 0], [0, 0], [0, 0])
    items = displayed_items(split_with(encoded, picture), encoded)
    return ReportContents(
        "run <1>", found, {"data": "folder & more"}, items, points, seen, [Image.new("RGB", (4, 4))], RECORDS, **options
    )


def test_a_page_has_all_sections_with_links_to_them(encoded):
    text, found = read(full(encoded, Image.new("RGB", (40, 30), "red")), {"training": b"png", "heatmap": b"png"})
    assert set(found.ids) == ALWAYS | {"training", "vectors", "facets", "attention"}
    assert {address for address in found.addresses if address.startswith("#")} == {f"#{name}" for name in found.ids}
    assert text.count("data:image/png;base64,cG5n") == 2


def test_a_page_loads_nothing_from_elsewhere(encoded):
    text, found = read(full(encoded, Image.new("RGB", (40, 30), "red")), {"heatmap": b"png"})
    assert all(address.startswith(("data:image/", "#")) for address in found.addresses)
    assert not re.search(r"(src|href|url|@import)\s*[=(:]?\s*[\"']?(https?:)?//", text)
    assert not {"script", "link", "iframe", "object", "embed", "base", "form"} & set(found.tags)
    policy = found.policy
    digest = base64.b64encode(hashlib.sha256(re.search("<style>(.*?)</style>", text, re.DOTALL)[1].encode()).digest())
    assert policy.startswith("default-src 'none'; img-src data:;")
    assert f"style-src 'sha256-{digest.decode()}'" in policy
    assert "script" not in policy
    assert "unsafe" not in policy


def test_captions_and_names_are_shown_as_they_are_and_never_run(encoded):
    text, found = read(full(encoded, Image.new("RGB", (40, 30), "red")))
    assert "script" not in found.tags
    assert "<script" not in text
    assert any(EVIL in text for text in found.texts)
    assert "What run <1> has learnt" in found.texts
    assert "</b>" in found.texts  # a word of the caption
    assert "folder & more" in found.texts


def test_pictures_are_small_and_in_the_page(encoded):
    large = Image.fromarray(np.random.default_rng(0).integers(0, 256, (900, 1200, 3), dtype=np.uint8))
    text, found = read(full(encoded, large))
    thumbnails = [address for address in found.addresses if address.startswith("data:image/jpeg")]
    # Queries of images, and answers to queries of texts: two examples with three answers by three slots, and failures.
    assert len(thumbnails) >= 2 + 2 * 3 * 3
    assert max(map(len, thumbnails)) < 40_000
    assert len(text) < 2_000_000


def test_without_pictures_names_stand_in_their_place(encoded):
    text, found = read(full(encoded, np.zeros((4, 2048), np.float32)))
    assert not any(address.startswith("data:image/jpeg") for address in found.addresses)
    queries = full(encoded, None).analysis.by_slot[0].examples
    assert all(query.id in found.texts for query in queries)
    assert 'class="name"' in text


def test_a_picture_that_is_gone_does_not_stop_a_report(encoded):
    _, found = read(full(encoded, Path("/nowhere/gone.jpg")))
    assert any(text.startswith("picture-") for text in found.texts)


def test_an_analysis_alone_makes_a_page_with_numbers_for_names():
    encoded = made_sets()
    nameless = type(encoded)(encoded.sets, encoded.groups)
    found = analyse(nameless, PAIR, "maxmatch", examples=1, worst=1)
    _, seen = read(ReportContents("model", found))
    assert set(seen.ids) == ALWAYS
    assert any(text.startswith("number ") for text in seen.texts)


def test_sets_of_one_vector_have_nothing_to_compare():
    found = analyse(made_sets(size=1), PAIR, "maxmatch")
    text, _ = read(ReportContents("model", found))
    assert "With one vector in each set there is nothing to compare." in text
    assert "a set of 1 vector with 8 numbers" in text


def test_one_caption_and_one_image_make_a_report():
    found = analyse(made_sets(images=1, captions=1), PAIR, "maxmatch")
    _, seen = read(ReportContents("model", found))
    assert "0 of 1 queries have a wrong answer first." in seen.texts


def test_true_answers_are_marked_by_more_than_colour(encoded):
    contents = full(encoded, None)
    text, _ = read(contents)
    answers = [
        answer for way in contents.analysis.by_slot for one in way.examples for row in one.answers for answer in row
    ]
    failures = sum(len(way.worst) for way in contents.analysis.failures)
    assert text.count("✓</span>") == sum(answer.true for answer in answers) + failures
    assert text.count('class="item wrong"') >= sum(not answer.true for answer in answers)


def test_what_the_page_says_are_the_numbers_of_the_analysis(encoded):
    contents = full(encoded, None)
    _, seen = read(contents)
    found = contents.analysis
    assert f"{found.retrieval['rsum']:.1f}" in seen.texts
    for name in PAIR:
        assert f"{found.log_variance[name]:.2f}".replace("-", "−") in seen.texts
        for kept in found.elements.rsum(name):
            assert f"{kept:.1f}" in seen.texts
    assert f"{found.facets[0].specialisation:.3f}".replace("-", "−") in seen.texts


def test_contents_with_too_few_pictures_seen_are_refused(encoded):
    contents = full(encoded, None)
    with pytest.raises(ValueError, match="seen: expected a picture, or None, for each of 1 pairs"):
        ReportContents("model", contents.analysis, attention=contents.attention)


def test_numbers_and_nouns_are_written_as_people_write_them():
    assert number(-0.256, ".2f") == "−0.26"
    assert [an("image"), an("text")] == ["an image", "a text"]
