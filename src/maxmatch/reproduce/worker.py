"""Jobs at work: the sweep that starts a process for each, and that process, which trains and measures one model:
`python -m maxmatch.reproduce.worker FOLDER [DEVICE]`.
"""

import hashlib
import io
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from maxmatch.core.files import BusyError, locked, whole
from maxmatch.core.types import Ranks
from maxmatch.evaluation.candidates import Candidate, members
from maxmatch.evaluation.encoding import LoadedData, ModelSource, Say, encode_model, load_for, paired
from maxmatch.evaluation.metrics import SearchRanks, chance
from maxmatch.evaluation.ranking import PairRanks
from maxmatch.evaluation.significance import measure
from maxmatch.evaluation.slots import element_analysis
from maxmatch.reproduce.targets import Job, read_job
from maxmatch.training.state import BEST

# Many jobs, some at a time, each in a process of its own; one that fails does not stop the others.

LOG = "log.txt"
_REASON = "maxmatch: "  # before the reason of a failure, in the log
_LOOK_EVERY = 0.1  # seconds
_APART = 8.0  # seconds
_STOP_WITHIN = 60.0  # seconds to save a state, before a process is killed
_FULL = ("CUDA error: out of memory", "Triton Error [CUDA]: out of memory", "_STATUS_ALLOC_FAILED")
_NO_MEMORY = 12  # exit code of a process that found the GPU full, as errno's ENOMEM
_IN_USE = 16  # that of one whose folder another process writes in, as errno's EBUSY


@dataclass(frozen=True)
class Outcome:
    """The result of a job, or why there is none. again: whether it was done before. stopped: whether its process was
    stopped from outside, or found another one at work in its folder, so that it may well end another time.
    """

    result: Mapping[str, Any] | None
    failure: str = ""
    again: bool = False
    stopped: bool = False


NOT_YET = "not trained yet"

ReportJob = Callable[[Job, Outcome], object]


def sweep(
    jobs: Sequence[Job], at_once: int, device: str | None, report: ReportJob, say: Say = print
) -> dict[Path, Outcome]:
    """Run all jobs, in their order; an ensemble when its members are done. The outcome of each, by folder.

    A job with a result is not done again. report is called for each job as it ends. When interrupted, all processes
    save their states and end; the next call resumes them. at_once: 0 to do nothing, and tell what is done.

    On a GPU jobs begin some seconds apart. Equal ones that begin together also end together, and the GPU waits while
    the next ones read their data. A job that finds the memory full beside others is resumed, and no more run at once
    than were left then; one that finds it full alone has failed.
    """
    outcomes: dict[Path, Outcome] = {}

    def note(job: Job, outcome: Outcome) -> None:
        outcomes[job.folder] = outcome
        report(job, outcome)

    waiting, running = [], dict[Path, tuple[Job, subprocess.Popen[bytes]]]()
    beside_others, asked = set[Path](), at_once
    for job in jobs:
        result = job.result()
        if result is None:
            waiting.append(job)
        else:
            note(job, Outcome(result, again=True))
    if not at_once:
        return outcomes | {job.folder: Outcome(None, NOT_YET, stopped=True) for job in waiting}
    apart = _APART if at_once > 1 and (device or "").startswith("cuda") else 0.0
    next_start = time.monotonic()
    try:
        while waiting or running:
            for job in list(waiting):
                needed = [outcomes.get(member) for member in job.members if member != job.folder]
                if any(one is not None and one.result is None for one in needed):
                    waiting.remove(job)
                    note(job, Outcome(None, "one of its models failed"))
                elif len(running) < at_once and None not in needed and time.monotonic() >= next_start:
                    next_start = time.monotonic() + apart
                    waiting.remove(job)
                    running[job.folder] = job, start(job, device)
                    if len(running) > 1:
                        beside_others |= running.keys()
            for job, process in list(running.values()):
                if process.poll() is not None:
                    _stop([process])
                    del running[job.folder]
                    full, shared = process.returncode == _NO_MEMORY, job.folder in beside_others
                    beside_others.discard(job.folder)
                    if full and shared:
                        waiting.insert(0, job)
                        at_once = max(len(running), 1)
                        say(f"{job.folder.name}: the GPU's memory was full; it is resumed, with --jobs {at_once}")
                    else:
                        at_once = asked if full else at_once  # it was not the others
                        note(job, _outcome(job, process.returncode))
            if running or waiting:
                time.sleep(_LOOK_EVERY)
    finally:
        _stop([process for _, process in running.values()])
    return outcomes


