"""Searches by text, item, picture and parts; their pages, filters and refusals."""

import gc
import io
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated

import pytest
from fastapi import FastAPI, Query
from PIL import Image
from served import client_of
from starlette.testclient import TestClient

from maxmatch import SetIndex
from maxmatch.matching import SIMILARITIES
from maxmatch.search.index_folder import Origin, write_origin
from maxmatch.search.plausible import CutOff
from maxmatch.server.api_schema import DEEPEST, Refusal, SearchQuery, SearchResult, add_handlers
from maxmatch.server.app import create_app
from maxmatch.server.searcher import check_slot

SEARCH = "/api/v1/search"


def found(response):
    assert response.status_code == 200, response.text
    as_promised = SearchResult.model_validate_json(response.content, strict=True).model_dump(mode="json")
    assert as_promised == response.json()
    return [hit["item"]["id"] for hit in response.json()["hits"]]


def refused(response, status=422):
    assert response.status_code == status, response.text
    return response.json()["error"]["message"]


def score(gallery, query, name):
    return float(SIMILARITIES["maxmatch"](query[None], gallery.index.fetch([name])[name][None]))


def picture_bytes(path, kind="PNG"):
    file = io.BytesIO()
    with Image.open(path) as image:
        image.save(file, kind)
    return file.getvalue()


def test_a_text_finds_its_item_first_by_the_models_score(client, gallery):
    for place, caption in enumerate(gallery.captions):
        response = client.get(SEARCH, params={"q": caption, "fold": False})
        assert found(response)[0] == gallery.ids[place]
        [query] = gallery.model.encode_texts([caption])
        for hit in response.json()["hits"]:
            assert hit["score"] == pytest.approx(score(gallery, query, hit["item"]["id"]), abs=1e-5)
            assert len(hit["matches"]) == 3


@pytest.mark.parametrize(
    ("query", "unknown", "known"),
    [
        ({"q": "a dog"}, [], True),
        ({"q": "xqzzt's -blorf"}, ["xqzzt", "blorf"], False),
        ({"q": "?!"}, [], False),
        ({}, [], None),
    ],
)
def test_words_that_the_model_does_not_know_are_named(client, query, unknown, known):
    answer = client.get(SEARCH, params=query)
    assert found(answer)
    assert (answer.json()["unknown_words"], answer.json()["any_word_known"]) == (unknown, known)


def test_of_parts_only_texts_have_words(client, gallery):
    parts = [{"like": gallery.key(0)}, {"text": "a xqzzt", "weight": -1}]
    answer = client.post(SEARCH, json={"parts": parts}).json()
    assert (answer["unknown_words"], answer["any_word_known"]) == (["xqzzt"], True)
    answer = client.post(SEARCH, json={"parts": parts[:1]}).json()
    assert (answer["unknown_words"], answer["any_word_known"]) == ([], None)


def test_a_part_without_a_known_word_weighs_nothing_and_is_named(client, gallery):
    def asked(**query):
        answer = client.get(SEARCH, params={"fold": False, **query}).json()
        return [(hit["item"]["id"], pytest.approx(hit["score"], abs=1e-5)) for hit in answer["hits"]], answer

    for query, more in (('"a dog" + 3 "xqzzt"', ["xqzzt"]), ("a dog -blorf", ["blorf"])):
        hits, answer = asked(q=query)
        assert hits == asked(q="a dog")[0]
        assert (answer["left_out"], answer["unknown_words"], answer["any_word_known"]) == (more, more, True)
    hits, answer = asked(q="xqzzt", like=gallery.key(3))
    assert hits == asked(like=gallery.key(3))[0]
    assert (answer["left_out"], answer["any_word_known"]) == (["xqzzt"], False)
    why = client.get(f"/api/v1/items/{gallery.key(3)}/explain", params={"q": "a dog -blorf"}).json()
    assert [part["label"] for part in why["parts"]] == ["a dog"]
    assert asked(q='"xqzzt" + "blorf"')[1]["left_out"] == [], "then the results are a guess"


