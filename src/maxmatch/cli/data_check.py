"""`maxmatch data check`: what is in a data set, what is wrong with it, and what to do about it."""

import json
import shutil
import textwrap
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from maxmatch.data.check_report import CheckReport, FeatureCounts, Finding, Level, Pictures, Spread

_SHOWN = 3  # problems of each kind
_TITLES: "dict[Level, str]" = {"error": "ERROR", "warning": "warning", "note": "note"}
_HEADS = ("image", "text")  # the modalities that have columns of their own


def check(
    path: Annotated[Path, typer.Argument(help="A data set in any format, a store of features, or BUTD files.")],
    format: Annotated[str | None, typer.Option(help="Its format, where it is not the one that is recognised.")] = None,
    images: Annotated[Path | None, typer.Option(help="The folder of the pictures, where the data do not say.")] = None,
    pictures: Annotated[bool, typer.Option("--pictures/--no-pictures", help="Look at the pictures.")] = True,
    quick: Annotated[
        bool, typer.Option("--quick", help="Open pictures without decoding them to the end; do not read all features.")
    ] = False,
    show_all: Annotated[bool, typer.Option("--all", help=f"Print every problem, not {_SHOWN} of each kind.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Say what a data set holds, and what is wrong with it. Where, what, and what to do.

    Splits, captions and words are counted, every picture is decoded, every feature read; what is missing, damaged,
    there twice, or in two splits is named. Exit 1 where the data cannot be used as they are, 0 otherwise.

    Examples:

      maxmatch data check f30k/dataset_flickr30k.json --images f30k/images

      maxmatch data check coco_precomp --quick

      maxmatch data check photos --json > report.json
    """
    from maxmatch.cli.progress import bar, cores
    from maxmatch.data import check as looking

    report = looking.check(path, format, images=images, pictures=pictures, quick=quick, workers=cores(), progress=bar)
    print(json.dumps(report.as_json(), indent=2, ensure_ascii=False) if as_json else describe(report, show_all))
    if not report.usable:
        raise typer.Exit(1)


def describe(report: "CheckReport", show_all: bool = False) -> str:
    """The report as a person reads it."""
    lines = [f"{report.path}: {report.format or 'not recognised'}"]
    if report.splits:
        lines += ["", *_splits(report), "", *_contents(report)]
    for level, title in _TITLES.items():
        found = [finding for finding in report.findings if finding.level == level]
        for _, several in groupby(sorted(found, key=lambda finding: finding.kind), key=lambda finding: finding.kind):
            lines += ["", *_kind(title, list(several), show_all)]
    return "\n".join([*lines, "", _verdict(report)])


def _splits(report: "CheckReport") -> Iterator[str]:
    width = max(5, *map(len, report.splits))
    others = dict.fromkeys(name for split in report.splits.values() for name in split.items if name not in _HEADS)
    yield (
        f"{'split':<{width}}{'images':>10}{'captions':>10}"
        + "".join(f"{name:>10}" for name in others)
        + "  captions an image"
    )
    for name, split in report.splits.items():
        counts = [split.items.get(modality, 0) for modality in (*_HEADS, *others)]
        each = "" if split.captions_per_image is None else _per_image(split.captions_per_image)
        yield f"{name:<{width}}" + "".join(f"{count:>10,}" for count in counts) + f"  {each}".rstrip()


def _per_image(spread: "Spread") -> str:
    if spread.least == spread.most:
        return f"{spread.least:.0f}"
    return f"{spread.least:.0f} to {spread.most:.0f}, {spread.mean:.2f} on average"


def _contents(report: "CheckReport") -> Iterator[str]:
    words = report.vocabulary
    if words is not None:
        yield (
            f"words     {words.words:,} in the split {words.split!r}, {words.frequent:,} of them at least "
            f"{words.min_count} times; the longest caption has {words.longest}"
        )
    if report.pictures is not None:
        yield from _pictures(report.pictures)
    by_text: dict[str, list[str]] = {}
    for name, features in report.features.items():
        by_text.setdefault(_features(features), []).append(name)
    for text, names in by_text.items():
        yield f"features  {', '.join(names)}: {text}"


def _pictures(pictures: "Pictures") -> Iterator[str]:
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in pictures.kinds.items()) or "none"
    how = "decoded to their end" if pictures.decoded else "not decoded (--quick)"
    yield f"pictures  {kinds}; {pictures.bytes / 1e6:,.1f} MB; {how}"
    if pictures.widths is not None and pictures.heights is not None:
        sides = {"width": pictures.widths, "height": pictures.heights}
        yield "          " + "; ".join(
            f"{name} {side.least:,.0f} to {side.most:,.0f}, median {side.median:,.0f}" for name, side in sides.items()
        )


def _features(features: "FeatureCounts") -> str:
    each = features.per_image
    count = f"{each.least:.0f}" if each.least == each.most else f"{each.least:.0f} to {each.most:.0f}"
    return f"{count} × {features.width:,} {features.dtype} an image" + (
        "" if features.scanned else "; values not read (--quick)"
    )


def _kind(title: str, findings: Sequence["Finding"], show_all: bool) -> Iterator[str]:
    """Problems of one kind: the first few, how many more, and the cure."""
    shown = findings if show_all else findings[:_SHOWN]
    cures = {finding.problem.cure for finding in shown}
    for finding in shown:
        problem = finding.problem
        where = str(problem.file) if problem.line is None else f"{problem.file}:{problem.line}"
        yield from _wrapped(f"{title}  ", f"{where}: {problem.what}.", "    ")
        if len(cures) > 1:
            yield from _wrapped("    → ", problem.cure, "      ")
    if len(findings) > len(shown):
        yield f"    … and {len(findings) - len(shown):,} more of this kind (--all shows them)"
    if len(cures) == 1:
        yield from _wrapped("    → ", cures.pop(), "      ")


def _wrapped(first: str, text: str, then: str) -> list[str]:
    width = max(60, shutil.get_terminal_size((120, 24)).columns)
    return textwrap.wrap(
        text, width, initial_indent=first, subsequent_indent=then, break_long_words=False, break_on_hyphens=False
    )


def _verdict(report: "CheckReport") -> str:
    counts = {level: report.count(level) for level in _TITLES}
    said = ", ".join(f"{count:,} {level}{'s' if count > 1 else ''}" for level, count in counts.items() if count)
    if not report.usable:
        return f"Not usable as it is: {said}."
    return f"Usable: {said}." if said else "Fine."
