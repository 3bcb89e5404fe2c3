import json
import os
import signal
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest
from PIL import Image

from maxmatch.cli.demo import _side_by_side, table, tour
from maxmatch.cli.main import main

SMALL = ["train.epochs=1", "data.scenes={images: 40, size: 32}", "train.workers=0", "model.config.width=16"]


def demo(capsys, out, *more):
    main_ended = None
    try:
        main(["demo", "--out", str(out), *SMALL, *more])
    except SystemExit as end:
        main_ended = end.code
    return main_ended, capsys.readouterr()


def test_the_demo_compares_three_methods_and_does_nothing_twice(tmp_path, capsys, monkeypatch):
    trained, shown = [], []

    def in_this_process(commands, runs, steps):
        """Each training is a process of its own otherwise, which takes longer to load than to train."""
        for method, command in commands.items():
            trained.append(method)
            with pytest.raises(SystemExit) as end:
                main(command[3:])
            assert not end.value.code
        capsys.readouterr()

    monkeypatch.setattr("maxmatch.cli.demo._side_by_side", in_this_process)
    monkeypatch.setattr("maxmatch.cli.demo.tour", lambda *places: shown.append(places))
    monkeypatch.setattr("maxmatch.cli.demo._SHOWN", 6)
    code, printed = demo(capsys, tmp_path, "--json")
    assert code == 0
    results = json.loads(printed.out)
    assert list(results) == trained == ["MaxMatch", "SetDiv", "MIL"]
    assert {"rsum", "chance_rsum", "image_log_variance", "slots_used"} <= results["MIL"].keys()
    folders = sorted(path.name for path in tmp_path.iterdir() if path.is_dir())
    assert folders == ["scenes", "scenes-0", "scenes_mil-0", "scenes_setdiv-0"]
    code, printed = demo(capsys, tmp_path)
    assert code == 0
    assert len(trained) == 3
    assert printed.out == table(results) + "\n"
    assert shown == [(tmp_path / "scenes-0", tmp_path / "gallery" / "images", tmp_path)]
    code, printed = demo(capsys, tmp_path, "train.epochs=2")
    assert code == 1
    assert "another recipe" in printed.err


def test_models_are_trained_side_by_side_and_one_that_fails_is_reported(tmp_path, capsys):
    def process(code, method):
        return [
            sys.executable,
            "-c",
            code,
            str(tmp_path / method),
            json.dumps({"kind": "val", "step": 7, "rsum": 123.4}),
        ]

    works = "import os, sys; os.mkdir(sys.argv[1]); open(f'{sys.argv[1]}/metrics.jsonl', 'w').write(sys.argv[2])"
    fails = "import sys; print('out of memory', file=sys.stderr); sys.exit(3)"
    commands = {"one": process(works, "one"), "two": process(works, "two")}
    runs = {method: tmp_path / method for method in commands}
    _side_by_side(commands, runs, dict.fromkeys(commands, 7))
    shown = capsys.readouterr().err
    assert "7/7" in shown
    assert "RSUM 123.4" in shown
    with pytest.raises(RuntimeError, match=r"two did not finish \(exit 3\):\nout of memory"):
        _side_by_side({"two": process(fails, "two")}, runs, {"two": 7})