def test_an_index_alone_is_served_by_its_recorded_model(gallery, tmp_path):
    gallery.model.save_pretrained(tmp_path / "model")
    with SetIndex.create(tmp_path / "index", dim=gallery.model.dim, set_size=3, model=gallery.model) as index:
        paths = [str(gallery.picture(name)) for name in gallery.ids[:4]]
        index.add(paths, gallery.model.encode_images(paths))
        with pytest.raises(ValueError, match="another model"):  # the one that ships
            create_app(index)
        write_origin(index.folder, Origin(str(tmp_path / "model"), "image"))
        with TestClient(create_app(index), base_url="http://127.0.0.1:8765", client=("127.0.0.1", 50000)) as client:
            [query] = gallery.model.encode_texts(["a dog"])
            best = client.get(SEARCH, params={"q": "a dog", "fold": False}).json()["hits"][0]
            assert best["score"] == pytest.approx(index.search(query[None])[0][0].score, abs=1e-5)
            assert client.get(f"/api/v1/items/{best['item']['key']}/thumbnail").status_code == 200


def test_without_a_query_everything_is_shown_newest_first(client, gallery):
    for query in ({}, {"q": "   "}):
        response = client.get(SEARCH, params={**query, "fold": False})
        assert found(response) == gallery.ids[::-1]
        body = response.json()
        assert (body["total"], body["more"], body["hits"][0]["score"]) == (24, False, None)


def test_pages_together_are_the_whole(client, gallery):
    whole = found(client.get(SEARCH, params={"q": "a dog", "k": 200}))
    pages = []
    while True:
        response = client.get(SEARCH, params={"q": "a dog", "k": 5, "offset": len(pages)})
        pages += found(response)
        assert response.json()["more"] == (len(pages) < len(whole))
        if not response.json()["more"]:
            break
    assert pages == whole


def test_beyond_the_deepest_page_there_is_nothing(client):
    response = client.get(SEARCH, params={"q": "a dog", "k": 200, "offset": DEEPEST})
    assert found(response) == []
    assert not response.json()["more"]


@pytest.mark.parametrize(
    ("filters", "passes"),
    [
        ({"folder": "holiday"}, lambda place: place % 4 in (1, 2)),
        ({"folder": "holiday/rome"}, lambda place: place % 4 == 2),
        ({"folder": "holi"}, lambda place: False),
        ({"from": "2024-01-05", "to": "2024-01-07"}, lambda place: 4 <= place <= 6),
        ({"orientation": "landscape"}, lambda place: (3 if place == 7 else place) % 3 == 1),
        ({"orientation": "portrait", "from": "2024-01-10"}, lambda place: place % 3 == 2 and place >= 9),
        ({"camera": "Canon EOS 5D", "to": "2024-01-10"}, lambda place: place % 3 == 0 and place < 10),
        ({"camera": "Canon"}, lambda place: False),
        ({"place": "Città, Italy"}, lambda place: place == 5),
    ],
)
@pytest.mark.parametrize("query", [{}, {"q": "a dog"}])
def test_filters_leave_what_passes(client, gallery, filters, passes, query):
    response = client.get(SEARCH, params={**query, **filters, "fold": False})
    expected = {name for place, name in enumerate(gallery.ids) if passes(place)}
    assert set(found(response)) == expected
    assert response.json()["total"] == len(expected)


def test_sorted_by_date_the_newest_comes_first(client, gallery):
    assert found(client.get(SEARCH, params={"q": "a dog", "sort": "date", "fold": False})) == gallery.ids[::-1]


def test_near_duplicates_are_shown_as_one(client, gallery):
    for query in ({}, {"q": "a cat"}):
        hits = client.get(SEARCH, params=query).json()["hits"]
        assert len(hits) == 23
        [folded] = [hit for hit in hits if hit["duplicates"]]
        names = {folded["item"]["id"], *(same["id"] for same in folded["duplicates"])}
        assert names == {gallery.ids[3], gallery.ids[7]}


def test_an_item_is_most_similar_to_itself(client, gallery):
    response = client.get(SEARCH, params={"like": gallery.key(5)})
    assert found(response)[0] == gallery.ids[5]
    assert response.json()["hits"][0]["matches"][0]["cosine"] == pytest.approx(1, abs=1e-4)


def test_one_slot_is_refused_where_slots_are_paired():
    with pytest.raises(Refusal) as refusal:
        check_slot(1, 3, SIMILARITIES["paired"])
    with pytest.raises(Refusal):
        check_slot(1, 2, SIMILARITIES["csd"])
    assert refusal.value.status == 422
    check_slot(1, 3, SIMILARITIES["sinkhorn"])


def test_a_search_with_one_slot_uses_only_that_vector(client, gallery):
    name = gallery.ids[5]
    response = client.get(SEARCH, params={"like": gallery.key(5), "slot": 2, "fold": False})
    query = gallery.index.fetch([name])[name][2:3]
    assert found(response)[0] == name
    for hit in response.json()["hits"]:
        assert len(hit["matches"]) == 1
        assert hit["score"] == pytest.approx(score(gallery, query, hit["item"]["id"]), abs=1e-5)


