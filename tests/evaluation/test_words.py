"""Captions with certain words beside the others: against loops over captions."""

import json

import numpy as np
import pytest
from made_splits import gallery_of, split_of
from small_runs import recipe_for, write_data
from tiny_models import tiny_config, tokenizer_for

from maxmatch.cli.main import main
from maxmatch.evaluation.metrics import EvaluatedModel, Result
from maxmatch.evaluation.result_tables import ResultLine, render, words_data, words_table
from maxmatch.evaluation.runs import by_words, measure
from maxmatch.model.build import build_model
from maxmatch.recipe.yaml_files import dump_recipe


def ranked(seed, images=20, folds=1):
    """Galleries of three captions an image, ranks drawn at random."""
    random = np.random.default_rng(seed)
    galleries = []
    for fold in range(folds):
        groups = (fold * images + np.arange(images)).tolist()
        ranks = [random.integers(1, 16, count).tolist() for count in (images, 3 * images)]
        galleries.append(gallery_of(*ranks, groups, np.repeat(groups, 3).tolist()))
    return galleries


def line_of(name, galleries):
    return ResultLine(Result(name, "maxmatch", 1, {}, {"": galleries}))


def queries(galleries, met):
    """Group, rank and whether it is wanted, one caption after the other."""
    ranks = [rank for gallery in galleries for rank in gallery.t2i.ranks.tolist()]
    groups = [group for gallery in galleries for group in gallery.text_groups.tolist()]
    return list(zip(groups, ranks, met.tolist(), strict=True))


def recall(found, level):
    return 100 * sum(rank <= level for _, rank, _ in found) / len(found)


def drawings(found, draws):
    """The captions of images drawn with repetition, as the module draws them: among images that have such captions."""
    numbers = sorted({group for group, _, _ in found})
    for line in np.random.default_rng(0).integers(0, len(numbers), (draws, len(numbers))).tolist():
        yield [one for place in line for one in found if one[0] == numbers[place]]


@pytest.mark.parametrize("folds", [1, 3])
def test_recalls_and_intervals_are_those_of_captions_counted_one_by_one(folds):
    galleries = ranked(1, folds=folds)
    met = np.random.default_rng(5).random(60 * folds) < 0.2
    (ours,) = by_words([line_of("a", galleries)], met, draws=40)
    for side, wanted in ((ours.met, True), (ours.others, False)):
        found = [one for one in queries(galleries, met) if one[2] == wanted]
        assert side.captions == len(found)
        for level in (1, 5, 10):
            assert side.recalls[f"t2i_r{level}"] == pytest.approx(recall(found, level))
            drawn = [recall(some, level) for some in drawings(found, 40)]
            assert side.intervals[f"t2i_r{level}"] == pytest.approx(tuple(np.quantile(drawn, [0.025, 0.975])))
    assert ours.ratio is None


def test_the_ratio_is_of_the_same_captions_under_the_first_and_the_other_model():
    first, second = ranked(1), ranked(2)
    met = np.random.default_rng(5).random(60) < 0.3
    _, ours = by_words([line_of("unseen", first), line_of("seen", second)], met, draws=40)
    wanted = [[one for one in queries(galleries, met) if one[2]] for galleries in (first, second)]
    assert ours.ratio.value == pytest.approx(recall(wanted[0], 10) / recall(wanted[1], 10))
    drawn = [recall(one, 10) / recall(other, 10) for one, other in zip(*(drawings(w, 40) for w in wanted), strict=True)]
    assert ours.ratio[1:] == pytest.approx(tuple(np.quantile(drawn, [0.025, 0.975])))
    table = words_table(by_words([line_of("unseen", first), line_of("seen", second)], met, draws=0))
    assert len(table.notes) == 1
    assert f"unseen has {ours.ratio.value:.0%} of that of seen" in render(table)


def test_a_model_that_finds_nothing_has_no_ratio_and_one_side_alone_is_refused():
    far = [gallery_of([1, 1], [11, 12], [0, 1], [0, 1])]
    near = [gallery_of([1, 1], [1, 12], [0, 1], [0, 1])]
    lines = [line_of("near", near), line_of("far", far)]
    assert [one.ratio for one in by_words(lines, np.array([True, False]))] == [None, None]
    with pytest.raises(ValueError, match="no caption of the split has any of the words"):
        by_words(lines, np.array([False, False]))
    with pytest.raises(ValueError, match="no caption of the split has none of the words"):
        by_words(lines, np.array([True, True]))


def test_all_captions_together_have_the_recalls_of_the_whole_split():
    lines, _ = measure([[EvaluatedModel("a", split_of(captions=[1, 2, 3, 4] * 5, noise=1.5))]], draws=0)
    met = np.arange(50) % 3 == 0
    (ours,) = by_words(lines, met, draws=0)
    for name, value in ours.met.recalls.items():
        together = (value * ours.met.captions + ours.others.recalls[name] * ours.others.captions) / 50
        assert together == pytest.approx(lines[0].result.figures[name])
    assert words_data([ours], ["b", "a"])["words"] == ["a", "b"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two runs on the same data, the first of which says which words it held out."""
    place = tmp_path_factory.mktemp("words")
    data = write_data(place / "data", train=8, val=24)
    for seed, name in enumerate(("held_out", "all")):
        recipe = recipe_for(data)
        changed = recipe.data.model_copy(update={"hold_out_words": ("thing1", "thing2")} if name == "held_out" else {})
        (place / name).mkdir()
        (place / name / "recipe.yaml").write_text(dump_recipe(recipe.model_copy(update={"data": changed})))
        config = tiny_config("region_bigru")
        build_model(config, {"text": tokenizer_for(config)}, seed=seed).save_pretrained(place / name / "best")
    return place


def test_the_command_measures_words_of_a_recipe_or_given_ones(capsys, runs):
    captions = (runs / "data" / "dev_caps.txt").read_text().splitlines()
    met = sum(bool({"thing1", "thing2"} & set(caption.split())) for caption in captions)
    asked = [["--words-from", str(runs / "held_out" / "recipe.yaml")], ["--words", "Thing1, thing2"]]
    found = []
    for words in asked:
        _evaluate(str(runs / "held_out"), str(runs / "all"), "--json", "--bootstrap", "20", *words)
        found.append(json.loads(capsys.readouterr().out)["by_words"])
    assert found[0] == found[1]
    assert found[0]["words"] == ["thing1", "thing2"]
    first, second = found[0]["results"]
    assert (first["with"]["captions"], first["without"]["captions"]) == (met, len(captions) - met)
    assert second["first_to_this_r10"]["value"] == first["with"]["t2i_r10"] / second["with"]["t2i_r10"]
    assert len(first["with"]["intervals"]["t2i_r10"]) == 2
    _evaluate(str(runs / "held_out"), "--words", "thing1", "--bootstrap", "0")
    assert "text to image, with the words" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--words", " , "], "no words"),
        (["--words", "thing1", "--words-from", "flickr8k_held_out"], "one of --words and --words-from"),
        (["--words-from", "flickr8k_small"], "no words"),
        (["--words", "red bus"], "expected single words"),
        (["--words", "pizza"], "has any of the words"),
    ],
)
def test_words_that_cannot_be_measured_are_refused(capsys, runs, options, message):
    with pytest.raises(SystemExit) as end:
        main(["evaluate", str(runs / "all"), *options])
    assert end.value.code in (1, 2)
    assert message in " ".join(capsys.readouterr().err.split())


def _evaluate(*arguments):
    code = 0
    try:
        main(["evaluate", *arguments])
    except SystemExit as end:
        code = end.code
    assert not code
