"""Calls of REST APIs with JSON, by the HTTP client of the controller."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import aiohttp
import msgspec

from common.http import why_lost
from controller.clouds.base import CloudAway, CloudError
from fairlead.wire.decoders import decoder_of

_FIRST_ERROR = 400
_MAX_SHOWN = 500
T = TypeVar("T")


class Rest:
    """A session of one account. Nothing here repeats a call: `ProviderCalls` does, and counts.

    `refusal` returns the error of an answer, by the call in words, the status and the body.
    `seconds`: how long a call may take.
    """

    def __init__(self, refusal: Callable[[str, int, bytes], CloudError], seconds: float) -> None:
        self._refusal = refusal
        self._timeout = aiohttp.ClientTimeout(total=seconds, sock_connect=10.0)
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def call(
        self,
        type_: type[T],
        method: str,
        url: str,
        token: str,
        *,
        what: str,
        asked: Mapping[str, str] | None = None,
        content: Mapping[str, Any] | None = None,
    ) -> T:
        """Return the answer. `what`: the call, for operators. Raises CloudError."""
        if self._session is None:
            # Some calls wait for a machine, one for each; `ProviderCalls` limits all others.
            connector = aiohttp.TCPConnector(limit=0)
            self._session = aiohttp.ClientSession(timeout=self._timeout, connector=connector)
        headers = {"Authorization": f"Bearer {token}"}
        try:
            async with self._session.request(
                method, url, params=asked, json=content, headers=headers
            ) as answer:
                status, body = answer.status, await answer.read()
        except (aiohttp.ClientError, OSError, ValueError) as error:
            # TimeoutError is an OSError.
            raise CloudAway(f"{what}: {why_away(error)}"[:_MAX_SHOWN]) from None
        if status >= _FIRST_ERROR:
            raise self._refusal(what, status, body)
        try:
            return decoder_of(type_).decode(body or b"{}")
        except msgspec.MsgspecError as error:
            raise CloudAway(f"{what} gave a wrong answer: {error}") from None


def why_away(error: Exception) -> str:
    """Return why the API gave no answer, without the words of the HTTP library."""
    match error:
        case aiohttp.ClientConnectorCertificateError(host=host, certificate_error=why):
            return f"the certificate of {host} is not trusted ({why})"
        case aiohttp.ClientConnectorDNSError(host=host):
            return f"this machine finds no address of {host}"
        case aiohttp.ClientConnectorError(host=host, port=port, os_error=why):
            # An error of several addresses has no number.
            cause = f" ({os.strerror(why.errno)})" if why.errno else ""
            return f"nothing answers at {host}:{port}{cause}"
        case aiohttp.InvalidURL():
            return f"{error} is no address"
        case _:
            return why_lost(error)
