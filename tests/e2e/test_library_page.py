"""Every photo in a browser: long lists, months and folders, names, and photos that come while the page is open."""

from datetime import datetime, timedelta

import numpy as np
import pytest
import torch
from PIL import Image
from playwright.sync_api import expect
from served import EXACT, Running
from tiny_models import tiny_model
from torch.nn.functional import normalize

from maxmatch import SetIndex
from maxmatch.server import app as app_module
from maxmatch.server import gallery as gallery_module
from maxmatch.server.app import create_app
from maxmatch.server.gallery import key_of

COUNT = 1_200
FIRST = datetime(2022, 3, 1, 12)
PLACES = ("", "garden", "holiday/rome", "holiday/sea")
SHAPES = ((90, 60), (60, 90), (80, 80))


def name_of(number):
    return f"{PLACES[number % 4]}/IMG_{number:05d}.png".lstrip("/")


def facts_of(number):
    name, (width, height) = name_of(number), SHAPES[number % 3]
    taken = (FIRST + timedelta(hours=20 * number)).isoformat()
    return {
        "path": f"/photos/{name}",
        "relative_path": name,
        "name": name.rsplit("/", 1)[-1],
        "folder": name.rpartition("/")[0],
        "taken": taken,
        "date": taken,
        "date_from": "exif",
        "width": width,
        "height": height,
        "orientation": "landscape",
    }


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    """Two thousand items; their pictures are three files."""
    folder = tmp_path_factory.mktemp("library")
    model = tiny_model("resnet152_bigru", set_size=3)
    for place, shape in enumerate(SHAPES):
        pixels = np.random.default_rng(place).integers(0, 256, (shape[1], shape[0], 3), np.uint8)
        Image.fromarray(pixels).save(folder / f"{place}.png")
    sets = normalize(torch.randn(COUNT, 3, model.dim, generator=torch.Generator().manual_seed(0)), dim=-1)
    with SetIndex.create(folder / "index", dim=model.dim, set_size=3, model=model, engine="exhaustive") as index:
        index.add([name_of(n) for n in range(COUNT)], sets, [facts_of(n) for n in range(COUNT)])
        index.files, index.model_used = folder, model
        yield index


@pytest.fixture(scope="module")
def server(index):
    def picture(name):
        return index.files / f"{int(name[-9:-4]) % 3}.png"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gallery_module, "_REFRESH_AFTER", 0.0)
        patch.setattr(app_module, "_REFRESH_EVERY", 0.1)
        running = Running(create_app(index, index.model_used, picture, near_duplicate=EXACT, cut=False))
        yield running
        running.stop()


def tiles(page):
    return page.locator("#results li.tile")


def places(page):
    return page.evaluate("[...document.querySelectorAll('#results li.tile')].map((tile) => Number(tile.dataset.place))")


@pytest.mark.parametrize("address", ["/", pytest.param("/?q=a+dog", marks=pytest.mark.slow)])
def test_scrolling_reaches_the_last_photo_with_few_tiles_on_the_page(open_page, address):
    page = open_page(address)
    first = tiles(page).first.get_attribute("data-key")
    seen, most = set(places(page)), 0
    for _ in range(400):
        page.evaluate("scrollBy(0, 1.5 * innerHeight)")
        page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        now = places(page)
        assert now == sorted(now), "in their order, for who hears them"
        seen.update(now)
        most = max(most, len(now))
        if COUNT - 1 in seen:
            break
    assert seen == set(range(COUNT))
    assert most < 250
    last = tiles(page).last
    assert (last.get_attribute("aria-posinset"), last.get_attribute("aria-setsize")) == (str(COUNT), str(COUNT))
    page.evaluate("scrollTo(0, 0)")
    expect(tiles(page).first).to_have_attribute("data-key", first)
    page.keyboard.press("/")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("End")
    focused = "() => document.activeElement.closest('li')?.dataset.place"
    assert page.evaluate(focused) == str(COUNT - 1)
    page.keyboard.press("Home")
    assert page.evaluate(focused) == "0"


def test_months_lead_to_the_photos_of_a_month(open_page):
    page = open_page()
    latest = FIRST + timedelta(hours=20 * (COUNT - 1))
    expect(page.locator("#results .month h2").first).to_have_text(latest.strftime("%B %Y"))
    times = page.get_by_role("region", name="By time")
    times.get_by_role("button", name="2023", exact=True).click()
    days = [FIRST + timedelta(hours=20 * n) for n in range(COUNT)]
    status = page.get_by_role("status")
    expect(status).to_contain_text(f"{sum(day.year == 2023 for day in days)} pictures")
    may = sum((day.year, day.month) == (2023, 5) for day in days)
    times.get_by_role("button", name=f"May {may}").click()
    expect(status).to_contain_text(f"{may} pictures")
    expect(page.locator("#results .month h2")).to_have_text(["May 2023"])
    assert "from=2023-05-01&to=2023-05-31" in page.url
    expect(times.get_by_role("button", name=f"May {may}")).to_be_focused()
    times.get_by_role("button", name=f"May {may}").click()
    expect(status).to_contain_text(f"{COUNT:,} pictures")


