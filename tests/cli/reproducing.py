"""The command `maxmatch reproduce`, its models trained in this process."""

import io

import pytest

from maxmatch.cli.main import main
from maxmatch.reproduce import jobs, worker


class Done:
    """A process that has ended."""

    def __init__(self, code):
        self.returncode, self.stdin = code, io.BytesIO()

    def poll(self):
        return self.returncode

    def wait(self, timeout=None):
        return self.returncode


def at_once(job, device):
    """In place of a process of its own, where only the start takes seconds."""
    job.write()
    with worker.alone(job.folder):
        try:
            worker.work(job, device)
        except ValueError as error:
            (job.folder / "log.txt").write_text(f"Traceback\nmaxmatch: {error}\n")
            return Done(1)
    return Done(0)


def in_this_process():
    jobs.start = at_once


def arguments(data, out, *more, target="ablation"):
    options = ["--data", data / "regions", "--base", data / "tiny.yaml", "--out", out, "--device", "cpu", "--jobs", 1]
    return [str(one) for one in ("reproduce", target, *options, *more)]


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as end:
        main(list(arguments))
    return end.value.code, capsys.readouterr()
