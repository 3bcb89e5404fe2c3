import pytest
from served import client_of, make_gallery


@pytest.fixture(scope="session")
def gallery(tmp_path_factory):
    return make_gallery(tmp_path_factory.mktemp("gallery"))


@pytest.fixture(scope="session")
def client(gallery):
    with client_of(gallery) as client:
        yield client
