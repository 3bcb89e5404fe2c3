"""A picture shown large, and what can be done with it and with several: by mouse, keyboard and touch."""

import io
import re
import zipfile
from urllib.parse import unquote

import pytest
from page_steps import PHONE, ask_why, give, search, tiles, wait_first
from playwright.sync_api import expect
from served import MANY


def scale_of(page):
    return page.evaluate("new DOMMatrix(getComputedStyle(document.querySelector('.pane')).transform).a")


def copied(page):
    return page.evaluate("navigator.clipboard.readText()")


def test_a_click_shows_the_picture_with_its_facts_and_files(open_page, gallery):
    page = open_page("/?q=a+dog", permissions=["clipboard-read", "clipboard-write"])
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    tiles(page).nth(1).click()
    dialog = page.get_by_role("dialog")
    name = dialog.get_by_role("heading").first.inner_text()
    place = int(re.search(r"\d+", name).group())
    shown = dialog.locator(".photo img")
    expect(shown).to_have_attribute("alt", name)
    expect(shown).to_have_js_property("complete", True)
    expect(dialog.locator(".photo canvas")).to_have_css("opacity", "0")
    for text in ("January", "2024", f"{gallery.root}"[-12:] if not gallery.ids[place].count("/") else "scene"):
        expect(dialog.locator(".panel").first).to_contain_text(text)
    original = dialog.get_by_role("link", name="Open original")
    assert (
        page.request.get(original.evaluate("link => link.href")).body()
        == gallery.picture(gallery.ids[place]).read_bytes()
    )
    assert original.get_attribute("target") == "_blank"
    with page.expect_download() as saved:
        dialog.get_by_role("link", name="Download").click()
    assert saved.value.suggested_filename == name
    dialog.get_by_role("button", name="Copy path").click()
    expect(dialog.get_by_text("Path copied.")).to_be_visible()
    assert copied(page) == str(gallery.picture(gallery.ids[place]))
    expect(dialog.get_by_role("button", name="Show in folder")).to_have_count(0)  # no desktop here
    assert not [url for url in asked if "explain" in url], "why is computed when it is asked for"
    page.keyboard.press("ArrowRight")
    expect(dialog.get_by_text(f"3 of {MANY - 1}")).to_be_visible()  # two are the same picture
    page.keyboard.press("ArrowLeft")
    expect(dialog.get_by_role("heading").first).to_have_text(name)
    page.go_back()
    expect(dialog).to_be_hidden()


def test_show_in_folder_asks_the_server_of_this_machine(open_page, gallery, monkeypatch):
    shown = []
    monkeypatch.setattr("maxmatch.server.album_routes.file_manager", lambda path: [["some"]])
    monkeypatch.setattr("maxmatch.server.album_routes.reveal", shown.append)
    page = open_page(f"/?view={gallery.key(9)}")
    page.get_by_role("button", name="Show in folder").click()
    expect(page.get_by_text("Shown in the file manager.")).to_be_visible()
    assert shown == [gallery.picture(gallery.ids[9]).resolve()]


