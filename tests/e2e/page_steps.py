"""What a person does on the page, step by step."""

from playwright.sync_api import expect

PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}


def tiles(page):
    return page.locator("#results li.tile:visible")


def search(page, text):
    page.get_by_label("Search pictures by a description").fill(text)


def ask_why(page, details=True):
    """The tab that explains the picture that is shown, with the slots behind "Details"."""
    page.get_by_role("tab", name="Why?").click()
    if details:
        page.get_by_role("dialog").locator("summary").click()
    return page.get_by_role("dialog")


def wait_first(page, key):
    expect(tiles(page).first).to_have_attribute("data-key", key)


def give(page, content, how, kind="image/png"):
    """Let a file come as if it were dropped or pasted."""
    page.evaluate(
        """([bytes, how, type]) => {
            const files = new DataTransfer();
            files.items.add(new File([new Uint8Array(bytes)], "mine", { type }));
            const event = how === "drop"
                ? new DragEvent("drop", { dataTransfer: files, bubbles: true, cancelable: true })
                : new ClipboardEvent("paste", { clipboardData: files, bubbles: true, cancelable: true });
            document.body.dispatchEvent(event);
        }""",
        [list(content), how, kind],
    )


def hold(page, pattern):
    """Answers to these requests wait until they are let go."""
    held = []
    page.route(pattern, lambda route: held.append(route))
    return held


def arrived(page, held):
    for _ in range(250):
        if held:
            return
        page.wait_for_timeout(20)
    raise AssertionError("none of these requests was made")


def let_go(page, held):
    arrived(page, held)
    for route in held:
        try:
            route.continue_()
        except Exception:  # the page has given it up
            continue
    held.clear()
