"""A state put back is the run as it was."""

import pytest
import torch
from small_runs import recipe_for
from tiny_models import tiny_model

from maxmatch.training.optim import Average, optimiser, parameter_groups
from maxmatch.training.state import Progress, StateError, States, restore


class Learner:
    """A model, its optimiser and average, some steps on."""

    def __init__(self, seed, steps=3, preset="region_bigru"):
        self.train = recipe_for("nowhere", preset, lr_factors={"set_module": 0.1}).train
        self.model = tiny_model(preset, seed=seed)
        self.groups = parameter_groups(self.model, self.train)
        self.adam = optimiser(self.groups, self.train)
        self.average = Average(self.model, 0.9)
        generator = torch.Generator().manual_seed(seed)
        for _ in range(steps):
            self.step(generator)

    def step(self, generator):
        for parameter in self.model.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        self.model.tower("text").head.slots.grad = None  # as of what is frozen
        self.adam.step()
        self.average.update(self.model)

    def parts(self):
        return self.model, self.groups, self.adam, self.average.weights

    def everything(self):
        moments = {
            (name, key): value
            for group in self.groups
            for name, parameter in group.parameters.items()
            for key, value in self.adam.state.get(parameter, {}).items()
        }
        return {**self.model.state_dict(), **{("average", k): v for k, v in self.average.weights.items()}, **moments}


def equal(one, other):
    one, other = one.everything(), other.everything()
    return one.keys() == other.keys() and all(torch.equal(value, other[key]) for key, value in one.items())


def test_weights_moments_average_and_progress_come_back_and_the_next_steps_are_the_same(tmp_path):
    learner, other = Learner(0), Learner(1)
    progress = Progress(3, 2, 17, 123.4567890123, 1, [0.1, 0.2], {"scale": 2.0}, [["train.lr=0.5"]], 9.5, 21)
    path = States(tmp_path, 2).save(*learner.parts(), progress)
    assert not equal(learner, other)
    assert restore(path, *other.parts()) == progress
    assert equal(learner, other)
    for each in (learner, other):
        each.step(torch.Generator().manual_seed(5))
    assert equal(learner, other)
    assert progress.changes == ["train.lr=0.5"]


def test_what_was_in_the_optimiser_before_is_forgotten(tmp_path):
    fresh, old = Learner(0, steps=0), Learner(0, steps=2)
    path = States(tmp_path, 2).save(*fresh.parts(), Progress())
    restore(path, *old.parts())
    assert equal(fresh, old)
    assert not old.adam.state


def test_only_the_last_states_stay_and_the_good_one(tmp_path):
    states, learner = States(tmp_path / "states", 2), Learner(0, steps=0)
    assert states.newest() is None
    for step in (0, 5, 10, 15):
        states.save(*learner.parts(), Progress(step=step), good=step == 5)
    assert [path.name for path in states.all()] == ["state-0-00000010.safetensors", "state-0-00000015.safetensors"]
    assert restore(states.good, *learner.parts()).step == 5
    states.save(*learner.parts(), Progress(step=5, recoveries=[["a=1"]]))  # rescued: an earlier step, and the newest
    assert states.newest().name == "state-1-00000005.safetensors"
    assert len(states.all()) == 2
    assert sorted(path.name for path in states.folder.iterdir()) == [
        "good.safetensors",
        "state-0-00000015.safetensors",
        "state-1-00000005.safetensors",
    ]
    states.clear()
    assert not list(states.folder.iterdir())


def test_a_draft_that_a_kill_left_behind_does_no_harm_even_if_it_is_the_good_state(tmp_path):
    states, learner = States(tmp_path, 2), Learner(0)
    path = states.save(*learner.parts(), Progress(), good=True)
    path.rename(path.with_suffix(".writing"))  # killed before it got its name
    assert states.newest() is None
    other = Learner(1)
    states.save(*other.parts(), Progress())
    found = Learner(2)
    restore(states.good, *found.parts())
    assert equal(found, learner)
    restore(states.newest(), *found.parts())
    assert equal(found, other)


def test_a_state_of_another_model_is_refused_in_few_words(tmp_path):
    path, other = States(tmp_path, 1).save(*Learner(0, steps=0).parts(), Progress()), Learner(0, 0, "region_bert")
    before = other.everything()
    with pytest.raises(StateError, match=r"of another model than this recipe's .*Start in another folder\.") as refused:
        restore(path, *other.parts())
    assert len(str(refused.value)) < 400
    assert ": nothing there, [" in str(refused.value)
    assert all(torch.equal(value, before[key]) for key, value in other.everything().items())


def test_a_vocabulary_that_has_grown_is_named(tmp_path):
    path, other = States(tmp_path, 1).save(*Learner(0, steps=0).parts(), Progress()), Learner(0, steps=0)
    words = other.model.tower("text").encoder.words
    rows, width = words.weight.shape
    words.weight = torch.nn.Parameter(torch.zeros(rows + 1, width))
    text = rf"encoder\.words\.weight: \[{rows}, {width}\] there, \[{rows + 1}, {width}\] here; 1 differences"
    with pytest.raises(StateError, match=text):
        restore(path, *other.parts())


@pytest.mark.parametrize("content", [b"", b"no state", b"\x00" * 64])
def test_what_is_no_state_is_refused(tmp_path, content):
    path = tmp_path / "state-0-00000001.safetensors"
    path.write_bytes(content)
    with pytest.raises(StateError, match=rf"{path}: not a whole state .*Remove it"):
        restore(path, *Learner(0, steps=0).parts())
