"""The sections of a report that are numbers: each a heading, what it says, figures and tables."""

from collections.abc import Mapping

from maxmatch.evaluation.analysis import Analysis
from maxmatch.evaluation.by_slot import BySlot
from maxmatch.evaluation.retrieval import LEVELS
from maxmatch.evaluation.specialisation import Specialisation
from maxmatch.report.markup import DASH, Child, Markup, an, data_uri, element, joined, number, table


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
