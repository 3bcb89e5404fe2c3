"""Models and data in mteb: the same model by the command, by the metric object and by mteb gives one figure."""

import numpy as np
import pytest
import torch
from PIL import Image
from small_runs import write_pictures
from tiny_hub import hub_folder
from tiny_models import tiny_model

from maxmatch import SetEncoder
from maxmatch.data.load import read_dataset
from maxmatch.evaluation import RetrievalMetric, evaluate_runs
from maxmatch.evaluation.mteb_adapter import MtebModel, local_tasks

WHY = "mteb takes 270 MB with polars: not installed for `make test`; run `make test-peers`"


def test_the_command_the_metric_and_mteb_give_one_figure(capsys, tmp_path):
    mteb = pytest.importorskip("mteb", reason=WHY)
    write_pictures(tmp_path / "data", train=2, val=12)
    hub_folder(tmp_path / "clip", "clip")
    command = evaluate_runs(tmp_path / "clip", tmp_path / "data", split="val", draws=0).results[0].figures
    model, part = SetEncoder.from_pretrained(tmp_path / "clip"), read_dataset(tmp_path / "data").split("val")
    metric = RetrievalMetric("mil")
    metric.update(
        model.encode_images(list(part["image"].values)), model.encode_texts(list(part["text"].values)),
        part["image"].groups, part["text"].groups,
    )  # fmt: skip
    object_figures = metric.compute().figures
    tasks = local_tasks(tmp_path / "data", "val")
    found = mteb.evaluate(MtebModel(tmp_path / "clip"), tasks, cache=None, show_progress_bar=False)
    names = {"hit_rate_at_1": "r1", "hit_rate_at_5": "r5", "hit_rate_at_10": "r10", "ndcg_at_10": "ndcg_10"}
    names |= {"map_at_1000": "map", "mrr_at_1000": "mrr", "precision_at_5": "precision_5"}
    assert len(found.task_results) == 2
    for result in found.task_results:
        way = "t2i" if "T2I" in result.task_name else "i2t"
        scores = result.scores["val"][0]
        for theirs, ours in names.items():
            assert command[f"{way}_{ours}"] == pytest.approx(object_figures[f"{way}_{ours}"])
            assert command[f"{way}_{ours}"] == pytest.approx(100 * scores[theirs], abs=1e-3)
        result.to_disk(tmp_path / f"{way}.json")
        assert '"ndcg_at_10"' in (tmp_path / f"{way}.json").read_text()


def test_mteb_gets_sets_in_any_direction_and_refuses_mixed_inputs(tmp_path):
    """Without mteb: the adapter's own methods."""
    model = tiny_model("resnet152_bigru")
    model.save_pretrained(tmp_path / "model")
    adapter = MtebModel(tmp_path / "model")
    rng = np.random.default_rng(0)
    pictures = [Image.fromarray(rng.integers(0, 256, (64, 70, 3), np.uint8)) for _ in range(3)]
    texts = ["a dog", "a cat"]
    images_of = adapter.encode([{"image": pictures[:2]}, {"image": pictures[2:]}], prompt_type="document")
    texts_of = adapter.encode([{"text": texts}], prompt_type="query")
    expected = model.similarity(model.encode_images(pictures), model.encode_texts(texts))
    torch.testing.assert_close(adapter.similarity(texts_of, images_of), expected.T, atol=1e-5, rtol=1e-5)
    adapter.encode([{"image": pictures}], prompt_type="query")
    torch.testing.assert_close(adapter.similarity(images_of, texts_of), expected, atol=1e-5, rtol=1e-5)
    pairs = adapter.similarity_pairwise(images_of[:2], texts_of)
    torch.testing.assert_close(pairs, expected[:2].diagonal(), atol=1e-5, rtol=1e-5)
    with pytest.raises(ValueError, match="image, text"):
        adapter.encode([{"image": pictures[:1], "text": ["a"]}])
    with pytest.raises(ValueError, match="nothing"):
        adapter.encode([])
