"""Which model is meant: by a name (a folder, a run, a model that ships in `maxmatch/model/shipped`, one on the hub), or
by the hash that a set carries, so that sets of two models are never mixed. Importing this loads the standard library
alone.
"""

import errno
import hashlib
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    from maxmatch.model.config import ModelConfig
    from maxmatch.model.encoder import SetEncoder
    from maxmatch.model.text import Words

SHIPPED = "maxmatch-small"
"""The model that is used where none is named."""
MODELS = Path(__file__).resolve().parent / "shipped"
CONFIG, WEIGHTS, CARD = "config.json", "model.safetensors", "README.md"
OPEN_CLIP_CONFIG, OPEN_CLIP_WEIGHTS = "open_clip_config.json", "open_clip_model.safetensors"
SCALE = ".int8_scale"  # follows the name of word vectors in int8: what to multiply each by
FORMAT = "maxmatch.SetEncoder"  # of a checkpoint: what its config.json begins with
OPEN_CLIP = "open_clip:"  # before "MODEL/TAG": a model as open_clip lists them
HUB = "hf:"  # before a name: that of a model on the hub, whatever folders there are
_HUB_NAME = re.compile(r"(?:\w[\w.-]*/\w[\w.-]*|(?<=^hf:)\w[\w.-]*)(?:@[\w./-]+)?")
# What is fetched of a model: nothing that is code or a pickle.
_FILES = [
    CONFIG, CARD, WEIGHTS, "model-*-of-*.safetensors", f"{WEIGHTS}.index.json", "preprocessor_config.json",
    "processor_config.json", "tokenizer*.json", "special_tokens_map.json", "added_tokens.json", "vocab.*", "merges.txt",
    "*.model", OPEN_CLIP_CONFIG,
]  # fmt: skip
_CONVERTED = "Adding `safetensors` variant of this model"  # the title of the hub's own pull requests
_CURES = {
    "RepositoryNotFoundError": "Check the name; if the model is private, log in: hf auth login",
    "GatedRepoError": "Accept its terms on its page at huggingface.co, then log in: hf auth login",
    "RevisionNotFoundError": "Check the revision, which follows the @",
}
_log = logging.getLogger("maxmatch")


class ShippedModel(NamedTuple):
    """A model that ships or once did. version: the last one of the package that has it."""

    name: str
    version: str


SHIPPED_MODELS = {
    "710355b277eceb2c378fdfc46f6a80f136cf2e1494bc52ddaeda068f64ef5661": ShippedModel("maxmatch-small", "0.1.0"),
    "6e2687707ea7c796b85e716a07b6d51cda4959131379fe937cee9eada9a67379": ShippedModel("maxmatch-small", "0.1.1"),
    "fe9050f56f109fa1ac6a4031849daf7a135d30049379f76ef90802efb5b90ec9": ShippedModel("maxmatch-small", "0.1.2"),
}
"""By identity (`model_identity`), the oldest first: what made an index is known after a newer model has replaced it."""


class ListedModel(NamedTuple):
    """A model as `maxmatch models` lists it. kind: "maxmatch", or the `model_type` of a two-tower model. size: in
    bytes. licence: as its model card says. None: not known here.
    """

    name: str
    kind: str
    size: int | None = None
    licence: str | None = None


KNOWN_MODELS = (
    ListedModel("openai/clip-vit-base-patch32", "clip", 605_000_000),
    ListedModel("laion/CLIP-ViT-B-32-laion2B-s34B-b79K", "clip", 605_000_000, "mit"),
    ListedModel("google/siglip-base-patch16-224", "siglip", 813_000_000, "apache-2.0"),
    ListedModel("google/siglip2-base-patch16-224", "siglip", 1_501_000_000, "apache-2.0"),
    ListedModel("google/siglip2-base-patch16-naflex", "siglip2", 1_501_000_000, "apache-2.0"),
    ListedModel("BAAI/AltCLIP", "altclip", 3_457_000_000, "creativeml-openrail-m"),
    ListedModel("OFA-Sys/chinese-clip-vit-base-patch16", "chinese_clip", 753_000_000),
    ListedModel("facebook/metaclip-2-worldwide-huge-quickgelu", "metaclip_2", 7_435_000_000),
    ListedModel("kakaobrain/align-base", "align", 688_000_000),
    ListedModel("laion/clap-htsat-unfused", "clap", 614_000_000, "apache-2.0"),
    ListedModel("timm/MobileCLIP2-S0-OpenCLIP", "open_clip", 300_000_000, "apple-amlr"),
)
"""Models on the hub of every kind that can be loaded. Sizes by their number of weights, licences by their pages."""


