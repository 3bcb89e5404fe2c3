"""Single pictures: their facts, thumbnails and explanations, and no other file."""

import io
import math
import os

import numpy as np
import pytest
from PIL import Image
from served import Gallery, client_of
from tiny_models import SIZES, D, tiny_model, tokenizer_for

from maxmatch import SetIndex
from maxmatch.matching import SIMILARITIES
from maxmatch.model.build import build_model
from maxmatch.model.encoder import NoAttentionError
from maxmatch.model.images import ImageError, load_image
from maxmatch.model.presets import PRESETS
from maxmatch.search.photos.facts import photo_facts
from maxmatch.server.api_schema import Refusal
from maxmatch.server.gallery import key_of
from maxmatch.server.pictures import Thumbnails, explain

ITEMS = "/api/v1/items"


def test_facts_of_an_item_are_those_of_its_file(client, gallery):
    facts = client.get(f"{ITEMS}/{gallery.key(6)}").json()
    assert (facts["id"], facts["name"], facts["folder"]) == (gallery.ids[6], "scene 06.png", "holiday/rome")
    assert (facts["width"], facts["height"], facts["orientation"]) == (96, 96, "square")
    assert facts["taken"] == "2024-01-07T12:00:00"
    assert facts["bytes"] == (gallery.root / gallery.ids[6]).stat().st_size


def test_a_thumbnail_is_never_enlarged_and_other_sizes_are_refused(client, gallery):
    response = client.get(f"{ITEMS}/{gallery.key(4)}/thumbnail", params={"size": 320})
    assert response.headers["content-type"] == "image/webp"
    assert "private" in response.headers["cache-control"]
    assert Image.open(io.BytesIO(response.content)).size == (96, 64)
    for size in ("161", "100000", "-1", "x"):
        assert client.get(f"{ITEMS}/{gallery.key(4)}/thumbnail", params={"size": size}).status_code == 422


def test_a_thumbnail_is_upright_and_has_no_exif(gallery, tmp_path):
    notes = Image.Exif()
    notes[0x0112], notes[0x010F] = 6, "a camera"
    path = tmp_path / "turned.jpg"
    Image.new("RGB", (600, 300), "red").save(path, exif=notes)
    with client_of(gallery._replace(root=tmp_path)) as client:
        (tmp_path / gallery.ids[0]).write_bytes(path.read_bytes())
        response = client.get(f"{ITEMS}/{gallery.key(0)}/thumbnail", params={"size": 160})
    image = Image.open(io.BytesIO(response.content))
    assert image.size == (80, 160)
    assert not image.getexif()


@pytest.mark.usefixtures("without_shape_checks")
def test_where_slots_look_is_refused_for_a_model_of_gaussians():
    config = PRESETS["resnet152_bigru"](**SIZES["resnet152_bigru"], width=D, head="gaussian", set_size=2)
    model = build_model(config, {"text": tokenizer_for(config)})
    with pytest.raises(Refusal) as refused:
        explain(model, None, None, SIMILARITIES["csd"], None, [])
    assert (refused.value.status, refused.value.code) == (422, "no_slots")


@pytest.mark.parametrize("end", ["", "/thumbnail", "/explain"])
def test_what_is_not_indexed_is_not_found(client, gallery, end):
    assert client.get(f"{ITEMS}/{key_of('scene 99.png')}{end}").status_code == 404


NAMES = ("../../../../etc/passwd", "..%2f..%2f..%2fetc%2fpasswd", "%2e%2e/%2e%2e/etc/passwd", "/etc/passwd")
NAMES += ("scene%2000.png", "holiday/rome/scene%2006.png", "\\..\\..\\windows", "%00")


@pytest.mark.parametrize("place", ["/api/v1/items/", "/static/", "/api/v1/uploads/", "/"])
def test_no_path_of_a_request_reaches_a_file(client, place):
    for address in (f"{place}{name}{end}" for name in NAMES for end in ("", "/thumbnail")):
        response = client.get(address)
        assert response.status_code in (404, 422), address
        assert response.json()["error"]["message"]
        assert "root:" not in response.text


def test_a_picture_whose_file_is_missing_is_not_found(gallery, tmp_path):
    with client_of(gallery._replace(root=tmp_path / "nothing")) as client:
        for end in ("thumbnail", "explain"):
            response = client.get(f"{ITEMS}/{gallery.key(0)}/{end}")
            assert response.status_code == 404
            assert response.json()["error"]["code"] == "not_found"
            assert str(tmp_path) not in response.text


