"""Requests of Google's REST APIs: by the HTTP client of the controller, with tokens of google-auth,
which finds credentials as all programs of Google Cloud do. It waits in its calls, so they are made
in threads."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, TypeVar
from urllib.parse import urlsplit

import google.auth
import google.auth.transport.requests
import requests
from google.auth.exceptions import (
    GoogleAuthError,
    MalformedError,
    RefreshError,
    TransportError,
)
from google.oauth2 import service_account

from controller.clouds.base import CloudAway, CloudError, Unauthorized
from controller.clouds.gcp.errors import refusal
from controller.clouds.rest import Rest
from controller.provider_config.gcp import GcpProvider

_SCOPES = ("https://www.googleapis.com/auth/cloud-platform",)
_CALL_SECONDS = 150.0
"""One call, `zoneOperations.wait`, is answered after 2 minutes at the latest."""
_UNAUTHENTICATED = 401
_MAX_SHOWN = 500
T = TypeVar("T")


class Calls:
    """The calls of one account of the provider `name`."""

    def __init__(self, name: str, config: GcpProvider) -> None:
        self._name = name
        self._file = config.credentials_file
        self._lock = asyncio.Lock()
        self._credentials: Any = None
        self._rest = Rest(self._refusal, _CALL_SECONDS)

    async def close(self) -> None:
        await self._rest.close()

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
        token = await self._token()
        return await self._rest.call(
            type_, method, url, token, what=what, asked=asked, content=content
        )

    def _refusal(self, what: str, status: int, body: bytes) -> CloudError:
        if status == _UNAUTHENTICATED:
            # The token was withdrawn before its end; the file may have a new key.
            self._credentials = None
        return refusal(what, status, body)

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
                raise CloudAway(f"credentials: {_why_away(error)}") from None
            except (GoogleAuthError, ValueError) as error:
                if self._file is None and not isinstance(error, MalformedError):
                    raise Unauthorized(f"credentials: {error}"[:_MAX_SHOWN]) from None
                # Their text may show a part of the file.
                raise Unauthorized(f"credentials: {self._bad_file()}") from None

    def _bad_file(self) -> str:
        if self._file is None:
            return "GOOGLE_APPLICATION_CREDENTIALS is no key of a service account in JSON"
        is_empty = self._file.is_file() and not self._file.stat().st_size
        what = "is empty" if is_empty else "is no key of a service account in JSON"
        return f"providers.{self._name}.credentials_file: {self._file} {what}"

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


def _why_away(error: TransportError) -> str:
    """Return why the server of tokens gave no answer, without the words of the HTTP libraries."""
    request = getattr(error.__cause__, "request", None)
    where = urlsplit(getattr(request, "url", None) or "").netloc
    if not where:
        return _first_line(error)
    if isinstance(error.__cause__, requests.exceptions.SSLError):
        return f"the certificate of {where} is not trusted"
    return f"there is no connection to {where}"


def _first_line(error: Exception) -> str:
    """Return what the error says, without the answer that it has as a second argument."""
    lines = str(error.args[0] if error.args else error).splitlines()
    return (lines or [type(error).__name__])[0][:_MAX_SHOWN]