class CheckpointError(ValueError):
    """A folder that is not a checkpoint of MaxMatch, or a damaged one."""


def model_folder(name: str | Path) -> Path:
    """The folder of a model: a local one (`local_model`), or one fetched from the hub, which is logged.

    With HF_HUB_OFFLINE set, only what was fetched before is used.
    """
    folder = local_model(name)
    if folder is not None:
        return folder
    if str(name).startswith(OPEN_CLIP):
        return _fetched(_open_clip_on_the_hub(str(name)))
    if isinstance(name, Path) or not is_hub_name(name):
        known = ", ".join(shipped_names()) or f"none: this installation lacks {SHIPPED}"
        raise FileNotFoundError(
            f"{name}: no such folder. Give the folder of a checkpoint or a run, a model that ships ({known}), "
            "'organisation/name' on the hub, with '@revision' where one is meant, or 'open_clip:MODEL/TAG'."
        )
    return _fetched(name)


def local_model(name: str | Path) -> Path | None:
    """The folder of a model on this machine: a checkpoint's own, a run's best epoch, or that of a model that ships.

    None where the name is none of these. A folder comes before a shipped model of the same name.
    """
    if str(name).startswith(HUB):
        return None
    folder = Path(name).expanduser()
    if (folder / "recipe.yaml").is_file():
        best = local_model(folder / "best")
        if best is None:
            raise CheckpointError(
                f"{folder}: a run without best/: no epoch has been measured yet. Wait, or resume the run."
            )
        return best
    if folder.is_dir():
        return folder
    previous = previous_of(folder.resolve())
    if previous.is_dir():
        _log.warning("%s: a save was interrupted while replacing it; loading the previous one.", folder)
        return previous
    if folder.exists():
        raise CheckpointError(f"{folder}: a file. Give the checkpoint's folder; a pickle (.pt, .pth) is never read.")
    return shipped_model(str(name))


def cached_model(name: str) -> Path | None:
    """The folder of a model on the hub that was fetched before; None where it was not. No network is asked."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    repository, revision = hub_parts(name)
    try:
        folder = Path(snapshot_download(repository, revision=revision, local_files_only=True))
    except (LocalEntryNotFoundError, HFValidationError):
        return None
    return folder if (folder / CONFIG).is_file() else None


def name_to_record(name: str) -> str:
    """A model's name that is still valid elsewhere and later: the full path of a folder, or the name of a shipped
    model, whose folder moves with the installation, or of one on the hub. `recorded_model` reads it.
    """
    folder = local_model(name)
    if folder is None:
        return name
    return folder.name if folder.resolve() == shipped_model(folder.name) else str(folder.resolve())


def recorded_model(name: str) -> str:
    """What `name_to_record` recorded: a shipped model is meant even where a folder of its name exists."""
    return str(shipped_model(name) or name)


def shipped_model(name: str) -> Path | None:
    """The folder of a model that ships; None for any other name, and where it was not installed."""
    return MODELS / name if name in shipped_names() else None


def shipped_names() -> list[str]:
    """The names of all models that ship."""
    return sorted(path.parent.name for path in MODELS.glob(f"*/{CONFIG}"))


def is_hub_name(name: str) -> bool:
    """Whether a name has the form "organisation/name", with "hf:" before it or "@revision" behind it or neither."""
    return _HUB_NAME.fullmatch(name, len(HUB) if name.startswith(HUB) else 0) is not None


def hub_parts(name: str) -> tuple[str, str | None]:
    """The name and the revision in "hf:organisation/name@revision"; None for the newest."""
    repository, _, revision = name.removeprefix(HUB).partition("@")
    return repository, revision or None


def is_checkpoint(folder: Path) -> bool:
    """Whether a folder holds a config.json of ours."""
    try:
        return f'"{FORMAT}"' in (folder / CONFIG).read_text(encoding="utf-8")
    except (OSError, ValueError):
        return False


def hub_model_type(folder: Path) -> str | None:
    """The `model_type` in a config.json of transformers, which may be empty; "open_clip" for a model that open_clip
    alone has; None where a folder is neither.
    """
    import json

    other = "open_clip" if (folder / OPEN_CLIP_CONFIG).is_file() else None
    try:
        found = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return other
    except (OSError, ValueError):
        return None
    if not isinstance(found, dict) or "format" in found:
        return None
    if not {"model_type", "auto_map"} & found.keys():
        return other  # timm, too, has a config.json
    return str(found.get("model_type", ""))


def shipped_models() -> list[ListedModel]:
    """The models that ship."""
    return [ListedModel(name, "maxmatch", _bytes(MODELS / name), _licence(MODELS / name)) for name in shipped_names()]


def cached_models() -> list[ListedModel]:
    """The models in the hub's cache that can be loaded, by name."""
    from huggingface_hub import CacheNotFound, constants, scan_cache_dir

    try:
        found = scan_cache_dir(constants.HF_HUB_CACHE).repos
    except CacheNotFound:
        return []
    listed = []
    for repository in sorted(found, key=lambda one: one.repo_id):
        for revision in sorted(repository.revisions, key=lambda one: one.last_modified, reverse=True):
            folder = revision.snapshot_path
            kind = "maxmatch" if is_checkpoint(folder) else hub_model_type(folder)
            if kind in ("maxmatch", *(known.kind for known in KNOWN_MODELS)) and _has_weights(folder):
                listed.append(ListedModel(repository.repo_id, str(kind), _bytes(folder), _licence(folder)))
                break
    return listed


