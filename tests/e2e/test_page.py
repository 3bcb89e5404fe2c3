import re

import pytest
from page_parts import first_key, search, tiles, wait_first
from playwright.sync_api import expect
from served import MANY, Running, app_of

SHOWN = MANY - 1  # two are the same picture


def give(page, path, how):
    """Let a file come as if it were dropped or pasted."""
    page.evaluate(
        """([bytes, how]) => {
            const files = new DataTransfer();
            files.items.add(new File([new Uint8Array(bytes)], "mine.png", { type: "image/png" }));
            const event = how === "drop"
                ? new DragEvent("drop", { dataTransfer: files, bubbles: true, cancelable: true })
                : new ClipboardEvent("paste", { clipboardData: files, bubbles: true, cancelable: true });
            document.body.dispatchEvent(event);
        }""",
        [list(path.read_bytes()), how],
    )


def test_typing_shows_the_right_picture_first(open_page, gallery):
    page = open_page()
    assert first_key(page) == gallery.key(MANY - 1)  # the latest
    for place, caption in enumerate(gallery.captions):
        search(page, caption)
        wait_first(page, gallery.key(place))
    assert "q=two+people" in page.url
    score = tiles(page).first.locator(".score")
    expect(score).to_have_text(re.compile(r"^1\.7[123]$"))  # e − 1: the same set
    expect(page.get_by_role("status")).to_have_text(f"{MANY} pictures, best first")
    expect(tiles(page).first.locator("img")).to_have_js_property("naturalWidth", 96)


def test_a_late_answer_never_replaces_a_newer_one(open_page, gallery):
    page = open_page()
    held = []
    page.route(re.compile(r"/search\?q=two"), lambda route: held.append(route))
    search(page, gallery.captions[1])
    page.wait_for_timeout(400)
    search(page, gallery.captions[0])
    wait_first(page, gallery.key(0))
    assert held
    for route in held:
        try:
            route.continue_()
        except Exception:  # the page has given it up, as it should
            continue
    page.wait_for_timeout(300)
    wait_first(page, gallery.key(0))


@pytest.mark.parametrize("how", ["drop", "paste"])
def test_an_uploaded_picture_finds_itself(open_page, gallery, how):
    page = open_page()
    give(page, gallery.root / gallery.ids[20], how)
    wait_first(page, gallery.key(20))
    expect(page.get_by_text("Your picture")).to_be_visible()
    page.reload()
    wait_first(page, gallery.key(20))
    page.get_by_label("Stop searching with this picture").click()
    wait_first(page, gallery.key(MANY - 1))


def test_a_file_that_is_not_a_picture_is_refused(open_page):
    page = open_page()
    page.evaluate(
        """() => {
            const files = new DataTransfer();
            files.items.add(new File(["words"], "a.txt", { type: "text/plain" }));
            document.body.dispatchEvent(new DragEvent("drop", { dataTransfer: files, bubbles: true }));
        }"""
    )
    expect(page.get_by_role("alert")).to_contain_text("not a picture")
    page.get_by_role("button", name="Dismiss").click()
    expect(page.get_by_role("alert")).to_be_hidden()


def test_why_shows_slots_words_pairs_and_the_matching(open_page, gallery):
    page = open_page("/?q=a+dog+runs")
    tiles(page).nth(2).click()
    dialog = page.get_by_role("dialog")
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
    shown = page.url.split("view=")[1]
    dialog.get_by_role("button", name="Search with picture slot 2 only").click()
    expect(page.get_by_text("Slot 2 only", exact=True)).to_be_visible()
    wait_first(page, shown)
    assert page.url.endswith(f"?like={shown}&slot=1")


def test_why_without_a_query_shows_where_the_slots_look(open_page):
    page = open_page()
    tiles(page).first.click()
    expect(page.get_by_role("dialog").locator(".pair")).to_have_count(3)
    page.get_by_role("button", name="Next picture").click()
    expect(page.get_by_role("dialog").locator(".pair")).to_have_count(3)
    page.get_by_role("button", name="Close").click()
    expect(page.get_by_role("dialog")).to_be_hidden()


