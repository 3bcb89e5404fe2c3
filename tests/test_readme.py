"""What the README shows works as it stands there."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

_README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
_BLOCKS = re.findall(r"```python\n(.*?)```", _README, re.DOTALL)


@pytest.mark.parametrize("number", range(len(_BLOCKS)))
def test_every_code_block_of_the_readme_runs_without_a_warning(number: int, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", _BLOCKS[number]],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_the_readme_has_code_to_run() -> None:
    assert len(_BLOCKS) >= 2
