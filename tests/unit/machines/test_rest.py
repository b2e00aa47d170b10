"""What an operator reads of a provider's API that gives no answer."""

from __future__ import annotations

import aiohttp
import pytest
from aiohttp.client_reqrep import ConnectionKey

from controller.clouds.base import CloudAway
from controller.clouds.rest import Rest, why_away
from tests.support.ssh_daemon import free_port


def _never(what: str, status: int, body: bytes) -> CloudAway:
    raise AssertionError((what, status, body))


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://127.0.0.1:PORT/v1", "nothing answers at 127.0.0.1:PORT (Connection refused)"),
        ("http:///v1", "http:///v1 is no address"),
    ],
)
async def test_an_api_that_gives_no_answer_is_told_without_the_words_of_a_library(
    url: str, why: str
) -> None:
    port, rest = str(free_port()), Rest(_never, 10.0)
    with pytest.raises(CloudAway) as caught:
        await rest.call(dict, "GET", url.replace("PORT", port), "t", what="GET /v1")
    await rest.close()
    assert str(caught.value) == f"GET /v1: {why.replace('PORT', port)}"


def test_a_name_without_an_address_is_told_as_such() -> None:
    key = ConnectionKey("api.example", 443, True, True, None, None, None)
    error = aiohttp.ClientConnectorDNSError(key, OSError(-3, "Temporary failure"))
    assert why_away(error) == "this machine finds no address of api.example"
