import json
import os
import subprocess

import pytest
import torch
from checkpoint_folders import FILES, change, run_with_our_threads
from tiny_models import SIZES, images_for, texts, tiny_config, tiny_model, tokenizer_for
from tiny_models import with_statistics as trained

from maxmatch import SetEncoder, similarity
from maxmatch.model import checkpoint
from maxmatch.model.build import build_model
from maxmatch.model.checkpoint import CheckpointError, load, model_card, notes_of, save
from maxmatch.model.config import ModelConfig


def fingerprint(folder):
    """Something that differs between models, and is there only if the whole checkpoint can be read."""
    return float(load(folder).encode_texts(["a dog"]).sum())


@pytest.mark.parametrize("name", SIZES)
def test_a_loaded_model_gives_the_same_sets_bit_by_bit(name, tmp_path):
    model = trained(tiny_model(name))
    model.save_pretrained(tmp_path / "model")
    again = SetEncoder.from_pretrained(tmp_path / "model")
    images, captions = images_for(model, 5), texts(5)
    assert torch.equal(again.encode_images(images), model.encode_images(images))
    assert torch.equal(again.encode_texts(captions), model.encode_texts(captions))
    assert again.config == model.config
    assert not any(module.training for module in again.modules())


def test_another_process_gives_the_same_sets_bit_by_bit(tmp_path):
    folders = []
    for name in SIZES:
        model = trained(tiny_model(name))
        folders.append(model.save_pretrained(tmp_path / name))
        sets = {"image": model.encode_images(images_for(model, 5)), "text": model.encode_texts(texts(5))}
        torch.save(sets, tmp_path / f"{name}.pt")
    code = """
import sys, torch
from tiny_models import images_for, texts
from maxmatch import SetEncoder
for folder in sys.argv[1:]:
    model = SetEncoder.from_pretrained(folder)
    sets = torch.load(folder + ".pt")
    assert torch.equal(model.encode_images(images_for(model, 5)), sets["image"])
    assert torch.equal(model.encode_texts(texts(5)), sets["text"])
print(len(sys.argv) - 1, "alike")
"""
    done = run_with_our_threads(code, *folders)
    assert done.stdout == f"{len(SIZES)} alike\n", done.stderr