def test_parts_count_by_their_weights(client, gallery):
    body = {"parts": [{"text": "a cat"}, {"like": gallery.key(4), "weight": 0.5}, {"text": "a dog", "weight": -2}]}
    response = client.post(SEARCH, json={**body, "fold": False, "k": 24})
    cat, dog = gallery.model.encode_texts(["a cat", "a dog"])
    item = gallery.index.fetch([gallery.ids[4]])[gallery.ids[4]]
    expected = {
        name: score(gallery, cat, name) + 0.5 * score(gallery, item, name) - 2 * score(gallery, dog, name)
        for name in gallery.ids
    }
    hits = response.json()["hits"]
    assert {hit["item"]["id"]: hit["score"] for hit in hits} == pytest.approx(expected, abs=1e-5)
    assert [hit["score"] for hit in hits] == sorted((hit["score"] for hit in hits), reverse=True)


def test_weighted_parts_in_a_text_equal_parts_in_a_body(client, gallery):
    body = {"parts": [{"text": "a cat"}, {"text": "a dog", "weight": -2}]}
    text = client.get(SEARCH, params={"q": '"a cat" - 2 "a dog"'})
    assert found(text) == found(client.post(SEARCH, json=body))


def test_an_uploaded_picture_finds_itself_and_is_kept_for_the_next_page(client, gallery):
    sent = picture_bytes(gallery.root / gallery.ids[10])
    response = client.post(f"{SEARCH}/image", files={"file": ("x.png", sent, "image/png")}, params={"k": 3})
    assert found(response)[0] == gallery.ids[10]
    key = response.json()["upload"]
    assert found(client.get(SEARCH, params={"upload": key, "k": 3})) == found(response)
    small = client.get(f"/api/v1/uploads/{key}/thumbnail")
    assert Image.open(io.BytesIO(small.content)).size == (96, 64)


@pytest.mark.parametrize(
    ("parameters", "named"),
    [
        ({"k": 0}, "k"),
        ({"k": 201}, "k"),
        ({"offset": -1}, "offset"),
        ({"q": "x" * 1001}, "q"),
        ({"sort": "size"}, "sort"),
        ({"from": "2024-13-01"}, "from"),
        ({"from": "2024-02-02", "to": "2024-02-01"}, "from"),
        ({"orientation": "round"}, "orientation"),
        ({"like": "../../etc/passwd"}, "like"),
        ({"colour": "red"}, "colour"),
        ({"q": "a", "slot": 3}, "slot"),
        ({"q": '- "a dog"'}, "query"),
        ({"upload": "0" * 32, "like": "0" * 32}, "one of like and upload"),
    ],
)
def test_a_refusal_names_the_parameter(client, parameters, named):
    status = {"slot": 404, "from": 409, "one of like and upload": 409}.get(named, 422)
    if parameters.get("from") and "to" not in parameters:
        status = 422
    assert named in refused(client.get(SEARCH, params=parameters), status).replace("Give one", "one")


def test_parts_need_one_with_a_positive_weight(client):
    for part in ({"text": "a", "weight": -1}, {"text": "a", "weight": 0}, {"weight": 1}):
        assert "parts" in refused(client.post(SEARCH, json={"parts": [part]}))


def test_guessed_keys_find_nothing(client):
    for name in ("like", "upload"):
        refused(client.get(SEARCH, params={name: "0" * 32}), 404)


def test_a_word_after_a_minus_counts_against_and_an_open_quote_is_refused(client):
    against = client.get(SEARCH, params={"q": '"dog" - "people"'})
    assert found(client.get(SEARCH, params={"q": "dog -people"})) == found(against)
    for text in ('"dog', '"dog" + 1000 "cat"'):
        refused(client.get(SEARCH, params={"q": text}))


def test_odd_characters_are_searched_like_any_text(client):
    for text in ("\x00", "🐕" * 10, "'; DROP TABLE items; --", "%", "a" * 1000):
        assert len(found(client.get(SEARCH, params={"q": text}))) == 23


def test_simultaneous_queries_get_their_own_results(client, gallery):
    words = ["dog", "beach", "people", "red bus", "cat", "bird", "two", "the"]
    alone = [found(client.get(SEARCH, params={"q": word, "k": 24})) for word in words]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda word: found(client.get(SEARCH, params={"q": f"{word} ", "k": 24})), words))
    assert together == alone


