"""What the tests of this folder share and must give back."""

from collections.abc import Iterator

import pytest

from tests.e2e.raw_http import HTTP


@pytest.fixture(scope="session", autouse=True)
def _one_http_client() -> Iterator[None]:
    yield
    HTTP.close()
