"""Devices by name; and torch's functions, which one thread calls before several do."""

import ast
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

import maxmatch
from maxmatch.core.devices import (
    MKL_FUNCTIONS,
    batches_at_once,
    chosen_device,
    on_its_device,
    sharing_threads,
    use_threads,
)
from maxmatch.core.types import Features

SOURCE = Path(maxmatch.__file__).parent
# Of torch's functions those for which it calls MKL (ATen's vml.h), by hand.
BY_MKL = {"acos", "asin", "atan", "cos", "cosh", "erf", "erfc", "erfinv", "exp", "expm1", "lgamma", "log", "log10"}
BY_MKL |= {"log1p", "log2", "sin", "sinh", "sqrt", "tan", "tanh"}


@pytest.mark.parametrize(("name", "expected"), [("cpu", "cpu"), (torch.device("cpu"), "cpu"), ("meta", "meta")])
def test_a_device_that_exists_is_used(name, expected):
    assert chosen_device(name) == torch.device(expected)


@pytest.mark.parametrize(("found", "best"), [(True, "cuda"), (False, "cpu")])
def test_the_default_is_a_gpu_if_there_is_one(monkeypatch, found, best):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: found)
    assert chosen_device() == torch.device(best)


@pytest.mark.parametrize(
    ("name", "gpus", "message"),
    [
        ("quantum", 0, "expected cpu, cuda, cuda:1 … or mps, got 'quantum'"),
        ("cuda", 0, "device cuda: torch sees no GPU here"),
        ("cuda:2", 2, "device cuda:2: there are 2, cuda:0 to cuda:1"),
        ("mps", 0, "device mps: torch sees no Apple GPU"),
        ("cuda:1", 2, None),
    ],
)
def test_a_device_that_does_not_exist_is_refused(monkeypatch, name, gpus, message):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    if message is None:
        assert chosen_device(name) == torch.device(name)
    else:
        with pytest.raises(ValueError, match=message):
            chosen_device(name)


@pytest.fixture
def entered(monkeypatch):
    """Every tensor is on the second GPU, and the first is the current one: which were made the current one."""
    devices = []

    @contextmanager
    def enter(place):
        devices.append(place)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: place)
        yield
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)

    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "device", enter)
    monkeypatch.setattr(torch.Tensor, "get_device", lambda _: 1)
    return devices


def test_kernels_are_launched_on_the_device_of_the_first_tensor(entered, monkeypatch):
    here = on_its_device(lambda *given, more=0: (torch.cuda.current_device(), len(given) + more))
    tensor = torch.zeros(1)
    assert here(tensor, more=2) == (1, 3)
    assert here((tensor, 0), 1) == (1, 2)
    assert torch.cuda.current_device() == 0
    monkeypatch.setattr(torch.Tensor, "get_device", lambda _: 0)
    assert here(tensor) == (0, 1)
    monkeypatch.setattr(torch.Tensor, "get_device", lambda _: -1)
    monkeypatch.setattr(torch.cuda, "current_device", None)  # on the CPU nobody asks for it
    assert on_its_device(len)((tensor, 0)) == 2
    assert entered == [1, 1]


@pytest.mark.skipif(sys.platform != "linux", reason="Triton is made for Linux only")
def test_every_way_to_the_kernels_sees_to_the_device_once(entered):
    from maxmatch.losses.triton_mmd import discrepancy
    from maxmatch.matching import triton_backend, triton_scan
    from maxmatch.model.layers import SetHead, slot_heads, triton_norm, triton_slots
    from maxmatch.model.layers.triton_gru import gru_states

    sets, planes, scores = torch.rand(2, 4, 32), torch.rand(4, 4, 2, 2), torch.rand(2, 2)
    groups, packed = torch.arange(2), triton_backend.pack_rows(sets)
    calls = [
        lambda: triton_backend.pack_rows(sets),
        lambda: triton_backend.pack_columns(sets),
        lambda: triton_backend.fused_scores(packed, packed, scores),
        lambda: triton_backend.plane_scores(planes, scores),
        lambda: triton_backend.plane_assignment(planes),
        lambda: triton_backend.block_scores(torch.rand(8, 8), scores),
        lambda: triton_backend.count_levels(scores, torch.rand(4)),
        lambda: triton_backend.count_wrong(scores, groups, groups),
        lambda: triton_backend.count_reaching(scores, torch.rand(1, 2)),
        lambda: triton_scan.best_hits(sets.half(), sets.half(), 1),
        lambda: discrepancy(sets[0], sets[1]),
        lambda: gru_states(torch.rand(1, 24, 8), torch.rand(1, 4, 8), groups + 1, [torch.rand(1, 2, 2, 24)]),
        lambda: triton_norm.layer_norm(sets, torch.nn.LayerNorm(32), torch.float32),
        lambda: head(Features(sets, torch.ones(2, 4, dtype=torch.bool), sets[:, 0], None)),
    ]
    head = SetHead(context_width=32, width=32, set_size=2, heads=1, head_width=16, depth=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slot_heads, "_slot_kernels", lambda _: triton_slots)
        for number, call in enumerate(calls):
            entered.clear()
            call()
            assert entered == [1], number


