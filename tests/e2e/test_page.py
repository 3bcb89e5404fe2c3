"""The page in a browser: what a person does there, by mouse and keyboard, on a phone, in the dark, and read aloud."""

import re
from urllib.parse import unquote_plus

import pytest
from axe_playwright_python.sync_playwright import Axe
from page_steps import ask_why, give, search, tiles, wait_first
from playwright.sync_api import expect
from served import BLOCKED, MANY, Running, app_of

from maxmatch.model import names
from maxmatch.search.plausible import CutOff
from maxmatch.search.query import search_parts

SHOWN = MANY - 1  # two are the same picture


def release(held):
    for route in held:
        try:
            route.continue_()
        except Exception:  # the page has given it up, as it should
            continue


def test_typing_shows_the_right_picture_first_and_late_answers_are_ignored(open_page, gallery):
    page = open_page()
    wait_first(page, gallery.key(MANY - 1))  # the latest
    for place, caption in enumerate(gallery.captions):
        search(page, caption)
        wait_first(page, gallery.key(place))
    assert "q=two+people" in page.url
    score = tiles(page).first.locator(".score")
    expect(score).to_have_text(re.compile(r"^1\.7[123]$"))  # e − 1: the same set
    expect(page.get_by_role("status")).to_have_text(f"{MANY} pictures, best first")
    expect(tiles(page).first.locator("img")).to_have_js_property("naturalWidth", 96)
    search(page, "")
    wait_first(page, gallery.key(MANY - 1))
    held = []
    page.route(re.compile(r"/search\?q=two"), lambda route: held.append(route))
    with page.expect_request(re.compile(r"/search\?q=two")):
        search(page, gallery.captions[1])
    search(page, gallery.captions[0])
    wait_first(page, gallery.key(0))
    release(held)
    page.wait_for_timeout(200)
    wait_first(page, gallery.key(0))


def test_a_search_that_is_left_before_its_answer_comes_does_not_show_it(open_page, gallery):
    page = open_page()
    wait_first(page, gallery.key(MANY - 1))
    held = []
    page.route(re.compile(r"/search\?q=two"), lambda route: held.append(route))
    with page.expect_request(re.compile(r"/search\?q=two")):
        search(page, gallery.captions[1])
    page.get_by_label("Search pictures by a description").press("Escape")
    page.locator("#results[aria-busy=false]").wait_for(state="attached")
    release(held)
    page.wait_for_timeout(200)
    expect(page.get_by_role("status")).to_have_text(f"{MANY} pictures, newest first")
    wait_first(page, gallery.key(MANY - 1))


def test_an_index_that_was_replaced_is_no_lost_connection(open_page):
    page = open_page()
    body = {"error": {"code": "replaced", "message": "Restart the server."}}
    page.route(re.compile(r"/search\?q=a"), lambda route: route.fulfill(status=503, json=body))
    search(page, "a dog")
    expect(page.locator("#notice")).to_contain_text("Restart the server.")
    open_page.said.clear()  # the browser's own line about the 503


def test_words_that_the_model_does_not_know_are_named(open_page):
    page = open_page("/?q=a+dog", viewport={"width": 390, "height": 844})
    status = page.get_by_role("status")
    expect(status).to_have_text(f"{MANY} pictures, best first")
    long = "xqzzt" * 40
    search(page, f"a dog, a {long} and 🐘")
    expect(status).to_have_text(f"{MANY} pictures, best first · the model does not know: {long}, and, 🐘")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    search(page, "a dog -xqzzt -blorf")
    expect(status).to_contain_text("left out, since the model knows no word of it: xqzzt, blorf")
    search(page, "xqzzt!")
    expect(status).to_contain_text("guess")
    search(page, "")
    expect(status).to_have_text(f"{MANY} pictures, newest first")


def test_the_page_says_which_language_the_model_reads(open_page, gallery, monkeypatch):
    page = open_page("/")
    expect(page.locator("#language")).to_be_hidden()  # not known of this model
    monkeypatch.setitem(names.SHIPPED_MODELS, names.model_identity(gallery.model), ("small", "1"))
    page.reload()
    expect(page.locator("#keys")).to_contain_text("Write in English")
    search(page, "der Hund")
    expect(page.get_by_role("status")).to_contain_text("it reads English")


