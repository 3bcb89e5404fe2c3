"""Suites from local files: what they measure, against plain loops; and files that are refused by name and entry."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from tiny_models import tiny_model

from maxmatch import SetEncoder, similarity
from maxmatch.core.array_checks import UsageError
from maxmatch.evaluation import suites
from maxmatch.evaluation.encoding import find_models
from maxmatch.evaluation.evaluator import SetsAndMask
from maxmatch.evaluation.leaderboard import read_records
from maxmatch.evaluation.other_models import AnyEncoder, SentenceModel, open_encoder
from maxmatch.evaluation.suites import (
    SuiteFileError,
    evaluate_suite,
    example_scores,
    held_by_measure,
    read_examples,
    render_suite,
)

WORDS = ["a dog", "a cat", "two people", "a red bus", "the beach", "a bird runs"]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Six pictures, two tiny models, and a file of each suite."""
    place = tmp_path_factory.mktemp("suites")
    rng = np.random.default_rng(0)
    (place / "images").mkdir()
    for number in range(6):
        Image.fromarray(rng.integers(0, 256, (40, 50, 3), np.uint8)).save(place / "images" / f"{number}.png")
    for seed in (0, 1):
        tiny_model("resnet152_bigru", seed=seed).save_pretrained(place / f"model{seed}")
    (place / "sugarcrepe").mkdir()
    for name, shift in (("add_att", 1), ("swap_obj", 2)):
        entries = {
            str(n): {"filename": f"{n}.png", "caption": WORDS[n], "negative_caption": WORDS[(n + shift) % 6]}
            for n in range(6)
        }
        (place / "sugarcrepe" / f"{name}.json").write_text(json.dumps(entries))
    aro = [
        {
            "image_path": f"images/{n}.png", "true_caption": WORDS[n], "false_caption": WORDS[n - 1],
            "relation_name": "on" if n % 2 else "in", "bbox_x": 5, "bbox_y": 4, "bbox_w": 30, "bbox_h": 20 + n,
        }
        for n in range(6)
    ]  # fmt: skip
    (place / "aro.json").write_text(json.dumps(aro))
    winoground = [
        {
            "id": n, "image_0": f"{n}", "image_1": f"{n + 1}", "caption_0": WORDS[n], "caption_1": WORDS[n + 1],
            "collapsed_tag": "Object",
        }
        for n in range(5)
    ]  # fmt: skip
    (place / "winoground.jsonl").write_text("\n".join(map(json.dumps, winoground)))
    return place


def pair_score(model, picture, text):
    return float(similarity.maxmatch(model.encode_images([picture]), model.encode_texts([text])))


def test_sugarcrepe_counts_how_often_the_true_caption_scores_more(place, tmp_path):
    results = tmp_path / "results.jsonl"
    found = evaluate_suite(
        [place / "model0", place / "model1"], place / "sugarcrepe", "sugarcrepe", images=place / "images", draws=100,
        results=results,
    )  # fmt: skip
    for seed, one in enumerate(found):
        model = SetEncoder.from_pretrained(place / f"model{seed}")
        right = {
            name: [
                pair_score(model, place / "images" / f"{n}.png", WORDS[n])
                > pair_score(model, place / "images" / f"{n}.png", WORDS[(n + shift) % 6])
                for n in range(6)
            ]
            for name, shift in (("add_att", 1), ("swap_obj", 2))
        }
        both = {f"{name}_accuracy": 100 * np.mean(held) for name, held in right.items()}
        whole = {"accuracy": 100 * np.mean(list(right.values())), "category_mean": np.mean(list(both.values()))}
        assert one.figures == pytest.approx(whole | both)
        assert one.intervals["accuracy"].low <= one.figures["accuracy"] <= one.intervals["accuracy"].high
    difference = found[1].against_first["accuracy"]
    assert difference.value == pytest.approx(found[1].figures["accuracy"] - found[0].figures["accuracy"])
    assert "model1" in render_suite(found)
    assert [one.protocol for one in read_records(results)] == ["sugarcrepe"] * 2


def test_aro_looks_at_the_box_and_averages_over_relations(place):
    (found,) = evaluate_suite(place / "model0", place / "aro.json", "aro", draws=0)
    model = SetEncoder.from_pretrained(place / "model0")
    right = []
    for n in range(6):
        part = Image.open(place / "images" / f"{n}.png").crop((5, 4, 35, 24 + n))
        right.append(pair_score(model, part, WORDS[n]) > pair_score(model, part, WORDS[n - 1]))
    assert (
        found.figures
        == pytest.approx(
            {
                "accuracy": 100 * np.mean(right),
                "category_mean": 100 * np.mean(right),  # as many of each
                "in_accuracy": 100 * np.mean(right[::2]),
                "on_accuracy": 100 * np.mean(right[1::2]),
            }
        )
    )