def interrupted_downloads() -> list[str]:
    """The models in the hub's cache of which a file was not fetched to its end, by name."""
    from huggingface_hub import constants

    parts = Path(constants.HF_HUB_CACHE).glob("models--*/blobs/*.incomplete")
    return sorted({part.parts[-3].removeprefix("models--").replace("--", "/", 1) for part in parts})


def _bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir() if path.is_file())


def _licence(folder: Path) -> str | None:
    """The licence that the head of a model card names."""
    try:
        card = (folder / CARD).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    named = re.search(r"\A---\n(?:.*\n)*?license: *(\S+) *\n(?:.*\n)*?---", card)
    return None if named is None else named[1].strip("\"'")


def restored(weights: Mapping[str, Any]) -> dict[str, Any]:
    """The weights of a file, arrays or tensors: word vectors in int8 times their scales."""
    tables = {name for name in weights if name + SCALE in weights}
    scales = {name + SCALE for name in tables}
    return {
        name: value * weights[name + SCALE][:, None] if name in tables else value
        for name, value in weights.items()
        if name not in scales
    }


def previous_of(folder: Path) -> Path:
    """Where the checkpoint in a folder is while another one replaces it."""
    return folder.with_name(f".{folder.name}.previous")


def _fetched(name: str) -> Path:
    from huggingface_hub import constants, snapshot_download

    offline = bool(constants.HF_HUB_OFFLINE)
    _log.warning("%s: %s", name.removeprefix(HUB), "looking in the hub's cache" if offline else "asking the hub")
    repository, revision = hub_parts(name)

    def snapshot(revision: str | None, *more: str) -> Path:
        files = [*_FILES, *more]
        return Path(snapshot_download(repository, revision=revision, allow_patterns=files, local_files_only=offline))

    try:
        folder = snapshot(revision)
        if hub_model_type(folder) == "open_clip":  # others have the same weights twice
            return snapshot(revision, OPEN_CLIP_WEIGHTS)
        for other in _conversions(repository, offline) if revision is None and not _has_weights(folder) else ():
            converted = snapshot(other)
            if _has_weights(converted):
                _log.warning("%s: its weights as the hub converted them to safetensors, %s@%s", name, repository, other)
                return converted
    except Exception as error:  # the hub's client raises its own, and those of what it is built on
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            raise OSError(f"{name}: no space left to fetch it. Free some, or set HF_HOME to another disk.") from error
        advice = _CURES.get(type(error).__name__, "Check the name and the connection")
        raise FileNotFoundError(
            f"{name}: no such folder here, and it could not be fetched from the hub ({type(error).__name__}). "
            f"{'HF_HUB_OFFLINE is set: unset it to fetch' if offline else advice}."
        ) from error
    return folder