@pytest.fixture
def cut(gallery, monkeypatch):
    """A server that leaves out what does not fit: only the very set of a text does."""
    known = CutOff(MANY, dict.fromkeys((1, 2, 3, 6), (1.6, 0.01)))
    monkeypatch.setattr("maxmatch.server.searcher.calibrated", lambda index, model: known)
    running = Running(app_of(gallery, cut=True))
    yield running
    running.stop()


@pytest.mark.parametrize("viewport", [{"width": 1280, "height": 800}, {"width": 390, "height": 844}])
def test_the_list_ends_where_pictures_stop_to_fit_and_the_rest_is_one_click_away(open_page, gallery, cut, viewport):
    page = open_page(base=cut.address, viewport=viewport)
    status, rest, empty = page.get_by_role("status"), page.locator("#rest"), page.locator("#empty")
    expect(rest).to_be_hidden()
    search(page, gallery.captions[0])
    wait_first(page, gallery.key(0))
    expect(tiles(page)).to_have_count(1)
    expect(tiles(page)).to_have_attribute("aria-setsize", "1")
    expect(status).to_have_text(f"1 of {MANY} pictures seems to fit, best first")
    page.get_by_role("button", name=f"Show all {MANY} pictures").click()
    expect(status).to_have_text(f"{MANY} pictures, best first")
    expect(rest).to_be_hidden()
    assert "all=1" in page.url
    page.go_back()
    expect(tiles(page)).to_have_count(1)
    search(page, "a cat")
    expect(empty).to_contain_text("No picture here seems to fit “a cat”.")
    expect(tiles(page)).to_have_count(0)
    expect(status).to_have_text(f"None of {MANY} pictures seems to fit")
    search(page, "xqzzt " * 30)
    expect(status).to_contain_text("knows none of these words")
    assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]
    page.get_by_role("button", name="Show the closest anyway").click()
    expect(empty).to_be_hidden()
    expect(status).to_contain_text("guess")
    page.reload()
    expect(tiles(page).nth(3)).to_be_visible()
    search(page, "a cat")
    expect(tiles(page)).to_have_count(0)


def test_an_uploaded_picture_finds_itself_and_what_is_no_picture_is_refused(open_page, gallery):
    page = open_page()
    for how, place in (("drop", 20), ("paste", 21)):
        give(page, (gallery.root / gallery.ids[place]).read_bytes(), how)
        wait_first(page, gallery.key(place))
        expect(page.get_by_text("Your picture")).to_be_visible()
    page.reload()
    wait_first(page, gallery.key(21))
    page.get_by_label("Stop searching with this picture").click()
    wait_first(page, gallery.key(MANY - 1))
    give(page, b"words", "drop", "text/plain")
    expect(page.get_by_role("alert")).to_contain_text("not a picture")
    page.get_by_role("button", name="Dismiss").click()
    expect(page.get_by_role("alert")).to_be_hidden()


def test_words_and_a_picture_are_searched_for_together(open_page, gallery):
    page = open_page(f"/?view={gallery.key(30)}")
    page.get_by_role("button", name="Similar pictures").click()
    wait_first(page, gallery.key(30))
    with page.expect_response(lambda answer: "q=" in answer.url) as asked:
        search(page, f"{gallery.captions[0]} -cat")
    hits = asked.value.json()["hits"]
    assert f"like={gallery.key(30)}" in asked.value.url
    wait_first(page, hits[0]["item"]["key"])
    index = gallery.index
    sets = [*index.fetch([gallery.ids[30]]).values(), *gallery.model.encode_texts([gallery.captions[0], "cat"])]
    expected = search_parts(index, sets, [1, 1, -1], 5)
    assert [hit["score"] for hit in hits[:5]] == pytest.approx([hit.score for hit in expected], abs=1e-4)
    page.reload()
    expect(page.get_by_text("Similar to this")).to_be_visible()
    expect(page.get_by_label("Search pictures by a description")).to_have_value(f"{gallery.captions[0]} -cat")
    page.get_by_label("Stop searching with this picture").click()
    wait_first(page, gallery.key(0))
    assert "like" not in page.url, "the words stay"
    give(page, (gallery.root / gallery.ids[20]).read_bytes(), "drop")
    wait_first(page, gallery.key(20))
    search(page, "a dog")
    page.wait_for_url("**q=a+dog&upload=*")
    page.get_by_label("Search pictures by a description").press("Escape")
    wait_first(page, gallery.key(MANY - 1))


