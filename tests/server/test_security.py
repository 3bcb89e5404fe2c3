"""Who is answered, what is accepted, and that nothing else gets in or out."""

import asyncio
import io
import random
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest
from picture_heap import png
from PIL import Image, ImageChops, ImageStat
from served import client_of
from starlette.testclient import TestClient
from tiny_models import tiny_model

from maxmatch.core.machine import return_memory
from maxmatch.model.picture_files import PILLOW_FORMATS
from maxmatch.server import pictures
from maxmatch.server.app import create_app
from maxmatch.server.pictures import decoding_bytes, read_upload
from maxmatch.server.security import Limits, check_token, is_loopback

TOKEN = "0123456789abcdef0123"
IMAGE = "/api/v1/search/image"


def saved(kind, size=(64, 64)):
    file = io.BytesIO()
    Image.new("RGB", size, "green").save(file, kind)
    return file.getvalue()


def send(client, data, kind="image/png"):
    return client.post(IMAGE, files={"file": ("picture", data, kind)}, params={"k": 1})


def memory():
    """This process's own, in MB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 2**20


BAD = {
    "empty": b"",
    "a text": b"just words" * 100,
    "html": b"<html><script>alert(1)</script></html>",
    "svg": b'<svg xmlns="http://www.w3.org/2000/svg"><image href="file:///etc/passwd"/></svg>',
    "a program": b"\x7fELF" + bytes(500),
    "postscript": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
    "a PNG cut short": saved("PNG")[:60],
    "a JPEG cut short": saved("JPEG", (400, 400))[:700],
    "a WebP cut short": saved("WEBP")[:30],
    "a PNG without pixels": png(64, 64),
    "a bomb": png(60_000, 60_000),
    "a smaller bomb": png(12_000, 9_000),
    "a bomb that holds what it says": png(8_000, 8_000, bytes(8_000 * 8_000 // 50)),
}


@pytest.mark.parametrize("what", BAD)
def test_files_that_are_not_pictures_are_refused(client, what):
    response = send(client, BAD[what])
    assert response.status_code in (413, 415), response.text
    assert response.json()["error"]["message"]
    assert "Traceback" not in response.text


def test_cut_and_changed_pictures_never_fail_the_server(client):
    generator = random.Random(0)
    for kind in ("PNG", "JPEG", "WEBP", "GIF", "TIFF", "BMP"):
        whole = saved(kind)
        for _ in range(6):
            data = bytearray(whole[: generator.randrange(1, len(whole) + 1)])
            for _ in range(3):
                data[generator.randrange(len(data))] = generator.randrange(256)
            assert send(client, bytes(data)).status_code in (200, 413, 415)


def posted(app, chunks, **headers):
    """The status of an upload sent in chunks, and how many of them the server took."""
    taken, statuses = [], []

    async def receive():
        taken.append(next(chunks, None))
        return {"type": "http.request", "body": taken[-1] or b"", "more_body": taken[-1] is not None}

    async def send(message):
        statuses.append(message.get("status"))

    named = [(name.encode(), value.encode()) for name, value in {"host": "127.0.0.1", **headers}.items()]
    scope = {"type": "http", "method": "POST", "path": IMAGE, "raw_path": IMAGE.encode(), "query_string": b""}
    scope |= {"headers": named, "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80), "scheme": "http"}
    asyncio.run(app({**scope, "http_version": "1.1", "root_path": "", "app": app}, receive, send))
    return statuses[0], len(taken)


def test_an_upload_beyond_the_limit_is_refused_and_not_read_to_its_end(client):
    size = 2**20
    form = {"content-type": "multipart/form-data; boundary=x"}
    first = [b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.png"\r\n\r\n']
    status, taken = posted(client.app, iter(first + [bytes(size)] * 100), **form)
    assert status == 413
    assert taken <= Limits().upload_bytes // size + 2
    assert posted(client.app, iter([bytes(size)] * 100), **form, **{"content-length": str(100 * size)}) == (413, 0)
    assert send(client, bytes(Limits().upload_bytes)).status_code == 413
    assert send(client, BAD["a smaller bomb"]).status_code == 413


def test_other_bodies_are_limited_and_a_request_without_a_file_is_refused(client):
    response = client.post("/api/v1/search", json={"parts": [{"text": "x" * 140_000}]})
    assert response.status_code == 413
    for body in (b"", b"{", b"[]", b"\xff\xfe", b"null"):
        response = client.post("/api/v1/search", content=body, headers={"content-type": "application/json"})
        assert response.status_code == 422, response.text
    assert client.post(IMAGE).status_code == 422
    assert client.post(IMAGE, data={"file": "a text"}).status_code == 422


def test_every_response_has_the_security_headers(client):
    for address in ("/", "/static/app.js", "/nothing", "/api/v1/search", "/api/v1/search?k=0", "/metrics"):
        headers = client.get(address).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert "access-control-allow-origin" not in headers
        assert "cache-control" in headers


def test_the_page_loads_nothing_from_elsewhere(client):
    page = client.get("/").text
    names = [part.split('"')[0] for part in page.split("/static/")[1:]]
    assert "app.js" in names
    for name in [*names, "grid.js", "why.js", "heat.js"]:
        response = client.get(f"/static/{name}")
        assert response.status_code == 200, name
        assert "https://" not in response.text
        assert "eval(" not in response.text
        assert "innerHTML" not in response.text
    tag = client.get("/static/app.js").headers["etag"]
    assert client.get("/static/app.js", headers={"if-none-match": tag}).status_code == 304


def test_a_failure_is_a_response_without_a_traceback(gallery, caplog):
    with client_of(gallery._replace(root=None)) as client:
        response = client.get(f"/api/v1/items/{gallery.key(0)}/thumbnail")
    assert response.status_code == 500
    assert response.json()["error"]["code"] == "failed"
    assert "Traceback" not in response.text
    assert "content-security-policy" in response.headers
    assert "TypeError" in caplog.text


@pytest.fixture(scope="module")
def ask(gallery):
    """A question from some client, to the server under some name, with a token or without."""
    apps = {token: create_app(gallery.index, gallery.model, gallery.picture, token=token) for token in (None, TOKEN)}

    def asked(address="/api/v1/gallery", client="127.0.0.1", host="http://127.0.0.1:1", token=None, **more):
        caller = TestClient(apps[token], base_url=host, client=(client, 1))
        return caller.get(address, follow_redirects=False, **more)

    return asked


def test_without_a_token_only_this_machine_is_answered_under_its_own_names(ask):
    assert ask().status_code == 200
    assert ask(host="http://localhost:99").status_code == 200
    assert ask(client="::1", host="http://[::1]:99").status_code == 200
    assert ask(client="192.168.1.9").status_code == 403
    assert ask(host="http://pictures.example.com").status_code == 421


def test_with_a_token_only_requests_with_it_are_answered(ask):
    far = {"client": "192.168.1.9", "host": "http://pictures.example.com", "token": TOKEN}
    for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": TOKEN}, {"cookie": "maxmatch_token=x"}):
        for address in ("/api/v1/gallery", "/", "/metrics", "/static/app.js"):
            response = ask(address, headers=headers, **far)
            assert response.status_code == 401
            assert "token" in response.json()["error"]["message"]
    assert ask(headers={"authorization": f"Bearer {TOKEN}"}, **far).status_code == 200
    assert ask(headers={"cookie": f"maxmatch_token={TOKEN}"}, **far).status_code == 200
    beside = f'prefs={{"a": 1}}; maxmatch_token={TOKEN}'  # another program's, on another port of the same host
    assert ask(headers={"cookie": beside}, **far).status_code == 200


def test_health_tells_only_who_has_the_token_what_is_served(ask):
    far = {"client": "192.168.1.9", "host": "http://pictures.example.com", "token": TOKEN}
    assert ask("/api/v1/health", **far).json() == {"status": "ok"}
    assert ask("/api/v1/health", headers={"authorization": "Bearer wrong"}, **far).json() == {"status": "ok"}
    known = ask("/api/v1/health", headers={"authorization": f"Bearer {TOKEN}"}, **far).json()
    assert known == ask("/api/v1/health").json()
    assert set(known) == {"status", "items", "left", "not_read", "version"}


def test_wrong_tokens_are_throttled_and_only_for_their_sender(gallery):
    app = create_app(gallery.index, gallery.model, gallery.picture, token=TOKEN)

    def status(token, address="192.168.1.66"):
        client = TestClient(app, client=(address, 1))
        return client.get("/api/v1/gallery", headers={"authorization": f"Bearer {token}"} if token else {}).status_code

    assert [status("an old one") for _ in range(30)] == [401] * 30, "the same one is no new guess"
    assert [status(None) for _ in range(30)] == [401] * 30
    assert [status(f"guess {n}") for n in range(12)] == [401] * 9 + [429] * 3
    assert status(TOKEN) == 429, "else guessing would go on"
    assert status(None) == 401
    assert status(TOKEN, "192.168.1.9") == 200
    guesses = [status(f"guess {n}", f"2001:db8::{n}") for n in range(12)]
    assert guesses == [401] * 10 + [429] * 2, "a sender has many IPv6 addresses"
    [guard] = [layer for layer in layers(app) if hasattr(layer, "guesses")]
    for network, (_, tokens) in list(guard.guesses._known.items()):
        guard.guesses._known[network] = (0.0, tokens)
    assert status("wrong") == 401, "a minute later"
    assert status(TOKEN) == 200


def layers(app):
    layer = app.middleware_stack
    while layer is not None:
        yield layer
        layer = getattr(layer, "app", None)


def test_other_sites_cannot_search_by_addresses_but_may_link_to_the_page(client):
    search = "/api/v1/search?q=a+dog"
    image = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors", "sec-fetch-dest": "image"}
    link = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    for headers in (image, link, image | {"sec-fetch-site": "same-site"}, {"origin": "http://evil.example"}):
        assert client.get(search, headers=headers).status_code == 403
    assert client.get("/", headers=link).status_code == 200
    assert client.get("/", headers=link | {"sec-fetch-dest": "iframe"}).status_code == 403
    assert client.get("/", headers=image).status_code == 403
    for site in ("same-origin", "none"):
        assert client.get(search, headers={"sec-fetch-site": site}).status_code == 200


def test_the_address_with_the_token_sets_a_cookie_and_redirects(ask):
    far = {"client": "192.168.1.9", "host": "http://pictures.example.com", "token": TOKEN}
    response = ask(f"/?token={TOKEN}&q=a+dog", **far)
    assert response.status_code == 303
    assert response.headers["location"] == "/?q=a+dog"
    cookie = response.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert ask("/?token=wrong", **far).status_code == 401
    assert ask(f"/api/v1/gallery?token={TOKEN}", **far).status_code == 401


def test_pages_of_other_sites_are_refused_and_the_own_page_is_answered(client):
    own = {"origin": "http://127.0.0.1:8765", "sec-fetch-site": "same-origin"}
    foreign = ({"origin": "http://evil.example"}, {"sec-fetch-site": "cross-site"})
    for headers, status in ((own, 200), *((one, 403) for one in foreign)):
        response = client.post("/api/v1/search", json={"parts": [{"text": "a dog"}]}, headers=headers)
        assert response.status_code == status


def test_other_addresses_need_a_long_token():
    check_token("127.0.0.1", None)
    check_token("0.0.0.0", TOKEN)
    for host in ("0.0.0.0", "192.168.1.2", "::", "example.com"):
        assert not is_loopback(host)
        with pytest.raises(ValueError, match="--token"):
            check_token(host, None)
    with pytest.raises(ValueError, match="at least 16"):
        check_token("127.0.0.1", "short")


def test_another_models_index_is_refused(gallery):
    with pytest.raises(ValueError, match="another model"):
        create_app(gallery.index, tiny_model("resnet152_bigru", seed=1, set_size=3), gallery.picture)


@pytest.mark.parametrize("kind", [*PILLOW_FORMATS, "MPO"])
def test_every_format_of_photo_folders_can_be_uploaded(client, kind):
    assert send(client, saved(kind)).status_code == 200


def test_avif_is_not_asked_for_where_it_cannot_be_read(client, without_avif):
    with without_avif():
        refused = send(client, saved("AVIF"))
        assert refused.status_code == 415
        assert "TIFF" in refused.json()["error"]["message"]
        assert "AVIF" not in refused.json()["error"]["message"]


def test_limits_can_be_set(gallery):
    with client_of(gallery, limits=Limits(upload_bytes=2000, upload_pixels=5000)) as client:
        assert send(client, saved("PNG")).status_code == 200
        assert send(client, saved("PNG", (80, 80))).status_code == 413
        assert send(client, saved("BMP")).status_code == 413


PICTURES = {
    "WebP": ("RGB", (4000, 3000), {"format": "WEBP", "method": 0}),
    "WebP, transparent": ("RGBA", (4000, 3000), {"format": "WEBP", "method": 0}),
    "PNG": ("RGB", (4000, 3000), {"format": "PNG", "compress_level": 1}),
    "PNG, transparent": ("RGBA", (4000, 3000), {"format": "PNG", "compress_level": 1}),
    "PNG, a palette": ("P", (4000, 3000), {"format": "PNG", "compress_level": 1}),
    "PNG, 16 bits": ("I;16", (4000, 3000), {"format": "PNG", "compress_level": 1}),
    "JPEG, progressive": ("RGB", (4000, 3000), {"format": "JPEG", "progressive": True, "subsampling": 0}),
    "JPEG, long": ("CMYK", (24_000, 500), {"format": "JPEG", "progressive": True}),
    "AVIF": ("RGB", (4000, 3000), {"format": "AVIF", "speed": 10}),
    "TIFF": ("RGB", (4000, 3000), {"format": "TIFF", "compression": "tiff_lzw"}),
}


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the peak of memory is Linux's to tell")
@pytest.mark.parametrize("what", PICTURES)
def test_decoding_takes_no_more_memory_than_expected(what):
    with ProcessPoolExecutor(1, get_context("spawn")) as fresh:  # what other tests left is not counted
        side, taken, expected = fresh.submit(memory_taken, what).result()
    assert side == 768
    assert taken < expected + 25


def memory_taken(what):
    mode, size, options = PICTURES[what]
    file = io.BytesIO()
    Image.new(mode, size).save(file, **options)
    with Image.open(file) as image:
        expected = decoding_bytes(image) / 2**20
    return_memory()
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = memory()
    picture = read_upload(file.getvalue(), 50_000_000)
    [peak] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
    return max(picture.size), int(peak.split()[1]) / 2**10 - before, expected


def test_what_decodes_at_reduced_size_may_be_larger(client, monkeypatch):
    monkeypatch.setattr(pictures, "DECODING_BYTES", 100_000_000)
    files = {kind: saved(kind, (3000, 3000)) for kind in ("JPEG", "PNG", "WEBP")}
    assert {kind: send(client, data).status_code for kind, data in files.items()} == {
        "JPEG": 200,
        "PNG": 200,
        "WEBP": 413,
    }


@pytest.mark.slow
def test_memory_is_given_back(client):
    picture = saved("PNG", (3000, 3000))
    send(client, picture)
    before = memory()
    for _ in range(12):
        assert send(client, picture).status_code == 200
    assert memory() - before < 60


def test_a_reduced_upload_is_the_picture_that_was_sent():
    image = Image.effect_mandelbrot((3200, 2400), (-2, -1.5, 1, 1.5), 40).convert("RGB")
    for mode in ("RGB", "RGBA", "L", "P", "CMYK"):
        file = io.BytesIO()
        image.convert(mode).save(file, "TIFF")
        expected = image.convert(mode).convert("RGB")
        expected.thumbnail((768, 768))
        difference = ImageChops.difference(read_upload(file.getvalue(), 50_000_000), expected)
        assert ImageStat.Stat(difference).mean < [2, 2, 2], mode