def open_clip(asked: str) -> Any:
    """The package open_clip. asked: the model that needs it, for the error where it cannot be imported."""
    try:
        import open_clip
    except (ImportError, RuntimeError) as error:  # RuntimeError: a torchvision that does not fit torch
        raise ImportError(
            f"{asked}: a model of open_clip, whose package is needed and cannot be imported ({error}). Run "
            "pip install open_clip_torch, with a torchvision that fits your torch; or choose a model that transformers "
            "has: see `maxmatch models`."
        ) from error
    return open_clip


def _open_clip_on_the_hub(name: str) -> str:
    """The name on the hub of a model that open_clip lists, "open_clip:MODEL/TAG"."""
    package = open_clip(name)
    model, _, tag = name.removeprefix(OPEN_CLIP).partition("/")
    repository = str((package.get_pretrained_cfg(model, tag) or {}).get("hf_hub", "")).strip("/")
    if not is_hub_name(repository):
        tags = ", ".join(package.list_pretrained_tags_by_model(model)) or "none: check open_clip.list_pretrained()"
        raise FileNotFoundError(f"{name}: open_clip lists no such model on the hub. Tags of {model!r}: {tags}.")
    return HUB + repository


def _has_weights(folder: Path) -> bool:
    return any(folder.glob("*.safetensors"))


def _conversions(repository: str, offline: bool) -> list[str]:
    """Revisions in which the hub itself converted the weights of a model to safetensors, where its makers did not."""
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import HfHubHTTPError

    if offline:
        refs = Path(constants.HF_HUB_CACHE) / f"models--{repository.replace('/', '--')}" / "refs"
        return [path.relative_to(refs).as_posix() for path in sorted(refs.glob("refs/pr/*"))]
    try:
        found = list(HfApi().get_repo_discussions(repository, author="SFconvertbot", discussion_type="pull_request"))
    except HfHubHTTPError:  # a repository may have none; that its weights are missing is reported when it is loaded
        return []
    return [one.git_reference for one in found if one.title == _CONVERTED and one.git_reference is not None]


def read_config(folder: Path) -> "ModelConfig":
    """The config of a checkpoint. CheckpointError where it is not one of MaxMatch, or newer than this version."""
    from maxmatch.core.manifest import load_manifest
    from maxmatch.model.config import SCHEMA_VERSION, ModelConfig

    called, cure = "a checkpoint of MaxMatch", "Copy the checkpoint again."
    return load_manifest(
        checkpoint_file(folder, CONFIG), ModelConfig, FORMAT, CheckpointError, called, cure, SCHEMA_VERSION
    )


def checkpoint_file(folder: Path, name: str) -> Path:
    """A file of a checkpoint. CheckpointError where it is missing."""
    if not (folder / name).is_file():
        raise CheckpointError(
            f"{folder}: {name} is missing. A checkpoint has {CONFIG}, {WEIGHTS} and, for texts, tokenizer.json. "
            "Copy the whole folder."
        )
    return folder / name


@runtime_checkable
class AnyModel(Protocol):
    """What search needs of a model: a `SetEncoder`, or the same run by ONNX Runtime or, for texts, by NumPy."""

    @property
    def dim(self) -> int:
        """D."""

    @property
    def similarity_name(self) -> str:
        """How its sets are compared."""

    @property
    def config(self) -> "ModelConfig | None":
        """What it is made of."""

    @property
    def set_sizes(self) -> dict[str, int]:
        """K of each tower."""

    @property
    def encode_images(self) -> Callable[..., Any]:
        """The sets of pictures, tensors or arrays; see `SetEncoder.encode`."""

    @property
    def encode_texts(self) -> Callable[..., Any]:
        """The sets of texts."""

    @property
    def known_words(self) -> "Callable[..., Words]":
        """Which words of texts it knows."""


