"""Scores of models and ensembles: held or in blocks, and what cannot be averaged."""

from dataclasses import replace

import pytest
import torch
from made_splits import split_of, unit

from maxmatch.core.checks import NotFiniteError
from maxmatch.evaluation.encoding import EncodedSplit, load_encoded, save_encoded
from maxmatch.evaluation.metrics import EvaluatedModel, evaluate, scores_of
from maxmatch.matching import similarity


def all_of(scores):
    return torch.cat([scores.rows(block) for block in scores.blocks()])


def test_scores_of_a_model_are_its_similarity():
    split = split_of()
    for name in ("maxmatch", "top_k", "mil"):
        scores = scores_of([EvaluatedModel("a", split, name)])
        expected = getattr(similarity, name)(split.sets["image"], split.sets["text"])
        torch.testing.assert_close(all_of(scores), expected)
        assert len(scores.blocks()) == 1


def test_scores_of_an_ensemble_are_the_mean_whatever_k_and_d_the_members_have():
    members = [
        EvaluatedModel("a", split_of(size=4, width=6)),
        EvaluatedModel("b", split_of(size=2, width=9, seed=5), "mil"),
        EvaluatedModel("c", split_of(size=3, width=4, seed=7), "chamfer"),
    ]
    single = [all_of(scores_of([member])).double() for member in members]
    expected = (sum(single) / 3).float()
    torch.testing.assert_close(all_of(scores_of(members)), expected)
    result = evaluate(members)
    assert (result.kind, result.members, result.similarity) == ("ensemble of 3", 3, "maxmatch + mil + chamfer")
    assert "image_log_variance" not in result.figures


def test_an_ensemble_of_a_model_with_itself_is_that_model():
    member = EvaluatedModel("a", split_of(images=40, noise=1.5))
    one, two = evaluate([member]), evaluate([member, member])
    assert {key: one.figures[key] for key in two.figures} == two.figures


@pytest.mark.parametrize(("count", "captions"), [(1, 3), (2, 1)])
def test_blocks_give_the_figures_of_the_whole_matrix(count, captions):
    members = [EvaluatedModel("a", split_of(25, captions, noise=2.5, seed=n)) for n in range(count)]
    whole = evaluate(members)
    width = 25 * captions * 4
    for rows in (6, 24):
        scores = scores_of(members, max_memory=rows * width * count)
        assert scores.height == rows
        assert evaluate(members, scores=scores).figures == whole.figures
    assert 0 < whole.figures["rsum"] < 600


def test_a_block_asked_for_again_is_the_same_bit_for_bit():
    members = [EvaluatedModel("a", split_of(31, 2)), EvaluatedModel("b", split_of(31, 2, seed=3), "smooth_chamfer")]
    scores = scores_of(members, max_memory=2 * 31 * 2 * 4 * 10)
    assert [len(scores.rows(block)) for block in scores.blocks()] == [10, 10, 10, 1]
    for block in scores.blocks():
        assert torch.equal(scores.rows(block), scores.rows(block))


def test_no_block_is_larger_than_the_memory_it_may_take():
    scores = scores_of([EvaluatedModel("a", split_of(64, 2))], max_memory=9000)
    assert max(scores.rows(block).nbytes for block in scores.blocks()) <= 9000
    assert scores_of([EvaluatedModel("a", split_of(64, 2))], max_memory=1).height == 1


def renamed(split, modality, place, name):
    ids = list(split.ids[modality])
    ids[place] = name
    return replace(split, ids={**split.ids, modality: ids})


def test_members_in_another_order_are_refused_and_the_first_difference_is_named():
    split = split_of()
    other = renamed(renamed(split, "text", 4, "text-5"), "text", 5, "text-4")
    with pytest.raises(
        ValueError, match=r"text 4 is 'text-4' in a and 'text-5' in b: .* cannot be averaged or compared"
    ):
        scores_of([EvaluatedModel("a", split), EvaluatedModel("b", other)])


