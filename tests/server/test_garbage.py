import gc

from served import client_of


def test_garbage_collection_skips_what_existed_before_the_server(gallery):
    before = gc.get_freeze_count()
    with client_of(gallery) as client:
        assert gc.get_freeze_count() > 10_000
        assert client.get("/api/v1/health").status_code == 200
    assert gc.get_freeze_count() <= before
