"""A report as one page that stands alone: its sections, numbers first, then items. Nothing in it runs or loads."""

from collections.abc import Mapping, Sequence
from importlib.resources import files

from maxmatch import __version__
from maxmatch.evaluation.analysis import Analysis, Failure, Failures, Specialisation
from maxmatch.evaluation.metrics import LEVELS
from maxmatch.evaluation.report.contents import METHODS, Contents, Shown, thumbnail
from maxmatch.evaluation.report.html import DASH, Child, Markup, an, data_uri, document, element, joined, number, table
from maxmatch.evaluation.slots import BySlot, SlotAnswer, SlotExample

# The sections of a report that are numbers: each a heading, what it says, figures and tables.


def figure(pictures: Mapping[str, bytes], name: str, reading: str) -> Markup | None:
    """A figure with a sentence that says how to read it; None where it was not drawn."""
    if name not in pictures:
        return None
    shown = element("img", src=data_uri(pictures[name], "image/png"), alt=reading)
    return element("figure", shown, element("figcaption", reading))


def paragraph(*children: Child) -> Markup:
    """A paragraph."""
    return element("p", *children)


def retrieval(analysis: Analysis) -> Markup:
    """How well each side finds the other."""
    first, second = analysis.pair
    ways = {"i2t": f"{first} to {second}", "t2i": f"{second} to {first}"}
    found, chance = analysis.retrieval, analysis.chance
    rows = [
        [
            label,
            *(f"{found[f'{way}_r{level}']:.1f}" for level in LEVELS),
            f"{found[f'{way}_median_rank']:.0f}",
            f"{found[f'{way}_mean_rank']:.1f}",
            f"{found[f'{way}_ties']:.0f}",
        ]
        for way, label in ways.items()
    ]
    rows += [
        [f"{label}, by chance", *(f"{chance[f'{way}_r{level}']:.1f}" for level in LEVELS), "", "", ""]
        for way, label in ways.items()
    ]
    return joined(
        paragraph(
            f"R@k: of 100 queries, how many have a true answer among the first k. RSUM is the sum of all six: "
            f"{found['rsum']:.1f} of 600, by chance {chance['rsum']:.1f}. Rank: the place of the best true answer, "
            "1 is best. Ties: queries whose true answer scores the same as a wrong one; they count against the model."
        ),
        table(["", *(f"R@{level} (%)" for level in LEVELS), "median rank", "mean rank", "ties"], rows),
    )


def training(pictures: Mapping[str, bytes]) -> Markup:
    """How training went."""
    return joined(
        figure(
            pictures,
            "training",
            "From top to bottom: RSUM on the validation split (higher is better), the terms of the training loss, and "
            "how far apart the vectors of a set are (log circular variance; 0 is as far as possible).",
        )
    )


def collapse(analysis: Analysis, pictures: Mapping[str, bytes]) -> Markup:
    """Whether the vectors of a set are one and the same."""
    rows = [
        [
            f"{name}s",
            f"{analysis.set_sizes[name]}",
            number(analysis.log_variance[name], ".2f"),
            "–" if (mean := analysis.within[name].mean) is None else number(mean, ".2f"),
        ]
        for name in analysis.pair
    ]
    alone = all(size == 1 for size in analysis.set_sizes.values())
    return joined(
        paragraph(
            "A set collapses when all its vectors point the same way: then it says no more than one vector. Circular "
            "variance is 1 − (length of the mean vector)². Its logarithm is 0 when the vectors of a set cancel out, "
            "and falls without end as they come together. The mean cosine is 1 when all vectors of a set are the same, "
            "and 0 when they have nothing in common."
        ),
        paragraph("With one vector in each set there is nothing to compare.") if alone else None,
        table(["", "vectors in a set", "log circular variance", "mean cosine within a set"], rows),
        figure(
            pictures,
            "within-sets",
            "Cosines between the vectors of one set, over all sets. A hill at 1 means collapse; a hill near 0 means "
            "that the vectors of a set say different things.",
        ),
    )


