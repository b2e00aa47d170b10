"""Requests of Google's REST APIs: by the HTTP client of the controller, with tokens of google-auth,
which finds credentials as all programs of Google Cloud do. It waits in its calls, so they are made
in threads."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, TypeVar

import aiohttp
import google.auth
import google.auth.transport.requests
import msgspec
import requests
from google.auth.exceptions import (
    GoogleAuthError,
    MalformedError,
    RefreshError,
    TransportError,
)
from google.oauth2 import service_account

from controller.clouds.base import CloudAway, Unauthorized
from controller.clouds.gcp.errors import refusal
from controller.provider_config import GcpProvider
from fairlead.wire.decoders import decoder_of

_SCOPES = ("https://www.googleapis.com/auth/cloud-platform",)
_TIMEOUT = aiohttp.ClientTimeout(total=150.0, sock_connect=10.0)
"""One call, `zoneOperations.wait`, is answered after 2 minutes at the latest."""
_FIRST_ERROR, _UNAUTHENTICATED = 400, 401
_MAX_SHOWN = 500
T = TypeVar("T")


class Calls:
    """The calls of one account. Nothing here repeats one: the worker does, and counts."""

    def __init__(self, config: GcpProvider) -> None:
        self._file = config.credentials_file
        self._lock = asyncio.Lock()
        self._credentials: Any = None
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
        asked: Mapping[str, str] | None = None,
        content: Mapping[str, Any] | None = None,
    ) -> T:
        """Raises CloudError."""
        what = f"{method} {url.partition('://')[2].partition('/')[2]}"
        headers = {"Authorization": f"Bearer {await self._token()}"}
        if self._session is None:
            # Each machine that is being made has a call that waits; the worker limits all others.
            connector = aiohttp.TCPConnector(limit=0)
            self._session = aiohttp.ClientSession(timeout=_TIMEOUT, connector=connector)
        try:
            async with self._session.request(
                method, url, params=asked, json=content, headers=headers
            ) as answer:
                status, body = answer.status, await answer.read()
        except (aiohttp.ClientError, OSError, ValueError) as error:
            # TimeoutError is an OSError.
            raise CloudAway(f"{what}: {error or type(error).__name__}"[:_MAX_SHOWN]) from None
        if status == _UNAUTHENTICATED:
            # The token was withdrawn before its end; the file may have a new key.
            self._credentials = None
        if status >= _FIRST_ERROR:
            raise refusal(what, status, body)
        try:
            return decoder_of(type_).decode(body or b"{}")
        except msgspec.MsgspecError as error:
            raise CloudAway(f"{what} gave a wrong answer: {error}") from None

    async def _token(self) -> str:
        """Raises CloudError."""
        if self._credentials is not None and self._credentials.valid:
            return str(self._credentials.token)
        async with self._lock:
            try:
                return await asyncio.to_thread(self._fresh_token)
            except RefreshError as error:
                kind = CloudAway if error.retryable else Unauthorized
                raise kind(f"credentials: {_first_line(error)}") from None
            except OSError as error:
                raise CloudAway(f"credentials: {error.strerror or error}"[:_MAX_SHOWN]) from None
            except TransportError as error:
                raise CloudAway(f"credentials: {_first_line(error)}") from None
            except (GoogleAuthError, ValueError) as error:
                if self._file is None and not isinstance(error, MalformedError):
                    raise Unauthorized(f"credentials: {error}"[:_MAX_SHOWN]) from None
                # Their text may show a part of the file.
                where = self._file or "GOOGLE_APPLICATION_CREDENTIALS"
                message = f"credentials: {where} is no key of a service account in JSON"
                raise Unauthorized(message) from None

    def _fresh_token(self) -> str:
        # A session for each: it is not for several threads, and one token is for an hour.
        with requests.Session() as session:
            request = google.auth.transport.requests.Request(session)
            if self._credentials is None:
                self._credentials = self._found(request)
            if not self._credentials.valid:
                credentials, self._credentials = self._credentials, None
                credentials.refresh(request)
                # After a refusal the file is read again: it may have a new key by then.
                self._credentials = credentials
            return str(self._credentials.token)

    def _found(self, request: Any) -> Any:
        if self._file is None:
            return google.auth.default(scopes=_SCOPES, request=request)[0]
        return service_account.Credentials.from_service_account_file(  # type: ignore[no-untyped-call]
            str(self._file), scopes=_SCOPES
        )


def _first_line(error: Exception) -> str:
    """Return what the error says, without the answer that it has as a second argument."""
    lines = str(error.args[0] if error.args else error).splitlines()
    return (lines or [type(error).__name__])[0][:_MAX_SHOWN]
