"""What is on the page."""

from playwright.sync_api import expect


def tiles(page):
    return page.locator("#results li.tile:visible")


def first_key(page):
    return tiles(page).first.get_attribute("data-key")


def search(page, text):
    page.get_by_label("Search pictures by a description").fill(text)


def wait_first(page, key):
    expect(tiles(page).first).to_have_attribute("data-key", key)
