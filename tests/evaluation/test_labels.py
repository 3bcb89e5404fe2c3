"""Things found by their names: of the first k images for each name, how many show it."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from made_splits import galleries, split_of
from sentence_transformers import SentenceTransformer
from small_runs import recipe_for, write_data, write_pictures
from tiny_hub import hub_folder

from maxmatch.core.array_checks import UsageError
from maxmatch.data.dataset import IMAGE, DataError
from maxmatch.data.load import read_dataset
from maxmatch.evaluation import labels as labels_module
from maxmatch.evaluation import metrics
from maxmatch.evaluation.labels import (
    Labels,
    _plausible_precision,
    evaluate_labels,
    pmrp,
    pmrp_figures,
    precision_by_label,
)
from maxmatch.evaluation.leaderboard import read_records
from maxmatch.evaluation.metrics import Scores
from maxmatch.evaluation.other_models import SentenceModel
from maxmatch.model.images import load_image
from maxmatch.training.loop import train


def write(folder, names, labels):
    path = folder / "labels.json"
    path.write_text(json.dumps({"names": names, "labels": labels}))
    return path


@pytest.mark.parametrize("values", [2, None])
def test_the_precision_is_that_of_a_sorted_list_with_ties_against_the_model(values):
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(12, 4)) if values is None else rng.integers(values, size=(12, 4)).astype(float)
    shows = rng.random((12, 4)) < 0.4
    for k in (1, 5, 20):
        found = precision_by_label(scores, shows, k)
        for number in range(4):
            order = sorted(range(12), key=lambda place: (-scores[place, number], shows[place, number]))
            assert found[number] == pytest.approx(sum(shows[place, number] for place in order[:k]) / k)


def test_a_trained_model_finds_things_by_their_names(tmp_path):
    """Pictures of four things each; a label says which. Unlabelled images are left out, and names that no image shows
    are not asked for."""
    data = write_data(tmp_path / "data", train=160, val=40, captions=3)
    train(recipe_for(data, epochs=12, objective={"con_weight": 1.0}), tmp_path / "run")
    captions = (data / "dev_caps.txt").read_text().splitlines()
    names = [f"thing{n}" for n in range(24)] + ["unicorn"]
    shown = {n: {names.index(word) for line in captions[3 * n : 3 * n + 3] for word in line.split()} for n in range(40)}
    ids = read_dataset(data).split("val")[IMAGE].ids
    labels = write(tmp_path, names, {ids[n]: sorted(shown[n]) for n in range(36)})
    (found,) = evaluate_labels(tmp_path / "run", data, labels, split="val", phrase="{}")
    assert found.images == 36
    assert "unicorn" not in found.precision
    assert found.shown["thing3"] == sum(3 in shown[n] for n in range(36))
    by_chance = np.mean([count / 36 for count in found.shown.values()])
    assert by_chance + 0.15 < found.mean <= found.possible <= 1
    assert found.to_json()["precision_at_5"] == found.mean


def test_models_of_transformers_and_sentence_transformers_are_measured_alike(tmp_path):
    """A tiny CLIP as this package loads it, and as sentence-transformers does, without a picture that is damaged."""
    write_pictures(tmp_path / "data", train=2, val=12)
    hub_folder(tmp_path / "clip", "clip")
    part = read_dataset(tmp_path / "data").split("val")
    labels = write(tmp_path, ["dog", "cat"], {one: [n % 2] for n, one in enumerate(part[IMAGE].ids)})
    Path(part[IMAGE].values[3]).write_bytes(b"no picture")
    names, lines = [tmp_path / "clip", f"st:{tmp_path / 'clip'}"], []
    ours, theirs = evaluate_labels(
        names, tmp_path / "data", labels, split="val", k=3, results=tmp_path / "results.jsonl", say=lines.append
    )
    assert ours.images == theirs.images == 11
    assert sum(part[IMAGE].ids[3] in line for line in lines) == 2
    library = SentenceTransformer(str(tmp_path / "clip"), device="cpu")
    kept = [n for n in range(12) if n != 3]
    images = library.encode([load_image(part[IMAGE].values[n]) for n in kept], normalize_embeddings=True)
    for number, name in enumerate(("dog", "cat")):
        scores = images @ library.encode([f"a {name}"], normalize_embeddings=True)[0]
        first = [kept[place] for place in np.argsort(-scores)[:3]]
        assert theirs.precision[name] == pytest.approx(sum(place % 2 == number for place in first) / 3)
    assert ours.precision == theirs.precision
    assert [one.similarity for one in read_records(tmp_path / "results.jsonl")] == ["mil", "cosine"]


def test_a_multi_vector_encoder_finds_names_by_late_interaction_with_the_name_as_query(monkeypatch, tmp_path):
    """A stand-in that makes as many vectors as a name has letters, and two or three of a picture."""

    def vectors(size, seed):
        one = np.random.default_rng([seed, size]).normal(size=(size, 5)).astype(np.float32)
        return one / np.linalg.norm(one, axis=1, keepdims=True)

    class Library:
        def encode_query(self, texts, **options):
            return [vectors(len(text), 1) for text in texts]

        def encode_document(self, pictures, **options):
            return [vectors(2 + picture.getpixel((0, 0))[0] % 5, 2) for picture in pictures]

        def state_dict(self):
            return {}

    model = SentenceModel("late", Library(), "maxsim", several=True)
    monkeypatch.setattr(SentenceModel, "load", lambda source, device: model)
    write_pictures(tmp_path / "data", train=2, val=12)
    part = read_dataset(tmp_path / "data").split("val")
    labels = write(tmp_path, ["dog", "horse"], {one: [n % 2] for n, one in enumerate(part[IMAGE].ids)})
    (found,) = evaluate_labels("st:late", tmp_path / "data", labels, split="val", k=4)
    pictures = [load_image(one) for one in part[IMAGE].values]
    for number, name in enumerate(("dog", "horse")):
        words = Library().encode_query([f"a {name}"])[0]
        scores = [float((words @ one.T).max(1).sum()) for one in Library().encode_document(pictures)]
        order = sorted(range(12), key=lambda place: (-round(scores[place], 5), place % 2 == number))
        assert found.precision[name] == pytest.approx(sum(place % 2 == number for place in order[:4]) / 4)


@pytest.mark.parametrize("kind", ["vectors", "scores"])
def test_files_of_vectors_and_scores_cannot_encode_names(tmp_path, kind):
    write_pictures(tmp_path / "data", train=2, val=4)
    labels = write(tmp_path, ["dog"], {"0": [0]})
    for name in ("images", "texts"):
        np.save(tmp_path / f"{name}.npy", np.eye(4))
    given = (tmp_path / "images.npy", tmp_path / "texts.npy") if kind == "vectors" else tmp_path / "images.npy"
    with pytest.raises(UsageError, match=rf"images.*{kind}.*sentence-transformers"):
        evaluate_labels([given], tmp_path / "data", labels, split="val")


def test_leading_zeros_of_ids_mean_nothing(tmp_path):
    read = Labels.read(write(tmp_path, ["cat", "pizza"], {"000000000009": [1], "a05": [0]}))
    assert read.shown == {"9": [1], "a05": [0]}


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[]",
        '{"names": ["a"]}',
        '{"names": ["a"], "labels": {"1": [1]}}',
        '{"names": 3, "labels": {}}',
        '{"names": ["a", "a"], "labels": {"1": [1]}}',
        '{"names": ["a"], "labels": {"1": [0], "01": []}}',
        '{"names": ["a"], "labels": {"1": [0], "1": []}}',
    ],
)
def test_a_file_that_holds_no_labels_is_named(tmp_path, content):
    path = tmp_path / "labels.json"
    path.write_text(content)
    with pytest.raises(DataError, match=r"labels\.json"):
        Labels.read(path)
    with pytest.raises(DataError, match="nowhere"):
        Labels.read(tmp_path / "nowhere")


# PMRP: against a slow loop over sorted lists.


def slow_pmrp(scores, codes, image_groups, text_groups):
    """For each query and ζ a list sorted by score, at one score the implausible answers first."""
    owner = [next(i for i, group in enumerate(image_groups) if group == wanted) for wanted in text_groups]
    images = [i for i in range(len(codes)) if any(codes[i])]
    texts = [c for c in range(len(owner)) if any(codes[owner[c]])]
    code_of = {("i", i): codes[i] for i in images} | {("t", c): codes[owner[c]] for c in texts}

    def one_way(queries, answers, score):
        values = []
        for query in queries:
            for allowed in (0, 1, 2):
                listed = []
                for answer in answers:
                    apart = sum(a != b for a, b in zip(code_of[query], code_of[answer], strict=True))
                    listed.append((-score(query, answer), apart <= allowed))
                plausible = [good for _, good in sorted(listed)]
                count = sum(plausible)
                if count:
                    values.append(sum(plausible[:count]) / count)
        return 100 * sum(values) / len(values)

    rows, columns = [("i", i) for i in images], [("t", c) for c in texts]
    return {
        "i2t_pmrp": one_way(rows, columns, lambda query, answer: scores[query[1]][answer[1]]),
        "t2i_pmrp": one_way(columns, rows, lambda query, answer: scores[answer[1]][query[1]]),
    }


@settings(max_examples=40)
@given(galleries(), st.integers(0, 2**16), st.integers(1, 5), st.floats(0.05, 0.6))
def test_pmrp_is_that_of_sorted_lists(gallery, seed, names, share):
    scores, images, texts = gallery
    codes = np.random.default_rng(seed).random((len(images), names)) < share
    codes[0] = True
    numbers = images.tolist(), texts.tolist()
    if not any(codes[numbers[0].index(group)].any() for group in numbers[1]):
        return
    slow = slow_pmrp(scores.tolist(), codes.tolist(), *numbers)
    assert pmrp(scores, codes, images, texts) == pytest.approx(slow)


def test_pmrp_of_the_ranked_distances_0_2_1_0_is_13_of_18():
    """R-precision 1/2, 2/3 and 1 with ζ = 0, 1, 2: one image as query, four captions."""
    codes = np.array([[1, 1, 0], [1, 0, 1], [1, 0, 0], [1, 1, 0]], bool)
    scores = torch.tensor([[4.0, 3.0, 2.0, 1.0]] + [[0.0] * 4] * 3)
    (first,) = [_plausible_precision(scores.numpy()[:1], codes[:1].astype("f4"), codes.astype("f4"))]
    assert first == pytest.approx(13 / 18)


def test_a_perfect_model_has_a_pmrp_of_100_and_images_that_show_nothing_are_left_out():
    codes = np.array([[1, 0], [0, 1], [0, 0]], bool)
    near = torch.tensor([[9.0, 8.0, 1.0], [1.0, 1.0, 9.0], [99.0, 99.0, 99.0]])
    groups = torch.tensor([0, 1, 2]), torch.tensor([0, 0, 1])
    found = pmrp(near, codes, *groups)
    assert found == {"i2t_pmrp": pytest.approx(100), "t2i_pmrp": pytest.approx(100)}
    with pytest.raises(UsageError, match="pmrp"):
        pmrp(near, np.zeros((3, 2), bool), *groups)


def test_with_cocos_protocol_pmrp_is_the_mean_over_folds(monkeypatch):
    monkeypatch.setattr(metrics, "FOLD_SIZE", 2)
    split = split_of(10, 2)
    labels = Labels(["a", "b"], {f"image-{n}": [n % 2] for n in range(10)})
    matrix = torch.randn(10, 20, generator=torch.Generator().manual_seed(0))
    scores = Scores(lambda rows: matrix[rows], (10, 20), 3)
    monkeypatch.setattr(labels_module, "chosen", lambda *given, **more: "coco")
    monkeypatch.setattr(labels_module, "coco_folds", lambda *groups: metrics.coco_folds(*groups, 2))
    found = pmrp_figures(scores, split, labels)
    codes = np.array([[n % 2 == 0, n % 2 == 1] for n in range(10)])
    folds = [
        pmrp(
            matrix[a : a + 2, 2 * a : 2 * a + 4],
            codes[a : a + 2],
            torch.arange(2),
            torch.arange(2).repeat_interleave(2),
        )
        for a in range(0, 10, 2)
    ]
    assert found["coco_1k_i2t_pmrp"] == pytest.approx(np.mean([one["i2t_pmrp"] for one in folds]))
    assert found["coco_5k_t2i_pmrp"] == pytest.approx(
        pmrp(matrix, codes, torch.arange(10), torch.arange(10).repeat_interleave(2))["t2i_pmrp"]
    )


def test_a_file_of_another_version_is_refused(tmp_path):
    (tmp_path / "labels.json").write_text(json.dumps({"version": 2, "names": [], "labels": {}}))
    with pytest.raises(DataError, match="version 2"):
        Labels.read(tmp_path / "labels.json")