def test_suggestions_while_typing_come_from_searches_albums_and_names(open_page):
    page = open_page(reduced_motion="reduce")
    page.evaluate(
        "fetch('/api/v1/albums', { method: 'POST', body: JSON.stringify({ name: 'Roof garden' }),"
        " headers: { 'Content-Type': 'application/json' } })"
    )
    box = page.get_by_role("combobox", name="Search pictures")
    offered = page.locator("#suggestions [role=option]:visible")
    box.fill("gardens in Rome")
    box.press("Enter")  # which is remembered
    box.fill("the gar")
    expect(offered).to_have_text(["the gardenin names"])
    box.press("ArrowDown")
    expect(box).to_have_attribute("aria-activedescendant", offered.first.get_attribute("id"))
    box.press("Enter")
    page.wait_for_url("**q=the+garden")
    expect(box).to_have_attribute("aria-expanded", "false")
    box.fill("gard")
    expect(offered).to_have_text(["gardens in Romerecent", "Roof gardenalbum", "gardenin names"])
    page.wait_for_url("**q=gard")
    expect(page.locator("#results")).to_have_attribute("aria-busy", "false")
    found = Axe().run(page).response["violations"]
    assert [(one["id"], [node["html"] for node in one["nodes"]]) for one in found] == []
    for _ in range(4):  # past the last, on to the pictures
        page.keyboard.press("ArrowDown")
    expect(offered).to_have_count(0)
    expect(tiles(page).first.get_by_role("link")).to_be_focused()
    box.fill("gar")
    box.press("Escape")
    expect(box).to_have_value("gar")
    expect(offered).to_have_count(0)
    box.fill("gard")
    offered.nth(1).click()
    page.wait_for_url("**album=*")
    expect(page.locator(".chip")).to_contain_text("Roof garden")


def test_who_types_before_the_page_knows_the_gallery_is_offered_suggestions_when_it_does(open_page):
    page, waiting = open_page(reduced_motion="reduce"), []
    page.route("**/gallery", lambda route: waiting.append(route))
    page.reload(wait_until="domcontentloaded")
    page.get_by_role("combobox", name="Search pictures").fill("garm")
    offered = page.locator("#suggestions [role=option]:visible")
    while not waiting:
        page.wait_for_timeout(20)
    expect(offered).to_have_count(0)
    for request in waiting:
        request.continue_()
    expect(offered).to_have_text(["Garmin VIRBcamera"])


def test_cameras_places_and_words_of_captions_are_suggested(open_page, gallery):
    page = open_page(reduced_motion="reduce")
    box = page.get_by_role("combobox", name="Search pictures")
    offered = page.locator("#suggestions [role=option]:visible")
    box.fill("garm")
    expect(offered).to_have_text(["Garmin VIRBcamera"])
    offered.first.click()
    page.wait_for_url("**camera=Garmin+VIRB")
    expect(page.get_by_role("status")).to_have_text(f"{MANY // 3} pictures, newest first")
    expect(page.locator(".chip")).to_contain_text("Garmin VIRB")
    page.get_by_role("button", name="Leave the camera").click()
    expect(page.get_by_role("status")).to_have_text(f"{MANY} pictures, newest first")
    box.fill("ital")
    expect(offered).to_have_text(["Città, Italyplace"])
    offered.first.click()
    expect(page.get_by_role("status")).to_have_text("1 picture, newest first")
    known = gallery.model.tower("text").reader.tokenizer.get_vocab()
    assert "beach" in known
    box.fill("a dog on the bea")
    expect(offered).to_have_text(["a dog on the beachword"])


def test_why_shows_slots_words_pairs_and_the_matching(open_page):
    page = open_page("/?q=a+dog+runs")
    tiles(page).nth(2).click()
    dialog = ask_why(page)
    expect(dialog.locator(".pair")).to_have_count(3)
    words = dialog.locator(".pair").first.locator(".word")
    assert [word for word in words.all_inner_texts() if not word.startswith("<")] == ["a", "dog", "runs"]
    table = dialog.get_by_role("table")
    expect(table.locator("tbody tr")).to_have_count(3)
    expect(table.locator("td.matched")).to_have_count(3)
    painted = "() => document.querySelector('.photo canvas').toDataURL()"
    looks = set()
    for name in ("All", "Slot 1", "Slot 2", "Slot 3"):
        dialog.get_by_role("radio", name=name).click()
        expect(dialog.get_by_role("radio", name=name)).to_be_checked()
        looks.add(page.evaluate(painted))
    assert len(looks) == 4
    shown = page.url.split("view=")[1].split("&")[0]
    dialog.get_by_role("button", name="Search with picture slot 2 only").click()
    expect(page.get_by_text("Slot 2 only", exact=True)).to_be_visible()
    wait_first(page, shown)
    assert page.url.endswith(f"?like={shown}&slot=1")
    search(page, '"a dog" - "a cat"')  # its parts are explained one by one
    page.wait_for_url("**q=*")
    expect(page.locator("#results")).to_have_attribute("aria-busy", "false")
    tiles(page).first.click()
    page.get_by_role("tab", name="Why?").click()
    page.get_by_role("button", name="− a cat").click()
    assert "cat" in dialog.locator(".pair").first.locator(".word").all_inner_texts()


