import gc

from served import client_of


def test_what_was_there_before_the_server_is_not_looked_through_for_garbage_while_it_runs(gallery):
    before = gc.get_freeze_count()
    with client_of(gallery) as client:
        assert gc.get_freeze_count() > 10_000
        assert client.get("/api/v1/health").status_code == 200
    assert gc.get_freeze_count() <= before
