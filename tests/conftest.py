"""What all tests share: shapes checked at run time, kernels interpreted on the CPU, the same examples every time."""

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is imported

from jaxtyping import config, install_import_hook

PACKAGE = Path(__file__).parents[1] / "src" / "maxmatch"
# Every other module of the package has its shapes and types checked while the tests run.
UNCHECKED = {
    "maxmatch.matching.triton_backend": "Triton compiles its functions as they are written",
    "maxmatch.matching.triton_blocks": "likewise",
    "maxmatch.matching.triton_fused": "likewise",
    "maxmatch.matching.triton_scan": "likewise",
    "maxmatch.matching.triton_tiles": "likewise",
    "maxmatch.losses.triton_mmd": "likewise",
    "maxmatch.model.layers.triton_attention": "likewise",
    "maxmatch.model.layers.triton_gru": "likewise",
    "maxmatch.model.layers.triton_norm": "likewise",
    "maxmatch.model.layers.triton_slots": "likewise",
    "maxmatch.matching.numba_backend": "so does Numba",
    "maxmatch.search.engines.numba_keys": "so does Numba",
    "maxmatch.model.config": "pydantic checks it",
    "maxmatch.recipe.schema": "pydantic checks it",
    "maxmatch.recipe.model_section": "pydantic checks it",
    "maxmatch.server.api_schema": "pydantic checks it",
    "maxmatch.data.dataset": "its sequences may be arrays, which are no Sequence to beartype",
    "maxmatch.search.set_index": "tests give it what its own checks refuse",
    "maxmatch.search.rerank": "tests give it engines without some methods",
    "maxmatch.search.verify": "tests give it engines without some methods",
    "maxmatch.search.index_folder": "tests give it what its own checks refuse",
    "maxmatch.model.onnx_runtime": "tests give it what its own checks refuse",
    "maxmatch.reproduce.worker": "tests stand in for the processes it starts",
    "maxmatch.data.scenes.world": "called hundreds of thousands of times",
    "maxmatch.data.scenes.captions": "called hundreds of thousands of times",
}


def modules_to_check() -> list[str]:
    """The names of all modules whose shapes are checked while the tests run."""
    files = [
        path for path in PACKAGE.rglob("*.py") if not path.name.startswith("__")
    ]  # a package's name means all in it
    names = {".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts) for path in files}
    return sorted(
        name for name in names - UNCHECKED.keys() if not name.startswith("maxmatch.cli.")
    )  # typer calls those


install_import_hook(modules_to_check(), "typechecking.checked")

import hypothesis  # noqa: E402
import pytest  # noqa: E402
import torch  # noqa: E402
from PIL import AvifImagePlugin, features  # noqa: E402
from torch import Tensor  # noqa: E402
from torch.multiprocessing.reductions import StorageWeakRef  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils._pytree import tree_leaves  # noqa: E402

hypothesis.settings.register_profile("same_every_time", deadline=None, derandomize=True, max_examples=15)
hypothesis.settings.load_profile("same_every_time")
# At sizes as small as the tests' a second thread only waits; `make test-portable` asks for four.
torch.set_num_threads(int(os.environ.get("MAXMATCH_TEST_THREADS", "1")))


@pytest.fixture
def without_shape_checks() -> Iterator[None]:
    """As a user has it: no import hook, so that wrong input reaches the package's own checks."""
    config.update("jaxtyping_disable", True)
    yield
    config.update("jaxtyping_disable", False)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """The folder of a small model, as after some training."""
    from tiny_models import tiny_model, with_statistics

    return with_statistics(tiny_model("region_bigru")).save_pretrained(tmp_path / "model")


@pytest.fixture
def without_avif() -> Callable[[], AbstractContextManager[None]]:
    """A context in which Pillow is as if it were built without AVIF, which it says by a warning for each file."""

    @contextmanager
    def missing() -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patched, warnings.catch_warnings():
            warnings.filterwarnings("ignore", "image file could not be identified because AVIF")
            patched.setattr(AvifImagePlugin, "SUPPORTED", False)
            patched.setattr(features, "check", lambda name: name != "avif")
            yield

    return missing


class AllocationMeter(TorchDispatchMode):
    """The bytes of the tensors alive at once, beside those given; and the size of the largest tensor."""

    def __init__(self, *known: Tensor) -> None:
        super().__init__()
        # By address: an array becomes a new storage in the same place whenever it is made a tensor.
        self.known = [range(t.data_ptr(), t.data_ptr() + t.untyped_storage().nbytes()) for t in known]
        self.alive: dict[int, tuple[StorageWeakRef, int]] = {}
        self.peak_bytes = 0
        self.largest_tensor = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves((args, kwargs, result)):
            if isinstance(tensor, Tensor):
                self._see(tensor)
        self.alive = {key: seen for key, seen in self.alive.items() if not seen[0].expired()}
        self.peak_bytes = max(self.peak_bytes, sum(size for _, size in self.alive.values()))
        return result

    def _see(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        if not any(storage.data_ptr() in place for place in self.known):
            self.alive[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
            self.largest_tensor = max(self.largest_tensor, storage.nbytes() // tensor.element_size())


@pytest.fixture
def allocation_meter() -> type[AllocationMeter]:
    """A context that measures what torch allocates; tensors handed to it do not count."""
    return AllocationMeter
