"""Answers that come late, in another order or not at all: the page shows what was asked for last, where it was left."""

import re

from page_steps import arrived, give, hold, let_go, search, tiles, wait_first
from playwright.sync_api import expect
from served import MANY

FOCUSED = "() => document.activeElement.closest('li')?.dataset.key ?? document.activeElement.id"
SECOND_PAGE = re.compile(r"/search\?.*offset=48")


def look_again(page):
    """The page asks the server how it is every five seconds, or then."""
    with page.expect_response("**/health"):
        page.evaluate("dispatchEvent(new Event('online'))")


def test_a_refused_page_of_results_is_not_asked_for_again_and_again(open_page):
    page, asked = open_page("/?q=a+dog"), []

    def refuse(route):
        asked.append(route.request.url)
        route.fulfill(status=404, json={"error": {"code": "not_found", "message": "There is no such album."}})

    page.route(SECOND_PAGE, refuse)
    page.goto(page.url.split("?")[0])
    expect(page.locator("#notice")).to_contain_text("There is no such album.")
    page.wait_for_timeout(500)
    assert len(asked) == 1
    open_page.said.clear()  # the browser's own line about the 404


def at_the_last_picture(page):
    """The viewer at the last of the first page of results; the second one is waited for."""
    held = hold(page, SECOND_PAGE)
    page.goto(page.url.split("?")[0])
    expect(tiles(page).first).to_be_visible()
    page.keyboard.press("/")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("End")
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog")
    expect(dialog).to_be_visible()
    for place in range(int(dialog.locator(".facts").inner_text().split()[0]), 48):
        page.keyboard.press("ArrowRight")
        expect(dialog.locator(".facts")).to_have_text(f"{place + 1} of {MANY}")
    return held, dialog


def test_a_viewer_that_was_closed_stays_closed_when_the_next_picture_comes(open_page):
    page = open_page("/?q=a+dog")
    held, dialog = at_the_last_picture(page)
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    let_go(page, held)
    page.wait_for_timeout(300)
    expect(dialog).to_be_hidden()
    assert "view" not in page.url


def test_the_next_picture_is_shown_when_its_page_comes_however_often_it_was_asked_for(open_page, gallery):
    page = open_page("/?q=a+dog")
    held, dialog = at_the_last_picture(page)
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    let_go(page, held)
    expect(dialog.locator(".facts")).to_have_text(f"49 of {MANY}")
    assert "view=" in page.url
