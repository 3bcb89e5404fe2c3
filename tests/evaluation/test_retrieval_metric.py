"""`RetrievalMetric` and `compute_metrics`: batches give what the whole gives."""

import doctest
import pickle
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from made_splits import unit
from transformers import CLIPConfig, CLIPModel, EvalPrediction, Trainer, TrainingArguments

from maxmatch.evaluation import RetrievalMetric, compute_metrics, evaluate_embeddings, retrieval_metric
from maxmatch.matching.similarity import smooth_chamfer

IMAGES, TEXTS, GROUPS = unit(12, 6), unit(36, 6, seed=1), torch.arange(36) // 3
WHOLE = evaluate_embeddings(IMAGES, TEXTS, range(12), GROUPS, "cosine").figures


def filled(images, texts, image_groups, text_groups, cuts, **options):
    """A metric that saw the images and the texts in batches that end at these places."""
    metric = RetrievalMetric("cosine", **options)
    for start, stop in zip([0, *cuts], [*cuts, 36], strict=True):
        part = slice(start, stop)
        if start < 12:
            metric.update(images=images[part], image_groups=image_groups[part])
        if start < stop:
            metric.update(texts=texts[part], text_groups=text_groups[part])
    return metric


@settings(max_examples=15)
@given(st.lists(st.integers(0, 36), max_size=5).map(sorted), st.permutations(range(12)))
def test_batches_in_any_order_give_what_the_whole_gives(cuts, order):
    metric = filled(IMAGES[list(order)], TEXTS.numpy(), list(order), GROUPS, cuts)
    assert metric.compute().figures == pytest.approx(WHOLE)
    assert metric.compute().figures == pytest.approx(WHOLE)  # asked again, it is all still there


@settings(max_examples=15)
@given(st.permutations(range(36)), st.integers(1, 35))
def test_an_image_that_comes_with_each_of_its_captions_counts_once(order, cut):
    order = torch.tensor(order)
    one, other = RetrievalMetric("cosine"), RetrievalMetric("cosine")
    for metric, rows in ((one, order[:cut]), (other, order[cut:])):
        metric.update(images=IMAGES[GROUPS[rows]], texts=TEXTS[rows], groups=GROUPS[rows])
    one.merge(pickle.loads(pickle.dumps(other)))
    assert len(one.compute().ranks["i2t"]) == 12
    assert one.compute().figures == pytest.approx(WHOLE)
    assert other.compute().figures != WHOLE  # it stays as it was


def test_given_groups_of_images_every_image_counts():
    metric = RetrievalMetric("cosine")
    metric.update(IMAGES[GROUPS], TEXTS, GROUPS, GROUPS)
    assert len(metric.compute().ranks["i2t"]) == 36


def test_reset_forgets_and_nothing_is_measured_of_nothing():
    metric = filled(IMAGES, TEXTS, range(12), GROUPS, [])
    metric.reset()
    with pytest.raises(ValueError, match="there are no images yet"):
        metric.compute()
    metric.update(images=IMAGES, image_groups=range(12))
    with pytest.raises(ValueError, match="there are no texts yet"):
        metric.compute()


def test_a_batch_may_be_written_to_afterwards():
    metric, buffer = RetrievalMetric("cosine"), np.empty((36, 6), np.float32)
    for side, vectors, groups in (("image", IMAGES, list(range(12))), ("text", TEXTS, GROUPS)):
        part = buffer[: len(vectors)]
        part[:] = vectors
        metric.update(**{f"{side}s": part, f"{side}_groups": groups})
    assert metric.compute().figures == pytest.approx(WHOLE)