def meeting(analysis: Analysis, pictures: Mapping[str, bytes]) -> Markup:
    """Which slots meet."""
    first, second = analysis.pair
    pairing = analysis.pairing
    usual = ", ".join(f"{slot + 1}{DASH}{partner + 1}" for slot, partner in enumerate(pairing.partner) if partner >= 0)
    return joined(
        paragraph(
            f"The vectors of a set have numbers, called slots. In the best one-to-one matching of {an(first)} and its "
            f"{second}, {first} slots meet {second} slots. The usual partners are {usual} ({first}–{second}); "
            f"{pairing.stability:.1%} of true pairs are matched exactly so. Of all slots, {pairing.used:.0%} ever have "
            f"a part in the score of a true pair by {analysis.similarity}."
        ),
        element(
            "div",
            figure(
                pictures,
                "heatmap",
                f"Mean cosine of each {first} slot (row) with each {second} slot (column), over true pairs. One bright "
                "cell in each row: every slot has its own partner. All the same: the slots cannot be told apart.",
            ),
            figure(
                pictures,
                "pairing",
                f"Of 100 true pairs, in how many {an(first)} slot (row) is matched with {an(second)} slot (column). "
                "100 and 0 alone: the matching is always the same one.",
            ),
            figure(
                pictures,
                "usage",
                "Of 100 true pairs, in how many the largest of all cosines is one of this slot. One tall bar: the "
                "closest vectors are nearly always those of one slot.",
            ),
            class_="figures",
        ),
    )


def elements(analysis: Analysis, pictures: Mapping[str, bytes]) -> Markup:
    """What each slot is worth."""
    names = ("i2t_r1", "i2t_r10", "t2i_r1", "t2i_r10", "rsum")
    rows: list[list[str | Markup]] = [["all slots", *(f"{analysis.elements.whole[name]:.1f}" for name in names)]]
    for modality in analysis.pair:
        rows += [
            [f"{modality} slot {slot + 1} only", *(f"{found[name]:.1f}" for name in names)]
            for slot, found in enumerate(analysis.elements.kept[modality])
        ]
    first, second = analysis.pair
    headings = [f"{first}→{second} R@1", "R@10", f"{second}→{first} R@1", "R@10", "RSUM"]
    return joined(
        paragraph(
            "Retrieval when one side keeps a single slot and the other side all of its slots. If every slot alone does "
            "as well as all together, they say the same; if one does and the others do not, the others are idle."
        ),
        figure(
            pictures, "elements", "RSUM with one slot kept, for each slot; the dashed line is RSUM with whole sets."
        ),
        table(["", *headings], rows),
    )


def vectors(pictures: Mapping[str, bytes], method: str) -> Markup:
    """Where vectors lie."""
    reading = (
        f"{method} puts vectors that are close to each other close together in the plane; directions and distances far "
        "apart mean nothing. Colour: slot; dots: images; crosses: texts. Slots that say different things form clusters "
        "of their own, in which dots and crosses mix."
    )
    return joined(figure(pictures, "vectors", reading))


def facets(found: tuple[Specialisation, Specialisation], pictures: Mapping[str, bytes]) -> Markup:
    """Whether slots specialise."""
    rows: list[list[str | Markup]] = [
        [
            f"{one.modality} slots",
            number(one.specialisation, ".3f"),
            number(one.own, ".3f"),
            number(one.one, ".3f"),
            f"{number(one.interval[0], '.3f')} to {number(one.interval[1], '.3f')}",
            "< 0.001" if one.p_value < 0.001 else f"{one.p_value:.3f}",
        ]
        for one in found
    ]
    shown = [
        figure(
            pictures,
            f"facets-{one.modality}",
            f"How clearly each {one.modality} slot (column) tells the true picture from all others, for captions about "
            "one thing (row): by how many standard deviations the true picture stands above the average. Framed: the "
            "best slot of a row. If slots specialise, the frames are in different columns.",
        )
        for one in found
    ]
    headings = [
        "specialisation",
        "by the facet's slot",
        "by one slot for all",
        "difference, 95% interval",
        "preference, p",
    ]
    return joined(
        paragraph(
            "Of these pictures it is known what each caption is about, its facet. If slots specialise, captions about "
            "one facet are recognised by one slot, and captions about another by another. Compared are two ways to "
            "choose a slot: for each facet its own, or one for all captions, both chosen on other pictures. "
            "Specialisation is 0 where the first is no better than the second, and 1 where each facet is recognised by "
            "a slot of its own and by no other. A preference is less: the facet has some influence on which slot is "
            "clearest; p is the share of random orders of the facets that have as much."
        ),
        table(["", *headings], rows),
        element("div", *shown, class_="figures"),
    )


