import pytest

from maxmatch.cli.main import main


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as ended:
        main(["demo", *map(str, arguments)])
    assert ended.value.code == 0
    return capsys.readouterr().out


def test_the_demo_trains_three_models_and_compares_them_and_does_nothing_twice(tmp_path, capsys):
    small = ["train.epochs=1", "train.batch_size=16", "data.scenes.images=40", "train.workers=0"]
    first = run(capsys, "--out", tmp_path, *small)
    lines = first.splitlines()
    assert [line.split()[0] for line in lines[2:6]] == ["chance", "MaxMatch", "SetDiv", "MIL"]
    assert (tmp_path / "scenes-0" / "best" / "model.safetensors").is_file()
    when = (tmp_path / "scenes-0" / "done.json").stat().st_mtime_ns
    assert run(capsys, "--out", tmp_path, *small) == first
    assert (tmp_path / "scenes-0" / "done.json").stat().st_mtime_ns == when
