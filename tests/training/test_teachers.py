"""A teacher's scores are found by the place of an item, whatever teaches: a model, a file of sets or a text encoder."""

import json
from dataclasses import replace

import pytest
import torch
from small_runs import recipe_for
from torch.nn.functional import normalize
from transformers import AutoModel, BertConfig, BertModel

from maxmatch.core.types import Batch
from maxmatch.data.dataset import IMAGE, TEXT
from maxmatch.data.load import load_data
from maxmatch.data.sampler import GroupSampler
from maxmatch.evaluation.encoding import encode_items, save_encoded
from maxmatch.losses import distillation
from maxmatch.model.encoder import SetEncoder
from maxmatch.model.text import train_wordpiece_tokenizer
from maxmatch.recipe.schema import Recipe
from maxmatch.training.distributed import Processes
from maxmatch.training.loop import train
from maxmatch.training.prepare import prepare
from maxmatch.training.state import new_state
from maxmatch.training.step import criterion_for, gradients
from maxmatch.training.teachers import load_teachers, teachers_scores

CPU = torch.device("cpu")
ALONE = Processes(0, 1, CPU)


@pytest.fixture(scope="module")
def teacher(data, tmp_path_factory):
    """A run of two epochs."""
    run = tmp_path_factory.mktemp("teacher") / "run"
    train(recipe_for(data, epochs=2), run)
    return run


@pytest.fixture(scope="module")
def text_encoder(data, tmp_path_factory):
    """A tiny BERT with its tokenizer, as the hub has them."""
    folder = tmp_path_factory.mktemp("bert")
    captions = (data / "train_caps.txt").read_text().splitlines()
    tokenizer = train_wordpiece_tokenizer(captions, 60, 32)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=tokenizer.get_vocab_size(), hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=16,
    )  # fmt: skip
    BertModel(config).save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def taught(recipe, *teachers, weight=1.0):
    whole = recipe.model_dump(mode="json")
    whole["objective"] |= {"teachers": list(map(str, teachers)), "distill_weight": weight}
    return Recipe.model_validate(whole)


def training_split(data):
    return load_data(recipe_for(data).data, print).split("train")


def test_a_model_gives_each_pair_of_a_batch_the_score_it_gives_elsewhere(data, teacher):
    split = training_split(data)
    found = load_teachers([str(teacher)], split, CPU, say=print)
    rows, columns = torch.tensor([5, 0, 40]), torch.tensor([80, 3, 11, 10])
    model = SetEncoder.from_pretrained(teacher / "best")
    images = model.encode(IMAGE, [split[IMAGE].values[int(place)] for place in rows])
    texts = model.encode(TEXT, [split[TEXT].values[int(place)] for place in columns])
    scores = teachers_scores(found, (IMAGE, TEXT), {IMAGE: rows, TEXT: columns})
    torch.testing.assert_close(scores, model.similarity(images, texts)[None], atol=5e-3, rtol=0)  # kept in float16


def test_a_file_of_sets_teaches_as_its_model_whatever_their_order(data, teacher, tmp_path):
    split = training_split(data)
    encoded = encode_items(SetEncoder.from_pretrained(teacher / "best"), split)
    turned = replace(
        encoded,
        sets={name: sets.flip(0) for name, sets in encoded.sets.items()},
        groups={name: groups.flip(0) for name, groups in encoded.groups.items()},
        ids={name: ids[::-1] for name, ids in encoded.ids.items()},
    )
    save_encoded(turned, tmp_path / "sets.safetensors")
    of_model, of_file = load_teachers([str(teacher), str(tmp_path / "sets.safetensors")], split, CPU, say=print)
    for name in (IMAGE, TEXT):
        assert torch.equal(of_model.sets[name], of_file.sets[name])


def test_sets_of_another_split_are_refused(data, teacher, tmp_path):
    val = load_data(recipe_for(data).data, print).split("val")
    save_encoded(encode_items(SetEncoder.from_pretrained(teacher / "best"), val), tmp_path / "val.safetensors")
    with pytest.raises(ValueError, match="0 of 48 images"):
        load_teachers([str(tmp_path / "val.safetensors")], training_split(data), CPU, say=print)


@pytest.mark.parametrize("name", ["nowhere", "runs/nowhere"])
def test_a_teacher_that_is_not_there_is_named_and_not_looked_up_elsewhere(data, name):
    with pytest.raises(FileNotFoundError, match=f"objective.teachers: {name}"):
        load_teachers([name], training_split(data), CPU, say=print)


