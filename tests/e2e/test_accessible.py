"""The page for everyone: axe-core finds nothing in any of its states, in light and dark, on a desktop and a phone."""

import pytest
from axe_playwright_python.sync_playwright import Axe
from page_steps import PHONE, ask_why, tiles
from playwright.sync_api import expect

CONTRAST = {"runOnly": ["color-contrast"]}


def findings(page):
    """What axe-core finds in the colours the page has now; and of colours alone, in the others."""
    found = []
    dark = page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches")
    for scheme, options in (("light" if dark else "dark", CONTRAST), ("dark" if dark else "light", None)):
        page.emulate_media(color_scheme=scheme)
        response = Axe().run(page, options=options).response
        assert response["passes"], "it has looked at something"
        found += [(scheme, one["id"], [node["target"] for node in one["nodes"]]) for one in response["violations"]]
    return found


@pytest.mark.parametrize(
    "more",
    [
        pytest.param({"color_scheme": "light"}, id="desktop", marks=pytest.mark.slow),
        pytest.param({**PHONE, "color_scheme": "dark"}, id="phone"),
    ],
)
def test_axe_finds_nothing(open_page, more):
    page = open_page("/?q=a+dog+xqzzt", reduced_motion="reduce", **more)
    dialog = page.get_by_role("dialog")
    if "is_mobile" in more:
        page.get_by_role("button", name="Filters").click()
    assert findings(page) == []
    page.locator("#results .tick").first.click(force=True)
    expect(page.get_by_role("region", name="Selected pictures")).to_be_visible()
    assert findings(page) == []
    page.get_by_role("button", name="Add to album").click()
    page.get_by_label("A new album").fill(f"axe {len(more)}")
    page.keyboard.press("Enter")
    expect(dialog).to_be_hidden()
    page.get_by_role("button", name="Albums").click()
    page.get_by_label("Save this search as").press("Enter")
    expect(dialog).to_contain_text("a dog xqzzt")
    assert findings(page) == []
    page.keyboard.press("Escape")
    tiles(page).first.click()
    expect(dialog.locator(".photo img")).to_have_js_property("complete", True)
    assert findings(page) == []
    expect(ask_why(page).locator(".pair")).to_have_count(3)
    assert findings(page) == []


def test_axe_finds_nothing_where_files_were_not_read(open_page):
    page = open_page("/?camera=Canon+EOS+5D", reduced_motion="reduce")
    page.route("**/health", lambda route: route.fulfill(json={"status": "ok", "not_read": 2}))
    told = {"count": 2, "reasons": ["/photos/a.jpg: not a readable picture."], "cure": "1 HEIC not read: pip install x"}
    page.route("**/not-read", lambda route: route.fulfill(json=told))
    page.evaluate("dispatchEvent(new Event('online'))")
    counted = page.get_by_role("button", name="2 files were not read")
    expect(counted).to_be_visible()
    expect(page.locator(".chip")).to_contain_text("Canon EOS 5D")
    assert findings(page) == []
    counted.press("Enter")
    expect(page.get_by_role("dialog")).to_contain_text("pip install x")
    assert findings(page) == []
    page.keyboard.press("Escape")
    expect(counted).to_be_focused()


def test_every_control_is_reached_and_left_by_keyboard(open_page):
    page = open_page("/?q=a+dog")
    name = """() => { const one = document.activeElement;
        return one.getAttribute("aria-label") || one.id || one.textContent.trim(); }"""

    def walk(steps):
        seen = []
        for _ in range(steps):
            page.keyboard.press("Tab")
            seen.append(page.evaluate(name))
        return seen

    reached = walk(24)
    for control in ("Skip to the pictures", "Search pictures by a description", "Albums", "folder", "sort", "fold"):
        assert control in reached
    assert any("score" in one for one in reached), "the first picture"
    tiles(page).first.get_by_role("link").focus()
    page.keyboard.press("Enter")
    reached = walk(16)
    for control in ("tab-photo", "Close", "Next picture", "Zoom in", "Open original", "Copy path", "Add to album …"):
        assert control in reached
    assert "Search pictures by a description" not in reached, "the page behind the picture is not read"


def test_who_asked_for_no_motion_gets_none(open_page):
    page = open_page("/?q=a+dog", reduced_motion="reduce")
    tiles(page).first.click()
    moving = """() => [...document.querySelectorAll("*")].filter((one) => {
        const style = getComputedStyle(one);
        const times = style.transitionDuration.split(", ");
        return times.some((time) => parseFloat(time) > 0) || style.animationName !== "none";
    }).map((one) => one.outerHTML.slice(0, 80))"""
    assert page.evaluate(moving) == []
