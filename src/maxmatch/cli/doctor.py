"""`maxmatch doctor`: what is installed, what the machine has, and what to do about what is wrong."""

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Annotated

import typer

from maxmatch.cli.finding import Finding


def doctor(
    uri: Annotated[
        str | None, typer.Option(help="A Milvus server to ask too, as http://localhost:19530.", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Look at installation and machine: what is wrong, and the cure.

    Packages and their versions, a torchvision that does not fit, devices, memory and disk, caches, engines of an index,
    the model that ships. Nothing is changed and, but for --uri, nobody is asked. Exit 1 if something is broken; what is
    only worth knowing, as an extra that is not installed, is a note.

    Examples:

      maxmatch doctor

      maxmatch doctor --uri http://localhost:19530

      maxmatch doctor --json > report.json
    """
    findings = list(examine(uri))
    if as_json:
        print(json.dumps([asdict(finding) for finding in findings], indent=2, ensure_ascii=False))
    else:
        width = max(len(finding.name) for finding in findings)
        for finding in findings:
            print(f"{finding.status:<6}{finding.name:<{width}}  {finding.detail} {finding.cure}".rstrip())
        print(_verdict(findings))
    if any(finding.status == "fail" for finding in findings):
        raise typer.Exit(1)


def examine(uri: str | None = None) -> Iterator[Finding]:
    """Everything the doctor looks at."""
    from maxmatch.cli import doctor_caches, doctor_machine, doctor_packages

    yield from doctor_packages.findings(uri)
    yield from doctor_machine.findings()
    yield from doctor_caches.findings()


def _verdict(findings: list[Finding]) -> str:
    broken = [finding.name for finding in findings if finding.status == "fail"]
    if not broken:
        return "All that is needed is there."
    return f"{len(broken)} of {len(findings)} need mending: {', '.join(broken)}."
