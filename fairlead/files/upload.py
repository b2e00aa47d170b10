"""Uploads make a run independent of this machine: its `repos` and `files` become blobs."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any

from fairlead.configuration.parse import parse
from fairlead.errors import ApiError, ConnectionLost, FairleadError
from fairlead.files.ignored import IsIgnored
from fairlead.files.packing import Upload, checked, pack
from fairlead.patience import Outages, Patience
from fairlead.rest import ControllerClient
from fairlead.wire.blobs import MAX_PARTS

SEND_TRIES = 5
_WORTH_TELLING = 4 << 20
_TELL_SECONDS = 3.0


def send_code(
    client: ControllerClient,
    configuration: object,
    base: Path,
    environ: Mapping[str, str],
    tell: Callable[[str], None],
    also_ignored: IsIgnored | None = None,
) -> object:
    """Upload the code and return the configuration to submit, which needs nothing of this machine.

    Paths in it are relative to `base`. Raises ConfigurationError, ApiError, ConnectionLost.
    """
    parsed = parse(configuration)
    if not isinstance(configuration, dict) or not (parsed.repos or parsed.files):
        return configuration
    with tempfile.TemporaryDirectory(prefix="fairlead-upload-") as scratch:
        packed = pack(configuration, parsed, base, environ, Path(scratch), also_ignored)
        for note in packed.notes:
            tell(note)
        _Sending(client, tell).send(packed.uploads)
    sent: dict[str, Any] = packed.configuration
    return sent


def digested(
    configuration: object,
    base: Path,
    environ: Mapping[str, str],
    also_ignored: IsIgnored | None = None,
) -> object:
    """Return what `send_code` would return. Everything is packed and nothing is sent. Raises
    ConfigurationError."""
    parsed = parse(configuration)
    if not isinstance(configuration, dict) or not (parsed.repos or parsed.files):
        return configuration
    with tempfile.TemporaryDirectory(prefix="fairlead-upload-") as scratch:
        found: dict[str, Any] = pack(
            configuration, parsed, base, environ, Path(scratch), also_ignored
        ).configuration
    return found


def as_if_sent(configuration: object, base: Path, environ: Mapping[str, str]) -> object:
    """Return what `send_code` would return, with digests of nothing. Nothing is packed or sent.
    Raises ConfigurationError as `send_code` does."""
    parsed = parse(configuration)
    if not isinstance(configuration, dict) or not (parsed.repos or parsed.files):
        return configuration
    return checked(configuration, parsed, base, environ)


_SENT_WHOLE_AFTER = (
    HTTPStatus.NOT_FOUND,  # an older controller
    HTTPStatus.CONFLICT,  # it has just removed an old upload
    HTTPStatus.BAD_REQUEST,  # an old upload is damaged on its disk
)

_AWAY = (
    HTTPStatus.REQUEST_TIMEOUT,  # it came too slowly, as when the network stood still
    HTTPStatus.BAD_GATEWAY,
    HTTPStatus.SERVICE_UNAVAILABLE,  # nobody leads, or the database is away
    HTTPStatus.GATEWAY_TIMEOUT,
)


class _Sending:
    """Sends uploads until all are there, also if controllers end meanwhile."""

    def __init__(self, client: ControllerClient, tell: Callable[[str], None]) -> None:
        self._client = client
        self._tell = tell
        self._outages = Outages(tell)
        self._patience = Patience(self._outages)
        self._has_answered = False
        self._losses = 0
        self._left = SEND_TRIES

    def send(self, uploads: Mapping[str, Upload]) -> None:
        """Raises ApiError, ConnectionLost."""
        while True:
            before = self._losses
            for digest, upload in uploads.items():
                self._bring(digest, upload)
            # Without a bucket, the next leader lacks what the one before had on its disk.
            if self._losses == before:
                return

    def _bring(self, digest: str, upload: Upload) -> None:
        """Send it unless it is there, and again if it is cut: what has come of it is lost."""
        # Asked each time: it may be there, and its answer lost.
        while not self._is_there(digest):
            try:
                _send(self._client, digest, upload, self._tell)
                return
            except FairleadError as error:
                if not _may_be_back(error):
                    raise
                # What has cut each one cuts the next one, too.
                self._left -= 1
                if not self._left:
                    raise
                self._lost(error)

    def _is_there(self, digest: str) -> bool:
        while True:
            try:
                found = self._client.has_upload(digest)
            except FairleadError as error:
                # Before anybody has answered, the URL may be wrong.
                if not (self._has_answered and _may_be_back(error)):
                    raise
                self._lost(error)
            else:
                self._has_answered = True
                self._outages.found()
                # The next try may be cut as well, so the waits stay as long as they are.
                self._patience.answered()
                return found

    def _lost(self, error: FairleadError) -> None:
        self._losses += 1
        self._patience.lost(error)


def _may_be_back(error: FairleadError) -> bool:
    """Return whether the controller, or what it needs, may take the same in a moment."""
    if isinstance(error, ConnectionLost):
        # A proxy says so with 502 and others; its 413, or the 302 of a login, stays.
        is_of_servers = error.status is None or error.status >= HTTPStatus.INTERNAL_SERVER_ERROR
        return is_of_servers or error.status == HTTPStatus.REQUEST_TIMEOUT
    if not isinstance(error, ApiError) or error.status not in _AWAY:
        return False
    from fairlead.wire.errors import UPLOAD_NOT_STORED

    return error.code != UPLOAD_NOT_STORED


def _send(
    client: ControllerClient, digest: str, upload: Upload, tell: Callable[[str], None]
) -> None:
    """Send what no earlier upload of the user has, else all of it."""
    # A single part is the whole file: to ask for it first would only cost a request.
    if 1 < len(upload.parts) <= MAX_PARTS:
        try:
            missing = client.missing_parts(digest, upload.parts)
            size = sum(part.size for part in upload.parts if part.sha256 in missing)
            progress = UploadProgress(size, tell, time.monotonic)
            client.upload_parts(digest, upload.file, upload.parts, missing, progress)
            return
        except ApiError as error:
            if error.status not in _SENT_WHOLE_AFTER:
                raise
    size = upload.file.stat().st_size
    client.upload(digest, upload.file, UploadProgress(size, tell, time.monotonic))


class UploadProgress:
    """Tells of a large upload when it begins, and every few seconds how far it is."""

    def __init__(
        self, size: int, tell: Callable[[str], None], monotonic: Callable[[], float]
    ) -> None:
        self._size = size
        self._tell = tell
        self._monotonic = monotonic
        self._shown_at = monotonic()
        if size >= _WORTH_TELLING:
            tell(f"sending {_mib(size)} MiB of code")

    def __call__(self, sent: int) -> None:
        now = self._monotonic()
        if now - self._shown_at >= _TELL_SECONDS and sent < self._size:
            self._shown_at = now
            self._tell(f"{_mib(sent)} of {_mib(self._size)} MiB of code are sent")


def _mib(size: int) -> int:
    return round(size / (1 << 20))