def test_sets_of_different_sizes_and_masks_are_padded():
    images, texts = [unit(2 + n % 3, 6, seed=n) for n in range(12)], unit(36, 3, 6, seed=1)
    expected = evaluate_embeddings(images, texts, range(12), GROUPS, "maxmatch").figures
    metric = RetrievalMetric("maxmatch")
    metric.update(images=images[:5], image_groups=range(5))
    padded = torch.full((7, 6, 6), torch.nan)
    real = torch.zeros(7, 6, dtype=torch.bool)
    for place, one in enumerate(images[5:]):
        padded[place, : len(one)], real[place, : len(one)] = one, True
    metric.update(images=padded, image_groups=range(5, 12), image_mask=real)
    metric.update(texts=texts, text_groups=GROUPS)
    assert metric.compute().figures == pytest.approx(expected)
    pairs = RetrievalMetric("maxmatch")
    pairs.update(images=[images[group] for group in GROUPS], texts=texts, groups=GROUPS)
    assert pairs.compute().figures == pytest.approx(expected)


def test_strings_name_groups_across_batches():
    names = [f"photo {number}.jpg" for number in range(12)]
    metric = filled(IMAGES, TEXTS, names, [names[group] for group in GROUPS], [10, 20])
    assert metric.compute().figures == pytest.approx(WHOLE)


def test_groups_are_numbers_in_all_batches_or_strings_in_all():
    metric = filled(IMAGES, TEXTS, range(12), GROUPS, [])
    metric.update(images=IMAGES[:1], image_groups=["0"])
    with pytest.raises(ValueError, match="numbers in some batches and strings in others"):
        metric.compute()


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, "update: expected images, texts or both"),
        ({"images": IMAGES}, "image_groups: missing"),
        ({"text_groups": [0]}, "texts: missing"),
        ({"images": IMAGES, "texts": TEXTS, "groups": GROUPS}, "groups: expected as many images as texts, got 12 and"),
        ({"texts": TEXTS, "groups": GROUPS}, "groups: expected as many images as texts, got 0 and 36"),
        ({"images": IMAGES, "texts": IMAGES, "groups": [0], "text_groups": [0]}, "Leave image_groups and text_groups"),
        ({"images": IMAGES, "image_groups": range(3)}, "image_groups: expected one group for each of the 12 images"),
        ({"images": IMAGES[0], "image_groups": range(6)}, r"images: expected vectors \(items, width\)"),
    ],
)
def test_a_bad_batch_is_refused_and_changes_nothing(given, told):
    metric = filled(IMAGES, TEXTS, range(12), GROUPS, [])
    with pytest.raises(ValueError, match=told):
        metric.update(**given)
    with pytest.raises(ValueError, match="text_groups: expected one group"):
        metric.update(IMAGES, TEXTS, range(12), [0])
    assert metric.compute().figures == pytest.approx(WHOLE)


def test_batches_of_two_widths_and_metrics_of_two_similarities_are_refused():
    metric = filled(IMAGES, TEXTS, range(12), GROUPS, [])
    metric.update(images=unit(2, 5), image_groups=[0, 1])
    with pytest.raises(ValueError, match="images: vectors of width 5 and 6"):
        metric.compute()
    for other, told in (
        (RetrievalMetric(), "similarity 'cosine', got 'maxmatch'"),
        (RetrievalMetric("cosine", normalise=True), "normalise False, got True"),
        (RetrievalMetric("cosine", protocol="coco"), "protocol 'plain', got 'coco'"),
    ):
        with pytest.raises(ValueError, match=f"merge: expected a metric with {told}"):
            metric.merge(other)


def test_a_wrong_name_is_refused_before_the_first_batch(without_shape_checks):
    with pytest.raises(ValueError, match=r"similarity: expected a function or one of cosine, dot.*got 'cosin'"):
        RetrievalMetric("cosin")
    with pytest.raises(ValueError, match="protocol: expected one of auto, plain, coco, got 'folds'"):
        RetrievalMetric("cosine", protocol="folds")


def test_a_metric_with_options_comes_back_from_another_process():
    one, other = (RetrievalMetric(partial(smooth_chamfer, alpha=8)) for _ in range(2))
    one.update(IMAGES[:6], TEXTS[:18], range(6), GROUPS[:18])
    other.update(IMAGES[6:], TEXTS[18:], range(6, 12), GROUPS[18:])
    one.merge(pickle.loads(pickle.dumps(other)))
    whole = evaluate_embeddings(IMAGES, TEXTS, range(12), GROUPS, partial(smooth_chamfer, alpha=8))
    assert one.compute().figures == pytest.approx(whole.figures)
    with pytest.raises(ValueError, match="merge: expected a metric with similarity"):
        one.merge(RetrievalMetric(partial(smooth_chamfer, alpha=9)))


