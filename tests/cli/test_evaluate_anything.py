"""`maxmatch evaluate` of models of other libraries, of vectors and of scores; where they are weak; the page."""

import json
import shutil
import warnings

import numpy as np
import pytest
import torch
from commands import run
from PIL import Image
from small_runs import write_pictures
from tiny_hub import hub_folder

from maxmatch import SetEncoder
from maxmatch.data.load import read_dataset
from maxmatch.evaluation import evaluate_embeddings, evaluate_scores
from maxmatch.model.images import load_image

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def data_of(out, err, code):
    assert code == 0, err
    return json.loads(out)


def results(capsys, *arguments):
    code, out, err = run(capsys, "evaluate", *arguments, "--json")
    return data_of(out, err, code)


def same(result, figures):
    assert {name: result[name] for name in figures if name in result} == pytest.approx(
        {name: value for name, value in figures.items() if name in result}
    )
    assert "rsum" in result


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Pictures with one to three captions each; a tiny CLIP; its vectors of the split, in files, and their scores."""
    place = tmp_path_factory.mktemp("anything")
    write_pictures(place / "data", train=2, val=12)
    hub_folder(place / "clip", "clip")
    part = read_dataset(place / "data").split("val")
    model = SetEncoder.from_pretrained(place / "clip")
    images = model.encode_images(list(part["image"].values))[:, 0].numpy()
    texts = model.encode_texts(list(part["text"].values))[:, 0].numpy()
    (place / "vectors").mkdir()
    np.save(place / "vectors" / "images.npy", images)
    np.save(place / "vectors" / "texts.npy", 3 * texts)  # lengths do not matter
    np.save(place / "scores.npy", images @ texts.T)
    groups = {"images": part["image"].groups.tolist(), "texts": part["text"].groups.tolist()}
    (place / "groups.json").write_text(json.dumps(groups))
    return place


def expected(place):
    groups = json.loads((place / "groups.json").read_text())
    return evaluate_scores(np.load(place / "scores.npy"), groups["images"], groups["texts"]).figures


def test_vectors_scores_and_the_model_itself_give_the_same_figures_in_one_table(capsys, place):
    vectors, scores = place / "vectors", place / "scores.npy"
    found = results(capsys, place / "clip", vectors, scores, place / "data", "--bootstrap", 50)
    assert (found["split"], found["images"], found["captions"]) == ("val", 12, 24)
    assert [one["model"] for one in found["results"]] == ["clip", "vectors", "scores.npy"]
    assert [one["similarity"] for one in found["results"]] == ["mil", "cosine", "given scores"]
    for one in found["results"]:
        same(one, expected(place))
    assert found["results"][2]["against_first"]["rsum"]["rsum"] == pytest.approx(0)


def test_flags_name_files_of_vectors_and_scores_and_a_groups_file_stands_for_the_data(capsys, place):
    vectors = place / "vectors"
    flags = ["--embeddings", vectors / "images.npy", vectors / "texts.npy", "--scores", place / "scores.npy"]
    for data in ([place / "data"], ["--groups", place / "groups.json"]):
        found = results(capsys, *data, *flags, "--bootstrap", 0)["results"]
        assert [one["model"] for one in found] == ["images + texts", "scores.npy"]
        for one in found:
            same(one, expected(place))
    (place / "a:b").mkdir(exist_ok=True)
    for name in ("images", "texts"):
        (place / "a:b" / f"{name}.npy").write_bytes((vectors / f"{name}.npy").read_bytes())
    moved = ["--embeddings", place / "a:b" / "images.npy", place / "a:b" / "texts.npy", "--bootstrap", 0]
    for one in results(capsys, place / "data", *moved, "--results", place / "moved.jsonl")["results"]:
        same(one, expected(place))
    both = results(capsys, place / "data", *flags, "--bootstrap", 0, "--ensemble")["results"][-1]
    same(both, expected(place))


def test_sets_are_compared_by_any_similarity(capsys, tmp_path):
    rng = np.random.default_rng(0)
    (tmp_path / "sets").mkdir()
    images, texts = rng.normal(size=(6, 3, 8)), rng.normal(size=(9, 2, 8))
    np.save(tmp_path / "sets" / "images.npy", images)
    np.save(tmp_path / "sets" / "texts.npy", texts)
    groups = {"images": [*"abcdef"], "texts": [*"abcdefaab"]}
    (tmp_path / "groups.json").write_text(json.dumps(groups))
    command = [tmp_path / "sets", "--groups", tmp_path / "groups.json", "--bootstrap", 0]
    found = results(capsys, *command, "--similarity", "maxmatch", "--similarity", "maxsim")["results"]
    for one in found:
        theirs = evaluate_embeddings(images, texts, *groups.values(), one["similarity"], normalise=True)
        same(one, theirs.figures)


def test_items_that_a_model_cannot_read_are_left_out_of_vectors_and_scores_as_well(capsys, place, tmp_path):
    shutil.copytree(place / "data", tmp_path / "data")
    (tmp_path / "data" / "5.png").write_bytes(b"no picture")
    names = [place / "clip", place / "vectors", place / "scores.npy", tmp_path / "data", "--bootstrap", 0]
    found = results(capsys, *names)
    assert found["images"] == 11
    groups = json.loads((place / "groups.json").read_text())
    gone = 3  # 5.png is the fourth of the split
    rows = [n for n, group in enumerate(groups["images"]) if group != gone]
    columns = [n for n, group in enumerate(groups["texts"]) if group != gone]
    left = evaluate_scores(
        np.load(place / "scores.npy")[np.ix_(rows, columns)],
        [groups["images"][n] for n in rows],
        [groups["texts"][n] for n in columns],
    )
    for one in found["results"]:
        same(one, left.figures)


def test_a_model_of_sentence_transformers_is_measured_as_its_own_library_encodes(capsys, place, tmp_path):
    from sentence_transformers import SentenceTransformer

    library = SentenceTransformer(str(place / "clip"), device="cpu")
    library.save(str(tmp_path / "st"))
    part = read_dataset(place / "data").split("val")
    images = library.encode([load_image(one) for one in part["image"].values])
    texts = library.encode(list(part["text"].values))
    expected = evaluate_embeddings(images, texts, part["image"].groups, part["text"].groups, "cosine").figures
    for name in (f"st:{place / 'clip'}", f"st:{tmp_path / 'st'}"):
        (one,) = results(capsys, name, place / "data", "--bootstrap", 0)["results"]
        assert one["similarity"] == "cosine"
        same(one, expected)


def test_a_multi_vector_encoder_is_measured_by_late_interaction_with_texts_as_queries(monkeypatch, place):
    """A stand-in with the methods of MultiVectorEncoder: vectors of random numbers, as many as the item has letters."""
    from maxmatch.evaluation import other_models
    from maxmatch.evaluation.encoding import ModelSource, load_for
    from maxmatch.evaluation.metrics import EvaluatedModel, evaluate, scores_of

    def vectors(item, seed):
        size = len(item) if isinstance(item, str) else 2 + item.width % 4
        one = np.random.default_rng([seed, size]).normal(size=(size, 5))
        return (one / np.linalg.norm(one, axis=1, keepdims=True)).astype(np.float32)

    class Library:
        similarity_fn_name = "maxsim"

        def encode_query(self, texts, **options):
            return [vectors(text, 1) for text in texts]

        def encode_document(self, pictures, **options):
            return [vectors(picture, 2) for picture in pictures]

    model = other_models.SentenceModel("late", Library(), "maxsim", several=True)
    monkeypatch.setattr(other_models.SentenceModel, "load", lambda source, device: model)
    source = ModelSource("late", "late", "sentence-transformers")
    loaded = load_for([source], place / "data", "val")
    encoded = other_models.encode_sentence_model(source, loaded)
    member = EvaluatedModel("late", encoded, other_models.similarity_of(encoded, None))
    slow = [
        [
            sum(max(float(word @ patch) for patch in vectors(load_image(image), 2)) for word in vectors(text, 1))
            for text in loaded.part["text"].values
        ]
        for image in loaded.part["image"].values
    ]
    torch.testing.assert_close(scores_of([member]).rows(slice(0, 12)), torch.tensor(slow), atol=1e-5, rtol=1e-5)
    assert "image_log_variance" not in evaluate([member]).figures  # padded sets have no slots to look at


def test_weak_spots_and_worst_queries_are_printed_and_on_a_page(capsys, place, tmp_path):
    part = read_dataset(place / "data").split("val")
    labels = {"names": ["left", "right"], "labels": {str(one): [n % 2] for n, one in enumerate(part["image"].ids)}}
    (tmp_path / "labels.json").write_text(json.dumps(labels))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        code, out, err = run(
            capsys, "evaluate", place / "clip", place / "data", "--by", "length", "--by", "label", "--labels",
            tmp_path / "labels.json", "--worst", 3, "--page", tmp_path / "page.html", "--bootstrap", 0,
        )  # fmt: skip
    assert code == 0, err
    assert "by length" in out
    assert "the worst queries" in out
    page = (tmp_path / "page.html").read_text()
    assert page.count("data:image/jpeg") >= 6
    assert "data:image/png" in page
    found = results(
        capsys, place / "clip", place / "data", "--by", "label", "--labels", tmp_path / "labels.json", "--worst", 3,
        "--bootstrap", 0,
    )  # fmt: skip
    assert [one["part"] for one in found["by"]["label"]] == ["left", "right"]
    (worst,) = found["worst"]
    assert len(worst["t2i"]) == 3
    assert worst["t2i"][0]["query"] in list(part["text"].values)


def test_bad_files_are_named_with_what_was_expected(capsys, place, tmp_path):
    def refused(*arguments):
        code, _, err = run(capsys, "evaluate", *arguments)
        assert code in (1, 2)
        return err

    np.save(tmp_path / "few.npy", np.zeros((3, 4)))
    assert "12×24" in refused(place / "data", "--scores", tmp_path / "few.npy")
    np.save(tmp_path / "turned.npy", np.load(place / "scores.npy").T)
    assert "transpose" in refused(place / "data", "--scores", tmp_path / "turned.npy")
    bad = np.load(place / "scores.npy")
    bad[2, 3] = np.nan
    np.save(tmp_path / "nan.npy", bad)
    assert "nan.npy: NaN at image 2, text 3" in refused(place / "data", "--scores", tmp_path / "nan.npy")
    np.save(tmp_path / "names.npy", np.array(["a", "b"]))
    assert "names.npy" in refused(place / "data", "--scores", tmp_path / "names.npy")
    (tmp_path / "cut.npy").write_bytes((place / "scores.npy").read_bytes()[:40])
    assert "cut.npy" in refused(place / "data", "--scores", tmp_path / "cut.npy")
    images, texts = place / "vectors" / "images.npy", place / "vectors" / "texts.npy"
    assert "expected a row for each of the 12 images" in refused(place / "data", "--embeddings", texts, images)
    np.save(tmp_path / "narrow.npy", np.load(texts)[:, :5])
    assert "width" in refused(place / "data", "--embeddings", images, tmp_path / "narrow.npy")
    assert "--groups" in refused("--scores", place / "scores.npy")
    both = refused(place / "data", "--scores", place / "scores.npy", "--groups", place / "groups.json")
    assert "groups" in both
    assert str(place / "data") in both
    assert "5,000 images" in refused(place / "vectors", place / "data", "--suite", "cxc")
    for suite in ("labels", "aro"):
        assert "--similarity" in refused(place / "clip", place / "data", "--suite", suite, "--similarity", "mil")
    assert "no model" in refused()
    assert "none.json" in refused(
        place / "vectors", place / "data", "--by", "label", "--labels", tmp_path / "none.json"
    )
    assert "no such file" in refused("--scores", tmp_path / "missing.npy", "--groups", place / "groups.json")
    assert "Give the data" in refused(place / "clip", "--groups", place / "groups.json")


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("{", "JSON"),
        ("[]", "groups file"),
        ('{"images": [], "texts": [1]}', "images is empty"),
        ('{"images": [1, 2], "texts": [1, 1]}', "images: image 1 "),
        ('{"images": [1], "texts": ["1"]}', "never meet"),
        ('{"images": [1.5], "texts": [1.5]}', "whole numbers"),
        ('{"images": [1], "texts": [1], "captions": []}', "captions"),
    ],
)
def test_a_bad_groups_file_is_refused(capsys, tmp_path, content, named):
    (tmp_path / "groups.json").write_text(content)
    np.save(tmp_path / "s.npy", np.zeros((1, 1)))
    code, _, err = run(capsys, "evaluate", "--scores", tmp_path / "s.npy", "--groups", tmp_path / "groups.json")
    assert code == 1
    assert "groups.json" in err
    assert named in err


def test_a_model_that_encodes_no_pictures_is_refused(capsys, place, tmp_path):
    Image.new("RGB", (8, 8)).save(tmp_path / "x.png")
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "modules.json").write_text("[]")
    code, _, err = run(capsys, "evaluate", tmp_path / "empty", place / "data")
    assert code == 1
    assert "empty" in err