def test_a_picture_is_zoomed_dragged_and_put_back(open_page, gallery):
    page = open_page(f"/?view={gallery.key(30)}")
    expect(page.locator(".photo img")).to_have_js_property("complete", True)
    box = page.locator(".photo").bounding_box()
    middle = (box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    for zoom in (
        lambda: page.keyboard.press("+"),
        lambda: page.get_by_role("button", name="Zoom in").click(),
        lambda: page.mouse.dblclick(*middle),
        lambda: (page.mouse.move(*middle), page.mouse.wheel(0, -300)),
    ):
        zoom()
        page.wait_for_function("document.querySelector('.zoomed')")
        assert scale_of(page) > 1.3
        page.keyboard.press("0")
        assert scale_of(page) == 1
    page.keyboard.press("+")
    before = page.locator(".photo img").bounding_box()
    page.mouse.move(*middle)
    page.mouse.down()
    page.mouse.move(middle[0] + 50, middle[1] + 30, steps=3)
    page.mouse.up()
    assert page.locator(".photo img").bounding_box()["x"] == pytest.approx(before["x"] + 50, abs=2)
    page.keyboard.press("Escape")  # back to the whole picture, then out
    assert scale_of(page) == 1
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()


def touch(session, kind, *points):
    session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": [{"x": x, "y": y} for x, y in points]})


def test_on_a_phone_a_swipe_turns_the_page_and_a_pinch_zooms(open_page, gallery):
    page = open_page("/", **PHONE, color_scheme="dark")
    tiles(page).first.click()
    heading = page.get_by_role("dialog").get_by_role("heading").first
    expect(heading).to_have_text(f"scene {MANY - 1}.png")
    fingers = page.context.new_cdp_session(page)
    for start, end, name in ((300, 80, f"scene {MANY - 2}.png"), (80, 300, f"scene {MANY - 1}.png")):
        touch(fingers, "touchStart", (start, 250))
        for x in range(start, end, 20 if end > start else -20):
            touch(fingers, "touchMove", (x, 250))
        touch(fingers, "touchEnd")
        expect(heading).to_have_text(name)
    touch(fingers, "touchStart", (180, 250), (220, 250))
    for spread in range(20, 120, 20):
        touch(fingers, "touchMove", (180 - spread, 250), (220 + spread, 250))
    touch(fingers, "touchEnd")
    page.wait_for_function("document.querySelector('.zoomed')")
    expect(heading).to_have_text(f"scene {MANY - 1}.png")
    assert page.evaluate("document.querySelector('dialog[open]').scrollWidth") <= 390


@pytest.mark.parametrize("why", [False, True])
def test_a_long_name_leaves_room_for_the_way_back_on_a_phone(open_page, why):
    page = open_page("/?q=a+dog", **PHONE)
    tiles(page).first.click()
    dialog = page.get_by_role("dialog")
    if why:
        ask_why(page, details=False)
    dialog.get_by_role("heading").first.evaluate("name => name.textContent = 'IMG_20240531_180211_'.repeat(4) + '.jpg'")
    for name in ("Close", "Why?"):
        box = (dialog.get_by_role("tab", name=name) if name == "Why?" else dialog.get_by_label(name)).bounding_box()
        assert box["x"] + box["width"] <= PHONE["viewport"]["width"], name
    dialog.get_by_label("Close").click()
    expect(dialog).to_be_hidden()


def test_why_is_told_in_words(open_page, gallery):
    page = open_page("/?q=a+dog+runs")
    tiles(page).first.click()
    dialog = ask_why(page, details=False)
    told = dialog.locator(".met")
    expect(told.first).to_contain_text("This part of the picture met the word")
    for words in told.locator("strong").all_inner_texts():
        assert words in ("a", "dog", "runs")
    expect(dialog.get_by_role("table")).to_be_hidden()  # for those who want it
    for word in ("slot", "cosine", "vector"):
        assert word not in dialog.locator(".mets").inner_text().lower()
    expect(told.first.get_by_role("button")).to_have_attribute("aria-pressed", "true")
    expect(dialog.locator(".photo canvas")).to_have_css("opacity", "1")
    told.first.get_by_role("button").click()
    expect(dialog.locator(".photo canvas")).to_have_css("opacity", "0")
    page.reload()
    expect(page.get_by_role("tab", name="Why?")).to_have_attribute("aria-selected", "true")
    page.get_by_role("tab", name="Why?").press("ArrowLeft")
    expect(page.get_by_role("tab", name="Photo")).to_be_focused()
    expect(page.get_by_role("link", name="Open original")).to_be_visible()
    page.goto(page.url.split("?")[0])
    give(page, gallery.picture(gallery.ids[20]).read_bytes(), "drop")
    wait_first(page, gallery.key(20))
    tiles(page).nth(1).click()
    page.get_by_role("tab", name="Why?").click()
    expect(told.first).to_contain_text("like this part of yours")
    expect(told.first.locator("canvas")).to_have_count(2)


def chosen(page):
    """The places of the marked tiles."""
    marks = page.locator("#results .tick").all()
    return [place for place, mark in enumerate(marks[:12]) if mark.get_attribute("aria-checked") == "true"]


def test_several_are_chosen_by_mouse_and_keyboard(open_page, gallery):
    page = open_page("/?q=a+dog", permissions=["clipboard-read", "clipboard-write"])
    bar = page.get_by_role("region", name="Selected pictures")
    expect(bar).to_be_hidden()
    ticks = page.locator("#results .tick")
    tiles(page).nth(2).hover()
    ticks.nth(2).click()
    expect(bar).to_contain_text("1 picture selected")
    tiles(page).nth(5).click(modifiers=["Shift"])
    assert chosen(page) == [2, 3, 4, 5]
    tiles(page).nth(3).click()  # while some are chosen, a click chooses
    assert chosen(page) == [2, 4, 5]
    expect(page.get_by_role("dialog")).to_have_count(0)
    bar.get_by_role("button", name="Copy paths").click()
    keys = [tiles(page).nth(place).get_attribute("data-key") for place in (2, 4, 5)]
    files = {gallery.key(place): gallery.picture(name) for place, name in enumerate(gallery.ids)}
    assert copied(page).splitlines() == [str(files[key]) for key in (keys[0], *keys[1:])]
    with page.expect_download() as saved:
        bar.get_by_role("button", name="Download").click()
    assert saved.value.suggested_filename == "photos.zip"
    with zipfile.ZipFile(io.BytesIO(saved.value.path().read_bytes())) as archive:
        assert {name: archive.read(name) for name in archive.namelist()} == {
            files[key].name: files[key].read_bytes() for key in keys
        }
    bar.get_by_role("button", name="Clear").click()
    assert chosen(page) == []
    expect(bar).to_be_hidden()
    page.keyboard.press("Home")
    page.keyboard.press("x")
    page.keyboard.press("Shift+ArrowRight")
    page.keyboard.press("Shift+ArrowRight")
    assert chosen(page) == [0, 1, 2]
    page.keyboard.press("Space")
    assert chosen(page) == [0, 1]
    page.keyboard.press("Escape")
    assert chosen(page) == []
    page.keyboard.press("Control+a")
    expect(bar).to_contain_text(re.compile(r"(4[0-9]|5[0-9]) pictures selected"))


@pytest.mark.parametrize(
    "more",
    [
        pytest.param({}, id="desktop", marks=pytest.mark.slow),
        pytest.param({**PHONE, "color_scheme": "dark"}, id="phone"),
    ],
)
def test_albums_and_searches_are_kept(open_page, gallery, more):
    page = open_page("/?q=a+dog", **more)
    name = "Rome on a phone" if more else "Rome"
    dialog = page.get_by_role("dialog")
    ticks = page.locator("#results .tick")
    for place in (0, 1):
        ticks.nth(place).click(force=True)
    page.get_by_role("button", name="Add to album").click()
    page.get_by_label("A new album").fill(name)
    page.keyboard.press("Enter")
    expect(page.get_by_text(f"2 pictures added to “{name}”.")).to_be_visible()
    expect(page.get_by_role("region", name="Selected pictures")).to_be_hidden()
    tiles(page).nth(2).click()  # one more, from the viewer
    page.get_by_role("button", name="Add to album").click()
    dialog.last.get_by_role("button", name=name).click()
    expect(page.get_by_text(f"1 picture added to “{name}”.")).to_be_visible()
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Albums").click()
    page.get_by_label("Save this search as").fill(f"Dogs for {name}")
    page.keyboard.press("Enter")
    expect(dialog.get_by_role("button", name=f"Dogs for {name}", exact=True)).to_be_visible()
    expect(dialog.get_by_text("Saved.")).to_have_css("color", "rgb(242, 243, 241)")  # light, on dark
    dialog.get_by_role("button", name=re.compile(f"^{name} ?3 pictures")).click()
    expect(page.get_by_role("status")).to_have_text("3 pictures, newest first")
    expect(page.locator(".chip")).to_contain_text(name)
    search(page, "a dog")  # in the album
    expect(page.get_by_role("status")).to_have_text("3 pictures, best first")
    page.reload()
    expect(tiles(page)).to_have_count(3)
    ticks.first.click(force=True)
    page.get_by_role("button", name="Remove from album").click()
    expect(tiles(page)).to_have_count(2)
    page.get_by_label("Leave the album").click()
    expect(page.get_by_role("status")).to_have_text(f"{MANY} pictures, best first")
    page.get_by_role("button", name="Albums").click()
    dialog.get_by_role("button", name=f"Dogs for {name}", exact=True).click()
    assert "q=a dog" in unquote(page.url).replace("+", " ")
    page.get_by_role("button", name="Albums").click()
    dialog.get_by_role("button", name=f"Rename {name}").click()
    page.get_by_label("Name", exact=True).fill(f"{name} again")
    page.keyboard.press("Enter")
    dialog.get_by_role("button", name=f"Delete {name} again").click()
    expect(dialog).to_contain_text("Its pictures stay where they are.")
    dialog.get_by_role("button", name="Delete the album").click()
    dialog.get_by_role("button", name=f"Delete the search Dogs for {name}").click()
    expect(dialog).to_contain_text("None yet.")
    expect(dialog.get_by_role("button", name=name)).to_have_count(0)
    if more:
        assert page.evaluate("document.querySelector('dialog[open]').scrollWidth") <= 390
