"""What `maxmatch demo` shows after its table: a report, an index, a search, and what to open; by commands to copy."""

import shlex
import subprocess
import sys
from pathlib import Path

from maxmatch.cli.progress import say

QUERY = "something red in front of snow"


def tour(run: Path, pictures: Path, out: Path) -> None:
    """Write the report of a run, index pictures with its model, and search them. What is there is not made again; what
    cannot be done, for want of an extra, is said and left out.
    """
    report, index = run / "analysis" / "report.html", out / "scenes.index"
    done = report.is_file() or _did("analyse", str(run))
    built = (index / "index.json").is_file() or _did(
        "index", "build", str(index), "--source", str(pictures), "--model", str(run)
    )
    found = built and _did("search", QUERY, str(index), "-k", "3")
    if done:
        say(f"what each vector of a set has learned: open {report}")
    if found:
        say(f"the page: {_written('serve', str(index), '--pictures', str(pictures), '--open')}")
    say(f"your own photos: {_written('search', 'two dogs in the snow', str(Path('~') / 'Pictures'))}")


def _did(*arguments: str) -> bool:
    """Whether a command of ours succeeded. What it found goes to stderr: stdout has the table alone."""
    say(f"$ {_written(*arguments)}")
    ended = subprocess.run(
        [sys.executable, "-m", "maxmatch.cli.main", *arguments], stdout=sys.stderr.fileno(), check=False
    )
    return ended.returncode == 0


def _written(*arguments: str) -> str:
    """A command as one types it."""
    return " ".join(["maxmatch", *(part if part.startswith("~") else shlex.quote(part) for part in arguments)])
