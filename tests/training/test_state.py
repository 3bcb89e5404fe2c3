"""A restored state is the run as it was."""

import os

import pytest
import torch
from small_runs import recipe_for
from tiny_models import tiny_model

from maxmatch.training.state import Progress, StateError, States, new_state, restore


def trained(seed, steps=3, preset="region_bigru", progress=None, **options):
    """The state of a model after some steps."""
    options = recipe_for("nowhere", preset, lr_factors={"set_module": 0.1}, ema=0.9, **options).train
    state = new_state(tiny_model(preset, seed=seed), options)
    state.progress = progress or Progress()
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        step(state, generator)
    return state


def step(state, generator):
    for parameter in state.model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)
    state.model.tower("text").head.slots.grad = None  # as if frozen
    state.adam.step()
    state.average.update(state.model)


def saved(state, run, **options):
    """The file of a state that was just saved."""
    states = States(run, 2)
    states.save(state, records=state.progress.records, **options)
    return states.all()[-1]


def everything(state):
    moments = {
        (name, key): value
        for group in state.groups
        for name, parameter in group.parameters.items()
        for key, value in state.adam.state.get(parameter, {}).items()
    }
    averaged = {("average", name): value for name, value in state.average.weights.items()}
    return {**state.model.state_dict(), **averaged, **moments}


def equal(one, other):
    one, other = everything(one), everything(other)
    return one.keys() == other.keys() and all(torch.equal(value, other[key]) for key, value in one.items())


@pytest.mark.parametrize("amsgrad", [False, True])
def test_a_restored_state_is_equal_and_so_are_the_next_steps(amsgrad, tmp_path):
    progress = Progress(3, 2, 17, 123.4567890123, 1, [0.1, 0.2], {}, [["train.lr=0.5"]], 9.5, 21)
    state, other = trained(0, progress=progress, amsgrad=amsgrad), trained(1, amsgrad=amsgrad)
    assert not equal(state, other)
    restore(saved(state, tmp_path), other)
    assert other.progress == progress
    assert equal(state, other)
    for each in (state, other):
        step(each, torch.Generator().manual_seed(5))
    assert equal(state, other)


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
def test_a_state_follows_the_umask(tmp_path):
    before = os.umask(0o027)
    try:
        path = saved(trained(0, steps=0), tmp_path, good=True)
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o640


def test_what_was_in_the_optimiser_before_is_forgotten(tmp_path):
    fresh, old = trained(0, steps=0), trained(0, steps=2)
    restore(saved(fresh, tmp_path), old)
    assert equal(fresh, old)
    assert not old.adam.state


def test_only_the_last_states_stay_and_the_good_one(tmp_path):
    states, state = States(tmp_path, 2), trained(0, steps=0)
    assert states.all() == []
    for at in (0, 5, 10, 15):
        state.progress = Progress(step=at)
        states.save(state, good=at == 5)
    assert [path.name for path in states.all()] == ["state-0-00000010.safetensors", "state-0-00000015.safetensors"]
    restore(states.good, state)
    assert state.progress.step == 5
    state.progress.recoveries = [["a=1"]]
    states.save(state)  # after a recovery: an earlier step, and the newest state
    names = ["state-0-00000015.safetensors", "state-1-00000005.safetensors"]
    assert [path.name for path in states.all()] == names
    assert sorted(path.name for path in states.folder.iterdir()) == ["good.safetensors", *names]
    states.clear()
    assert not list(states.folder.iterdir())


def test_a_draft_left_by_a_kill_does_no_harm_even_if_it_is_the_good_state(tmp_path):
    states, state = States(tmp_path, 2), trained(0)
    path = saved(state, tmp_path, good=True)
    path.rename(path.with_suffix(".writing"))  # killed before it got its name
    assert states.all() == []
    other, found = trained(1), trained(2)
    states.save(other)
    restore(states.good, found)
    assert equal(found, state)
    restore(states.all()[-1], found)
    assert equal(found, other)


def test_a_state_of_another_model_is_refused_with_the_first_difference(tmp_path):
    path, other = saved(trained(0, steps=0), tmp_path), trained(0, 0, "region_bert")
    before = everything(other)
    with pytest.raises(StateError, match=r": nothing there, \[") as refused:
        restore(path, other)
    assert len(str(refused.value)) < 400
    assert all(torch.equal(value, before[key]) for key, value in everything(other).items())
    grown = trained(0, steps=0)
    words = grown.model.tower("text").encoder.words
    rows, width = words.weight.shape
    words.weight = torch.nn.Parameter(torch.zeros(rows + 1, width))
    text = rf"encoder\.words\.weight: \[{rows}, {width}\] there, \[{rows + 1}, {width}\] here; 1 differences"
    with pytest.raises(StateError, match=text):
        restore(path, grown)


@pytest.mark.parametrize("content", [b"", b"no state", b"\x00" * 64])
def test_a_damaged_state_is_refused(tmp_path, content):
    path = tmp_path / "state-0-00000001.safetensors"
    path.write_bytes(content)
    with pytest.raises(StateError, match=str(path)):
        restore(path, trained(0, steps=0))
