"""`evaluate_runs`, called from Python: the same figures as from its parts, and what it refuses."""

import pytest
from small_runs import recipe_for, write_data
from tiny_models import tiny_model

from maxmatch import SetEncoder
from maxmatch.core.array_checks import UsageError
from maxmatch.data.load import read_dataset
from maxmatch.evaluation import evaluate_runs
from maxmatch.evaluation.encoding import encode_items
from maxmatch.evaluation.metrics import EvaluatedModel, evaluate
from maxmatch.recipe.yaml_files import dump_recipe


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run whose data has no test split."""
    folder = tmp_path_factory.mktemp("runs")
    data = write_data(folder / "data", train=4, val=6)
    tiny_model("region_bigru").save_pretrained(folder / "run" / "best")
    (folder / "run" / "recipe.yaml").write_text(dump_recipe(recipe_for(data)))
    return folder / "run"


def test_a_run_is_measured_in_one_line_as_by_its_parts(run):
    messages = []
    found = evaluate_runs(run, similarity=["maxmatch", "max"], draws=20, say=messages.append)
    model = SetEncoder.from_pretrained(run / "best")
    encoded = encode_items(model, read_dataset(run.parent / "data").split("val"))
    for result, name in zip(found.results, ("maxmatch", "mil"), strict=True):
        assert result.figures == evaluate([EvaluatedModel("run", encoded, name)]).figures
    assert dict(found.about) == {"data": str(run.parent / "data"), "split": "val", "images": 6, "captions": 12}
    assert [line["similarity"] for line in found.to_json()["results"]] == ["maxmatch", "mil"]
    assert len(found.tables()) == 2
    assert any("best epoch" in line for line in messages)
    assert any("'val'" in line for line in messages)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"similarity": "cosine"}, "cosine"),
        ({"ensemble": True}, "ensemble"),
        ({"paper": "table:7"}, "table:7"),
        ({"save_sets": "sets.npy"}, "sets.npy"),
    ],
)
def test_arguments_that_cannot_be_are_refused_before_anything_is_read(run, options, named):
    with pytest.raises(UsageError, match=named):
        evaluate_runs(run, "no data", **options)
