"""Things found by their names: of the first k images for each name, how many show it."""

import json

import numpy as np
import pytest
import torch
from small_runs import recipe_for, write_data

from maxmatch.data.dataset import IMAGE, DataError
from maxmatch.data.load import read_dataset
from maxmatch.evaluation.labels import Labels, evaluate_labels, precision_by_label
from maxmatch.training.loop import train


def write(folder, names, labels):
    path = folder / "labels.json"
    path.write_text(json.dumps({"names": names, "labels": labels}))
    return path


def test_the_precision_is_that_of_a_sorted_list():
    generator = torch.Generator().manual_seed(0)
    images, queries = (
        torch.nn.functional.normalize(torch.randn(count, 1, 6, generator=generator), dim=-1) for count in (12, 4)
    )
    shows = np.random.default_rng(0).random((12, 4)) < 0.4
    found = precision_by_label(images, shows, queries, 5, "mean")
    for number, query in enumerate(queries[:, 0]):
        order = sorted(range(12), key=lambda place: -float(images[place, 0] @ query))
        assert found[number] == pytest.approx(sum(shows[place, number] for place in order[:5]) / 5)


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


def test_leading_zeros_of_ids_mean_nothing(tmp_path):
    read = Labels.read(write(tmp_path, ["cat", "pizza"], {"000000000009": [1], "a05": [0]}))
    assert read.shown == {"9": [1], "a05": [0]}


@pytest.mark.parametrize(
    "content", ["{", "[]", '{"names": ["a"]}', '{"names": ["a"], "labels": {"1": [1]}}', '{"names": 3, "labels": {}}']
)
def test_a_file_that_holds_no_labels_is_named(tmp_path, content):
    path = tmp_path / "labels.json"
    path.write_text(content)
    with pytest.raises(DataError, match=r"labels\.json"):
        Labels.read(path)
    with pytest.raises(DataError, match="nowhere"):
        Labels.read(tmp_path / "nowhere")