def start(job: Job, device: str | None) -> subprocess.Popen[bytes]:
    """The process of a job. It ends when its standard input does, so also when this process is killed."""
    job.write()
    # One thread each, whatever the number of jobs: on a CPU more would sum in another order, and beside a GPU those of
    # many jobs would wait for each other.
    environment = {"OMP_NUM_THREADS": "1", **os.environ}
    command = [sys.executable, "-m", "maxmatch.reproduce.worker", str(job.folder), *([device] if device else [])]
    with (job.folder / LOG).open("wb") as log:
        # Ctrl-C in a terminal goes to a whole session; in sessions of their own they are told by us, once.
        return subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True
        )


def _outcome(job: Job, code: int) -> Outcome:
    result = job.result()
    if code == 0 and result is not None:
        return Outcome(result)
    if code < 0:
        return Outcome(None, f"killed by signal {-code}, perhaps out of memory: try fewer --jobs", stopped=True)
    if code == _NO_MEMORY:
        cure = "try a smaller train.batch_size, or a larger train.accumulate"
        return Outcome(None, f"the GPU's memory was full, with no other model beside it: {cure} ({job.folder / LOG})")
    if code == 130:
        return Outcome(None, "interrupted; run the command again to resume", stopped=True)
    log = (job.folder / LOG).read_text(encoding="utf-8", errors="replace").strip()
    _, marked, reason = log.rpartition(_REASON)
    lines = (reason if marked else log).strip().splitlines() or [f"ended with exit code {code} and no result"]
    why = f"{lines[0] if marked else lines[-1]} ({job.folder / LOG})"
    return Outcome(None, why, stopped=code == _IN_USE)