def test_an_explanation_agrees_with_the_model(client, gallery):
    text = "a dog runs"
    answer = client.get(f"{ITEMS}/{gallery.key(9)}/explain", params={"q": text}).json()
    expected = gallery.model.explain(load_image(gallery.root / gallery.ids[9]), text)
    [part] = answer["parts"]
    assert part["score"] == pytest.approx(expected.score, abs=1e-4)
    assert part["words"] == expected.words
    assert part["query_slots"] == [0, 1, 2]
    for row, cosines in enumerate(part["cosines"]):
        assert cosines == pytest.approx(expected.cosines[:, row].tolist(), abs=1e-4)
        assert part["word_attention"][row] == pytest.approx(expected.text_attention[row].tolist(), abs=1e-4)
    pairs = {(pair["query_slot"], pair["item_slot"]) for pair in part["pairs"]}
    assert pairs == {(pair.text_slot, pair.image_slot) for pair in expected.pairs}
    attention = answer["slots"]["attention"]
    assert [len(attention), len(attention[0]), len(attention[0][0])] == list(expected.image_attention.shape)
    assert sum(map(sum, attention[0])) == pytest.approx(1, abs=1e-3)


def test_without_attention_a_part_counts_as_much_as_the_score_of_the_whole_query_falls_without_it(
    client, gallery, monkeypatch
):
    for name in ("image", "text"):
        head = gallery.model.tower(name).head
        monkeypatch.setattr(head, "forward", lambda f, plain=head.forward: plain(f)._replace(attention=None))
    address = f"{ITEMS}/{gallery.key(9)}/explain"
    picture = load_image(gallery.root / gallery.ids[9])
    answer = client.get(address, params={"q": "a dog"}).json()
    expected = gallery.model.explain(picture, "a dog")
    np.testing.assert_allclose(answer["slots"]["attention"], expected.image_attention, atol=1e-3)
    for pair in expected.pairs:
        found = answer["parts"][0]["word_attention"][pair.text_slot]
        np.testing.assert_allclose(found, expected.text_attention[pair.text_slot], atol=1e-3)
    answer = client.get(address, params={"q": '"a dog" - "a cat"'}).json()
    dog, cat = gallery.model.encode_texts(["a dog", "a cat"])
    expected = gallery.model.look("image", picture, lambda: dog - cat).attention
    np.testing.assert_allclose(answer["slots"]["attention"], expected, atol=1e-3)
    [part] = client.get(address, params={"like": gallery.key(4)}).json()["parts"]
    assert sum(map(sum, part["picture"]["attention"][0])) == pytest.approx(1, abs=1e-3)
    alone = client.get(address).json()["slots"]["attention"]
    np.testing.assert_allclose(alone, gallery.model.look("image", picture).attention, atol=1e-3)


def test_a_model_that_cannot_be_explained_is_refused_with_its_reason(client, gallery, monkeypatch):
    def refuse(*_):
        raise NoAttentionError("explain: no.")

    monkeypatch.setattr(gallery.model, "look", refuse)
    response = client.get(f"{ITEMS}/{gallery.key(9)}/explain", params={"q": "a dog"})
    assert (response.status_code, response.json()["error"]["code"]) == (422, "no_attention")
    assert response.json()["error"]["message"] == "explain: no."


def test_explanations_by_item_by_slot_and_by_parts(client, gallery):
    address = f"{ITEMS}/{gallery.key(9)}/explain"
    [part] = client.get(address, params={"like": gallery.key(9)}).json()["parts"]
    assert [pair["cosine"] for pair in part["pairs"]] == pytest.approx([1, 1, 1], abs=1e-4)
    assert part["picture"]["box"] == pytest.approx([0.0625, 0.0625, 0.9375, 0.9375], abs=0.02)
    [part] = client.get(address, params={"q": "a dog", "slot": 1}).json()["parts"]
    assert part["query_slots"] == [1]
    assert len(part["cosines"]) == len(part["pairs"]) == 1
    parts = client.get(address, params={"q": '"a dog" - "a cat"'}).json()["parts"]
    assert [(part["label"], part["weight"]) for part in parts] == [("a dog", 1), ("a cat", -1)]
    assert client.get(address).json()["parts"] == []


SHAPES = {"3:2": (120, 80), "portrait": (80, 120), "panorama": (240, 60), "tower": (60, 240)}