# transformers


def test_rows_of_a_trainer_are_pairs_of_an_image_and_one_of_its_captions():
    rows = EvalPrediction((IMAGES[GROUPS].numpy(), TEXTS.numpy()), GROUPS.numpy())
    assert compute_metrics(rows) == pytest.approx(WHOLE)
    apart = EvalPrediction((IMAGES.numpy(), TEXTS.numpy()), (np.arange(12), GROUPS.numpy()))
    assert compute_metrics(apart) == pytest.approx(WHOLE)
    sets = EvalPrediction((unit(36, 2, 6)[GROUPS].numpy(), unit(36, 2, 6, seed=1).numpy()), GROUPS.numpy())
    expected = evaluate_embeddings(unit(36, 2, 6)[:12], unit(36, 2, 6, seed=1), range(12), GROUPS).figures
    assert compute_metrics(sets, similarity="maxmatch") == pytest.approx(expected)


def test_a_trainer_reports_what_the_embeddings_of_its_model_give(tmp_path):
    torch.manual_seed(0)
    tower = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    picture = {**tower, "image_size": 4, "patch_size": 2}
    words = {**tower, "vocab_size": 20, "max_position_embeddings": 8, "bos_token_id": 1, "eos_token_id": 2}
    model = Clip(CLIPConfig(text_config=words, vision_config=picture, projection_dim=6)).eval()
    pictures, captions = torch.randn(5, 3, 4, 4), torch.randint(3, 20, (15, 8))
    captions[:, -1] = 2
    rows = [{"pixel_values": pictures[n // 3], "input_ids": captions[n], "groups": n // 3} for n in range(15)]
    arguments = TrainingArguments(
        tmp_path, label_names=["groups"], remove_unused_columns=False, per_device_eval_batch_size=4, report_to=[],
        use_cpu=True, disable_tqdm=True,
    )  # fmt: skip
    found = Trainer(
        model, arguments, eval_dataset=rows, compute_metrics=compute_metrics,
        preprocess_logits_for_metrics=lambda outputs, labels: (outputs[3], outputs[2]),
    ).evaluate()  # fmt: skip
    with torch.no_grad():
        made = model(pixel_values=pictures[GROUPS[:15]], input_ids=captions)
    whole = evaluate_embeddings(made.image_embeds[::3], made.text_embeds, range(5), GROUPS[:15], "cosine")
    assert whole.figures["i2t_ties"] == whole.figures["t2i_ties"] == 0
    assert {name: found[f"eval_{name}"] for name in whole.figures} == pytest.approx(whole.figures)


def test_two_rows_are_no_two_sides():
    rows = EvalPrediction((np.eye(2), np.eye(2)), np.array([3, 5]))
    assert compute_metrics(rows)["rsum"] == 600


def test_other_predictions_are_refused():
    for predictions, found in ((IMAGES.numpy(), "ndarray"), ((IMAGES.numpy(),) * 3, "3")):
        with pytest.raises(ValueError, match=f"expected two arrays.*got {found}"):
            compute_metrics(EvalPrediction(predictions, GROUPS.numpy()))
    with pytest.raises(ValueError, match="label_ids: missing"):
        compute_metrics(EvalPrediction((IMAGES.numpy(), IMAGES.numpy()), None))


class Clip(CLIPModel):
    """As in the guide: groups are for the metric alone."""

    def forward(self, groups=None, **inputs):
        return super().forward(**inputs, return_loss=True)


def test_the_example_of_the_class_runs():
    tests = doctest.DocTestFinder(recurse=False).find(RetrievalMetric, "RetrievalMetric", module=retrieval_metric)
    report: list[str] = []
    assert [doctest.DocTestRunner().run(one, out=report.append).failed for one in tests] == [0], "".join(report)