def test_trainings_end_with_a_demo_that_is_asked_to_end(tmp_path):
    code = "import os, sys, time; print(os.getpid(), file=open(sys.argv[1], 'w'), flush=True); time.sleep(60)"
    written, command = tmp_path / "pid", [sys.executable, "-c", code, str(tmp_path / "pid")]

    def ask():
        while not (written.exists() and written.read_text()):
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    threading.Thread(target=ask, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        _side_by_side({"one": command}, {"one": tmp_path / "one"}, {"one": 7})
    assert signal.getsignal(signal.SIGTERM) == before
    with pytest.raises(ProcessLookupError):
        os.kill(int(written.read_text()), 0)


def test_the_demos_models_need_no_transformers():
    """Importing it takes longer than some epochs, in every process of the demo."""
    code = (
        "import sys; from maxmatch.cli.demo import _SHORTER; from maxmatch.recipe.yaml_files import load_recipe;"
        "from maxmatch.training.prepare import prepare; from maxmatch.training.loop import train;"
        "from maxmatch.model.build import build_model; from maxmatch.model.text import word_tokenizer;"
        "build_model(load_recipe('scenes', _SHORTER).model.resolved(), {'text': word_tokenizer(['a'], 1)});"
        "print('transformers' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_the_tour_makes_a_report_an_index_and_a_search_and_tells_what_to_open(tmp_path, capsys, monkeypatch):
    asked, fails = [], []

    def ran(command, **options):
        asked.append(command[3:])
        return SimpleNamespace(returncode=int(command[3] in fails))

    monkeypatch.setattr("maxmatch.cli.demo.subprocess.run", ran)
    monkeypatch.setattr("maxmatch.cli.demo.sys.stderr", SimpleNamespace(fileno=lambda: 2))
    lines = []
    monkeypatch.setattr("maxmatch.cli.demo.say", lines.append)
    tour(tmp_path / "run", tmp_path / "new scenes", tmp_path)
    assert [command[0] for command in asked] == ["analyse", "index", "search"]
    assert any(line.endswith("report.html") for line in lines)
    assert f"maxmatch serve {tmp_path}/scenes.index --pictures '{tmp_path}/new scenes' --open" in lines[-2]
    fails += ["analyse", "index"]
    lines.clear()
    tour(tmp_path / "run", tmp_path / "new scenes", tmp_path)
    assert len(asked) == 5, "no search without an index"
    assert lines[-1] == "your own photos: maxmatch search 'two dogs in the snow' ~/Pictures"
    assert not any("report.html" in line or "serve" in line for line in lines)


@pytest.fixture
def served(monkeypatch):
    """What the page would have been opened on."""
    asked = []
    monkeypatch.setattr("maxmatch.cli.serve.serve", lambda folder, **more: asked.append((folder, more)))
    return asked


def test_the_page_opens_on_new_scenes_with_the_demos_own_model(tmp_path, capsys, served, monkeypatch):
    trained = []
    monkeypatch.setattr("maxmatch.cli.demo._side_by_side", lambda commands, runs, steps: trained.extend(commands))
    monkeypatch.setattr("maxmatch.cli.demo._SHOWN", 6)
    code, printed = demo(capsys, tmp_path, "--serve", "--port", "0")
    assert code == 0, printed.err
    assert trained == ["MaxMatch"]
    [([folder], more)] = served
    assert more == {"model": str(tmp_path / "scenes-0"), "port": 0, "open_page": True}
    shown = sorted(folder.glob("*.png"))
    assert len(shown) == 6
    with Image.open(shown[0]) as picture, Image.open(tmp_path / "scenes" / "images" / shown[0].name) as learned:
        assert picture.size == (192, 192)
        assert picture.resize(learned.size).tobytes() != learned.tobytes(), "these were learned from"


def test_the_page_opens_on_photos_without_any_training(tmp_path, capsys, served):
    code, printed = demo(capsys, tmp_path / "out", "--serve", "--photos", str(tmp_path))
    assert code == 0, printed.err
    assert served == [([tmp_path], {"port": 8765, "open_page": True})]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("wrong", [["--photos", "."], ["--serve", "--json"]])
def test_options_that_do_not_go_together_are_refused(tmp_path, capsys, served, wrong):
    assert demo(capsys, tmp_path, *wrong)[0] == 2
    assert served == []


def test_the_table_has_recalls_against_chance_and_collapse_side_by_side():
    names = ("i2t_r1", "i2t_r5", "i2t_r10", "t2i_r1", "t2i_r5", "t2i_r10", "rsum")
    found = {name: 10.0 + place for place, name in enumerate(names)}
    found |= {f"chance_{name}": 1.0 for name in names}
    found |= {"image_log_variance": -1.5, "text_log_variance": -2.25, "slots_used": 0.5, "pairing_stability": 0.97}
    lines = table({"MaxMatch": found}).splitlines()
    assert lines[2].split() == ["chance", "1.00", "1.0", "1.0", "1.00", "1.0", "1.0", "1.0"]
    recalls = ["10.00", "11.0", "12.0", "13.00", "14.0", "15.0", "16.0"]
    assert lines[3].split() == ["MaxMatch", *recalls, "-1.50", "-2.25", "50%", "97%"]
    assert "10 × chance from image to text, 13 × from text to image" in lines[4]
