"""A checkpoint gives back the model, in either precision, and a save happens completely or not at all."""

import json
import os
import subprocess

import pytest
import torch
from made_data import run
from safetensors.torch import load_file
from tiny_models import CHECKPOINT, SIZES, images_for, texts, tiny_config, tiny_model, tokenizer_for
from tiny_models import with_statistics as trained

from maxmatch import SetEncoder, similarity
from maxmatch.model import checkpoint
from maxmatch.model.build import build_model
from maxmatch.model.checkpoint import load, model_card, notes_of, save
from maxmatch.model.config import ModelConfig
from maxmatch.model.names import check_same_model, model_identity
from maxmatch.model.numpy_text import numpy_text_encoder
from maxmatch.model.presets import PRESETS


def fingerprint(folder):
    """Something that differs between models, and is there only if the whole checkpoint can be read."""
    return float(load(folder).encode_texts(["a dog"]).sum())


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


def stored(folder):
    return load_file(folder / "model.safetensors")


def config_of(folder):
    return json.loads((folder / "config.json").read_text())


def lowest_cosine(one, other):
    return torch.nn.functional.cosine_similarity(one, other, dim=-1).min().item()


def run_with_our_threads(code, *arguments):
    """Another process, with as many threads as this one: sums in another order are not the same bit by bit."""
    return run(f"import torch; torch.set_num_threads({torch.get_num_threads()})\n{code}", *arguments)


# --- what is read back ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SIZES)
def test_a_loaded_model_gives_the_same_sets_bit_by_bit_and_half_a_checkpoint_nearly(name, tmp_path):
    model = trained(tiny_model(name))
    assert (model.dim, model.set_sizes, model.config) == (16, {"image": 4, "text": 4}, tiny_config(name))
    again = SetEncoder.from_pretrained(model.save_pretrained(tmp_path / "whole"))
    half = SetEncoder.from_pretrained(model.save_pretrained(tmp_path / "half", dtype=torch.float16))
    for modality, items in (("image", images_for(model, 5)), ("text", texts(5))):
        sets = model.encode(modality, items)
        assert torch.equal(again.encode(modality, items), sets)
        assert lowest_cosine(half.encode(modality, items), sets) >= 0.9999
    assert again.config == model.config
    assert not any(module.training for module in again.modules())
    assert {value.dtype for value in stored(tmp_path / "half").values() if value.is_floating_point()} == {torch.half}
    assert {value.dtype for value in half.state_dict().values() if value.is_floating_point()} == {torch.float}
    sizes = [sum(value.nbytes for value in stored(tmp_path / kind).values()) for kind in ("half", "whole")]
    assert sizes[0] < 0.51 * sizes[1]


@pytest.mark.parametrize(
    "options",
    [
        {"global_feature": "normalised"},
        {"projection": "mlp"},
        {"projection": "none"},
        {"projection": "none", "head": "pie", "init": "xavier"},
        {"head": "gpo", "set_size": 1},
        {"head": "global", "set_size": 1},
    ],
)
def test_other_readings_of_the_paper_are_kept_in_a_checkpoint(options, tmp_path):
    heads = {} if "head" in options else {"heads": 2, "head_width": 8}
    config = PRESETS["resnet152_bigru"](width=16, **heads, **SIZES["resnet152_bigru"], **options)
    model = trained(build_model(config, {"text": tokenizer_for(config)}, seed=0))
    again = SetEncoder.from_pretrained(model.save_pretrained(tmp_path / "model"))
    assert again.config == config
    for modality, items in (("image", images_for(model, 3)), ("text", texts(3))):
        assert torch.equal(again.encode(modality, items), model.encode(modality, items))


def test_another_process_gives_the_same_sets_bit_by_bit(tmp_path):
    folders = []
    for name in ("region_bigru", "efficientnet_lite0_bigru"):
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
    assert done.stdout == "2 alike\n", done.stderr


