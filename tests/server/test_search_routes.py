import io

import pytest
import torch
from PIL import Image

from maxmatch.matching.similarity import SIMILARITIES
from maxmatch.server.gallery import key_of

SEARCH = "/api/v1/search"


def found(response):
    assert response.status_code == 200, response.text
    return [hit["item"]["id"] for hit in response.json()["hits"]]


def test_a_text_finds_its_item_first_by_the_models_score(client, gallery):
    for place, caption in enumerate(gallery.captions):
        response = client.get(SEARCH, params={"q": caption, "fold": False})
        assert found(response)[0] == gallery.ids[place]
        sets = gallery.index.fetch(gallery.ids)
        query = gallery.model.encode_texts([caption])
        for hit in response.json()["hits"]:
            expected = SIMILARITIES["maxmatch"](query, sets[hit["item"]["id"]][None])
            assert hit["score"] == pytest.approx(float(expected), abs=1e-5)
            assert len(hit["matches"]) == 3


def test_nothing_asked_for_is_everything_the_latest_first(client, gallery):
    response = client.get(SEARCH, params={"fold": False})
    assert found(response) == gallery.ids[::-1]
    body = response.json()
    assert (body["total"], body["more"]) == (24, False)
    assert body["hits"][0]["score"] is None
