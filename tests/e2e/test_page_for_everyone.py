"""The page by keyboard, on a phone, in the dark, and read aloud."""

import re
from urllib.parse import unquote_plus

from page_parts import tiles, wait_first
from playwright.sync_api import expect
from served import MANY


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
    expect(page.get_by_role("dialog").locator(".pair")).to_have_count(3)
    page.keyboard.press("2")
    expect(page.get_by_role("radio", name="Slot 2")).to_be_checked()
    page.keyboard.press("ArrowRight")
    page.wait_for_url(f"**view={second}")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()
    assert page.evaluate(focused) == second
    page.keyboard.press("Escape")
    assert page.evaluate(focused) == "q"
    page.keyboard.press("Escape")
    wait_first(page, gallery.key(MANY - 1))


def test_a_phone_has_room_for_everything(open_page):
    page = open_page("/?q=a+dog", viewport={"width": 390, "height": 844})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    expect(page.get_by_label("Folder")).to_be_hidden()
    page.get_by_role("button", name="Filters").click()
    expect(page.get_by_label("Folder")).to_be_visible()
    tiles(page).first.click()
    expect(page.get_by_role("dialog").locator(".pair")).to_have_count(3)
    assert page.evaluate("document.querySelector('dialog').scrollWidth") <= 390


def test_dark_is_dark_and_light_is_light(open_page):
    shade = "() => getComputedStyle(document.body).backgroundColor.match(/\\d+/g).slice(0, 3).map(Number)"
    assert max(open_page(color_scheme="dark").evaluate(shade)) < 60
    assert min(open_page(color_scheme="light").evaluate(shade)) > 220


def test_a_screen_reader_finds_names_for_everything(open_page):
    page = open_page("/?q=a+dog")
    tiles(page).first.click()
    expect(page.get_by_role("dialog").locator(".pair")).to_have_count(3)
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
