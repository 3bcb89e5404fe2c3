"""A real browser before a real server. Debian's Chromium through Playwright, which fetches nothing itself."""

import os

import pytest
from served import BLOCKED, MANY, Running, app_of, make_gallery

from maxmatch.cli.doctor import BROWSER_CURE, chromium_path

ARGUMENTS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]


def pytest_collection_modifyitems(items):
    """Where there is no browser, each test is skipped, with the cure."""
    if chromium_path() is None:
        here = os.path.dirname(__file__)
        for item in items:
            if str(item.path).startswith(here):
                item.add_marker(pytest.mark.skip(reason=f"no browser, not run: {item.name}. Cure: {BROWSER_CURE}"))


@pytest.fixture(scope="module")
def gallery(tmp_path_factory):
    return make_gallery(tmp_path_factory.mktemp("gallery"), MANY)


@pytest.fixture(scope="module")
def server(gallery):
    running = Running(app_of(gallery))
    yield running
    running.stop()


@pytest.fixture(scope="module")
def browser():
    """Closed after each file: while Playwright runs, nobody else can run an event loop in this process."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=chromium_path(), args=ARGUMENTS)
        yield opened
        opened.close()


@pytest.fixture
def open_page(browser, server):
    """Opens the page with a fresh profile; afterwards: no complaints on the console, no request to another host."""
    contexts, said, asked = [], [], []

    def opened(address="/", base=None, **more):
        context = browser.new_context(
            **{"viewport": {"width": 1280, "height": 800}, "service_workers": "block", **more}
        )
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(30_000)
        page.on("console", lambda message: message.type in ("error", "warning") and said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto((base or server.address) + address)
        page.locator("#results[aria-busy=false]").wait_for(state="attached")
        return page

    opened.said = said
    yield opened
    for context in contexts:
        context.close()
    assert [line for line in said if line != BLOCKED] == []
    assert asked
    assert {url.split("/")[2].split(":")[0] for url in asked} == {"127.0.0.1"}