def shapes_gallery(folder, resize):
    """Pictures of four shapes, bright at their left; each also as a camera held upright stores it, by EXIF."""
    model = tiny_model({"crop": "resnet152_bigru", "squash": "resnext101_bert"}[resize], set_size=2)
    ids = []
    folder.mkdir()
    turned = Image.Exif()
    turned[0x0112] = 6
    for name, (width, height) in SHAPES.items():
        pixels = np.random.default_rng(0).integers(0, 99, (height, width, 3), np.uint8)
        pixels[:, : width // 3] = 255
        picture = Image.fromarray(pixels)
        picture.save(folder / f"{name}.png")
        picture.transpose(Image.Transpose.ROTATE_90).save(folder / f"{name} turned.png", exif=turned)
        ids += [f"{name}.png", f"{name} turned.png"]
    facts = [photo_facts(folder / name, folder) for name in ids]
    index = SetIndex.create(folder / "index", dim=model.dim, set_size=2, model=model, engine="exhaustive")
    index.add(ids, model.encode_images([folder / name for name in ids]), facts)
    return Gallery(folder, ids, index, model, [])


@pytest.mark.parametrize("resize", ["crop", "squash"])
def test_the_box_is_the_part_of_the_upright_picture_that_the_model_sees(tmp_path, resize):
    gallery, looks = shapes_gallery(tmp_path / "pictures", resize), []
    with client_of(gallery) as client:
        for place, name in enumerate(gallery.ids):
            width, height = SHAPES[name.removesuffix(".png").removesuffix(" turned")]
            facts = client.get(f"{ITEMS}/{gallery.key(place)}").json()
            assert (facts["width"], facts["height"]) == (width, height)
            small = client.get(f"{ITEMS}/{gallery.key(place)}/thumbnail").content
            assert Image.open(io.BytesIO(small)).size == (width, height)
            slots = client.get(f"{ITEMS}/{gallery.key(place)}/explain", params={"q": "a dog"}).json()["slots"]
            side = 0.875 * min(width, height)  # of the square in the middle
            across, down = (side / width, side / height) if resize == "crop" else (1, 1)
            expected = [(1 - across) / 2, (1 - down) / 2, (1 + across) / 2, (1 + down) / 2]
            assert slots["box"] == pytest.approx(expected, abs=0.02 if resize == "crop" else 0)
            looks.append(slots["attention"])
            sent = {"file": ("picture", (gallery.root / name).read_bytes(), "image/png")}
            [hit] = client.post("/api/v1/search/image", files=sent, params={"k": 1}).json()["hits"]
            assert hit["item"]["id"].split()[0].removesuffix(".png") == name.split()[0].removesuffix(".png")
            assert hit["score"] == pytest.approx(math.e - 1, abs=1e-3)  # the same set
    np.testing.assert_allclose(looks[1::2], looks[::2], atol=1e-4)
    lying = gallery.model.look("image", Image.open(gallery.root / gallery.ids[0]).rotate(90, expand=True)).attention
    assert np.abs(lying.numpy() - looks[0]).max() > 1e-3, "they do depend on how a picture is turned"


def test_the_gallery_lists_folders_and_dates(client):
    answer = client.get("/api/v1/gallery").json()
    assert (answer["total"], answer["set_size"], answer["reads_pictures"]) == (24, 3, True)
    counts = {folder["folder"]: folder["count"] for folder in answer["folders"]}
    assert counts == {"garden": 6, "holiday": 12, "holiday/rome": 6}
    assert answer["cameras"] == ["Garmin VIRB", "Canon EOS 5D"]  # equally many: the newest first
    assert answer["places"] == ["Città, Italy"]
    assert "dog" in answer["vocabulary"]
    assert not {"the", "a", "<pad>"} & set(answer["vocabulary"])
    assert (answer["earliest"], answer["latest"]) == ("2024-01-01T12:00:00", "2024-01-24T12:00:00")


def test_health_and_metrics(client):
    assert client.get("/api/v1/health").json()["status"] == "ok"
    client.get("/api/v1/search", params={"q": "a dog"})
    text = client.get("/metrics").text
    assert "maxmatch_items 24.0" in text
    assert 'maxmatch_batch_size_count{work="encode"}' in text
    assert 'route="/search",status="200"' in text
    assert "maxmatch_items 24.0" in client.get("/api/v1/metrics").text


def picture(path, colour="red", size=(40, 30)):
    Image.new("RGB", size, colour).save(path)
    return path


def test_a_replaced_picture_gets_a_new_thumbnail(tmp_path):
    thumbnails, path = Thumbnails(), picture(tmp_path / "a.png")
    first = thumbnails.make(path, 160)
    assert thumbnails.make(path, 160) is first
    picture(path, "blue")
    os.utime(path, ns=(1, 1))
    assert thumbnails.make(path, 160) != first


def test_the_cache_stays_within_its_bound(tmp_path):
    paths = [picture(tmp_path / f"{place}.png", (place, 0, 0)) for place in range(20)]
    one = len(Thumbnails().make(paths[0], 160))
    thumbnails = Thumbnails(cached_bytes=3 * one + 50)
    for path in paths:
        thumbnails.make(path, 160)
    assert thumbnails._bytes == sum(map(len, thumbnails._known.values())) <= 3 * one + 50
    assert thumbnails._known


def test_missing_and_damaged_pictures_raise(tmp_path):
    with pytest.raises(FileNotFoundError):
        Thumbnails().make(tmp_path / "none.png", 160)
    (tmp_path / "bad.png").write_bytes(b"no picture")
    with pytest.raises(ImageError):
        Thumbnails().make(tmp_path / "bad.png", 160)
