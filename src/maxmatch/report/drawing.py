"""All figures of a report, by the names of their files."""

from collections.abc import Iterator

import numpy as np
from matplotlib.figure import Figure

from maxmatch.report.contents import METHODS, Contents
from maxmatch.report.figures import (
    cosine_histogram,
    element_bars,
    facet_scores,
    heatmap,
    pairing_shares,
    slot_usage,
    training_curves,
)
from maxmatch.report.figures_items import attention_on_parts, attention_on_picture, scatter


def draw(contents: Contents) -> Iterator[tuple[str, Figure]]:
    """Every figure that there are numbers for, one after the other."""
    analysis = contents.analysis
    rows, columns = analysis.pair
    curves = training_curves(contents.records)
    if curves is not None:
        yield "training", curves
    within = {name: np.array(found.counts) for name, found in analysis.within.items() if sum(found.counts)}
    if within:
        yield "within-sets", cosine_histogram(np.array(analysis.within[rows].edges), within)
    yield "heatmap", heatmap({contents.title: analysis.between.true.numpy()}, rows, columns)
    yield "pairing", pairing_shares(analysis.pairing.counts.numpy(), rows, columns)
    usage = zip(analysis.pair, analysis.between.usage, strict=True)
    yield "usage", slot_usage({name: np.array(shares) for name, shares in usage})
    kept = {name: np.array(analysis.elements.rsum(name)) for name in analysis.pair}
    yield "elements", element_bars(kept, analysis.elements.whole["rsum"], analysis.chance["rsum"])
    for found in analysis.facets or ():
        yield f"facets-{found.modality}", facet_scores(found.scores, found.best, found.facets, found.modality)
    if contents.projection is not None:
        yield "vectors", _scatter(contents)
    yield from _attention(contents)


def _scatter(contents: Contents) -> Figure:
    found, pair = contents.projection, contents.analysis.pair
    assert found is not None
    of = np.array([pair.index(name) for name in found.modality])
    return scatter(found.points, np.array(found.slot), pair, of, METHODS[found.method])


def _attention(contents: Contents) -> Iterator[tuple[str, Figure]]:
    if contents.attention is None:
        return
    for number, (pair, seen) in enumerate(zip(contents.attention.pairs, contents.seen, strict=True), start=1):
        looks = pair.image_attention.numpy()
        if looks.ndim == 3 and seen is not None:
            yield f"attention-{number}-image", attention_on_picture(seen, looks)
        else:
            flat = looks.reshape(len(looks), -1)
            parts = [str(place + 1) for place in range(flat.shape[1])]
            yield f"attention-{number}-image", attention_on_parts(parts, flat, "region of the image")
        yield f"attention-{number}-text", attention_on_parts(pair.words, pair.text_attention.numpy(), "word")
