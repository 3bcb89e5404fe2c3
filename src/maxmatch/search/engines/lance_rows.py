"""From a table of Arrow to what an engine gives."""

from typing import Any

from maxmatch.search.engine import Found


def found_in(table: Any) -> Found:
    """The items of a table, their metadata too where it has them."""
    vectors = table["vector"].combine_chunks()
    flat = vectors.flatten().to_numpy(zero_copy_only=False)
    texts = table["metadata"].to_pylist() if "metadata" in table.column_names else None
    return Found(
        table["id"].to_pylist(), table["added"].to_numpy(), flat.reshape(len(vectors), vectors.type.list_size), texts
    )