def _stop(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """End processes by closing their input, and wait until they have saved."""
    for process in processes:
        assert process.stdin is not None
        process.stdin.close()
    last = time.monotonic() + _STOP_WITHIN
    for process in processes:
        try:
            process.wait(max(0.0, last - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


# The ranks of all queries of a job, kept with its result: paired tests between models need them, by any measure.

RANKS = "ranks.npy"
"""int32 (queries, 3): whether the query is a caption, its group, and the rank of its best true answer."""
PAIRS = "pairs.npy"
"""int32 (true pairs, 4), as of `PairRanks`: the places of the image and of the caption, the caption's rank among the
wrong captions of the image, and the image's among the wrong images of the caption. Older results have no such file."""


def write_ranks(folder: Path, search: SearchRanks) -> dict[str, str]:
    """Put the ranks of a search into a folder; the digests by which its result knows them again."""
    ways = ((search.i2t, search.image_groups), (search.t2i, search.text_groups))
    columns = [
        np.stack([np.full(len(groups), way), groups.cpu().numpy(), ranks.ranks.cpu().numpy()], 1)
        for way, (ranks, groups) in enumerate(ways)
    ]
    kept = {"ranks": _write_array(folder / RANKS, np.concatenate(columns))}
    if search.pairs is not None:
        kept["pairs"] = _write_array(folder / PAIRS, torch.stack(search.pairs, 1).cpu().numpy())
    return kept


def read_ranks(folder: Path, result: Mapping[str, Any]) -> SearchRanks | None:
    """The search that a result was taken from; None if it was not kept, or the file is of another result. Likewise its
    true pairs.
    """
    found = _read_array(folder / RANKS, result.get("ranks"))
    if found is None:
        return None
    images, texts = found[found[:, 0] == 0], found[found[:, 0] == 1]
    # Ties count against the model in the ranks already; how many there were is not kept.
    i2t, t2i = (Ranks(side[:, 2], torch.zeros_like(side[:, 2])) for side in (images, texts))
    pairs = _read_array(folder / PAIRS, result.get("pairs"))
    return SearchRanks(i2t, t2i, images[:, 1], texts[:, 1], None if pairs is None else PairRanks(*pairs.T))


def _write_array(file: Path, numbers: np.ndarray) -> str:
    with whole(file) as opened:
        np.save(opened, numbers.astype(np.int32), allow_pickle=False)
    return _digest(file.read_bytes())


def _read_array(file: Path, digest: str | None) -> torch.Tensor | None:
    """None if there is none, or it has another digest."""
    try:
        content = file.read_bytes()
    except OSError:
        return None
    if digest != _digest(content):
        return None
    return torch.from_numpy(np.load(io.BytesIO(content), allow_pickle=False)).long()


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


# All figures of a trained model that the paper's tables speak of, from one encoding of the split.

_WHOLE_COCO = "testall"  # of precomp folders, where "test" is a fifth of it


def sources_of(job: Job) -> list[ModelSource]:
    """The trained models of a job."""
    return [
        ModelSource(folder.name, str(folder / BEST), "checkpoint", recipe)
        for recipe, folder in zip(job.recipes, job.members, strict=True)
    ]


def data_of(job: Job, say: Say = lambda line: None) -> LoadedData:
    """The data of a job and the split to measure on: the one asked for, or the first there is of COCO's whole test
    split, the recipe's and that of validation.
    """
    recipe = job.recipes[0]
    preferred = (_WHOLE_COCO, recipe.evaluate.split, recipe.data.val_split)
    return load_for(sources_of(job), recipe.data, job.split, preferred=preferred, say=say)


def measure_job(job: Job, device: str | None = None) -> tuple[dict[str, Any], SearchRanks]:
    """The figures of a job whose models are trained, the split they were measured on and how many images it has, for
    JSON; and the search among the whole split that RSUM is of.

    Beside those of retrieval: those of the sets (`maxmatch.evaluation.measures`), `image_slot_1_rsum` … with one slot
    kept (tab:5; not of Gaussians), and RSUM by further similarities of the recipe, `top_k_rsum`. Of an ensemble only
    those of retrieval.
    """
    recipe, sources, loaded = job.recipes[0], sources_of(job), data_of(job, print)
    pair = recipe.objective.pairs[0]
    encode = partial(encode_model, batch_size=recipe.train.batch_size, workers=recipe.train.workers, say=print)
    encoded = [encode(source, loaded, device=device) for source in sources]
    similarities = recipe.similarities if len(sources) == 1 else recipe.similarities[:1]
    candidates = [Candidate(*one) for one in zip(sources, encoded, strict=True)]
    teams = [members(candidates, similarity) for similarity in similarities]
    take = partial(measure, pair=pair, protocol=job.protocol, draws=0, extended_coco=False)
    first = take(teams[:1], measures="all")[0][0].result
    others = take(teams[1:])[0] if len(teams) > 1 else []
    found = dict(first.figures)
    found |= {"chance_rsum": chance(*(encoded[0].groups[side] for side in pair))["rsum"]}
    if len(sources) == 1 and teams[0][0].has_slots:
        kept = element_analysis(paired(encoded[0], pair), teams[0][0].similarity, found).kept
        found |= {
            f"{side}_slot_{slot}_rsum": figures["rsum"]
            for side in pair
            for slot, figures in enumerate(kept[side], start=1)
        }
    prefix = "coco_5k_" if "coco_5k_" in first.galleries else ""
    for similarity, other in zip(similarities[1:], others, strict=True):
        found[f"{similarity}_rsum"] = other.result.figures[f"{prefix}rsum"]
    (search,) = first.galleries[prefix]
    return {"split": loaded.split, "images": len(encoded[0].groups[pair[0]]), "figures": found}, search


# The process. It resumes what an earlier one left. When the process that started it ends, for whatever reason, its
# standard input is closed; then it saves its state and ends too.

_PATIENCE = 120.0  # seconds for a process that was left behind to save its state and end


def work(job: Job, device: str | None = None) -> None:
    """Train what is missing, measure, and write the result."""
    from maxmatch.training.loop import train

    started = time.monotonic()
    for recipe, folder in zip(job.recipes, job.members, strict=True):
        train(recipe, folder, resume=True, device=device, show_progress=False)
    found, search = measure_job(job, device)
    ranks = write_ranks(job.folder, search)  # first: a job with a result has them
    job.finish({**found, **ranks, "seconds": time.monotonic() - started})


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Work alone in a folder; wait for a process that was left behind."""
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder, _PATIENCE):
        yield


def end_with_the_parent() -> None:
    """Ask this process to stop, as Ctrl-C does, when its standard input ends."""

    def wait() -> None:
        while os.read(0, 1):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, daemon=True).start()


def memory_full(error: BaseException | None) -> bool:
    """Whether an error, or one that it followed from, says that a GPU's memory is full. What follows may say something
    else: a recording that is cut short, for example, that a stream has unjoined work.
    """
    if error is None:
        return False
    said = isinstance(error, RuntimeError) and any(words in str(error) for words in _FULL)
    return said or isinstance(error, torch.OutOfMemoryError) or memory_full(error.__cause__ or error.__context__)


def main() -> None:
    """The process. The last line it prints is why it failed."""
    folder, *device = sys.argv[1:]
    end_with_the_parent()
    try:
        with alone(Path(folder)):
            work(read_job(Path(folder)), device[0] if device else None)
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except Exception as error:
        traceback.print_exc()
        if memory_full(error):  # of the others' doing as much as of its own
            raise SystemExit(_NO_MEMORY) from error
        text = str(error).strip()
        named = isinstance(error, ValueError | OSError) and text
        print(f"{_REASON}{text if named else f'{type(error).__name__}: {text}'}", file=sys.stderr)
        raise SystemExit(_IN_USE if isinstance(error, BusyError) else 1) from error


if __name__ == "__main__":
    main()
