"""CxC and ECCV Caption through `eccv_caption`; its own recall on the same scores is ours."""

import sys

import numpy as np
import pytest
import torch
from made_splits import split_of

from maxmatch.evaluation import metrics as eccv
from maxmatch.evaluation import runs
from maxmatch.evaluation.metrics import EvaluatedModel, Scores, averaged, search

IMAGES = 50


@pytest.fixture(scope="module")
def metrics():
    return eccv.load_metrics()


def few(images, of):
    """The package with the first so many images of COCO's test split, and the answers among those."""
    small = eccv.load_metrics()
    small.coco_ids = of.coco_ids[: 5 * images]
    captions = {int(name) for name in small.coco_ids}
    pictures = {of.coco_gts["t2i"][caption][0] for caption in captions}
    for name in ("coco_gts", "cxc_gts", "eccv_gts"):
        known = getattr(of, name)
        setattr(
            small,
            name,
            {
                way: {
                    query: [answer for answer in answers if answer in others]
                    for query, answers in known[way].items()
                    if query in own and any(answer in others for answer in answers)
                }
                for way, own, others in (("i2t", pictures, captions), ("t2i", captions, pictures))
            },
        )
    return small


@pytest.fixture(scope="module")
def small(metrics):
    """The package with 50 images; their ids and those of their captions as they follow each other; scores."""
    part = few(IMAGES, metrics)
    captions = part.coco_ids.astype(int)
    images = np.array([part.coco_gts["t2i"][caption][0] for caption in captions[::5]])
    generator = torch.Generator().manual_seed(0)
    true = torch.arange(IMAGES)[:, None] == torch.arange(5 * IMAGES) // 5
    matrix = torch.randn(IMAGES, 5 * IMAGES, generator=generator) + 1.5 * true
    return part, images, captions, matrix


def fixed(matrix, height):
    return Scores(lambda rows: matrix[rows], tuple(matrix.shape), height)


@pytest.mark.parametrize("height", [IMAGES, 9])
def test_the_packages_recalls_of_coco_are_ours_on_1k_and_5k(small, height):
    part, images, captions, matrix = small
    scores = fixed(matrix, height)
    groups = torch.arange(IMAGES), torch.arange(5 * IMAGES) // 5
    ours = search(scores, *groups, "coco", fold_size=IMAGES // 5)
    retrieved = eccv.best_answers(scores, images, captions, 5 * IMAGES)
    for prefix, recalls in (("coco_1k_", part.coco_1k_recalls), ("coco_5k_", part.coco_5k_recalls)):
        figures = averaged(ours[prefix])
        for level in (1, 5, 10):
            theirs = recalls(retrieved, "all", K=level)
            for way in ("i2t", "t2i"):
                assert figures[f"{way}_r{level}"] == pytest.approx(100 * theirs[way]), (prefix, way, level)
        assert 0 < figures["i2t_r1"] < 100


def test_the_best_answers_are_those_of_a_whole_sort_in_any_blocks(small):
    _, images, captions, matrix = small
    matrix = (matrix * 3).round()  # with ties
    row = {int(name): place for place, name in enumerate(images)}
    column = {int(name): place for place, name in enumerate(captions)}
    for height in (IMAGES, 8, 1):
        found = eccv.best_answers(fixed(matrix, height), images, captions, 7)
        for image, answers in found["i2t"].items():
            scores = matrix[row[image]]
            assert [scores[column[one]] for one in answers] == scores.sort(descending=True).values[:7].tolist()
            assert len(set(answers)) == 7
        for caption, answers in found["t2i"].items():
            scores = matrix[:, column[caption]]
            assert [scores[row[one]] for one in answers] == scores.sort(descending=True).values[:7].tolist()
            assert len(set(answers)) == 7


def test_the_figures_are_the_packages_own_in_per_cent(small):
    part, images, captions, matrix = small
    scores = fixed(matrix, 9)
    found = eccv.extended(scores, [str(name) for name in images], [str(name) for name in captions], part)
    retrieved = eccv.best_answers(scores, images, captions, 5 * IMAGES)
    theirs = part.compute_all_metrics(
        retrieved["i2t"], retrieved["t2i"], ("cxc_recalls", "eccv_r1", "eccv_map_at_r", "eccv_rprecision")
    )
    for name, ways in theirs.items():
        data, _, short = name.partition("_")
        for way, value in ways.items():
            assert found[f"{data}_{way}_{short}"] == pytest.approx(100 * value), name
    assert found["cxc_rsum"] == pytest.approx(sum(found[f"cxc_{w}_r{k}"] for w in ("i2t", "t2i") for k in (1, 5, 10)))
    assert len(found) == 6 + 1 + 6


def test_the_package_prints_no_bar(small, capfd):
    part, images, captions, matrix = small
    eccv.extended(fixed(matrix, 50), [str(name) for name in images], [str(name) for name in captions], part)
    assert capfd.readouterr() == ("", "")


def test_other_data_than_coco_is_refused_with_what_to_read(metrics):
    scores = fixed(torch.zeros(2, 2), 2)
    with pytest.raises(eccv.NotCoco, match=r"image 'beach' has no id of COCO\. .* dataset_coco\.json"):
        eccv.extended(scores, ["391895", "beach"], ["1", "2"], metrics)
    with pytest.raises(eccv.NotCoco, match="4,999 of the 5,000 images that CxC asks about are not here"):
        eccv.extended(scores, ["391895", "2"], ["1", "2"], metrics)


def test_without_the_package_the_cure_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "eccv_caption", None)
    with pytest.raises(ImportError, match=r"^ECCV Caption and CxC need .*: pip install 'maxmatch\[eccv\]'$"):
        eccv.load_metrics()


def test_a_missing_package_or_other_ids_are_noted_and_the_rest_is_measured(monkeypatch):
    member = EvaluatedModel("a", split_of(20))
    lines, notes = runs.measure([[member]], draws=0, fold_size=4)
    assert lines[0].result.figures["coco_1k_rsum"] > 0
    (note,) = notes
    assert note.startswith("CxC and ECCV Caption were not measured: image 'image-0' has no id of COCO.")
    monkeypatch.setitem(sys.modules, "eccv_caption", None)
    lines, notes = runs.measure([[member]], draws=0, fold_size=4)
    assert notes == [eccv.INSTALL]
    assert "cxc_rsum" not in lines[0].result.figures
