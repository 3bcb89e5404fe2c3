"""`maxmatch demo`: train and compare three methods on generated scenes, in minutes on a CPU."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from maxmatch.cli.common import cores, say

if TYPE_CHECKING:
    from maxmatch.recipe.schema import Recipe


QUERY = "a red circle in front of snow"


def tour(run: Path, pictures: Path, out: Path) -> None:
    """Write the report of a run, index pictures with its model, and search them. What exists is not made again; what
    needs a missing extra is reported and left out.
    """
    report, index = run / "analysis" / "report.html", out / "scenes.index"
    done = report.is_file() or _did("analyse", str(run))
    build = ("index", "build", str(index), "--source", str(pictures), "--model", str(run))
    built = (index / "index.json").is_file() or _did(*build)
    found = built and _did("search", QUERY, str(index), "-k", "3")
    if done:
        say(f"what each vector of a set has learned: open {report}")
    if found:
        say(f"the page: {_written('serve', str(index), '--pictures', str(pictures), '--open')}")
    say(f"your own photos: {_written('search', 'two dogs in the snow', str(Path('~') / 'Pictures'))}")


def _did(*arguments: str) -> bool:
    """Whether a maxmatch command succeeded. Its output goes to stderr: stdout has the table alone."""
    say(f"$ {_written(*arguments)}")
    return subprocess.run(_command(*arguments), stdout=sys.stderr.fileno(), check=False).returncode == 0


def _command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "maxmatch.cli.main", *arguments]


def _written(*arguments: str) -> str:
    """A command as one types it."""
    return " ".join(["maxmatch", *(part if part.startswith("~") else shlex.quote(part) for part in arguments)])


_COLUMNS = (  # figure, heading, width, format
    ("i2t_r1", "R@1", 7, ".2f"),
    ("i2t_r5", "R@5", 7, ".1f"),
    ("i2t_r10", "R@10", 7, ".1f"),
    ("t2i_r1", "R@1", 10, ".2f"),
    ("t2i_r5", "R@5", 7, ".1f"),
    ("t2i_r10", "R@10", 7, ".1f"),
    ("rsum", "RSUM", 9, ".1f"),
    ("image_log_variance", "image", 8, ".2f"),
    ("text_log_variance", "text", 7, ".2f"),
    ("slots_used", "used", 9, ".0%"),
    ("pairing_stability", "stable", 9, ".0%"),
)
_SHOWN, _PIXELS = 200, 192  # scenes on the page, and their size
_MANY = 1000  # scenes, from which on processes draw them
_METHODS = {"MaxMatch": "scenes", "SetDiv": "scenes_setdiv", "MIL": "scenes_mil"}
# Shorter than the recipes: with half of the images, two blocks and no dropout, a step takes a third of the time.
# The CNN is one of ours, since importing transformers takes seconds in each process.
_SHORTER = [
    "train.batch_size=32",
    "train.epochs=3",
    "objective.mean_negatives_epochs=1",
    "model.config.towers.image.encoder.backbone="
    "{source: resnext, depths: [1, 1, 1], groups: 1, group_width: 16, base_width: 16}",
    "model.config.towers.image.head.depth=2",
    "model.config.towers.image.head.dropout=0",
    "model.config.towers.text.head.depth=2",
    "model.config.towers.text.head.dropout=0",
    "model.config.towers.text.encoder.dropout=0",
]


def demo(
    out: Annotated[
        Path, typer.Option(help="Folder for scenes and runs. Work that is finished there is not repeated.")
    ] = Path("runs/demo"),
    seed: Annotated[int, typer.Option(min=0, help="Seed for weights and batches.")] = 0,
    changes: Annotated[
        list[str] | None, typer.Argument(help="Changes to all three recipes: train.epochs=5 …", metavar="KEY=VALUE")
    ] = None,
    serve: Annotated[
        bool, typer.Option("--serve", help="Train only MaxMatch, and open the search page on new scenes.")
    ] = False,
    photos: Annotated[
        Path | None,
        typer.Option(help="With --serve: open this folder instead, with maxmatch-small.", show_default=False),
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="With --serve: the port; 0: any free port.")] = 8765,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
) -> None:
    """Train three small models on generated scenes, and compare them.

    Compares MaxMatch with the same model trained as SetDiv (smooth-Chamfer similarity) and as MIL (the best single
    pair): retrieval in both directions, and whether the vectors of a set stay apart. Then it writes a report, indexes
    new scenes, searches them, and prints what to open. This takes minutes on two CPU cores. If it is interrupted, run
    the same command again to resume.

    Examples:

      maxmatch demo

      maxmatch demo --serve --photos ~/Pictures

      maxmatch demo --serve

      maxmatch demo --out /tmp/demo --seed 1 train.epochs=2
    """
    if photos is not None and not serve:
        raise typer.BadParameter("--photos: needs --serve.")
    if serve:
        from maxmatch.cli.serve import check_installed
        from maxmatch.cli.serve import serve as open_on

        if as_json:
            raise typer.BadParameter("--json: there is no table of results with --serve. Leave one of them out.")
        check_installed()
        if photos is not None:
            open_on([photos], port=port, open_page=True)
            return
    from maxmatch.core.progress import bar
    from maxmatch.data.load import make_scenes
    from maxmatch.recipe.yaml_files import load_recipe
    from maxmatch.training.run import DONE, check_folder, result_of

    overrides = [f"seed={seed}", f"data.path={json.dumps(str(out / 'scenes'))}", *_SHORTER, *(changes or [])]
    methods = {"MaxMatch": _METHODS["MaxMatch"]} if serve else _METHODS
    recipes = {method: load_recipe(name, overrides) for method, name in methods.items()}
    scenes = recipes["MaxMatch"].data
    count = 0 if scenes.scenes is None else scenes.scenes.images
    with bar("scenes", count) as advance:  # here, or all three would generate them
        make_scenes(scenes, say, cores() if count >= _MANY else None, advance)
    runs = {method: out / f"{name}-{seed}" for method, name in methods.items()}
    for method, recipe in recipes.items():
        check_folder(runs[method], recipe, resume=True)
    commands = {
        method: _command("train", name, *overrides, "--resume", "--out", str(runs[method]))
        for method, name in methods.items()
        if not (runs[method] / DONE).exists()
    }
    _side_by_side(commands, runs, {method: _steps(recipe) for method, recipe in recipes.items()})
    if serve:
        open_on([_gallery(recipes["MaxMatch"], out)], model=str(runs["MaxMatch"]), port=port, open_page=True)
        return
    results = {method: result_of(folder) for method, folder in runs.items()}
    print(json.dumps(results, indent=2) if as_json else table(results), flush=True)
    if not as_json:
        tour(runs["MaxMatch"], _gallery(recipes["MaxMatch"], out), out)


def _gallery(recipe: "Recipe", out: Path) -> Path:
    """Scenes that the model has not seen, drawn larger than it sees them."""
    from maxmatch.data.scenes import generate

    assert recipe.data.scenes is not None
    generate(out / "gallery", images=_SHOWN, size=_PIXELS, seed=recipe.data.scenes.seed + 1)
    typer.echo(f'{_SHOWN} scenes. Try "{QUERY}", or "two blue stars on sand".', err=True)
    return out / "gallery" / "images"


def _steps(recipe: "Recipe") -> int:
    from maxmatch.data.scenes import split_sizes

    assert recipe.data.scenes is not None
    train = split_sizes(recipe.data.scenes.images)["train"]
    return recipe.train.epochs * -(-train // recipe.train.batch_size)


def _side_by_side(commands: dict[str, list[str]], runs: dict[str, Path], steps: dict[str, int]) -> None:
    """Train all models at the same time, a thread each: models as small as these gain nothing from a second one."""
    from tqdm import tqdm

    from maxmatch.core.files import read_metrics

    with ExitStack() as opened:
        # A demo that is asked to end stops its trainings first, as with Ctrl-C.
        opened.callback(signal.signal, signal.SIGTERM, signal.signal(signal.SIGTERM, signal.default_int_handler))
        work = {}
        for method, command in commands.items():
            runs[method].parent.mkdir(parents=True, exist_ok=True)
            log = opened.enter_context(runs[method].with_suffix(".log").open("wb"))
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            work[method] = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=log)
        bars = {
            method: opened.enter_context(tqdm(total=steps[method], desc=f"{method:<9}", position=place, unit="step"))
            for place, method in enumerate(commands)
        }
        try:
            while True:
                ended = [job.poll() is not None for job in work.values()]
                for method, bar in bars.items():
                    records = read_metrics(runs[method])
                    bar.n = records[-1]["step"] if records else 0
                    found = [record for record in records if record["kind"] == "val"]
                    bar.set_postfix_str(f"RSUM {found[-1]['rsum']:.1f}" if found else "")
                if all(ended):
                    break
                time.sleep(1)
        finally:
            for job in work.values():  # on Ctrl-C they save their states first; the next call resumes them
                job.terminate()
                job.wait()
    for method, job in work.items():
        if job.returncode:
            last = runs[method].with_suffix(".log").read_text(errors="replace").splitlines()[-5:]
            raise RuntimeError(f"{method} did not finish (exit {job.returncode}):\n" + "\n".join(last))


def table(results: dict[str, dict[str, float]]) -> str:
    """The methods side by side, against chance."""
    first = next(iter(results.values()))
    chance = {name.removeprefix("chance_"): value for name, value in first.items() if name.startswith("chance_")}
    lines = [
        " " * 10 + f"{'image to text':^21}{'text to image':^24}{'':8}{'log circular':>16}{'slots':>9}{'pairing':>9}",
        f"{'':10}" + "".join(f"{label:>{width}}" for _, label, width, _ in _COLUMNS),
    ]
    for method, found in {"chance": chance, **results}.items():
        cells = (f"{found[name]:>{width}{form}}" if name in found else "" for name, _, width, form in _COLUMNS)
        lines.append(f"{method:<10}" + "".join(cells))
    for method, found in results.items():
        times = [found[name] / chance[name] for name in ("i2t_r1", "t2i_r1")]
        lines.append(
            f"{method}: R@1 is {times[0]:.0f} × chance from image to text, {times[1]:.0f} × from text to image"
        )
    return "\n".join(lines)
