"""CxC and ECCV Caption through `eccv_caption`; its own recall on the same scores is ours."""

import copy
import sys

import numpy as np
import pytest
import torch
from made_splits import split_of

from maxmatch.evaluation import metrics as eccv
from maxmatch.evaluation import significance
from maxmatch.evaluation.metrics import EvaluatedModel, Scores, averaged, search

IMAGES = 50


@pytest.fixture(scope="module")
def metrics():
    return eccv.load_metrics()


@pytest.fixture(scope="module")
def small(metrics):
    """The package with 50 images of COCO's test split and the answers among those; the ids of images and captions in
    their order; scores.
    """
    part = copy.copy(metrics)
    part.coco_ids = metrics.coco_ids[: 5 * IMAGES]
    captions = part.coco_ids.astype(int)
    images = np.array([metrics.coco_gts["t2i"][caption][0] for caption in captions[::5]])
    own = {"i2t": images.tolist(), "t2i": captions.tolist()}
    for name in ("coco_gts", "cxc_gts", "eccv_gts"):
        here = {"i2t": {}, "t2i": {}}
        for way, other in (("i2t", "t2i"), ("t2i", "i2t")):
            for query in own[way]:
                answers = set(getattr(metrics, name)[way].get(query, ())) & set(own[other])
                here[way] |= {query: sorted(answers)} if answers else {}
        setattr(part, name, here)
    true = torch.arange(IMAGES)[:, None] == torch.arange(5 * IMAGES) // 5
    matrix = torch.randn(IMAGES, 5 * IMAGES, generator=torch.Generator().manual_seed(0)) + 1.5 * true
    return part, images, captions, matrix


def fixed(matrix, height):
    return Scores(lambda rows: matrix[rows], tuple(matrix.shape), height)


def test_the_packages_recalls_of_coco_are_ours_on_1k_and_5k(small):
    part, images, captions, matrix = small
    scores = fixed(matrix, 9)
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


@pytest.mark.parametrize("height", [IMAGES, 8])
def test_the_best_answers_are_those_of_a_whole_sort_in_any_blocks(small, height):
    _, images, captions, matrix = small
    matrix = (matrix * 3).round()  # with ties
    found = eccv.best_answers(fixed(matrix, height), images, captions, 7)
    for way, table, asking, asked in (("i2t", matrix, images, captions), ("t2i", matrix.T, captions, images)):
        place = {int(name): number for number, name in enumerate(asked)}
        for query, row in zip(asking.tolist(), table, strict=True):
            answers = [place[one] for one in found[way][query]]
            assert row[answers].tolist() == row.sort(descending=True).values[:7].tolist()
            assert len(set(answers)) == 7


def test_the_figures_are_the_packages_own_in_per_cent_and_no_bar_is_printed(small, capfd):
    part, images, captions, matrix = small
    scores = fixed(matrix, 9)
    found = eccv.extended(scores, [str(name) for name in images], [str(name) for name in captions], part)
    assert capfd.readouterr() == ("", "")
    retrieved = eccv.best_answers(scores, images, captions, 5 * IMAGES)
    names = ("cxc_recalls", "eccv_r1", "eccv_map_at_r", "eccv_rprecision")
    for name, ways in part.compute_all_metrics(retrieved["i2t"], retrieved["t2i"], names).items():
        data, _, short = name.partition("_")
        for way, value in ways.items():
            assert found[f"{data}_{way}_{short}"] == pytest.approx(100 * value), name
    assert found["cxc_rsum"] == pytest.approx(sum(found[f"cxc_{w}_r{k}"] for w in ("i2t", "t2i") for k in (1, 5, 10)))
    assert len(found) == 6 + 1 + 6


def test_data_other_than_coco_is_refused_with_what_to_read(metrics):
    scores = fixed(torch.zeros(2, 2), 2)
    with pytest.raises(eccv.NotCoco, match=r"image 'beach' has no id of COCO\. .* dataset_coco\.json"):
        eccv.extended(scores, ["391895", "beach"], ["1", "2"], metrics)
    with pytest.raises(eccv.NotCoco, match="4,999 of the 5,000 images that CxC asks about are not here"):
        eccv.extended(scores, ["391895", "2"], ["1", "2"], metrics)


def test_a_missing_package_or_other_ids_are_noted_and_the_rest_is_measured(metrics, monkeypatch):
    team = [EvaluatedModel("a", split_of(20))]
    with monkeypatch.context() as patched:
        patched.setattr(significance, "load_metrics", lambda: metrics)
        lines, (note,) = significance.measure([team], draws=0, fold_size=4)
    assert lines[0].result.figures["coco_1k_rsum"] > 0
    assert note.startswith("CxC and ECCV Caption were not measured: image 'image-0' has no id of COCO.")
    monkeypatch.setitem(sys.modules, "eccv_caption", None)
    lines, (note,) = significance.measure([team], draws=0, fold_size=4)
    assert "pip install 'maxmatch[eccv]'" in note
    assert "cxc_rsum" not in lines[0].result.figures