def test_members_of_other_splits_are_refused_even_where_their_ids_are_the_same():
    one = split_of(3)
    val, test = (EvaluatedModel(name, replace(one, notes={"split": name}), "maxmatch") for name in ("val", "test"))
    with pytest.raises(ValueError, match="of the split 'val' and test of 'test'"):
        scores_of([val, test])


def test_members_of_other_sizes_are_refused():
    with pytest.raises(ValueError, match="image 19 is 'image-19' in a and missing in b"):
        scores_of([EvaluatedModel("a", split_of(20)), EvaluatedModel("b", split_of(19))])
    nameless = replace(split_of(19), ids={})
    with pytest.raises(ValueError, match="a has 20 images and b 19"):
        scores_of([EvaluatedModel("a", split_of(20)), EvaluatedModel("b", nameless)])


def test_members_of_other_groups_are_refused():
    split = split_of()
    groups = {**split.groups, "text": split.groups["text"].flip(0)}
    with pytest.raises(ValueError, match="text 0 belongs to group 0 in a and to 19 in b"):
        scores_of([EvaluatedModel("a", split), EvaluatedModel("b", replace(split, groups=groups))])


@pytest.mark.parametrize("name", ["maxmatch", "chamfer"])
@pytest.mark.parametrize("memory", [2**30, 4 * 60 * 3])
def test_vectors_that_are_no_numbers_are_named_with_model_and_item(name, memory):
    split = split_of()
    for modality, place in (("image", 13), ("text", 2)):
        sets = {**split.sets, modality: split.sets[modality].clone()}
        sets[modality][place, 1, 3] = torch.nan
        with pytest.raises(NotFiniteError, match=rf"run-b: the vectors of {modality} {place} \({modality}-{place}\)"):
            evaluate(
                [EvaluatedModel("a", split, name), EvaluatedModel("run-b", replace(split, sets=sets), name)],
                max_memory=memory,
            )


def test_an_empty_split_is_refused():
    empty = EncodedSplit(
        {name: unit(1, 4, 6)[:0] for name in ("image", "text")},
        {name: torch.zeros(0, dtype=torch.long) for name in ("image", "text")},
    )
    with pytest.raises(ValueError, match="a: the split is empty"):
        evaluate([EvaluatedModel("a", empty)])


def test_a_split_without_texts_is_refused():
    split = split_of()
    pictures = EncodedSplit({"image": split.sets["image"]}, {"image": split.groups["image"]})
    with pytest.raises(ValueError, match="a: has image, but no text"):
        evaluate([EvaluatedModel("a", pictures)])


def test_sets_are_read_from_a_file_as_they_were_written(tmp_path):
    split = replace(split_of(captions=2), notes={"similarity": "top_k", "similarity_options": {"k": 2}, "data": "ä"})
    save_encoded(split, tmp_path / "deep" / "a.safetensors")
    again = load_encoded(tmp_path / "deep" / "a.safetensors")
    for name in ("image", "text"):
        assert torch.equal(again.sets[name], split.sets[name])
        assert torch.equal(again.groups[name], split.groups[name])
    assert (again.ids, again.notes) == (split.ids, split.notes)
    assert evaluate([EvaluatedModel("a", again)]).figures == evaluate([EvaluatedModel("a", split)]).figures


def test_a_file_that_holds_no_sets_is_refused(tmp_path):
    from safetensors.torch import save_file

    save_file({"weight": torch.zeros(2)}, tmp_path / "other.safetensors")
    with pytest.raises(ValueError, match=r"other\.safetensors: holds no encoded split"):
        load_encoded(tmp_path / "other.safetensors")
    save_encoded(split_of(), tmp_path / "cut.safetensors")
    content = (tmp_path / "cut.safetensors").read_bytes()
    (tmp_path / "cut.safetensors").write_bytes(content[: len(content) // 2])
    with pytest.raises(ValueError, match=r"cut\.safetensors: cannot be read as an encoded split"):
        load_encoded(tmp_path / "cut.safetensors")
