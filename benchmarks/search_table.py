"""Print the rows of the search benchmark as Markdown: `python -m benchmarks.search_table FOLDER`."""

import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.search_contenders import CONTENDERS

_SCAN = "top_hits on a memory map"
_HEADS = (
    "",
    "build s",
    "disk MB",
    "peak MB",
    "of it anonymous",
    "p50 ms",
    "p95 ms",
    "scan's p50 / p50",
    "QPS in a batch",
    "CPU ms alone, in a batch",
    "recall@10",
    "settings",
)


def table(work: Path) -> str:
    """All existing rows, one table per width and size."""
    sizes: dict[tuple[int, int], dict[str, Any]] = {}
    for path in work.glob("*/*.json"):
        facts = json.loads(path.read_text())
        sizes.setdefault((facts["width"], facts["items"]), {})[facts["name"]] = facts
    parts = []
    for (width, items), found in sorted(sizes.items()):
        title = next(iter(found.values()))["title"]
        parts += [f"**{items:,} × 4 × {width}** ({title})", "", _line(_HEADS), _line(["---"] * len(_HEADS))]
        scan = found[_SCAN]["rows"][""]["p50_ms"] if _SCAN in found and found[_SCAN]["rows"] else None
        for name in CONTENDERS:
            if name in found:
                parts += _lines(name, found[name], scan)
        parts.append("")
    return "\n".join(parts)


def _lines(name: str, facts: dict[str, Any], scan: float | None) -> list[str]:
    if facts["left_out"] is not None:
        return [_line([name, f"left out: {facts['left_out']}", *[""] * (len(_HEADS) - 2)])]
    lines = []
    for variant, row in facts["rows"].items():
        cells = [
            f"{name}, {variant}" if variant else name,
            f"{row['build_s']:.0f}" if row["disk_mb"] else "",
            f"{row['disk_mb']:.0f}" if row["disk_mb"] else "",
            f"{row['peak_mb']:.0f}",
            f"{row['anon_mb']:.0f}",
            _short(row["p50_ms"]),
            _short(row["p95_ms"]),
            "" if scan is None else _short(scan / row["p50_ms"]),
            _short(row["batch_qps"]),
            f"{_short(row['cpu_ms'])}, {_short(row['batch_cpu_ms'])}",
            f"{row['recall']:.4f}",
            row["settings"] + (f"; {row['singles']} queries alone" if row["singles"] < row["asked"] else ""),
        ]
        lines.append(_line(cells))
    return lines


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 20 else f"{value:.1f}"


def _line(cells: Any) -> str:
    return "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    print(table(Path(sys.argv[1])))
