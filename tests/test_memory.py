import pytest

from maxmatch.core import machine as memory


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A machine with 8,000 kB left, whose container's files the tests write."""
    (tmp_path / "meminfo").write_text("MemTotal:   9000 kB\nMemAvailable:   8000 kB\n")
    monkeypatch.setattr(memory, "_MACHINE", tmp_path / "meminfo")
    monkeypatch.setattr(memory, "_CONTAINER", tmp_path)
    return tmp_path


def test_without_a_container_it_is_the_machines(machine):
    assert memory.free_memory() == 8000 * 1024


@pytest.mark.parametrize(
    ("limit", "left"), [("max", 8000 * 1024), ("1000000", 650_000), ("300000", 0), ("99000000", 8000 * 1024)]
)
def test_it_is_what_a_container_leaves_and_kept_files_are_no_loss(machine, limit, left):
    (machine / "memory.max").write_text(f"{limit}\n")
    (machine / "memory.current").write_text("400000\n")
    (machine / "memory.stat").write_text("anon 350000\ninactive_file 50000\n")
    assert memory.free_memory() == left


def test_where_the_system_does_not_say_it_is_not_known(machine):
    (machine / "meminfo").write_text("MemTotal:   9000 kB\n")
    assert memory.free_memory() is None
    (machine / "meminfo").unlink()
    assert memory.free_memory() is None