def test_garbage_collection_skips_what_existed_before_the_server(gallery):
    before = gc.get_freeze_count()
    with client_of(gallery) as client:
        assert gc.get_freeze_count() > 10_000
        assert client.get("/api/v1/health").status_code == 200
    assert gc.get_freeze_count() <= before


@pytest.fixture
def cut(gallery, monkeypatch):
    """A client of a server that leaves out what does not fit: only the very set of a text does."""
    known = CutOff(len(gallery.ids), dict.fromkeys((1, 2, 3, 6), (1.6, 0.01)))
    monkeypatch.setattr("maxmatch.server.searcher.calibrated", lambda index, model: known)
    with client_of(gallery, cut=True) as client:
        yield client


def test_results_end_where_they_stop_to_fit(cut, gallery):
    answer = cut.get(SEARCH, params={"q": gallery.captions[0]})
    assert found(answer) == gallery.ids[:1]
    assert (answer.json()["fits"], answer.json()["ended"], answer.json()["more"]) == (True, True, False)
    assert answer.json()["cut_off"] == pytest.approx(1.6 + 0.01 * 1.5)
    assert answer.json()["total"] == len(gallery.ids)
    whole = cut.get(SEARCH, params={"q": gallery.captions[0], "all": True, "fold": False})
    assert len(found(whole)) == len(gallery.ids)
    assert (whole.json()["fits"], whole.json()["ended"]) == (None, False)
    nothing = cut.get(SEARCH, params={"q": "a cat"})
    assert found(nothing) == []
    assert (nothing.json()["fits"], nothing.json()["ended"]) == (False, True)
    for query in ({"like": gallery.key(3)}, {"q": "a cat", "slot": 1}, {"q": "a cat -dog"}, {}):
        assert len(found(cut.get(SEARCH, params={**query, "fold": False}))) == len(gallery.ids), query


def test_a_least_score_ends_the_results(cut, gallery):
    scores = [hit["score"] for hit in cut.get(SEARCH, params={"q": "a cat", "all": True, "fold": False}).json()["hits"]]
    answer = cut.get(SEARCH, params={"q": "a cat", "min_score": scores[4] - 1e-6, "fold": False})
    assert len(found(answer)) == sum(score >= scores[4] - 1e-6 for score in scores)
    assert answer.json()["fits"] is None


def test_a_picture_and_a_text_are_searched_for_together(client, gallery):
    both = client.get(SEARCH, params={"like": gallery.key(5), "q": "a cat -dog", "fold": False})
    parts = [{"like": gallery.key(5)}, {"text": "a cat"}, {"text": "dog", "weight": -1}]
    assert found(both) == found(client.post(SEARCH, json={"parts": parts, "fold": False}))
    assert found(client.get(SEARCH, params={"like": gallery.key(5), "q": "-dog", "fold": False}))


@pytest.mark.parametrize(
    "query",
    ["k=0", "k=x&from=2024", "nonsense=1", "zz=1&zz=2", "q=dog&k=5&k=x", "like=short", "min_score=nan", "sort=best"],
)
def test_a_query_string_is_refused_as_fastapi_refuses_it(client, query):
    app = FastAPI()
    add_handlers(app)

    @app.get("/search")
    def search(query: Annotated[SearchQuery, Query()]) -> int:
        return 1

    by_fastapi, by_us = TestClient(app).get(f"/search?{query}"), client.get(f"{SEARCH}?{query}")
    assert by_fastapi.status_code == by_us.status_code == 422
    assert by_fastapi.json() == by_us.json()


def test_many_at_once_are_answered_as_each_alone(client, gallery):
    queries = [{"q": caption, "k": 3 + place % 4, "fold": False} for place, caption in enumerate(gallery.captions)]
    alone = [client.get(SEARCH, params=query).json()["hits"] for query in queries]
    with client_of(gallery, name="another") as other, ThreadPoolExecutor(8) as pool:  # which has encoded none of them
        together = [
            response.json()["hits"] for response in pool.map(lambda one: other.get(SEARCH, params=one), queries)
        ]
    for one, another in zip(alone, together, strict=True):
        assert [hit["item"] for hit in one] == [hit["item"] for hit in another]
        for hit, same in zip(one, another, strict=True):
            assert hit["score"] == pytest.approx(same["score"], abs=1e-5)
            assert [(pair["query_slot"], pair["item_slot"]) for pair in hit["matches"]] == [
                (pair["query_slot"], pair["item_slot"]) for pair in same["matches"]
            ]
