"""The model that a command names."""

import pytest
import torch
from tiny_models import tiny_model

from maxmatch.cli.loading import load_model, located


def test_a_run_stands_for_its_best_epoch(tmp_path):
    best, last = tiny_model("region_bigru", seed=1), tiny_model("region_bigru", seed=2)
    best.save_pretrained(tmp_path / "run" / "best")
    last.save_pretrained(tmp_path / "run" / "last")
    (tmp_path / "run" / "recipe.yaml").write_text("name: x\n")
    found = load_model(str(tmp_path / "run"), "cpu")
    assert torch.equal(found.encode_texts(["a dog"]), best.encode_texts(["a dog"]))
    assert located(str(tmp_path / "run")) == str((tmp_path / "run" / "best").resolve())
    with pytest.raises(ValueError, match="reads image, text, not audio"):
        load_model(str(tmp_path / "run" / "last"), "cpu", "audio")
