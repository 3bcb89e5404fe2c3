"""What the doctor found out about one thing."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at. status: "note" works, but is worth knowing. cure: what to do, where anything is."""

    name: str
    status: Literal["ok", "note", "fail"]
    detail: str
    cure: str = ""