def test_to_a_text_encoder_an_image_is_the_mean_of_its_captions(data, text_encoder):
    split = training_split(data)
    (found,) = load_teachers([str(text_encoder)], split, CPU, say=print)
    backbone = AutoModel.from_pretrained(text_encoder).eval()
    tokenizer = train_wordpiece_tokenizer(split[TEXT].values, 60, 32)
    vectors = []
    for caption in split[TEXT].values:
        ids = torch.tensor([tokenizer.encode(caption).ids])
        with torch.no_grad():
            vectors.append(normalize(backbone(input_ids=ids).last_hidden_state[0].mean(0), dim=0))
    captions = torch.stack(vectors)
    torch.testing.assert_close(found.sets[TEXT][:, 0].float(), captions, atol=2e-3, rtol=0)
    means = normalize(captions.view(48, 2, -1).mean(1), dim=-1)
    torch.testing.assert_close(found.sets[IMAGE][:, 0].float(), means, atol=2e-3, rtol=0)


def test_the_loss_of_a_step_has_the_divergence_from_the_teachers(data, teacher, text_encoder):
    recipe = taught(recipe_for(data, batch_captions=1), teacher, text_encoder, weight=3.0)
    parts = prepare(recipe, ALONE, print)
    plan = next(GroupSampler(parts.train.size, 16, 0).plans(0))
    (batch,) = parts.feed.batches([plan])
    with_teachers, alone = (criterion_for(recipe, 0, teachers) for teachers in (parts.teachers, ()))
    sets = {name: parts.model(name, *inputs) for name, inputs in batch.inputs.items()}
    terms = with_teachers(sets, batch.groups, batch.places)
    with pytest.raises(ValueError, match="teacher"):
        alone(sets, batch.groups, batch.places)
    scores = with_teachers.similarity(sets[IMAGE].vectors, sets[TEXT].vectors)
    expected = teachers_scores(parts.teachers, (IMAGE, TEXT), batch.places)
    assert expected.shape == (2, 16, 16)
    assert terms.distillation.item() == pytest.approx(distillation(scores, expected, 0.05).item(), rel=1e-5)


@pytest.mark.parametrize("feed", ["resident", "mapped"])
def test_a_batch_says_which_items_of_the_split_it_holds(data, feed):
    parts = prepare(recipe_for(data, feed=feed, workers=0, batch_captions=1), ALONE, print)
    plan = next(GroupSampler(parts.train.size, 8, 3).plans(1))
    (batch,) = parts.feed.batches([plan])
    for name, places in batch.places.items():
        assert batch.groups[name].tolist() == parts.train[name].groups[places.numpy()].tolist()
    chosen = [parts.train[TEXT].values[int(place)] for place in batch.places[TEXT]]
    reader = parts.model.tower("text").reader
    ids, mask = reader.collate([reader.read(text) for text in chosen])
    assert torch.equal(batch.inputs[TEXT].values * batch.inputs[TEXT].mask, ids * mask)


def test_chunks_do_not_change_what_is_learned_from_a_teacher(data, teacher):
    recipe = taught(recipe_for(data), teacher)
    parts = prepare(recipe, ALONE, print)
    plan = next(GroupSampler(parts.train.size, 16, 0).plans(0))
    (batch,) = parts.feed.batches([plan])
    assert isinstance(batch, Batch)
    model = new_state(parts.model, recipe.train).model.eval()
    criterion, found = criterion_for(recipe, 0, parts.teachers), []
    for chunks in (1, 3):
        model.zero_grad(set_to_none=True)
        found.append(gradients(model, batch, criterion, seed=0, chunks=chunks).distillation.item())
    assert found[0] == pytest.approx(found[1], rel=1e-4)


def test_a_student_of_a_good_teacher_agrees_with_it_more_than_one_without(data, teacher, tmp_path):
    found = {}
    for name, recipe in (
        ("alone", recipe_for(data, epochs=3)),
        ("taught", taught(recipe_for(data), teacher, weight=5)),
    ):
        train(recipe, tmp_path / name)
        split = load_data(recipe.data, print).split("val")
        student, other = (SetEncoder.from_pretrained(path / "best") for path in (tmp_path / name, teacher))
        scores = [
            model.similarity(*(model.encode(kind, list(split[kind].values)) for kind in (IMAGE, TEXT)))
            for model in (student, other)
        ]
        found[name] = distillation(scores[0], scores[1][None], 0.05).item()
    assert found["taught"] < found["alone"]
    records = [json.loads(line) for line in (tmp_path / "taught/metrics.jsonl").read_text().splitlines()]
    losses = [one["distillation"] for one in records if one["kind"] == "train"]
    assert losses[-1] < losses[0]
    assert f"scores of `{teacher.name}`" in (tmp_path / "taught/best/README.md").read_text()


@pytest.mark.parametrize("objective", [{"distill_weight": 1.0}, {"teachers": ["a"]}])
def test_a_weight_without_teachers_and_teachers_without_a_weight_are_refused(data, objective):
    with pytest.raises(ValueError, match=next(iter(objective))):
        recipe_for(data, objective=objective)
