"""From a table of Arrow to what an engine gives."""

from typing import Any

import numpy as np

from maxmatch.search.engine import Found


def found_in(table: Any) -> Found:
    """The items of a table, their metadata too where it has them."""
    texts = table["metadata"].to_pylist() if "metadata" in table.column_names else None
    return Found(table["id"].to_pylist(), table["added"].to_numpy(), vectors_in(table), texts)


def vectors_in(table: Any) -> np.ndarray:
    """The vectors of a table, (n, width)."""
    vectors = table["vector"].combine_chunks()
    flat: np.ndarray = vectors.flatten().to_numpy(zero_copy_only=False)
    return flat.reshape(len(vectors), vectors.type.list_size)