def test_the_folder_holds_what_it_should_and_nothing_else(saved):
    assert names_in(saved) == CHECKPOINT
    assert names_in(saved.parent) == ["model"]
    data = config_of(saved)
    assert (data["format"], data["schema_version"], data["width"]) == ("maxmatch.SetEncoder", 1, 16)
    card = (saved / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: maxmatch\n")
    assert "| image | region | set | 4 |" in card


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
def test_every_file_follows_the_umask(tmp_path):
    before = os.umask(0o027)
    try:
        folder = tiny_model("region_bigru").save_pretrained(tmp_path / "model")
    finally:
        os.umask(before)
    assert {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()} == dict.fromkeys(CHECKPOINT, 0o640)


def test_pairing_is_kept(tmp_path):
    model = tiny_model("region_bigru")
    model.record_pairing([1, 0, 3, 2], 0.875)
    config = load(model.save_pretrained(tmp_path / "model")).config
    assert (config.pairing, config.pairing_stability) == ([1, 0, 3, 2], 0.875)
    assert "0–1, 1–0, 2–3, 3–2" in (tmp_path / "model" / "README.md").read_text()


def test_the_options_of_the_similarity_are_kept_and_acted_on(saved, tmp_path):
    config = tiny_config("region_bigru").model_copy(
        update={"similarity": "smooth_chamfer", "similarity_options": {"alpha": 2.0}}
    )
    build_model(config, {"text": tokenizer_for(config)}, seed=0).save_pretrained(tmp_path / "soft")
    model = SetEncoder.from_pretrained(tmp_path / "soft")
    sets = model.encode_texts(texts(4))
    assert torch.equal(model.similarity(sets, sets), similarity.smooth_chamfer(sets, sets, alpha=2.0))
    assert not torch.equal(model.similarity(sets, sets), similarity.smooth_chamfer(sets, sets))
    assert model.similarity_like("smooth_chamfer").keywords == {"alpha": 2.0}
    assert model.similarity_like("top_k") == "top_k"
    old = config_of(saved)  # of before there were options
    assert old.pop("similarity_options") == {}
    (saved / "config.json").write_text(json.dumps(old))
    assert load(saved).similarity_options == {}


def test_two_towers_of_text_have_a_tokenizer_each(tmp_path):
    config = tiny_config("region_bigru")
    towers = {**config.towers, "german": config.towers["text"]}
    tokenizer = tokenizer_for(config)
    model = build_model(ModelConfig(width=16, towers=towers), {"text": tokenizer, "german": tokenizer})
    folder = model.save_pretrained(tmp_path / "model")
    assert {"tokenizer.german.json", "tokenizer.text.json"} < set(names_in(folder))
    assert torch.equal(load(folder).encode("german", ["a dog"]), model.encode("german", ["a dog"]))


def test_a_gpu_that_is_not_there_is_refused_before_anything_is_loaded(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="device cuda: torch sees no GPU"):
        load(tmp_path / "never looked at", device="cuda")


def test_loading_takes_a_device_and_leaves_the_random_state_alone(saved):
    before = torch.random.get_rng_state()
    assert load(saved, device="meta").device == torch.device("meta")
    assert torch.equal(torch.random.get_rng_state(), before)


# --- half precision -------------------------------------------------------------------------------------------------


def test_every_weight_is_rounded_to_the_nearest_half_and_the_config_tells(tmp_path):
    model = trained(tiny_model("resnet152_bigru"))
    folder = model.save_pretrained(tmp_path / "half", dtype="float16")
    for name, value in load(folder).state_dict().items():
        parent = model.state_dict()[name]
        assert torch.equal(value, parent.half().float() if parent.is_floating_point() else parent), name
    assert config_of(folder)["weights_dtype"] == "float16"
    model.save_pretrained(folder)
    assert config_of(folder)["weights_dtype"] == "float32"
    assert torch.equal(load(folder).encode_texts(texts(3)), model.encode_texts(texts(3)))


def test_what_half_precision_cannot_hold_stays_as_it_is(tmp_path):
    model = trained(tiny_model("resnet152_bigru"))
    norm = next(module for module in model.modules() if isinstance(module, torch.nn.BatchNorm2d))
    norm.running_var[0] = 70_000.0
    (name,) = [key for key, value in model.state_dict().items() if value.data_ptr() == norm.running_var.data_ptr()]
    weights = stored(model.save_pretrained(tmp_path / "half", dtype="float16"))
    assert [key for key, value in weights.items() if value.dtype == torch.float32] == [name]
    assert torch.equal(weights[name], norm.running_var)
    assert {value.dtype for key, value in weights.items() if key.endswith("num_batches_tracked")} == {torch.int64}
    images = images_for(model, 3)
    assert lowest_cosine(load(tmp_path / "half").encode_images(images), model.encode_images(images)) >= 0.9999


def test_a_half_checkpoint_is_a_model_of_its_own_whose_identity_stays(tmp_path):
    model = trained(tiny_model("region_bigru"))
    half = load(model.save_pretrained(tmp_path / "half", dtype="float16"))
    identity = model_identity(half)
    assert model_identity(load(half.save_pretrained(tmp_path / "again", dtype="float16"))) == identity
    assert model_identity(load(half.save_pretrained(tmp_path / "whole"))) == identity
    with pytest.raises(ValueError, match="their vectors cannot be compared"):
        check_same_model(model_identity(model), half)


# --- word vectors in eight bits -------------------------------------------------------------------------------------

_WORDS = "towers.text.encoder.words.weight"


def test_in_int8_each_word_is_off_by_at_most_half_a_step_and_all_else_is_halved(tmp_path):
    model = trained(tiny_model("region_bigru"))
    folder = model.save_pretrained(tmp_path / "small", dtype="int8")
    assert stored(folder)[_WORDS].dtype == torch.int8
    assert config_of(folder)["weights_dtype"] == "int8"
    for name, value in load(folder).state_dict().items():
        parent = model.state_dict()[name]
        if name == _WORDS:
            step = parent.abs().amax(1, keepdim=True).double() / 127
            assert bool(((value - parent).abs() <= 0.501 * step).all())
        else:
            assert torch.equal(value, parent.half().float() if parent.is_floating_point() else parent), name


def test_a_checkpoint_in_int8_is_a_model_of_its_own_whose_identity_stays(tmp_path):
    model = trained(tiny_model("region_bigru"))
    with torch.no_grad():
        words = model.state_dict()[_WORDS]
        words[0], words[1], words[2] = 0.0, words[1] * 1e-6, words[2] * 1e4  # nothing, tiny and large vectors
    small = load(model.save_pretrained(tmp_path / "small", dtype="int8"))
    again = load(small.save_pretrained(tmp_path / "again", dtype="int8"))
    assert model_identity(again) == model_identity(small) != model_identity(model)
    assert model_identity(load(small.save_pretrained(tmp_path / "whole"))) == model_identity(small)
    numpy = numpy_text_encoder(tmp_path / "small", lambda: small)
    assert numpy is not None
    assert numpy.identity == model_identity(small)
    torch.testing.assert_close(
        torch.from_numpy(numpy.encode_texts(texts(3))), small.encode_texts(texts(3)), rtol=0, atol=1e-5
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, "half", "int4"])
def test_another_dtype_is_refused_before_anything_is_written(dtype, tmp_path):
    with pytest.raises(ValueError, match="dtype: expected float32"):
        tiny_model("region_bigru").save_pretrained(tmp_path / "model", dtype=dtype)
    assert not any(tmp_path.iterdir())


