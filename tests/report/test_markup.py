import base64
import hashlib
import re

from maxmatch.evaluation.report.html import Markup, an, data_uri, document, element, joined, number, table

EVIL = '<script>alert("1")</script>&'


def test_texts_and_attributes_are_escaped_and_markup_is_not_escaped_twice():
    assert element("p", EVIL) == "<p>&lt;script&gt;alert(&quot;1&quot;)&lt;/script&gt;&amp;</p>"
    assert element("img", alt='"><script>') == '<img alt="&quot;&gt;&lt;script&gt;">'
    assert element("p", element("b", "x")) == "<p><b>x</b></p>"


def test_a_text_joined_to_markup_is_escaped_too():
    assert joined(Markup("<b>"), "<i>", None) == "<b>&lt;i&gt;"
    assert isinstance(joined("<"), Markup)
    assert element("p", Markup("<b>") + "<i>") == "<p>&lt;b&gt;&lt;i&gt;</p>"  # adding makes it a text again


def test_attributes_are_named_as_html_has_them():
    assert element("a", "x", class_="y", aria_label="z", hidden=True, title=None) == (
        '<a class="y" aria-label="z" hidden>x</a>'
    )


def test_a_table_has_a_heading_for_each_row_and_column():
    made = table(["", "R@1"], [["image", "1.0"]], "how <well>")
    assert '<th scope="col">R@1</th>' in made
    assert '<th scope="row">image</th><td>1.0</td>' in made
    assert "how &lt;well&gt;" in made


def test_a_page_runs_no_script_and_loads_nothing():
    page = document("t", "p { color: red }", element("p", "x"))
    policy = re.search('http-equiv="Content-Security-Policy" content="([^"]*)"', page)[1].replace("&#x27;", "'")
    style = re.search("<style>(.*?)</style>", page)[1]
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert policy.startswith("default-src 'none'; img-src data:;")
    assert f"style-src 'sha256-{digest}'" in policy
    assert "script" not in policy
    assert "unsafe" not in policy


def test_numbers_and_nouns_are_written_as_people_write_them():
    assert number(-0.256, ".2f") == "−0.26"
    assert [an("image"), an("text")] == ["an image", "a text"]
    assert data_uri(b"ab", "image/png") == "data:image/png;base64,YWI="