@pytest.mark.parametrize("viewport", [{"width": 1280, "height": 800}, {"width": 390, "height": 844}])
def test_the_overlay_covers_the_picture_and_nothing_else(open_page, gallery, viewport):
    for place in (30, 31, 32):  # of three shapes
        page = open_page(f"/?q=a+dog&view={gallery.key(place)}&why=1", viewport=viewport)
        expect(page.get_by_role("dialog").locator(".pair")).to_have_count(3)
        image, canvas = page.locator(".photo img"), page.locator(".photo canvas")
        assert image.bounding_box() == canvas.bounding_box()
        shown, natural = image.bounding_box(), image.evaluate("one => one.naturalWidth / one.naturalHeight")
        assert shown["width"] / shown["height"] == pytest.approx(natural, rel=0.01)


def test_a_small_picture_has_no_empty_frame_beside_it(open_page, gallery):
    page = open_page(f"/?like={gallery.key(31)}&view={gallery.key(32)}&why=1")
    dialog = page.get_by_role("dialog")
    expect(dialog.locator(".met")).to_have_count(3)
    dialog.locator("summary").click()
    expect(dialog.locator(".mini")).to_have_count(3 + 6)
    for mini in dialog.locator(".mini").all():
        assert mini.bounding_box() == mini.locator("canvas").bounding_box()


LIT = """async ([width, height, box, row, column]) => {
    const { overlay, mini } = await import("/static/heat.js");
    const one = (at, size) => Array.from({ length: size }, (_, place) => Number(place === at));
    const attention = [one(row, 7).map((inside) => one(inside ? column : -1, 7))];
    const canvas = (wide, high) => Object.assign(document.createElement("canvas"), { width: wide, height: high });
    const veil = canvas(width, height);
    overlay(veil, { attention, box }, 0);
    const { data } = veil.getContext("2d").getImageData(0, 0, width, height);
    const alpha = (x, y) => data[4 * (y * width + x) + 3];
    let [sum, across, down] = [0, 0, 0];
    for (let y = 0; y < height; y++)
        for (let x = 0; x < width; x++)
            if (alpha(x, y) < 100) [sum, across, down] = [sum + 1, across + x + 0.5, down + y + 0.5];
    const picture = Object.assign(canvas(width, height), { naturalWidth: width, naturalHeight: height });
    const small = mini(picture, { attention, box }, 0);
    return { at: [across / sum, down / sum], corner: alpha(0, 0),
             small: [small.width, small.height] };
}"""


@pytest.mark.parametrize(("width", "height"), [(600, 400), (400, 600), (800, 200), (200, 800)])
def test_the_light_lies_on_the_cell_that_a_slot_looks_at(open_page, width, height):
    page = open_page()
    whole, side = [0, 0, 1, 1], 0.875 * min(width, height)
    middle = [(1 - side / width) / 2, (1 - side / height) / 2, (1 + side / width) / 2, (1 + side / height) / 2]
    for box in (whole, middle):
        left, top, right, bottom = box
        for row, column in ((1, 5), (3, 3), (4, 1)):
            lit = page.evaluate(LIT, [width, height, box, row, column])
            across = (left + (right - left) * (column + 0.5) / 7) * width
            down = (top + (bottom - top) * (row + 0.5) / 7) * height
            assert lit["at"] == pytest.approx([across, down], abs=2)
            assert (lit["corner"] > 155) is (box is whole), "only what the model never saw is veiled evenly"
            small = lit["small"]
            assert small[0] / small[1] == pytest.approx(width / height, rel=0.05), "all of it, not squeezed"