def test_buttons_that_have_not_changed_stay_when_everything_is_shown_again(open_page):
    page = open_page()
    year = page.get_by_role("region", name="By time").get_by_role("button", name="2023", exact=True)
    expect(year).to_be_visible()
    page.wait_for_load_state("networkidle")
    year.evaluate("button => { button.mark = true; }")
    page.evaluate("dispatchEvent(new PopStateEvent('popstate'))")
    page.wait_for_load_state("networkidle")
    assert year.evaluate("button => button.mark === true")  # a click under way would be lost with its button


def test_folders_lead_to_their_photos_and_back(open_page):
    page = open_page()
    folders = page.get_by_role("region", name="By folder")
    folders.get_by_role("button", name="holiday, 600 pictures").click()
    expect(page.get_by_role("status")).to_contain_text("600 pictures")
    folders.get_by_role("button", name="rome, 300 pictures").click()
    expect(page.get_by_role("status")).to_contain_text("300 pictures")
    expect(folders.locator("[aria-current=page]")).to_have_text("rome")
    assert {name_of(n) for n in range(2, COUNT, 4)} >= {"holiday/rome/IMG_00002.png"}
    folders.get_by_role("button", name="holiday", exact=True).click()
    expect(page.get_by_role("status")).to_contain_text("600 pictures")
    folders.get_by_role("button", name="All folders").click()
    expect(page.get_by_role("status")).to_contain_text(f"{COUNT:,} pictures")
    page.get_by_label("Search pictures by a description").fill("a dog")
    expect(page.locator("#browse")).to_be_hidden()


def test_a_photo_that_has_the_query_in_its_name_comes_first_and_says_so(open_page):
    page = open_page()
    page.get_by_label("Search pictures by a description").fill("IMG_00777")
    expect(tiles(page).first).to_have_attribute("data-key", key_of(name_of(777)))
    expect(tiles(page).first.locator(".named")).to_have_text("name")
    expect(page.locator(".tile .named")).to_have_count(1)
    assert "found by its name" in tiles(page).first.get_by_role("link").get_attribute("aria-label")


@pytest.mark.parametrize("viewport", [{"width": 1280, "height": 800}, {"width": 390, "height": 844}])
def test_nothing_is_wider_than_the_screen_and_a_turned_phone_keeps_its_place(open_page, viewport):
    page = open_page(viewport=viewport)
    expect(page.get_by_role("region", name="By folder")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]
    page.evaluate("scrollTo(0, 4000)")
    page.wait_for_timeout(300)
    middle = """() => [...document.querySelectorAll("#results li.tile")].filter((one) => {
        const { top, bottom } = one.getBoundingClientRect();
        return bottom > 0 && top < innerHeight;
    }).map((one) => Number(one.dataset.place))"""
    before = page.evaluate(middle)
    page.set_viewport_size({"width": viewport["height"], "height": viewport["width"]})
    page.wait_for_timeout(300)
    assert set(page.evaluate(middle)) & set(before)