def test_the_folder_holds_what_it_should_and_nothing_else(saved):
    assert sorted(path.name for path in saved.iterdir()) == FILES
    assert [path.name for path in saved.parent.iterdir()] == ["model"]
    data = json.loads((saved / "config.json").read_text())
    assert (data["format"], data["schema_version"], data["width"]) == ("maxmatch.SetEncoder", 1, 16)
    card = (saved / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: maxmatch\n")
    assert "| image | region | set | 4 |" in card


def test_pairing_is_kept(tmp_path):
    model = tiny_model("region_bigru")
    model.record_pairing([1, 0, 3, 2], 0.875)
    model.save_pretrained(tmp_path / "model")
    config = load(tmp_path / "model").config
    assert (config.pairing, config.pairing_stability) == ([1, 0, 3, 2], 0.875)
    assert "0–1, 1–0, 2–3, 3–2" in (tmp_path / "model" / "README.md").read_text()


def test_the_options_of_the_similarity_are_kept_and_acted_on(tmp_path):
    config = tiny_config("region_bigru").model_copy(
        update={"similarity": "smooth_chamfer", "similarity_options": {"alpha": 2.0}}
    )
    build_model(config, {"text": tokenizer_for(config)}, seed=0).save_pretrained(tmp_path / "model")
    model = SetEncoder.from_pretrained(tmp_path / "model")
    sets = model.encode_texts(texts(4))
    assert torch.equal(model.similarity(sets, sets), similarity.smooth_chamfer(sets, sets, alpha=2.0))
    assert not torch.equal(model.similarity(sets, sets), similarity.smooth_chamfer(sets, sets))
    assert model.similarity_like("smooth_chamfer").keywords == {"alpha": 2.0}
    assert model.similarity_like("top_k") == "top_k"


def test_options_that_the_similarity_does_not_take_are_refused(saved):
    change(saved, similarity_options={"alpha": 3.0})
    with pytest.raises(CheckpointError, match=r"similarity_options\.alpha: maxmatch takes no options"):
        load(saved)


def test_a_config_of_before_there_were_options_is_read(saved):
    path = saved / "config.json"
    written = json.loads(path.read_text())
    assert written.pop("similarity_options") == {}
    path.write_text(json.dumps(written))
    assert load(saved).similarity_options == {}


def test_two_towers_of_text_have_a_tokenizer_each(tmp_path):
    config = tiny_config("region_bigru")
    towers = {**config.towers, "german": config.towers["text"]}
    tokenizer = tokenizer_for(config)
    model = build_model(ModelConfig(width=16, towers=towers), {"text": tokenizer, "german": tokenizer})
    folder = model.save_pretrained(tmp_path / "model")
    assert sorted(path.name for path in folder.glob("tok*")) == ["tokenizer.german.json", "tokenizer.text.json"]
    assert torch.equal(load(folder).encode("german", ["a dog"]), model.encode("german", ["a dog"]))


def test_loading_leaves_the_random_state_alone(saved):
    before = torch.random.get_rng_state()
    load(saved)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_checkpoint_is_replaced_and_other_files_in_its_folder_stay(saved):
    (saved / "log.txt").write_text("mine")
    (saved / "runs").mkdir()
    other = tiny_model("region_bigru", seed=7)
    other.save_pretrained(saved)
    assert fingerprint(saved) == float(other.encode_texts(["a dog"]).sum())
    assert sorted(path.name for path in saved.iterdir()) == sorted([*FILES, "log.txt", "runs"])
    assert [path.name for path in saved.parent.iterdir()] == ["model"]


def test_a_folder_of_other_things_is_never_replaced(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(FileExistsError, match="holds files"):
        tiny_model("region_bigru").save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(FileExistsError, match="holds files"):
        tiny_model("region_bigru").save_pretrained(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "thesis.tex"]


def test_a_model_put_together_by_hand_says_why_it_cannot_be_saved(tmp_path):
    model = SetEncoder(dict(tiny_model("region_bigru").towers))
    with pytest.raises(ValueError, match="ModelConfig"):
        model.save_pretrained(tmp_path / "model")


@pytest.mark.parametrize("step", ["sync", "model_card", "_write"])
def test_a_save_that_fails_leaves_the_old_checkpoint(saved, monkeypatch, step):
    before = fingerprint(saved)

    def full(*_):
        raise OSError("no space left on device")

    monkeypatch.setattr(checkpoint, step, full)
    with pytest.raises(OSError, match="no space left"):
        save(tiny_model("region_bigru", seed=7), saved)
    monkeypatch.undo()
    assert fingerprint(saved) == before
    assert [path.name for path in saved.parent.iterdir()] == ["model"]


@pytest.mark.parametrize("failing", [1, 2])
def test_a_rename_that_fails_leaves_the_old_checkpoint(saved, monkeypatch, failing):
    before, calls, rename = fingerprint(saved), [], os.rename

    def sometimes(*paths):
        calls.append(paths)
        if len(calls) == failing:
            raise OSError("busy")
        rename(*paths)

    monkeypatch.setattr(os, "rename", sometimes)
    with pytest.raises(OSError, match="busy"):
        save(tiny_model("region_bigru", seed=7), saved)
    monkeypatch.undo()
    assert fingerprint(saved) == before
    assert [path.name for path in saved.parent.iterdir()] == ["model"]


@pytest.mark.parametrize(("dtype", "steps"), [("float32", range(1, 27)), ("float16", range(1, 27, 3))])
def test_a_process_killed_at_any_step_of_a_save_leaves_a_whole_checkpoint(saved, dtype, steps):
    """Each child saves a new model over the old one, and is killed by SIGKILL at its n-th call of the system."""
    (saved / "log.txt").write_text("mine")
    root = saved.parent
    old = fingerprint(saved)
    new = fingerprint(tiny_model("region_bigru", seed=7).save_pretrained(root / "new", dtype))
    code = """
import os, sys
from killed import Countdown, in_child
from tiny_models import tiny_model
model = tiny_model("region_bigru", seed=7)
for step in map(int, sys.argv[3:]):
    def work():
        Countdown(step).count(os, "rename", "fsync", "open", "mkdir", "unlink", "rmdir")
        model.save_pretrained(os.path.join(sys.argv[1], str(step), "model"), sys.argv[2])
    print({-9: "killed", 0: "done"}.get(in_child(work), "failed"))
"""
    for step in steps:
        (root / str(step)).mkdir()
        subprocess.run(["cp", "-r", str(saved), str(root / str(step) / "model")], check=True)
    done = run_with_our_threads(code, root, dtype, *steps)
    outcomes = done.stdout.split()
    assert set(outcomes) == {"killed", "done"}, done.stderr
    assert outcomes == sorted(outcomes, reverse=True)  # up to the last step of a whole save
    assert outcomes.count("killed") >= len(steps) // 2
    found = []
    for step in steps:
        folder = root / str(step) / "model"
        found.append(fingerprint(folder))
        again = tiny_model("region_bigru", seed=7).save_pretrained(folder, dtype)
        assert fingerprint(again) == new
        assert [path.name for path in again.parent.iterdir()] == ["model"]
        assert (again / "log.txt").read_text() == "mine"
    switch = found.index(new)
    assert switch > 0
    assert found == [old] * switch + [new] * (len(steps) - switch)


def test_a_device_can_be_chosen(saved):
    assert load(saved, device="cpu").device == torch.device("cpu")
    assert load(saved, device="meta").device == torch.device("meta")


def test_notes_are_kept_when_a_model_is_read_and_saved_again(tmp_path):
    model = tiny_model("region_bigru")
    model.notes = "## Training\n\nOn photos."
    folder = model.save_pretrained(tmp_path / "model", notes="## Licence\n\nFor research.\n")
    card = (folder / "README.md").read_text()
    assert card.endswith("<!-- notes -->\n## Training\n\nOn photos.\n\n## Licence\n\nFor research.\n")
    again = load(folder)
    assert again.notes == "## Training\n\nOn photos.\n\n## Licence\n\nFor research."
    again.save_pretrained(tmp_path / "half", dtype="float16")
    assert (tmp_path / "half" / "README.md").read_text() == card
    assert model.notes == "## Training\n\nOn photos."


def test_a_card_without_notes_asks_for_them_and_keeps_what_is_written_by_hand(tmp_path):
    folder = tiny_model("region_bigru").save_pretrained(tmp_path / "model")
    card = folder / "README.md"
    assert "is for its maker to add here" in card.read_text()
    assert load(folder).notes == ""
    card.write_text(card.read_text() + "\nTrained on {my} photos.\n")
    assert "Trained on {my} photos." in load(load(folder).save_pretrained(tmp_path / "again")).notes
    card.unlink()
    assert load(folder).notes == ""
    card.write_bytes(b"\xff\xfe no card at all")
    assert load(folder).notes == ""


def test_a_card_is_the_same_with_other_notes_above_their_mark():
    model = tiny_model("region_bigru")
    above = {model_card(model, notes).partition("<!-- notes -->")[0] for notes in ("", "one", "two")}
    assert len(above) == 1
    assert notes_of("# Someone's own file") == ""
