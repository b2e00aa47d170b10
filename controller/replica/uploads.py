"""Uploads that a follower takes: into the installation's bucket, with the leader's own code.

The leader finds them there when a run is submitted. What came is copied here as at the leader, so
that parts of it need not come again; the bucket has all of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import shutil
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

from aiohttp import web

from common.refusals import Unavailable
from controller.api.app import Endpoint
from controller.blob_bucket import KEPT_SECONDS, BlobBucket
from controller.blobs import BlobStore
from controller.outputs.bucket import Bucket, BucketError
from controller.outputs.own_bucket import OwnBucket
from controller.replica.alone import NeedsLeader
from fairlead.wire.errors import UPLOAD_NOT_STORED

log = logging.getLogger(__name__)

FOLDER_NAME = "followed-uploads"
MAX_KEPT_BYTES = 1 << 30
"""Of all copies together, at each tidying."""
MIN_FREE_BYTES = 1 << 30
"""So much of the disk stays free beside what comes: this controller may have to lead."""
AWAY_SECONDS = 30.0
"""So long uploads go to the leader after the bucket or the disk here has failed."""
ANSWER_SECONDS = 5.0
"""So long the bucket has for a question without a body; then the leader answers it."""
TIDYING_SECONDS = 60.0
_LATE = f"the bucket has not answered within {ANSWER_SECONDS:g} s"


class _ShareUsedUp(OSError):
    """There may be room, and no more of it for this user."""


class Uploads:
    """`folder` belongs to this object alone. The limits are those of the leader, in bytes."""

    def __init__(
        self, folder: Path, bucket: Bucket, max_bytes: int, max_of_user: int | None
    ) -> None:
        self._folder = folder
        self._bucket = bucket
        self._max_bytes = max_bytes
        self._max_of_user = max_of_user
        self._own: OwnBucket | None = None
        self._store: BlobStore | None = None
        self._is_found = False
        """Whether the bucket has said that it is this installation's."""
        self._away_until = float("-inf")
        """By the loop's clock."""
        self._coming: Counter[str] = Counter()
        """Bytes that each user's uploads that have begun may take of the disk."""
        self._begun: Counter[str] = Counter()
        """The uploads of each user that have begun."""
        self._elsewhere: dict[str, float] = {}
        """Until when users whose share is used up go to the leader, by the loop's clock."""
        self._tidying: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Remove what an earlier process has left."""
        await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)
        self._tidying = asyncio.create_task(self._tidy())

    async def close(self) -> None:
        if self._own is not None:
            self._own.close()
        if self._tidying is not None:
            self._tidying.cancel()
            await asyncio.wait({self._tidying})

    def store(self, installation_id: str) -> BlobStore:
        """Return the uploads of this installation: always the same ones. Threads may call it, one
        at a time."""
        if self._store is None:
            # The leader alone writes into a new bucket whose it is.
            self._own = OwnBucket(self._bucket, installation_id, may_take=False)
            self._store = BlobStore(
                self._folder,
                max_bytes=self._max_bytes,
                max_of_user=self._max_of_user,
                bucket=BlobBucket(self._own),
                reserve=self._reserved,
            )
        return self._store

    async def answer(
        self, request: web.Request, find: Callable[[], Awaitable[tuple[Endpoint, str]]]
    ) -> web.StreamResponse:
        """Answer with the endpoint that `find` returns for a user, with his name. Raises what
        `find` does, and NeedsLeader: then nothing of the body was read."""
        now = asyncio.get_running_loop().time()
        if now < self._away_until:
            raise NeedsLeader
        # First: a client without a token takes no room from others.
        endpoint, user = await find()
        if request.method != "PUT":
            await self._require_bucket()
            is_question = request.method == "GET"
            return await (self._asked if is_question else self._taken)(request, endpoint)
        if now < self._elsewhere.get(user, now):
            raise NeedsLeader
        with self._begins(user, self._size(request)):
            await self._require_room(user)
            await self._require_bucket()
            return await self._taken(request, endpoint)

    async def _taken(self, request: web.Request, endpoint: Endpoint) -> web.StreamResponse:
        try:
            return await endpoint(request)
        except Unavailable as error:
            if not isinstance(error.__cause__, _ShareUsedUp):
                self._leave_to_leader(str(error))
            if error.code != UPLOAD_NOT_STORED:
                raise
            # The leader may have room: a client that is cut begins again, and gets there.
            if request.transport is not None:
                request.transport.abort()
            return web.Response(status=502)

    async def _require_bucket(self) -> None:
        """Raises NeedsLeader if the bucket has not answered here yet, or is nobody's."""
        if self._is_found or self._own is None:
            return
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await self._own.ask(self._own.require_own)
        except (TimeoutError, BucketError) as error:
            self._leave_to_leader(str(error) or _LATE)
            raise NeedsLeader from error
        self._is_found = True

    async def _asked(self, request: web.Request, endpoint: Endpoint) -> web.StreamResponse:
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                return await endpoint(request)
        except TimeoutError as error:
            raise NeedsLeader from error
        except Unavailable as error:
            self._leave_to_leader(str(error))
            raise NeedsLeader from error

    def _leave_to_leader(self, why: str) -> None:
        self._away_until = asyncio.get_running_loop().time() + AWAY_SECONDS
        log.warning("uploads are left to the leader for %.0f s: %s", AWAY_SECONDS, why)

    def _size(self, request: web.Request) -> int:
        """Return the bytes that may come. One in parts is joined here with what the user has sent
        before, which the store has reserved then."""
        length = request.content_length
        return self._max_bytes if length is None else min(length, self._max_bytes)

    async def _require_room(self, user: str) -> None:
        """Raises NeedsLeader if what comes may not fit, or takes more than this user's share."""
        try:
            left = await self._left()
            if left < 0:
                await self._forget_copies(most=0)
                left = await self._left()
            if left >= 0 and self._is_within_share(user, left):
                return
        except OSError as error:
            log.warning("an upload is left to the leader: %s", error)
        raise NeedsLeader

    async def _left(self) -> int:
        """Return the bytes of the disk that are left to further uploads."""
        await asyncio.to_thread(self._folder.mkdir, parents=True, exist_ok=True, mode=0o700)
        free = (await asyncio.to_thread(shutil.disk_usage, self._folder)).free
        return free - MIN_FREE_BYTES - self._coming.total()

    def _is_within_share(self, user: str, left: int) -> bool:
        """Return whether others can still upload as much as this user does. A single upload may
        take all of the room."""
        return self._begun[user] <= 1 or self._coming[user] <= left

    @contextlib.asynccontextmanager
    async def _reserved(self, size: int, user: str) -> AsyncIterator[None]:
        """Raises OSError."""
        with self._expected(user, size):
            # Copies may be what the upload is joined with: they stay.
            left = await self._left() if size else 0
            if left < 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            if size and not self._is_within_share(user, left):
                self._elsewhere[user] = asyncio.get_running_loop().time() + AWAY_SECONDS
                raise _ShareUsedUp(errno.EDQUOT, os.strerror(errno.EDQUOT))
            yield

    @contextlib.contextmanager
    def _begins(self, user: str, size: int) -> Iterator[None]:
        self._begun[user] += 1
        try:
            with self._expected(user, size):
                yield
        finally:
            self._begun[user] -= 1
            if not self._begun[user]:
                # No user stays in memory.
                del self._begun[user], self._coming[user]

    @contextlib.contextmanager
    def _expected(self, user: str, size: int) -> Iterator[None]:
        self._coming[user] += size
        try:
            yield
        finally:
            self._coming[user] -= size

    async def _tidy(self) -> None:
        while True:
            await asyncio.sleep(TIDYING_SECONDS)
            now = asyncio.get_running_loop().time()
            self._elsewhere = {user: at for user, at in self._elsewhere.items() if now < at}
            await self._forget_copies(most=MAX_KEPT_BYTES)

    async def _forget_copies(self, most: int) -> None:
        if self._store is not None:
            # What can't be removed now is tried again.
            with contextlib.suppress(OSError):
                await self._store.forget_copies(time.time() - KEPT_SECONDS, most)
