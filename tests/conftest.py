"""What all tests share: shapes checked at run time, kernels interpreted on the CPU, the same examples every time."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is imported

from jaxtyping import config, install_import_hook

# Not matching.kernels and matching.compiled: Triton and Numba compile the functions as they are written. Not the small
# functions of data.scenes that are called hundreds of thousands of times.
install_import_hook(
    [
        "maxmatch.build",
        "maxmatch.checks",
        "maxmatch.data.array_files",
        "maxmatch.data.augment",
        "maxmatch.data.check",
        "maxmatch.data.check_images",
        "maxmatch.data.check_report",
        "maxmatch.data.convert",
        "maxmatch.data.feature_writer",
        "maxmatch.data.features",
        "maxmatch.data.feed",
        "maxmatch.data.formats.butd",
        "maxmatch.data.formats.columns",
        "maxmatch.data.formats.folder",
        "maxmatch.data.formats.gather",
        "maxmatch.data.formats.huggingface",
        "maxmatch.data.formats.imagefolder",
        "maxmatch.data.formats.karpathy",
        "maxmatch.data.formats.lines",
        "maxmatch.data.formats.pairs",
        "maxmatch.data.formats.picture_files",
        "maxmatch.data.formats.precomp",
        "maxmatch.data.formats.shards",
        "maxmatch.data.formats.stored",
        "maxmatch.data.formats.table_files",
        "maxmatch.data.formats.table_writers",
        "maxmatch.data.formats.tables",
        "maxmatch.data.formats.tars",
        "maxmatch.data.formats.unfold",
        "maxmatch.data.formats.writing",
        "maxmatch.data.growing",
        "maxmatch.data.held_out",
        "maxmatch.data.mapped",
        "maxmatch.data.reading",
        "maxmatch.data.resident",
        "maxmatch.data.rows",
        "maxmatch.data.sampler",
        "maxmatch.data.scenes.drawing",
        "maxmatch.data.scenes.folder",
        "maxmatch.data.scenes.layout",
        "maxmatch.data.selection",
        "maxmatch.data.sides",
        "maxmatch.data.transforms",
        "maxmatch.devices",
        "maxmatch.encoders",
        "maxmatch.evaluation",
        "maxmatch.extraction",
        "maxmatch.files",
        "maxmatch.images",
        "maxmatch.layers",
        "maxmatch.losses",
        "maxmatch.matching.arrays",
        "maxmatch.matching.assignment",
        "maxmatch.matching.backend",
        "maxmatch.matching.scorers",
        "maxmatch.matching.scoring",
        "maxmatch.matching.similarity",
        "maxmatch.matching.tiles",
        "maxmatch.memory",
        "maxmatch.model",
        "maxmatch.onnx_export",
        "maxmatch.onnx_folder",
        "maxmatch.quick",
        "maxmatch.read_ahead",
        "maxmatch.readers",
        "maxmatch.recipe_files",
        "maxmatch.recipe_yaml",
        "maxmatch.report",
        "maxmatch.reproduce.against",
        "maxmatch.reproduce.compare",
        "maxmatch.reproduce.curves",
        "maxmatch.reproduce.jobs",
        "maxmatch.reproduce.measure",
        "maxmatch.reproduce.planning",
        "maxmatch.reproduce.ranks",
        "maxmatch.reproduce.targets",
        "maxmatch.reproduce.variants",
        "maxmatch.search.best",
        "maxmatch.search.encoding_run",
        "maxmatch.search.engines.held",
        "maxmatch.search.engines.lance_files",
        "maxmatch.search.engines.lance_filter",
        "maxmatch.search.engines.milvus_where",
        "maxmatch.search.engines.products",
        "maxmatch.search.facts",
        "maxmatch.search.filling",
        "maxmatch.search.folder",
        "maxmatch.search.hit",
        "maxmatch.search.listing",
        "maxmatch.search.manifest",
        "maxmatch.search.origin",
        "maxmatch.search.parcels",
        "maxmatch.search.parts",
        "maxmatch.search.picture_folder",
        "maxmatch.search.shard_writing",
        "maxmatch.search.shards",
        "maxmatch.search.sources",
        "maxmatch.search.table_rows",
        "maxmatch.search.where_parser",
        "maxmatch.sentence_transformers",
        "maxmatch.server.explaining",
        "maxmatch.server.folding",
        "maxmatch.server.gallery",
        "maxmatch.server.thumbnails",
        "maxmatch.server.uploads",
        "maxmatch.set_checks",
        "maxmatch.shipped",
        "maxmatch.text",
        "maxmatch.text_arrays",
        "maxmatch.tower",
        "maxmatch.training",
        "maxmatch.types",
    ],
    "beartype.beartype",
)

import hypothesis  # noqa: E402
import pytest  # noqa: E402
import torch  # noqa: E402
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
