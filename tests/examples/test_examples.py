"""Every example runs as it stands, in a small size, without a warning and without a network."""

import re
import runpy
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest
import torch
from PIL import Image
from tiny_models import tiny_model
from torch.nn.functional import normalize

EXAMPLES = Path(__file__).parents[2] / "examples"


def example(name: str) -> ModuleType:
    spec = spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_example_is_in_the_table_and_in_this_file() -> None:
    files = {path.name for path in EXAMPLES.glob("*.py")}
    assert set(re.findall(r"\((\w+\.py)\)", (EXAMPLES / "README.md").read_text(encoding="utf-8"))) == files
    here = Path(__file__).read_text(encoding="utf-8")
    assert {f"{name}.py" for name in re.findall(r'(?:example\(|EXAMPLES / )"(\w+)(?:\.py)?"', here)} == files


def test_photos_are_ranked_for_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tiny_model("efficientnet_lite0_bigru")
    model.save_pretrained(tmp_path / "maxmatch-small")  # a folder of that name comes before the model that ships
    (tmp_path / "photos").mkdir()
    for number, colour in enumerate(("red", "green", "blue")):
        Image.new("RGB", (70, 50), colour).save(tmp_path / "photos" / f"{number}.png")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["search_photos.py", "photos", "a dog"])
    runpy.run_path(str(EXAMPLES / "search_photos.py"))
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    photos = [Path("photos") / f"{number}.png" for number in range(3)]
    scores = model.similarity(model.encode_texts(["a dog"]), model.encode_images(photos))[0]
    assert [Path(name) for _, name in lines] == [photos[place] for place in scores.argsort(descending=True)]
    assert [float(score) for score, _ in lines] == pytest.approx(sorted(scores.tolist(), reverse=True), abs=1e-3)


def test_a_loss_of_ones_own_learns(capsys: pytest.CaptureFixture[str]) -> None:
    assert example("own_loss").main(["--steps", "60"]) == 0
    before, after = map(float, re.findall(r"([\d.]+) %", capsys.readouterr().out))
    assert before < 5
    assert after > 50


def test_an_encoder_of_ones_own_is_as_good_as_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    own = example("own_encoder")
    assert own.main() == 0
    assert "image sets (3, 4, 64) and text sets (2, 4, 64)" in capsys.readouterr().out
    model = own.build(["a red square"])
    pictures = [Image.new("RGB", (60, 40 + n), (90 * n, 40, 200)) for n in range(3)]
    together, alone = model.encode_images(pictures), torch.cat([model.encode_images([one]) for one in pictures])
    torch.testing.assert_close(together, alone)
    assert model.look("image", pictures[0]).attention.shape == (4, 6, 6)


def test_tokens_of_clip_are_ranked(capsys: pytest.CaptureFixture[str]) -> None:
    assert example("clip_tokens").main(["a red circle", "--size", "4"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sorted(line.split("  ")[1] for line in lines) == [f"scene {number}" for number in range(4)]


def test_tokens_of_clip_go_the_way_that_its_own_vectors_go() -> None:
    clip = example("clip_tokens")
    torch.manual_seed(0)
    texts = ["a red circle", "two blue stars above a ring"]
    model, tokenizer = clip.tiny_clip(texts)
    model.eval()
    ids, mask = clip.encode(tokenizer, texts)
    sets = clip.text_sets(model, ids, mask, 16)
    lengths = mask.sum(1)
    assert sets.mask.sum(1).tolist() == (lengths - 1).tolist()  # all but the first token
    # The end token is the one that CLIP itself takes for the whole text.
    whole = model.get_text_features(input_ids=ids, attention_mask=mask.long())
    whole = whole if isinstance(whole, torch.Tensor) else whole.pooler_output
    torch.testing.assert_close(sets.vectors[torch.arange(2), lengths - 2], normalize(whole, dim=-1))
    pixels = torch.randn(2, 3, 64, 64)
    images = clip.image_sets(model, pixels, 16)
    assert images.vectors.shape == (2, 16, 24)  # four by four patches
    few = clip.image_sets(model, pixels, 5)
    assert few.vectors.shape == (2, 5, 24)
    few.vectors.sum().backward()
    assert model.vision_model.post_layernorm.weight.grad.abs().sum() > 0


def test_three_modalities_are_trained_and_measured_in_six_directions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status = example("three_modalities").main(["--out", str(tmp_path), "--scenes", "60", "--epochs", "1"])
    out = capsys.readouterr().out
    assert "6 unseen scenes" in out
    rows = re.findall(r"(\w+) to (\w+) +([\d.]+) % +([\d.]+) % +(\d+) ×", out)
    names = ("image", "text", "audio")
    assert {(a, b) for a, b, *_ in rows} == {(a, b) for a in names for b in names if a != b}
    assert len(rows) == 6
    for _, _, r1, chance, ratio in rows:
        assert float(chance) == pytest.approx(100 / 6, abs=0.01)
        assert float(r1) / float(chance) == pytest.approx(float(ratio), abs=0.51)
    assert status == (0 if all(float(r1) >= 10 * float(chance) for _, _, r1, chance, _ in rows) else 1)


def test_the_encoder_of_sounds_keeps_to_the_protocol() -> None:
    three = example("three_modalities")
    torch.manual_seed(0)
    encoder = three.SoundEncoder(16)
    clips = [torch.randn(count, three.BANDS) for count in (21, 10, 33)]
    values, mask = three.FeatureReader(three.BANDS).collate(clips)
    values[~mask] = 7.0  # what stands in padding must not matter
    features = encoder(values, mask)
    assert features.mask.sum(1).tolist() == [6, 3, 9]  # every fourth frame
    for place, clip in enumerate(clips):
        alone = encoder(clip[None])
        kept = features.mask[place]
        torch.testing.assert_close(features.local[place][kept], alone.local[0])
        torch.testing.assert_close(features.pooled[place], alone.pooled[0])
        torch.testing.assert_close(features.positions[place][kept], alone.positions[0])
