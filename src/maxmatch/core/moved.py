"""Modules that moved in 0.1: their documented old paths still import for one release, with a DeprecationWarning."""

import sys
import warnings
from collections.abc import Iterable
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.abc import Loader
else:
    Loader = object  # importlib.abc takes as long to import as the rest of `import maxmatch`

# old path -> new path, both below `maxmatch`
MOVED = {
    "build": "model.build",
    "config": "model.config",
    "data.feature_writer": "data.features",
    "data.items": "data.dataset",
    "data.loading": "data.load",
    "data.reading": "data.load",
    "data.scenes.draws": "data.scenes.world",
    "encoders": "model.encoders",
    "encoders.conv": "model.encoders.vision",
    "encoders.efficientnet_lite": "model.encoders.cnn",
    "encoders.glove": "model.encoders.language",
    "encoders.gru": "model.encoders.language",
    "encoders.protocol": "model.encoders.backbone",
    "encoders.region": "model.encoders.vision",
    "encoders.resnext": "model.encoders.cnn",
    "encoders.transformer": "model.encoders.language",
    "evaluation.collapse": "evaluation.metrics",
    "evaluation.measuring": "evaluation.significance",
    "evaluation.protocol": "evaluation.metrics",
    "evaluation.reported": "evaluation.paper",
    "evaluation.retrieval": "evaluation.metrics",
    "evaluation.scores": "evaluation.metrics",
    "first_calls": "core.devices",
    "images": "model.images",
    "layers": "model.layers",
    "layers.clustering": "sentence_transformers",
    "layers.pie_head": "model.layers",
    "layers.pooling": "model.layers",
    "layers.positions": "model.layers",
    "layers.set_head": "model.layers",
    "onnx_export": "model.onnx_export",
    "onnx_runtime": "model.onnx_runtime",
    "presets": "model.presets",
    "readers": "model.inputs",
    "recipe_train": "recipe.schema",
    "report": "evaluation.report",
    "report.figures": "evaluation.report.figures",
    "report.making": "evaluation.report.make_report",
    "search.facts": "search.photos.facts",
    "search.hit": "search.engine",
    "search.index": "search.set_index",
    "text": "model.text",
    "tower": "model.encoder",
    "training.criterion": "training.step",
    "types": "core.types",
}


class MovedModules(Loader):
    """Finds and loads old paths; the import system asks it for each module that it does not know yet."""

    def find_spec(
        self, name: str, path: Iterable[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """How to load a module that moved; None for any other."""
        package, _, old = name.partition(".")
        if package != "maxmatch" or old not in MOVED:
            return None
        new = f"maxmatch.{MOVED[old]}"
        warnings.warn(f"{name} is now {new}; the old path will be removed in 0.2.", DeprecationWarning, stacklevel=2)
        is_package = any(other.startswith(f"{old}.") for other in MOVED)
        return ModuleSpec(name, self, loader_state=new, is_package=is_package)

    def create_module(self, spec: ModuleSpec) -> None:
        """An ordinary empty module."""

    def exec_module(self, module: ModuleType) -> None:
        """Fill it with the names of the new one."""
        assert module.__spec__ is not None
        names = vars(import_module(module.__spec__.loader_state)).items()
        kept = ("__all__", "__getattr__")
        vars(module).update({name: value for name, value in names if not name.startswith("__") or name in kept})


def install() -> None:
    """Let the import system ask here last."""
    if not any(isinstance(finder, MovedModules) for finder in sys.meta_path):
        sys.meta_path.append(MovedModules())
