"""The sections of a report that are items: what slots find, what they look at, and where the model fails."""

from collections.abc import Mapping, Sequence

from maxmatch.evaluation.by_slot import Answer, BySlot, SlotExample
from maxmatch.evaluation.failures import Failure, Failures
from maxmatch.report.contents import Contents
from maxmatch.report.markup import DASH, Markup, data_uri, element, joined, number, table
from maxmatch.report.sections_numbers import paragraph, slot_recalls
from maxmatch.report.shown import Shown, thumbnail

_LEVELS = 9  # shades of words


def by_slot(contents: Contents) -> Markup:
    """What each slot finds, both ways."""
    ways = contents.analysis.by_slot
    return joined(
        paragraph(
            "Each row shows the nearest answers to one vector of the query alone, with their cosines. ✓ marks a true "
            f"answer. The {len(ways[0].examples)} + {len(ways[1].examples)} queries were drawn at random."
        ),
        *(_way(contents, found) for found in ways),
    )


def _way(contents: Contents, found: BySlot) -> Markup:
    return joined(
        element("h3", f"From {found.query} to {found.gallery}"),
        slot_recalls(found),
        *(_example(contents.items, found, example) for example in found.examples),
    )


def _example(items: Mapping[str, Shown], found: BySlot, example: SlotExample) -> Markup:
    rows = [
        joined(element("div", f"slot {slot + 1}", class_="label"), _answers(items.get(found.gallery), answers))
        for slot, answers in enumerate(example.answers)
    ]
    query = element("div", _item(items.get(found.query), example.item, example.id), class_="query")
    return element("div", query, element("div", *rows, class_="slots"), class_="example")


def failures(contents: Contents) -> Markup:
    """The worst queries, both ways."""
    return joined(
        paragraph(
            "The queries whose best true answer came last, the worst first: the best true answer, and below it the "
            "answers that were put before it, with their scores. A wrong answer may fit the query too: few captions "
            "fit one picture alone."
        ),
        *(_failures(contents.items, found, contents.analysis.items) for found in contents.analysis.failures),
    )


def _failures(items: Mapping[str, Shown], found: Failures, counts: Mapping[str, int]) -> Markup:
    return joined(
        element("h3", f"From {found.query} to {found.gallery}"),
        paragraph(
            f"{found.failed:,} of {counts[found.query]:,} queries have a wrong answer first"
            + (f"; here are the worst {len(found.worst)}." if found.worst else ".")
        ),
        *(_failure(items, found, failure, counts[found.gallery]) for failure in found.worst),
    )


def _failure(items: Mapping[str, Shown], found: Failures, failure: Failure, gallery: int) -> Markup:
    shown = items.get(found.gallery)
    query = joined(
        _item(items.get(found.query), failure.item, failure.id),
        element("span", f"true answer in place {failure.rank:,} of {gallery:,}", class_="place"),
    )
    rows = joined(
        element("div", "true answer", class_="label"),
        _answers(shown, [failure.right]),
        element("div", "put before it", class_="label"),
        _answers(shown, failure.wrong),
    )
    return element("div", element("div", query, class_="query"), element("div", rows, class_="slots"), class_="example")


def words(words: Sequence[str], weights: Sequence[float]) -> Markup:
    """A text whose words are the darker, the more attention they got."""
    most = max([*weights, 1e-12])
    shaded = [
        element("span", word, class_=f"h{level}" if (level := round(_LEVELS * weight / most)) else None)
        for word, weight in zip(words, weights, strict=True)
    ]
    spaced = [part for span in shaded for part in (span, " ")]
    return element("span", *spaced, class_="words")


def _answers(items: Shown | None, answers: Sequence[Answer]) -> Markup:
    texts = items is not None and bool(answers) and items.text(answers[0].item) is not None
    listed = [
        element(
            "li",
            _item(items, answer.item, answer.id),
            element("span", " ✓", class_="mark", title="a true answer") if answer.true else None,
            element("span", f" {number(answer.score, '.2f')}", class_="score"),
            class_="item right" if answer.true else "item wrong",
        )
        for answer in answers
    ]
    return element("ul", *listed, class_="answers lines" if texts else "answers")


def _item(items: Shown | None, item: int, name: str | None) -> Markup:
    """A thumbnail, a text, or a name where there is nothing to see."""
    known = name if name is not None else f"number {item}"
    if items is None:
        return element("span", known, class_="name")
    text = items.text(item)
    if text is not None:
        return element("span", text)
    picture = items.picture(item)
    if picture is None:
        return element("span", known, class_="name")
    return element("img", src=data_uri(thumbnail(picture), "image/jpeg"), alt=f"image {known}", title=known)


def attention(contents: Contents, pictures: Mapping[str, bytes]) -> Markup:
    """What each slot looks at."""
    found = contents.attention
    assert found is not None
    rows = [
        [f"{name} slot {slot + 1}", f"{100 * spread:.0f}"]
        for name, summary in (("image", found.image), ("text", found.text))
        for slot, spread in enumerate(summary.spread)
    ]
    overlaps = [
        f"{name} slots {overlap:.0%}"
        for name, summary in (("image", found.image), ("text", found.text))
        if (overlap := summary.mean_overlap) is not None
    ]
    return joined(
        paragraph(
            f"Where the slots of {len(found.pairs)} images and of their captions look. In pictures: the brighter a "
            "place, the more of its attention the slot gives to it. In captions: the stronger the shade behind a word, "
            "the more; each row is scaled to its own largest weight. Words stand as the model divides the text, with "
            "the marks that it puts around it."
        ),
        paragraph(
            "Two slots of one item look at the same places to this extent, on average (0% different places, 100% the "
            f"same): {', '.join(overlaps)}."
        )
        if overlaps
        else None,
        *(_looks(contents, pictures, place) for place in range(len(found.pairs))),
        table(["", "places it looks at (%)"], rows, "How widely each slot looks: 100% is everywhere evenly"),
    )


def _looks(contents: Contents, pictures: Mapping[str, bytes], place: int) -> Markup:
    assert contents.attention is not None
    pair = contents.attention.pairs[place]
    image = pictures.get(f"attention-{place + 1}-image")
    rows = [
        joined(element("div", f"text slot {slot + 1}", class_="label"), element("div", words(pair.words, weights)))
        for slot, weights in enumerate(pair.text_attention.tolist())
    ]
    met = ", ".join(
        f"{one.image_slot + 1}{DASH}{one.text_slot + 1} ({number(one.cosine, '.2f')})" for one in pair.pairs
    )
    return element(
        "div",
        element("img", src=data_uri(image, "image/png"), alt="What each image slot looks at", class_="strip")
        if image is not None
        else None,
        element("div", *rows, class_="slots"),
        element("p", f"Matched slots, image–text, with their cosines: {met}", class_="soft"),
        class_="example",
    )
