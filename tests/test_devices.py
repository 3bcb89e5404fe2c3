import pytest
import torch

from maxmatch.core.devices import chosen_device


@pytest.mark.parametrize(("name", "expected"), [("cpu", "cpu"), (torch.device("cpu"), "cpu"), ("meta", "meta")])
def test_a_device_that_is_there_is_taken(name, expected):
    assert chosen_device(name) == torch.device(expected)


@pytest.mark.parametrize(("found", "best"), [(True, "cuda"), (False, "cpu")])
def test_without_a_name_it_is_a_gpu_where_there_is_one(monkeypatch, found, best):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: found)
    assert chosen_device() == torch.device(best)


@pytest.mark.parametrize(
    ("name", "gpus", "message"),
    [
        ("quantum", 0, "expected cpu, cuda, cuda:1 … or mps, got 'quantum'"),
        ("cuda", 0, "device cuda: torch sees no GPU here"),
        ("cuda:2", 2, "device cuda:2: there are 2, cuda:0 to cuda:1"),
        ("mps", 0, "device mps: torch sees no Apple GPU"),
    ],
)
def test_one_that_is_not_there_is_refused_with_what_there_is(monkeypatch, name, gpus, message):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(ValueError, match=message):
        chosen_device(name)


def test_the_last_gpu_is_one_of_them(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert chosen_device("cuda:1").index == 1
