"""A report as one page that stands alone: nothing is loaded from elsewhere, nothing in it runs."""

from collections.abc import Mapping
from importlib.resources import files

from maxmatch import __version__
from maxmatch.report import sections_items as items
from maxmatch.report import sections_numbers as numbers
from maxmatch.report.contents import METHODS, Contents
from maxmatch.report.markup import Markup, document, element, number, table


def page(contents: Contents, pictures: Mapping[str, bytes]) -> str:
    """The whole page. pictures: the figures as PNG files, by name; those that are not there are left out."""
    parts = _sections(contents, pictures)
    style = files("maxmatch.report").joinpath("style.css").read_text(encoding="utf-8")
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
    found = {"retrieval": ("Retrieval", numbers.retrieval(analysis))}
    if "training" in pictures:
        found["training"] = ("Training", numbers.training(pictures))
    found["collapse"] = ("Are the vectors of a set different?", numbers.collapse(analysis, pictures))
    found["meeting"] = ("Which slots meet", numbers.meeting(analysis, pictures))
    found["elements"] = ("What each slot is worth", numbers.elements(analysis, pictures))
    if contents.projection is not None:
        found["vectors"] = ("Where the vectors lie", numbers.vectors(pictures, METHODS[contents.projection.method]))
    if analysis.facets is not None:
        found["facets"] = ("Do slots specialise?", numbers.facets(analysis.facets, pictures))
    found["by-slot"] = ("What each slot finds", items.by_slot(contents))
    if contents.attention is not None:
        found["attention"] = ("What each slot looks at", items.attention(contents, pictures))
    found["failures"] = ("Where the model fails", items.failures(contents))
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
