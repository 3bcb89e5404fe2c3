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


def tell(page, items):
    """The server has so many pictures from now on."""
    known = {**page.request.get(f"{page.url.split('/?')[0].rstrip('/')}/api/v1/gallery").json(), "total": items}
    page.unroute("**/gallery")
    page.route("**/gallery", lambda route: route.fulfill(json=known))
    page.unroute("**/health")
    page.route("**/health", lambda route: route.fulfill(json={"status": "ok", "items": items, "left": 0}))
    look_again(page)


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
    expect(dialog.locator(".facts")).to_have_text(f"49 of {MANY - 1}")
    assert "view=" in page.url


def test_a_slow_upload_does_not_replace_what_was_searched_for_meanwhile(open_page, gallery):
    page = open_page()
    held = hold(page, "**/search/image?*")
    with page.expect_request("**/search/image?*"):
        give(page, (gallery.root / gallery.ids[20]).read_bytes(), "drop")
    search(page, gallery.captions[0])
    wait_first(page, gallery.key(0))
    with page.expect_response("**/search/image?*"):
        let_go(page, held)
    page.wait_for_timeout(300)
    wait_first(page, gallery.key(0))
    assert "upload" not in page.url


def test_of_two_uploads_the_last_one_counts(open_page, gallery):
    page = open_page()
    held = hold(page, "**/search/image?*")
    give(page, (gallery.root / gallery.ids[20]).read_bytes(), "drop")
    arrived(page, held)
    first = held.pop()
    give(page, (gallery.root / gallery.ids[21]).read_bytes(), "drop")
    let_go(page, held)
    wait_first(page, gallery.key(21))
    with page.expect_response("**/search/image?*"):
        first.continue_()
    page.wait_for_timeout(300)
    wait_first(page, gallery.key(21))


def test_enter_pressed_twice_makes_one_album_and_no_complaint(open_page):
    page, held = open_page(), []
    page.route("**/api/v1/albums", lambda one: held.append(one) if one.request.method == "POST" else one.continue_())
    for key in ("/", "ArrowDown", "x"):
        page.keyboard.press(key)
    page.get_by_role("button", name="Add to album").click()
    page.get_by_label("A new album").fill("Once")
    page.keyboard.press("Enter")
    arrived(page, held)
    page.keyboard.press("Enter")
    page.wait_for_timeout(100)
    let_go(page, held)
    expect(page.get_by_text("1 picture added to “Once”.")).to_be_visible()
    page.wait_for_timeout(200)
    expect(page.locator("#notice")).to_be_hidden()


def test_a_message_goes_when_the_query_is_again_what_is_shown(open_page, gallery):
    page = open_page()
    search(page, '"')
    expect(page.locator("#notice")).to_be_visible()
    search(page, "")
    expect(page.locator("#notice")).to_be_hidden()
    wait_first(page, gallery.key(MANY - 1))
    open_page.said.clear()  # the browser's own line about the 422


def test_who_is_among_the_pictures_stays_there_when_new_ones_come(open_page, gallery):
    page = open_page()
    page.keyboard.press("/")
    for key in ("ArrowDown", "ArrowRight", "ArrowRight"):
        page.keyboard.press(key)
    third = page.evaluate(FOCUSED)
    assert third == gallery.key(MANY - 3)
    tell(page, MANY)
    with page.expect_response(re.compile(r"/search\?")):
        tell(page, MANY + 1)
    page.locator("#results[aria-busy=false]").wait_for(state="attached")
    page.wait_for_timeout(200)
    assert page.evaluate(FOCUSED) == third
    page.keyboard.press("ArrowRight")
    assert page.evaluate(FOCUSED) == gallery.key(MANY - 4)


def test_pictures_that_came_while_one_was_open_are_there_when_it_is_closed(open_page):
    page = open_page()
    tiles(page).first.click()
    expect(page.get_by_role("dialog")).to_be_visible()
    tell(page, MANY)
    tell(page, MANY + 1)
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()
    with page.expect_response(re.compile(r"/search\?")):
        look_again(page)


def test_results_of_a_new_search_are_shown_from_the_top_though_pictures_came_meanwhile(open_page, gallery):
    page = open_page()
    tell(page, MANY)
    page.mouse.wheel(0, 900)
    page.wait_for_timeout(400)
    held = hold(page, re.compile(r"/search\?q=a\+dog"))
    with page.expect_request(re.compile(r"/search\?q=")):
        search(page, gallery.captions[0])
    tell(page, MANY + 1)
    let_go(page, held)
    wait_first(page, gallery.key(0))
    assert page.evaluate("scrollY") == 0