# --- saving completely or not at all --------------------------------------------------------------------------------


def test_a_checkpoint_is_replaced_and_other_files_in_its_folder_stay(saved):
    (saved / "log.txt").write_text("mine")
    (saved / "runs").mkdir()
    other = tiny_model("region_bigru", seed=7)
    other.save_pretrained(saved)
    assert fingerprint(saved) == float(other.encode_texts(["a dog"]).sum())
    assert names_in(saved) == sorted([*CHECKPOINT, "log.txt", "runs"])
    assert names_in(saved.parent) == ["model"]


def test_a_folder_of_other_things_is_never_replaced(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(FileExistsError, match="holds files"):
        tiny_model("region_bigru").save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(FileExistsError, match="holds files"):
        tiny_model("region_bigru").save_pretrained(tmp_path)
    assert names_in(tmp_path) == ["config.json", "thesis.tex"]


def test_a_model_put_together_by_hand_cannot_be_saved(tmp_path):
    with pytest.raises(ValueError, match="ModelConfig"):
        SetEncoder(dict(tiny_model("region_bigru").towers)).save_pretrained(tmp_path / "model")


@pytest.mark.parametrize(
    ("owner", "step", "call"),
    [(checkpoint, "sync", 1), (checkpoint, "model_card", 1), (checkpoint, "save_file", 1)]
    + [(os, "rename", call) for call in (1, 2)],
)
def test_a_save_that_fails_leaves_the_old_checkpoint(saved, monkeypatch, owner, step, call):
    before, calls, original = fingerprint(saved), [], getattr(owner, step)

    def failing(*arguments, **options):
        calls.append(arguments)
        if len(calls) == call:
            raise OSError("no space left on device")
        return original(*arguments, **options)

    monkeypatch.setattr(owner, step, failing)
    with pytest.raises(OSError, match="no space left"):
        save(tiny_model("region_bigru", seed=7), saved)
    monkeypatch.undo()
    assert fingerprint(saved) == before
    assert names_in(saved.parent) == ["model"]


def test_a_process_killed_at_any_step_of_a_save_leaves_a_whole_checkpoint(saved):
    """Each child saves a new model over the old one, and is killed by SIGKILL at its n-th call of the system."""
    steps = range(1, 27)
    (saved / "log.txt").write_text("mine")
    root = saved.parent
    old = fingerprint(saved)
    model = tiny_model("region_bigru", seed=7)
    new = fingerprint(model.save_pretrained(root / "new", "float16"))
    code = """
import os, sys
from killed import Countdown, in_child
from tiny_models import tiny_model
model = tiny_model("region_bigru", seed=7)
for step in map(int, sys.argv[2:]):
    def work():
        Countdown(step).count(os, "rename", "fsync", "open", "mkdir", "unlink", "rmdir")
        model.save_pretrained(os.path.join(sys.argv[1], str(step), "model"), "float16")
    print({-9: "killed", 0: "done"}.get(in_child(work), "failed"))
"""
    for step in steps:
        (root / str(step)).mkdir()
        subprocess.run(["cp", "-r", str(saved), str(root / str(step) / "model")], check=True)
    done = run_with_our_threads(code, root, *steps)
    outcomes = done.stdout.split()
    assert set(outcomes) == {"killed", "done"}, done.stderr
    assert outcomes == sorted(outcomes, reverse=True)  # up to the last step of a whole save
    assert outcomes.count("killed") >= len(steps) // 2
    found = []
    for step in steps:
        folder = root / str(step) / "model"
        found.append(fingerprint(folder))
        assert fingerprint(model.save_pretrained(folder, "float16")) == new
        assert names_in(folder.parent) == ["model"]
        assert (folder / "log.txt").read_text() == "mine"
    switch = found.index(new)
    assert switch > 0
    assert found == [old] * switch + [new] * (len(steps) - switch)


# --- the model card -------------------------------------------------------------------------------------------------


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
    above = {model_card(model, notes).partition("<!-- notes -->")[0] for notes in ("", "one", "two")}
    assert len(above) == 1


def test_a_card_without_notes_asks_for_them_and_keeps_what_is_written_by_hand(saved, tmp_path):
    card = saved / "README.md"
    assert "is for its maker to add here" in card.read_text()
    assert load(saved).notes == ""
    card.write_text(card.read_text() + "\nTrained on {my} photos.\n")
    assert "Trained on {my} photos." in load(load(saved).save_pretrained(tmp_path / "again")).notes
    card.unlink()
    assert load(saved).notes == ""
    card.write_bytes(b"\xff\xfe no card at all")
    assert load(saved).notes == notes_of("# Someone's own file") == ""
