"""How much memory a program can still have."""

from pathlib import Path

_MACHINE = Path("/proc/meminfo")
_CONTAINER = Path("/sys/fs/cgroup")


def free_memory() -> int | None:
    """Bytes: the machine's, or what a container's limit leaves where that is less. None where it is not known."""
    try:
        fields = dict(line.split(":", 1) for line in _MACHINE.read_text().splitlines())
        free = int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError):
        return None
    try:
        limit, used = ((_CONTAINER / name).read_text().strip() for name in ("memory.max", "memory.current"))
        notes = dict(line.split() for line in (_CONTAINER / "memory.stat").read_text().splitlines())
    except OSError:
        return free
    if limit == "max":
        return free
    # What is kept of files counts as used, and is let go of when somebody needs the room.
    kept = int(notes.get("inactive_file", 0))
    return min(free, max(0, int(limit) - int(used) + kept))
