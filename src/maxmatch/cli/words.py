"""The words of `maxmatch evaluate --words`, and which captions of what was measured have any of them."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import typer

from maxmatch.cli.sources import Source, data_of

if TYPE_CHECKING:
    import numpy as np

    from maxmatch.evaluation.encoding import EncodedSplit


def asked_words(words: str | None, source: str | None) -> frozenset[str]:
    """The words that were given, or those that a recipe holds out of training; none where neither was given."""
    if words is not None and source is not None:
        raise typer.BadParameter("choose one of --words and --words-from.")
    if source is None and words is None:
        return frozenset()
    from maxmatch.data.held_out import checked_words

    if source is None:
        assert words is not None
        named = [word for part in words.split(",") if (word := part.strip())]
        option = "--words"
    else:
        from maxmatch.recipe_files import load_recipe

        named, option = list(load_recipe(source).data.hold_out_words), "--words-from"
    if not named:
        raise typer.BadParameter(f"{option}: no words. Expected some, as in --words snow,beach, or a recipe with them.")
    return checked_words(named, option)


def captions_with(
    words: frozenset[str], sources: Sequence[Source], data: str | None, said: dict[str, Any], encoded: "EncodedSplit"
) -> "np.ndarray":
    """Which captions of the encoded split have any of the words, in its order."""
    import numpy as np

    from maxmatch.data.held_out import words_met
    from maxmatch.data.items import TEXT
    from maxmatch.data.loading import load_data

    if all(source.kind == "sets" for source in sources):
        raise typer.BadParameter(
            "--words looks at captions, which files of sets do not hold. Give a model and the data."
        )
    if TEXT not in encoded.ids:
        raise typer.BadParameter(f"--words looks at captions, but the models have {', '.join(encoded.ids)}.")
    known = data_of(sources, data).model_copy(update=said)
    texts = load_data(known, lambda line: None).split(encoded.notes["split"])[TEXT]
    places = {str(name): place for place, name in enumerate(texts.ids)}
    captions = [texts.values[places[name]] for name in encoded.ids[TEXT]]
    return np.array([len(own) > 0 for own in words_met(captions, words)], np.bool_)