def test_results_of_a_new_search_are_shown_from_the_top_when_the_server_is_back(open_page, gallery):
    page = open_page()
    page.mouse.wheel(0, 900)
    page.wait_for_timeout(400)
    page.route("**/api/v1/**", lambda route: route.abort())
    search(page, gallery.captions[0])
    expect(page.get_by_role("alert")).to_contain_text("The server is not responding")
    page.unroute("**/api/v1/**")
    page.evaluate("dispatchEvent(new Event('online'))")
    wait_first(page, gallery.key(0))
    assert page.evaluate("scrollY") == 0
    open_page.said.clear()  # the browser's own lines about the requests that failed


def test_who_goes_back_comes_to_the_place_though_pictures_came_meanwhile(open_page, gallery):
    page = open_page()
    tell(page, MANY)
    page.mouse.wheel(0, 900)
    page.wait_for_timeout(400)
    top = page.evaluate("scrollY")
    assert top > 500
    search(page, gallery.captions[0])
    wait_first(page, gallery.key(0))
    held = hold(page, re.compile(r"/search\?(?!q=)"))
    with page.expect_request(re.compile(r"/search\?(?!q=)")):
        page.go_back()
    tell(page, MANY + 1)
    let_go(page, held)
    page.wait_for_function("(top) => Math.abs(scrollY - top) < 2", arg=top)


def test_a_page_that_opened_without_the_server_has_everything_when_it_comes_back(open_page, gallery):
    page = open_page("/?q=a+dog")
    page.route("**/api/v1/**", lambda route: route.abort())
    page.reload()
    expect(page.get_by_role("alert")).to_contain_text("The server is not responding")
    page.unroute("**/api/v1/**")
    page.get_by_role("button", name="Try now").click()
    expect(page.get_by_role("alert")).to_be_hidden()
    expect(page.locator("#pick")).to_be_visible()
    page.get_by_label("Folder").select_option("holiday")
    search(page, "")
    expect(page.get_by_role("region", name="By folder")).to_be_visible()
    open_page.said.clear()  # the browser's own lines about the requests that failed


def test_a_picture_that_was_opened_while_the_server_was_away_is_shown_when_it_is_back(open_page, gallery):
    page = open_page()
    dialog = page.get_by_role("dialog")
    page.route("**/api/v1/**", lambda route: route.abort())
    tiles(page).first.click()
    expect(dialog).to_be_visible()
    page.wait_for_function("document.querySelector('.photo.broken')")
    page.unroute("**/api/v1/**")
    page.evaluate("dispatchEvent(new Event('online'))")
    expect(dialog.locator(".photo img")).to_have_js_property("naturalWidth", 64)
    expect(dialog.locator(".photo")).not_to_have_class(re.compile("broken"))
    open_page.said.clear()  # the browser's own lines about the requests that failed


CUT = """async (name) => {
    const error = name === "TypeError" ? new TypeError("network error") : new DOMException("", name);
    window.fetch = async () => ({ ok: true, status: 200, json: () => Promise.reject(error) });
    const { health } = await import("/static/api.js");
    return await health().then(() => "answered", (error) => `${error.constructor.name} ${error.name}`);
}"""


def test_an_answer_that_is_cut_off_is_a_lost_connection_and_one_that_is_given_up_is_none(open_page):
    page = open_page()
    assert page.evaluate(CUT, "TypeError").startswith("Gone")
    assert page.evaluate(CUT, "AbortError") == "DOMException AbortError"


def test_escape_leaves_the_zoom_and_then_the_picture_whatever_came_before(open_page, gallery):
    page = open_page(f"/?view={gallery.key(30)}")
    dialog = page.get_by_role("dialog")
    expect(dialog.locator(".photo img")).to_have_js_property("naturalWidth", 96)
    for _ in range(3):
        page.mouse.move(400, 400)
        page.mouse.wheel(0, -600)
        page.keyboard.press("Escape")
        page.wait_for_timeout(100)
        assert dialog.is_visible() == ("view=" in page.url)


def test_escape_pressed_twice_does_not_leave_the_search(open_page, gallery):
    page = open_page()
    search(page, gallery.captions[0])
    wait_first(page, gallery.key(0))
    tiles(page).first.click()
    expect(page.get_by_role("dialog")).to_be_visible()
    page.evaluate("() => { const close = document.querySelector('.viewer .close'); close.click(); close.click(); }")
    expect(page.get_by_role("dialog")).to_be_hidden()
    page.wait_for_timeout(300)
    wait_first(page, gallery.key(0))
    assert "q=a+dog" in page.url


def test_ctrl_click_on_the_name_of_the_page_leaves_the_search_where_it_is(open_page):
    page = open_page("/?q=a+dog")
    page.locator("#home").click(modifiers=["ControlOrMeta"])
    page.wait_for_timeout(200)
    assert "q=a+dog" in page.url