def test_an_address_opens_a_picture_and_similar_ones_are_one_click_away(open_page, gallery):
    page = open_page(f"/?view={gallery.key(30)}")
    expect(page.get_by_role("dialog", name="scene 30.png")).to_be_visible()
    dialog = ask_why(page)  # without a query: where its slots look
    expect(dialog.get_by_text("Nothing was searched for")).to_be_visible()
    expect(dialog.locator(".pair")).to_have_count(3)
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()
    assert "view" not in page.url
    tiles(page).first.click()
    page.get_by_role("button", name="Next picture").click()
    page.wait_for_url(f"**view={gallery.key(MANY - 2)}")
    expect(page.get_by_role("dialog", name=f"scene {MANY - 2}.png")).to_be_visible()
    page.get_by_role("button", name="Close").click()
    expect(page.get_by_role("dialog")).to_be_hidden()
    tiles(page).nth(5).click()
    key = page.url.split("view=")[1]
    page.get_by_role("button", name="Similar pictures").click()
    wait_first(page, key)
    expect(page.get_by_text("Similar to this")).to_be_visible()
    expect(page.get_by_role("dialog")).to_be_hidden()


def test_filters_narrow_and_near_duplicates_are_grouped(open_page, gallery):
    page = open_page("/?q=a+dog")
    page.get_by_label("Folder").select_option("holiday/rome")
    expected = len(gallery.ids[2::4])
    expect(page.get_by_role("status")).to_have_text(f"{expected} pictures, best first")
    expect(tiles(page)).to_have_count(expected)
    page.get_by_label("Shape").select_option("portrait")
    page.get_by_label("From").fill("2024-01-20")
    page.get_by_label("Order").select_option("date")
    kept = [n for n in range(MANY) if n % 4 == 2 and n % 3 == 2 and n >= 19]
    expect(tiles(page)).to_have_count(len(kept))
    wait_first(page, gallery.key(kept[-1]))
    page.get_by_label("To", exact=True).fill("2024-01-20")
    expect(page.get_by_text("No pictures match these filters.")).to_be_visible()
    page.locator("#filters").get_by_role("button", name="Clear filters").click()
    expect(page.get_by_role("status")).to_have_text(f"{MANY} pictures, newest first")
    page.get_by_label("To", exact=True).fill("2024-01-10")
    expect(tiles(page)).to_have_count(9)
    folded = page.locator(".tile", has=page.locator(".same"))
    expect(folded).to_have_count(1)
    folded.click()
    expect(page.get_by_label("Almost the same").get_by_role("img")).to_have_count(1)
    page.keyboard.press("Escape")
    page.get_by_label("Group near-duplicates").uncheck()
    expect(tiles(page)).to_have_count(10)


def test_scrolling_shows_everything_once_and_reload_and_back_keep_the_place(open_page):
    page = open_page("/?q=a+dog")
    places = """() => [...document.querySelectorAll(".tile:not([hidden])")].map(
        (tile) => [tile.dataset.key, tile.style.left, tile.style.top, tile.style.width])"""
    before = page.evaluate(places)
    seen = {}
    for _ in range(100):  # what is far from the screen is not on the page
        for key, *place in page.evaluate(places):
            assert seen.setdefault(key, place) == place, "nothing moves"
        if len(seen) == SHOWN:
            break
        page.mouse.wheel(0, 500)
        page.wait_for_timeout(50)
    assert len(seen) == SHOWN
    page.evaluate("scrollTo(0, 0)")
    page.wait_for_function("(key) => document.querySelector('.tile').dataset.key === key", arg=before[0][0])
    assert page.evaluate(places)[: len(before)] == before
    page.get_by_label("Folder").select_option("holiday")
    search(page, "a cat")
    page.wait_for_url("**q=a+cat*")
    page.locator("#results[aria-busy=false]").wait_for()
    page.mouse.wheel(0, 700)
    page.wait_for_timeout(500)
    order = [key for key, *_ in page.evaluate(places)]
    top = page.evaluate("scrollY")
    assert top > 100
    page.reload()
    expect(page.get_by_label("Search pictures by a description")).to_have_value("a cat")
    expect(page.get_by_label("Folder")).to_have_value("holiday")
    page.wait_for_function("(top) => Math.abs(scrollY - top) < 2", arg=top)
    assert [key for key, *_ in page.evaluate(places)] == order
    page.go_back()
    expect(page.get_by_label("Search pictures by a description")).to_have_value("a dog")
    page.go_forward()
    expect(page.get_by_label("Search pictures by a description")).to_have_value("a cat")