def test_photos_appear_and_go_while_the_page_is_open(open_page, index):
    page = open_page()
    status = page.get_by_role("status")
    expect(status).to_contain_text(f"{COUNT:,} pictures")
    new = normalize(torch.randn(1, 3, index.manifest.dim), dim=-1)
    index.add([name_of(COUNT)], new, [facts_of(COUNT)])
    try:
        page.wait_for_timeout(500)
        page.evaluate("dispatchEvent(new Event('online'))")  # the page asks the server every five seconds, or then
        expect(status).to_contain_text(f"{COUNT + 1:,} pictures", timeout=20_000)
        expect(tiles(page).first).to_have_attribute("data-key", key_of(name_of(COUNT)))
        body = {"status": "ok", "items": COUNT + 1, "left": 1234, "version": "x"}
        page.route("**/health", lambda route: route.fulfill(json=body))
        page.evaluate("dispatchEvent(new Event('online'))")
        expect(page.locator("#reading")).to_have_text("Reading 1,234 more pictures …")
        page.unroute("**/health")
        page.route("**/health", lambda route: route.fulfill(json={**body, "left": 0, "not_read": 3}))
        reasons = ["/photos/a.jpg: not a readable picture. The file is empty. Fetch it again."]
        cure = "2 HEIC not read: pip install 'maxmatch[heic]'"
        page.route("**/not-read", lambda route: route.fulfill(json={"count": 3, "reasons": reasons, "cure": cure}))
        page.evaluate("dispatchEvent(new Event('online'))")
        page.get_by_role("button", name="3 files were not read").click()
        expect(page.get_by_role("dialog")).to_contain_text("Fetch it again")
        expect(page.get_by_role("dialog")).to_contain_text(cure)
        page.keyboard.press("Escape")
        box = page.get_by_label("Search pictures by a description")
        box.fill("IMG_00777")
        expect(page.locator("#unread")).to_be_hidden()  # of a search it would say nothing
        box.press("Escape")
        expect(page.locator("#unread")).to_be_visible()
        page.unroute("**/health")
        # Its picture has come before the photo goes: a request under way would get a 404, which the console reports.
        expect(tiles(page).first).to_have_attribute("data-key", key_of(name_of(COUNT)))
        expect(tiles(page).first.locator("img")).to_have_js_property("complete", True)
    finally:
        index.remove([name_of(COUNT)])
    page.wait_for_timeout(500)
    page.evaluate("dispatchEvent(new Event('online'))")
    expect(status).to_contain_text(f"{COUNT:,} pictures", timeout=20_000)
    expect(page.locator("#reading")).to_be_hidden()
    expect(page.locator("#unread")).to_be_hidden()


def test_too_many_for_one_download_or_album_is_said_in_words(open_page):
    page = open_page()
    page.keyboard.press("/")
    page.keyboard.press("ArrowDown")
    for _ in range(60):
        page.keyboard.press("End")
        page.wait_for_timeout(50)
        if page.evaluate("document.activeElement.closest('li')?.dataset.place") == str(COUNT - 1):
            break
    page.keyboard.press("Control+a")
    bar = page.get_by_role("region", name="Selected pictures")
    expect(bar).to_contain_text(f"{COUNT:,} pictures selected")
    bar.get_by_role("button", name="Download").click()
    expect(page.locator(".toast")).to_contain_text("One download has at most 500 pictures.")
    bar.get_by_role("button", name="Add to album").click()
    expect(page.locator(".toast")).to_contain_text("At most 1,000 pictures can be added at once.")


def test_no_photos_are_left_out_when_pages_and_a_refresh_cross(open_page):
    """What is shown is asked for again, as photos came, while who scrolls on asks for the next pages."""
    page, held = open_page(), []
    body = {"status": "ok", "items": COUNT, "left": 0, "version": "x"}
    page.route("**/health", lambda route: route.fulfill(json=body))
    page.evaluate("dispatchEvent(new Event('online'))")
    page.wait_for_load_state("networkidle")
    page.route("**/search?*", lambda route: held.append(route))
    page.evaluate("scrollTo(0, document.documentElement.scrollHeight)")
    while not held:
        page.wait_for_timeout(20)
    page.unroute("**/health")
    page.route("**/health", lambda route: route.fulfill(json={**body, "items": COUNT + 1}))
    page.evaluate("dispatchEvent(new Event('online'))")
    while not any("offset=0&" in route.request.url for route in held):
        page.wait_for_timeout(20)
    # The next page was given up with the search before; another is asked for, and the one after that.
    [refresh] = [route for route in held if "offset=0&" in route.request.url]
    held.remove(refresh)
    last = ""
    for _ in range(2):
        for _ in range(100):
            waiting = [route for route in held if route.request.url != last and "offset=0&" not in route.request.url]
            if waiting:
                break
            page.evaluate("scrollBy(0, -1)")
            page.evaluate("scrollTo(0, document.documentElement.scrollHeight)")
            page.wait_for_timeout(20)
        if last:
            break
        last = waiting[-1].request.url
        held.clear()
        waiting[-1].continue_()
    refresh.continue_()
    page.wait_for_timeout(300)
    for route in held:
        route.continue_()
    page.unroute("**/search?*")
    page.wait_for_timeout(500)
    seen = {}
    page.evaluate("scrollTo(0, 0)")
    for _ in range(12):
        page.wait_for_timeout(60)
        seen |= page.evaluate(
            "Object.fromEntries([...document.querySelectorAll('#results li.tile')]"
            ".map((tile) => [tile.dataset.place, tile.dataset.key]))"
        )
        page.evaluate("scrollBy(0, innerHeight)")
    assert len(seen) > 150
    assert seen == {place: key_of(name_of(COUNT - 1 - int(place))) for place in seen}