def slot_recalls(found: BySlot) -> Markup:
    """How well each slot finds answers by itself."""
    rows: list[list[str | Markup]] = [
        [f"slot {slot + 1}", *(f"{recalls[f'r{level}']:.1f}" for level in LEVELS)]
        for slot, recalls in enumerate(found.recalls)
    ]
    rows.append(["best slot, by hindsight", *(f"{found.any_slot[f'r{level}']:.1f}" for level in LEVELS)])
    return joined(
        paragraph(
            f"The {len(found.recalls)} slots of {an(found.query)} have {found.distinct:.2f} different first answers on "
            f"average (1: all agree; {len(found.recalls)}: all differ)."
        ),
        table(
            ["", *(f"R@{level} (%)" for level in LEVELS)], rows, f"From {found.query} to {found.gallery} by one slot"
        ),
    )


# The sections of a report that are items: what slots find, what they look at, and where the model fails.

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


def _answers(items: Shown | None, answers: Sequence[SlotAnswer]) -> Markup:
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


# A report as one page that stands alone: nothing is loaded from elsewhere, nothing in it runs.


def page(contents: Contents, pictures: Mapping[str, bytes]) -> str:
    """The whole page. pictures: the figures as PNG files, by name; those that are not there are left out."""
    parts = _sections(contents, pictures)
    style = files("maxmatch.evaluation.report").joinpath("style.css").read_text(encoding="utf-8")
    listed = [element("li", element("a", title, href=f"#{name}")) for name, (title, _) in parts.items()]
    return document(
        f"{contents.title}: analysis",
        style,
        element(
            "header",
            element("h1", f"What {contents.title} has learnt"),
            element("p", _subtitle(contents), class_="soft"),
        ),
        _key_numbers(contents),
        element("nav", element("h2", "Contents"), element("ol", *listed)),
        element(
            "main",
            *(element("section", element("h2", title), body, id=name) for name, (title, body) in parts.items()),
        ),
    )


def _sections(contents: Contents, pictures: Mapping[str, bytes]) -> dict[str, tuple[str, Markup]]:
    """The sections, by the names that links have: title and content."""
    analysis = contents.analysis
    found = {"retrieval": ("Retrieval", retrieval(analysis))}
    if "training" in pictures:
        found["training"] = ("Training", training(pictures))
    found["collapse"] = ("Are the vectors of a set different?", collapse(analysis, pictures))
    found["meeting"] = ("Which slots meet", meeting(analysis, pictures))
    found["elements"] = ("What each slot is worth", elements(analysis, pictures))
    if contents.projection is not None:
        found["vectors"] = ("Where the vectors lie", vectors(pictures, METHODS[contents.projection.method]))
    if analysis.facets is not None:
        found["facets"] = ("Do slots specialise?", facets(analysis.facets, pictures))
    found["by-slot"] = ("What each slot finds", by_slot(contents))
    if contents.attention is not None:
        found["attention"] = ("What each slot looks at", attention(contents, pictures))
    found["failures"] = ("Where the model fails", failures(contents))
    found["about"] = ("About this report", _about(contents))
    return found


def _subtitle(contents: Contents) -> str:
    analysis = contents.analysis
    counted = " and ".join(f"{analysis.items[name]:,} {name}s" for name in analysis.pair)
    sizes = {analysis.set_sizes[name] for name in analysis.pair}
    vectors = " or ".join(str(size) for size in sorted(sizes))
    plural = "vector" if sizes == {1} else "vectors"
    sets = f"each is a set of {vectors} {plural} with {analysis.width} numbers"
    return f"{counted}; {sets}, compared by {analysis.similarity}."


def _key_numbers(contents: Contents) -> Markup:
    """The numbers that say most."""
    analysis = contents.analysis
    first, second = analysis.pair
    found = [
        (f"{analysis.retrieval['rsum']:.1f}", f"RSUM (chance {analysis.chance['rsum']:.1f}, best 600)"),
        (f"{analysis.retrieval['i2t_r1']:.1f}%", f"R@1, {first} to {second}"),
        (f"{analysis.retrieval['t2i_r1']:.1f}%", f"R@1, {second} to {first}"),
        *((number(analysis.log_variance[name], ".2f"), f"log circular variance, {name}s") for name in analysis.pair),
        (f"{analysis.pairing.stability:.1%}", "of true pairs matched by the usual slots"),
    ]
    return element(
        "ul", *(element("li", element("b", number), element("span", what)) for number, what in found), class_="facts"
    )


def _about(contents: Contents) -> Markup:
    rows: list[list[str | Markup]] = [
        [name, value] for name, value in {**contents.facts, "MaxMatch": __version__}.items()
    ]
    return element(
        "div",
        table(["", ""], rows),
        element(
            "p",
            "The figures are beside this page in figures/, as PDF and PNG, and all numbers in analysis.json, where "
            "slots are counted from 0; here they are counted from 1.",
        ),
    )