def test_winoground_asks_both_ways(place):
    (found,) = evaluate_suite(
        place / "model0", place / "winoground.jsonl", "winoground", images=place / "images", draws=0
    )
    model = SetEncoder.from_pretrained(place / "model0")
    scores = [
        [pair_score(model, place / "images" / f"{n}.png", text) for text in WORDS] for n in range(6)
    ]  # scores[image][caption]
    text = [scores[n][n] > scores[n][n + 1] and scores[n + 1][n + 1] > scores[n + 1][n] for n in range(5)]
    image = [scores[n][n] > scores[n + 1][n] and scores[n + 1][n + 1] > scores[n][n + 1] for n in range(5)]
    group = [a and b for a, b in zip(text, image, strict=True)]
    expected = {"text": text, "image": image, "group": group}
    assert found.figures == pytest.approx({name: 100 * np.mean(held) for name, held in expected.items()})


@settings(max_examples=60)
@given(st.lists(st.lists(st.integers(0, 3), min_size=4, max_size=4), min_size=1, max_size=6))
def test_equal_scores_count_as_wrong(values):
    held = held_by_measure([np.array(one, float).reshape(2, 2) for one in values])
    for place, (a, b, c, d) in enumerate(values):
        assert held["text"][place] == (a > b and d > c)
        assert held["image"][place] == (a > c and d > b)
    held = held_by_measure([np.array([one], float) for one in values])
    assert held["accuracy"].tolist() == [one[0] > max(one[1:]) for one in values]


def test_our_own_format_may_have_several_negatives_and_says_where_its_pictures_are(place, tmp_path):
    items = [{"image": "0.png", "caption": "a dog", "negative": ["a cat", "a bird"], "category": "animal"}]
    content = {"format": "maxmatch-suite", "version": 1, "suite": "contrast", "images": str(place / "images")}
    (tmp_path / "mine.json").write_text(json.dumps({**content, "items": items}))
    (one,) = read_examples("contrast", tmp_path / "mine.json")
    assert one.captions == ("a dog", "a cat", "a bird")
    assert one.pictures[0].path == place / "images" / "0.png"
    (found,) = evaluate_suite(place / "model0", tmp_path / "mine.json", "contrast", draws=0)
    assert found.examples == 1


def test_a_picture_that_cannot_be_read_takes_only_its_example_with_it(place, tmp_path):
    entries = [{"image": f"{n}.png", "caption": WORDS[n], "negative": WORDS[n - 1]} for n in range(3)]
    entries += [{"image": "gone.png", "caption": "a", "negative": "b"}]
    (tmp_path / "c.json").write_text(json.dumps(entries))
    said = []
    (found,) = evaluate_suite(
        place / "model0", tmp_path / "c.json", "contrast", images=place / "images", draws=0, say=said.append
    )
    assert found.examples == 3
    assert any("gone.png" in line for line in said)
    with pytest.raises(SuiteFileError, match="--images"):
        evaluate_suite(place / "model0", tmp_path / "c.json", "contrast", draws=0, say=said.append)


def test_a_negative_that_is_the_caption_itself_is_never_told_apart(place):
    entries = [{"image": f"{n}.png", "caption": "a dog", "negative": "a dog"} for n in range(6)]
    (place / "same.json").write_text(json.dumps(entries))
    (found,) = evaluate_suite(place / "model0", place / "same.json", "contrast", images=place / "images", draws=0)
    assert found.figures["accuracy"] == 0


def test_scores_of_padded_sets_do_not_depend_on_the_padding(place):
    """A stand-in that makes as many vectors as a text has letters."""

    def encode(modality, items, batch_size):
        sizes = [len(one) if modality == "text" else 2 for one in items]
        vectors, mask = torch.zeros(len(items), max(sizes), 4), torch.zeros(len(items), max(sizes), dtype=torch.bool)
        for place, size in enumerate(sizes):
            made = torch.randn(size, 4, generator=torch.Generator().manual_seed(size))
            vectors[place, :size] = torch.nn.functional.normalize(made, dim=-1)
            mask[place, :size] = True
        return SetsAndMask(vectors, mask)

    (place / "two.json").write_text(json.dumps([{"image": "0.png", "caption": "ab", "negative": "abcd"}]))
    (place / "more.json").write_text(json.dumps([{"image": "0.png", "caption": "ab", "negative": "a" * 9}]))
    model = AnyEncoder(encode, "maxsim", SentenceModel("late", None, "maxsim", several=True))
    found = []
    for name in ("two", "more"):
        examples = read_examples("contrast", place / f"{name}.json", place / "images")
        (one,) = example_scores(model, examples, 8, print, lambda count: None)
        found.append(one[0, 0])
    assert found[0] == pytest.approx(found[1])