def model_identity(model: AnyModel | str) -> str:
    """A hash of a model's weights and tokenizers. A string (a hash from before, or the name of another library's model)
    is returned as it is; an exported model has the identity of the model it was exported from.
    """
    if isinstance(model, str):
        if not model.strip():
            raise ValueError("model: expected a SetEncoder, its hash or a name, got an empty string.")
        return model
    own = getattr(model, "identity", None)
    return own if isinstance(own, str) else encoder_hash(model)  # type: ignore[arg-type]


def encoder_hash(model: "SetEncoder") -> str:
    """The identity of a SetEncoder."""
    import torch

    from maxmatch.model.inputs import TextReader

    def values(tensor: torch.Tensor) -> memoryview:
        return tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data

    weights = (
        (f"{name} {tensor.dtype} {tuple(tensor.shape)}", values(tensor))
        for name, tensor in sorted(model.state_dict().items())
    )
    readers = {name: model.tower(name).reader for name in model.towers}
    texts = {name: reader.tokenizer for name, reader in readers.items() if isinstance(reader, TextReader)}
    return model_hash(weights, texts)


def model_hash(weights: Iterable[tuple[str, memoryview]], tokenizers: Mapping[str, Any]) -> str:
    """The hash of weights, in this order, and of the tokenizers by their towers. weights: a line with a tensor's name,
    type ("torch.float32") and shape; and its values.
    """
    from maxmatch.model.text import fingerprint

    digest = hashlib.sha256()
    for line, values in weights:
        digest.update(f"{line}\n".encode())
        digest.update(values)
    for tower, tokenizer in tokenizers.items():
        digest.update(f"{tower} {fingerprint(tokenizer)}\n".encode())
    return digest.hexdigest()


def language_of(model: AnyModel | str) -> str | None:
    """The language that a model's words are of; None where that is not known. The models that ship read English."""
    return "English" if model_identity(model) in SHIPPED_MODELS else None


def older_models(model: AnyModel | str) -> list[str]:
    """The identities of the models that shipped under the same name before this one; none for any other model."""
    identities = list(SHIPPED_MODELS)
    identity = model_identity(model)
    before = identities[: identities.index(identity)] if identity in SHIPPED_MODELS else []
    return [one for one in before if SHIPPED_MODELS[one].name == SHIPPED_MODELS[identity].name]


def has_newer(identity: str) -> bool:
    """Whether another model ships under the name of this one today."""
    return any(identity in older_models(other) for other in SHIPPED_MODELS)


def model_title(identity: str, name: str | None = None, version: str | None = None) -> str:
    """A model in messages: its name and, where it ships or once did, the version of the package that has it; and the
    beginning of its hash. name, version: as recorded, for a model that the table does not have.
    """
    name, version = SHIPPED_MODELS.get(identity, (name, version))
    of_version = "" if version is None else f" of maxmatch {version}"
    return f"the model {identity[:16]}" if name is None else f"{name}{of_version} ({identity[:16]})"


def package_version(identity: str | None, name: str | None, version: str | None) -> str | None:
    """The version of the package to install for a model; None where it is no model that ships. name, version: as
    recorded with what it made.
    """
    known = SHIPPED_MODELS.get(identity or "")
    return known.version if known is not None else version if name in shipped_names() else None


def check_same_model(known: str | None, model: AnyModel | str | None, folder: str | Path = "INDEX") -> None:
    """Refuse sets of another model than that of the index in a folder, `known`. Where either is None there is nothing
    to compare.
    """
    if known is None or model is None:
        return
    given = model_identity(model)
    if given != known:
        raise ValueError(
            f"model: this index holds sets of {model_title(known)}, got those of {model_title(given)}: their vectors "
            f"cannot be compared. Encode with that model, or the index again: maxmatch index rebuild {folder}"
        )


def slot_stability(model: AnyModel) -> float | None:
    """How often slot i meets slot i in a true pair, as measured after training; None where it was not measured.

    0 where the slots meet in another order: flattened sets then cannot be searched as one vector.
    """
    if model.config is None or model.config.pairing is None:
        return None
    aligned = model.config.pairing == list(range(len(model.config.pairing)))
    return model.config.pairing_stability if aligned else 0.0