@pytest.fixture
def eight_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(8)
    yield
    torch.set_num_threads(before)


def test_a_processor_encodes_a_batch_per_thread_but_not_under_autocast(eight_threads):
    assert batches_at_once(torch.device("cpu")) == 8
    assert batches_at_once(torch.device("cuda")) == 1
    with torch.autocast("cpu", torch.bfloat16):
        assert batches_at_once(torch.device("cpu")) == 1


@pytest.mark.parametrize(("count", "share"), [(1, 8), (2, 4), (3, 2), (20, 1)])
def test_threads_that_compute_at_once_share_those_of_torch_and_need_no_gradient(eight_threads, count, share):
    def settings(_=None):
        return torch.get_num_threads(), torch.is_inference_mode_enabled()

    with sharing_threads(count) as shared, ThreadPoolExecutor(count) as pool:
        assert set(pool.map(shared(settings), range(count))) == {(share, count > 1)}
        assert settings() == (8, False)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(settings).result() == settings() == (8, False)


@pytest.fixture(scope="module")
def modules():
    """The source of every module of the package, by its name."""
    names = {path: ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts) for path in SOURCE.rglob("*.py")}
    return {name.removesuffix(".__init__"): ast.parse(path.read_text()) for path, name in names.items()}


def imported(tree):
    """The names that a module imports when it is itself imported: not in functions, not for type checkers."""
    for node in tree.body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (node.module, *(f"{node.module}.{alias.name}" for alias in node.names))


def test_every_module_that_loads_torch_first_calls_its_functions_in_one_thread(modules):
    """Importing `core.devices` does, so that each of them must import it, at once or through others."""
    imports = {name: set(imported(tree)) for name, tree in modules.items()}
    with_torch = [name for name, found in imports.items() if any(one.split(".")[0] == "torch" for one in found)]
    without = set()
    for module in with_torch:
        reached, new = set(), {module}
        while new:
            reached |= new
            parents = {name.rpartition(".")[0] for name in new}
            new = ({one for name in new for one in imports[name]} | parents) & imports.keys() - reached
        if "maxmatch.core.devices" not in reached:
            without.add(module)
    assert len(with_torch) > 30
    loaded_by_others = {
        "maxmatch.matching.numba_backend", "maxmatch.matching.triton_backend", "maxmatch.matching.triton_blocks",
        "maxmatch.matching.triton_fused", "maxmatch.matching.triton_scan", "maxmatch.matching.triton_tiles",
        "maxmatch.matching.triton_launch", "maxmatch.matching.trained",
        "maxmatch.model.layers.triton_attention", "maxmatch.model.layers.triton_gru",
        "maxmatch.model.layers.triton_norm", "maxmatch.model.layers.triton_slots", "maxmatch.losses.triton_mmd",
    }  # fmt: skip
    products_only = {
        "maxmatch.matching.products", "maxmatch.matching.scorers", "maxmatch.search.engines.lance_search",
    }  # fmt: skip
    assert without <= loaded_by_others | products_only


def test_the_functions_called_first_are_all_that_the_package_uses(modules):
    calls = (node for tree in modules.values() for node in ast.walk(tree) if isinstance(node, ast.Call))
    used = {call.func.attr.rstrip("_") for call in calls if isinstance(call.func, ast.Attribute)} & BY_MKL
    assert {"exp", "log", "sqrt"} <= used <= set(MKL_FUNCTIONS)


def test_a_thread_computes_with_its_own_number_of_threads_and_others_with_theirs():
    before = torch.get_num_threads()

    def numbers():
        use_threads(1, before)
        torch.ones(3).sum()
        return torch.get_num_threads()

    with ThreadPoolExecutor(1) as first, ThreadPoolExecutor(1) as other:
        assert first.submit(numbers).result() == 1
        assert other.submit(torch.get_num_threads).result() == before
        assert first.submit(torch.get_num_threads).result() == 1
    assert torch.get_num_threads() == before