@pytest.mark.parametrize(
    ("suite", "content", "named"),
    [
        ("sugarcrepe", "{", "JSON"),
        ("sugarcrepe", "3", "got 3"),
        ("sugarcrepe", "{}", "has no entries"),
        ("sugarcrepe", b'{"7": "\xf6"}', "UTF-8"),
        ("sugarcrepe", '{"7": {"filename": "a.png", "caption": "x"}}', "entry 7: has no negative"),
        ("sugarcrepe", '{"7": {"caption": "x", "negative_caption": "y"}}', "entry 7: has no image"),
        ("sugarcrepe", '{"7": {"filename": "a.png", "caption": "", "negative_caption": "y"}}', "entry 7: caption"),
        ("sugarcrepe", '{"7": {"filename": "a.png", "caption": "x", "negative_caption": [3]}}', "entry 7"),
        ("sugarcrepe", '{"7": 4}', "entry 7: expected an object"),
        ("sugarcrepe", '{"7": {}, "7": {}}', "'7' occurs twice"),
        (
            "contrast",
            '[{"id": 1, "image": "a", "caption": "b", "negative": "c"}, {"id": 1}]',
            "the id '1' occurs twice",
        ),
        ("contrast", '{"format": "maxmatch-suite", "version": 2, "items": []}', "version 2"),
        ("contrast", '{"format": "maxmatch-suite", "items": []}', "version None"),
        ("contrast", '{"format": "other", "version": 1, "items": []}', "'other'"),
        ("contrast", '{"format": "maxmatch-suite", "version": 1, "suite": "winoground", "items": []}', "winoground"),
        ("aro", '[{"image": "a", "caption": "b", "negative": "c", "bbox_x": 1}]', "entry 0: expected numbers"),
        ("aro", '[{"image": "a", "caption_options": ["b"]}]', "entry 0"),
        ("winoground", '[{"image_0": "a", "image_1": "b", "caption_0": "c"}]', "entry 0: has no caption_1"),
        ("winoground", '[{"filename": "a", "caption": "c"}]', "entry 0: has no image_0, got filename, caption"),
    ],
)
def test_a_bad_file_is_named_with_its_entry(tmp_path, suite, content, named):
    (tmp_path / "bad.json").write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(SuiteFileError) as error:
        read_examples(suite, tmp_path / "bad.json")
    assert "bad.json" in str(error.value)
    assert named in str(error.value)


def test_a_line_that_is_not_json_is_named(place, tmp_path):
    lines = (place / "winoground.jsonl").read_text().split("\n")
    (tmp_path / "cut.jsonl").write_text("\n".join([*lines[:2], "", lines[2][:30], *lines[3:]]))
    with pytest.raises(SuiteFileError, match=r"cut\.jsonl.*line 4"):
        read_examples("winoground", tmp_path / "cut.jsonl")


def test_pictures_that_are_elsewhere_are_one_message_before_a_model_is_loaded(place, monkeypatch):
    told = []
    monkeypatch.setattr(suites, "open_encoder", lambda *given: pytest.fail("loaded"))
    with pytest.raises(SuiteFileError, match=r"not one of its 6 pictures is there: .*0\.png.*--images"):
        evaluate_suite(place / "model0", place / "sugarcrepe", "sugarcrepe", say=told.append)
    assert not told


def test_a_name_of_no_such_suite_is_refused(place, without_shape_checks):
    for name in ("sugercrepe", "labels"):
        with pytest.raises(UsageError, match=f"suite: expected one of sugarcrepe, .*got '{name}'.*evaluate_labels"):
            evaluate_suite(place / "model0", place / "sugarcrepe", name)


def test_attributes_are_the_category_and_many_categories_are_in_json_alone(place, tmp_path):
    entries = [
        {"image_path": f"{n % 6}.png", "true_caption": WORDS[n % 6], "false_caption": WORDS[n % 6 - 1],
         "attributes": ["red", f"blue{n // 2}"]}
        for n in range(30)
    ]  # fmt: skip
    (tmp_path / "attribution.json").write_text(json.dumps(entries))
    (found,) = evaluate_suite(place / "model0", tmp_path / "attribution.json", "aro", images=place / "images", draws=0)
    assert sum(name.startswith("red_blue") for name in found.to_json()) == 15
    assert "red_blue" not in render_suite([found])
    assert "15 categories: --json has each" in render_suite([found])


def test_missing_files_and_models_that_cannot_encode_are_refused(place, tmp_path):
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(SuiteFileError, match=r"suites\.md"):
            read_examples("aro", path)
    with pytest.raises(SuiteFileError, match="pictures"):
        read_examples("aro", place / "aro.json", tmp_path / "none")
    np.save(tmp_path / "scores.npy", np.zeros((2, 2)))
    with pytest.raises(UsageError, match=r"scores\.npy.*cannot encode"):
        open_encoder(*find_models([tmp_path / "scores.npy"]))
