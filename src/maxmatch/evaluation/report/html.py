"""HTML that cannot hold what it should not: every text is escaped, but for what these functions made."""

import base64
import hashlib
import html

DASH = "\u2060–\u2060"
"""A dash that no line ends at."""
_EMPTY = ("img", "meta")  # elements without an end


class Markup(str):
    """A text that is HTML already."""

    __slots__ = ()


Child = str | Markup | None


def element(name: str, /, *children: Child, **attributes: str | int | bool | None) -> Markup:
    """<name attributes>children</name>. Children are escaped unless they are Markup; None is left out.

    A trailing underscore is cut off the names of attributes (class_), others become hyphens. True gives an attribute
    without a value, None and False give none.
    """
    said = "".join(
        f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{html.escape(str(value))}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if name in _EMPTY:
        assert not children
        return Markup(f"<{name}{said}>")
    return Markup(f"<{name}{said}>{joined(*children)}</{name}>")


def joined(*children: Child) -> Markup:
    """One after the other, escaped unless they are Markup."""
    return Markup("".join(child if isinstance(child, Markup) else html.escape(child) for child in children if child))


def number(value: float, form: str) -> str:
    """A number for people: with a real minus sign."""
    return format(value, form).replace("-", "−")


def an(noun: str) -> str:
    """A noun with its article."""
    return f"{'an' if noun[:1].lower() in 'aeiou' else 'a'} {noun}"


def data_uri(content: bytes, kind: str) -> str:
    """A file as an address that holds it."""
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def document(title: str, style: str, *children: Child) -> Markup:
    """A whole page that loads nothing and runs nothing: no scripts, its own style, pictures only in the page."""
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("meta", name="referrer", content="no-referrer"),
        element("title", title),
        Markup(f"<style>{style}</style>"),
    )
    page = element("html", head, element("body", *children), lang="en")
    return Markup(f"<!doctype html>\n{page}\n")


def table(headings: list[str], rows: list[list[str | Markup]], caption: str | None = None) -> Markup:
    """A table: the first column names the row, the others are numbers."""
    head = element("tr", *(element("th", heading, scope="col") for heading in headings))
    body = [
        element("tr", element("th", first, scope="row"), *(element("td", cell) for cell in cells))
        for first, *cells in rows
    ]
    inner = element(
        "table",
        element("caption", caption) if caption else None,
        element("thead", head),
        element("tbody", *body),
    )
    return element("div", inner, class_="table")