def test_a_stopped_server_is_reported_and_recovered_from(open_page, gallery):
    running = Running(app_of(gallery))
    page = open_page(base=running.address)
    running.stop()
    search(page, gallery.captions[0])
    expect(page.get_by_role("alert")).to_contain_text("The server is not responding")
    running.start()
    expect(page.get_by_role("alert")).to_be_hidden(timeout=30_000)
    wait_first(page, gallery.key(0))
    page.close()
    running.stop()
    complaints = [said for said in open_page.said if "ERR_CONNECTION" not in said and said != BLOCKED]
    assert complaints == []
    open_page.said.clear()  # that a request failed is the browser's own complaint, and true


def test_the_keyboard_alone_is_enough(open_page, gallery):
    page = open_page()
    page.keyboard.press("/")
    with page.expect_response(lambda answer: gallery.captions[0] in unquote_plus(answer.url)):
        page.keyboard.type(gallery.captions[0])  # half a sentence finds the same picture first, and others after it
    wait_first(page, gallery.key(0))
    expect(page.locator("#results")).to_have_attribute("aria-busy", "false")
    focused = "() => document.activeElement.closest('li')?.dataset.key ?? document.activeElement.id"
    page.keyboard.press("ArrowDown")
    assert page.evaluate(focused) == gallery.key(0)
    page.keyboard.press("ArrowRight")
    second = page.evaluate(focused)
    assert second == tiles(page).nth(1).get_attribute("data-key")
    page.keyboard.press("ArrowDown")
    below = page.evaluate(focused)
    assert below not in (second, gallery.key(0))
    page.keyboard.press("ArrowUp")
    assert page.evaluate(focused) in (second, gallery.key(0), tiles(page).nth(2).get_attribute("data-key"))
    page.keyboard.press("Home")
    page.keyboard.press("Enter")
    expect(page.get_by_role("tab", name="Photo")).to_have_attribute("aria-selected", "true")
    page.keyboard.press("w")
    expect(page.get_by_role("dialog").locator(".pair")).to_have_count(3)
    page.locator("summary").focus()
    page.keyboard.press("Enter")
    page.keyboard.press("2")
    expect(page.get_by_role("radio", name="Slot 2")).to_be_checked()
    page.keyboard.press("ArrowRight")
    page.wait_for_url(f"**view={second}*")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()
    assert page.evaluate(focused) == second
    page.keyboard.press("Escape")
    assert page.evaluate(focused) == "q"
    page.keyboard.press("Escape")
    wait_first(page, gallery.key(MANY - 1))


def shade(page):
    """The colour behind the page."""
    return page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).slice(0, 3).map(Number)")


def test_a_phone_in_the_dark_has_room_for_everything(open_page):
    page = open_page("/?q=a+dog", viewport={"width": 390, "height": 844}, color_scheme="dark")
    assert max(shade(page)) < 60
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    expect(page.get_by_label("Folder")).to_be_hidden()
    page.get_by_role("button", name="Filters").click()
    expect(page.get_by_label("Folder")).to_be_visible()
    tiles(page).first.click()
    assert page.evaluate("document.querySelector('dialog').scrollWidth") <= 390
    expect(ask_why(page).locator(".pair")).to_have_count(3)
    assert page.evaluate("document.querySelector('dialog').scrollWidth") <= 390


def test_a_screen_reader_finds_names_for_everything_and_light_is_light(open_page):
    page = open_page("/?q=a+dog", color_scheme="light")
    assert min(shade(page)) > 220
    tiles(page).first.click()
    expect(ask_why(page).locator(".pair")).to_have_count(3)
    nameless = page.evaluate(
        """() => [...document.querySelectorAll("a, button, input:not([hidden]), select, dialog, img")].filter((one) => {
            const label = one.getAttribute("aria-label") || one.labels?.length || one.textContent.trim();
            return one.tagName === "IMG" ? !one.hasAttribute("alt") : !label && !one.hasAttribute("aria-labelledby");
        }).map((one) => one.outerHTML)"""
    )
    assert nameless == []
    for role in ("search", "main", "status"):
        assert page.locator(f"[role={role}], {role if role == 'main' else 'x'}").count() == 1
    page.keyboard.press("Escape")
    link = tiles(page).first.get_by_role("link")
    assert re.search(r"scene \d\d\.png, .*score \d", link.get_attribute("aria-label"))