def test_parts_of_a_query_are_explained_one_by_one(open_page):
    page = open_page("/?q=%22a+dog%22+-+%22a+cat%22")
    tiles(page).first.click()
    page.get_by_role("button", name="− a cat").click()
    words = page.get_by_role("dialog").locator(".pair").first.locator(".word")
    assert "cat" in words.all_inner_texts()


def test_similar_pictures_are_one_click_away(open_page, gallery):
    page = open_page()
    tiles(page).nth(5).click()
    key = page.url.split("view=")[1]
    page.get_by_role("button", name="Similar").click()
    wait_first(page, key)
    expect(page.get_by_text("Similar to this")).to_be_visible()
    expect(page.get_by_role("dialog")).to_be_hidden()


def test_filters_narrow_and_are_cleared(open_page, gallery):
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
    page.get_by_label("To").fill("2024-01-20")
    expect(page.get_by_text("No pictures match these filters.")).to_be_visible()
    page.locator("#filters").get_by_role("button", name="Clear filters").click()
    expect(page.get_by_role("status")).to_have_text(f"{MANY} pictures, newest first")


def test_near_duplicates_are_grouped_and_can_be_shown(open_page, gallery):
    page = open_page("/?to=2024-01-10")
    expect(tiles(page)).to_have_count(9)
    folded = page.locator(".tile", has=page.locator(".same"))
    expect(folded).to_have_count(1)
    folded.click()
    expect(page.get_by_label("Almost the same").get_by_role("img")).to_have_count(1)
    page.keyboard.press("Escape")
    page.get_by_label("Group near-duplicates").uncheck()
    expect(tiles(page)).to_have_count(10)


def test_paging_on_shows_everything_once_and_nothing_moves(open_page):
    page = open_page("/?q=a+dog")
    places = """() => [...document.querySelectorAll(".tile:not([hidden])")].map(
        (tile) => [tile.dataset.key, tile.style.left, tile.style.top, tile.style.width])"""
    before = page.evaluate(places)
    while (had := tiles(page).count()) < SHOWN:
        page.mouse.wheel(0, 20_000)
        page.wait_for_function("(had) => document.querySelectorAll('.tile:not([hidden])').length > had", arg=had)
    after = page.evaluate(places)
    assert after[: len(before)] == before
    assert len({key for key, *_ in after}) == len(after) == SHOWN


def test_reload_and_back_keep_what_was_shown_and_where(open_page, gallery):
    page = open_page("/?q=a+dog&folder=holiday")
    search(page, "a cat")
    page.wait_for_url("**q=a+cat*")
    page.locator("#results[aria-busy=false]").wait_for()
    page.mouse.wheel(0, 700)
    page.wait_for_timeout(500)
    order = page.evaluate("() => [...document.querySelectorAll('.tile')].map((tile) => tile.dataset.key)")
    top = page.evaluate("scrollY")
    assert top > 100
    page.reload()
    expect(page.get_by_label("Search pictures by a description")).to_have_value("a cat")
    expect(page.get_by_label("Folder")).to_have_value("holiday")
    page.wait_for_function("(top) => Math.abs(scrollY - top) < 2", arg=top)
    again = page.evaluate("() => [...document.querySelectorAll('.tile')].map((tile) => tile.dataset.key)")
    assert again == order
    page.go_back()
    expect(page.get_by_label("Search pictures by a description")).to_have_value("a dog")
    page.go_forward()
    expect(page.get_by_label("Search pictures by a description")).to_have_value("a cat")


def test_an_address_with_a_view_opens_it(open_page, gallery):
    page = open_page(f"/?q=a+dog&view={gallery.key(30)}")
    expect(page.get_by_role("dialog", name="scene 30.png")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()
    assert "view" not in page.url


def test_a_stopped_server_is_reported_and_recovered_from(open_page, gallery):
    running = Running(app_of(gallery))
    page = open_page(base=running.address)
    running.stop()
    search(page, gallery.captions[0])
    expect(page.get_by_role("alert")).to_contain_text("The server is not responding")
    running.start()
    expect(page.get_by_role("alert")).to_be_hidden()
    wait_first(page, gallery.key(0))
    page.close()
    running.stop()
    complaints = [said for said in open_page.said if "ERR_CONNECTION" not in said]
    assert complaints == []
    open_page.said.clear()  # that a request failed is the browser's own complaint, and true
