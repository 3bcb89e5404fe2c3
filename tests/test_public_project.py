"""The files that a code host and other tools read say what is so."""

import re
from pathlib import Path

import yaml

import maxmatch

ROOT = Path(__file__).parents[1]


def test_the_citation_names_this_version_and_the_paper():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == maxmatch.__version__
    assert citation["preferred-citation"]["title"].startswith("Maximal Matching Matters")


def test_the_workflow_and_the_hooks_call_targets_and_tests_that_exist():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8"))
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    commands = [step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step]
    commands += [hook["entry"] for repo in hooks["repos"] for hook in repo["hooks"]]
    called = {target for command in commands for target in re.findall(r"\bmake ([a-z-]+)", command)}
    assert {"check", "test"} <= called <= targets
    folders = [word for command in commands for word in command.split() if word.startswith("tests/")]
    assert folders
    assert all((ROOT / folder).exists() for folder in folders)
