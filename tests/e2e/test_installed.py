"""The page as an installed app: it opens without the server, and keeps nothing but its own files."""

import json
import re
from pathlib import Path

from page_steps import tiles, wait_first
from playwright.sync_api import expect
from served import MANY, Running, app_of

import maxmatch.server

STATIC = Path(maxmatch.server.__file__).parent / "static"
KEPT = """async () => {
    const kept = [];
    for (const name of await caches.keys())
        for (const request of await (await caches.open(name)).keys()) kept.push(new URL(request.url).pathname);
    return kept.sort();
}"""


def test_the_worker_names_every_file_of_the_page():
    text = (STATIC / "sw.js").read_text(encoding="utf-8")
    listed = set(re.findall(r'"/(?:static/)?([\w.-]+)"', text.split("];")[0]))
    own = {path.name for path in STATIC.iterdir()}
    assert own - listed == {"index.html", "sw.js", "icon-512.png"}, "the page itself is /"
    assert listed <= own


def test_the_manifest_can_be_installed_from():
    manifest = json.loads((STATIC / "manifest.webmanifest").read_text(encoding="utf-8"))
    assert {"name", "short_name", "start_url", "display", "icons"} <= manifest.keys()
    assert {"192x192", "512x512"} <= {icon["sizes"] for icon in manifest["icons"]}
    for icon in manifest["icons"]:
        assert (STATIC / icon["src"].rsplit("/", 1)[1]).exists()


def test_the_page_opens_offline_and_nothing_private_is_kept(open_page, gallery):
    running = Running(app_of(gallery))
    page = open_page("/?q=a+dog", base=running.address, service_workers="allow")
    page.evaluate("navigator.serviceWorker.ready.then(() => true)")
    page.wait_for_function("navigator.serviceWorker.controller !== null")
    page.reload()
    tiles(page).first.click()
    expect(page.get_by_role("dialog").locator(".photo img")).to_have_js_property("complete", True)
    kept = page.evaluate(KEPT)
    assert "/" in kept
    assert "/static/app.js" in kept
    assert [
        path for path in kept if path not in ("/", "/manifest.webmanifest") and not path.startswith("/static/")
    ] == []
    running.stop()
    page.goto(f"{running.address}/?q=a+cat")
    expect(page.get_by_role("alert")).to_contain_text("The server is not responding")
    expect(page.get_by_label("Search pictures by a description")).to_have_value("a cat")
    expect(tiles(page)).to_have_count(0)
    running.start()
    expect(page.get_by_role("alert")).to_be_hidden(timeout=30_000)
    expect(page.get_by_role("status")).to_contain_text(f"{MANY} pictures")
    page.get_by_label("Search pictures by a description").fill("")
    wait_first(page, gallery.key(MANY - 1))
    page.close()
    running.stop()
    assert [said for said in open_page.said if "ERR_" not in said] == []
    open_page.said.clear()  # that requests failed is the browser's own complaint, and true
