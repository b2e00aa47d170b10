"""Moves large outputs to a bucket, one after the other.

What cannot be moved waits on this machine's disk, is served from there, and is tried again: a
bucket that is away loses nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from controller.aio import Backoff
from controller.outputs.bucket import Bucket
from controller.outputs.store import OutputStore, WaitingOutputs

log = logging.getLogger(__name__)

DEFAULT_ABOVE = 64 << 20
"""Bytes of a tar that stays next to the logs, unless the operator says otherwise."""
FIRST_RETRY_SECONDS = 5.0
LAST_RETRY_SECONDS = 300.0


class OutputUploads:
    """Moves outputs of more than `above` bytes; smaller ones stay next to the logs.

    `jitter` spreads the tries: a number from -1 to 1.
    """

    def __init__(
        self, outputs: OutputStore, target: Bucket, above: int, jitter: Callable[[], float]
    ) -> None:
        self._outputs = outputs
        self._bucket = target
        self._above = above
        self._retry = Backoff(FIRST_RETRY_SECONDS, LAST_RETRY_SECONDS, jitter)
        self._works: bool | None = None
        """Whether the last try succeeded; None: there was none."""

    async def run(self) -> None:
        """Move what there is and what comes, until cancelled."""
        while True:
            # Before the move: what comes during it is moved without a wait.
            self._outputs.came.clear()
            try:
                await self.move_all()
            except OSError as error:
                self._note_trouble(error)
            await self._retry.wait(self._outputs.came)

    async def move_all(self) -> None:
        """Move what waits. Raises BucketError, OSError when some of it still waits: one that is
        refused holds up no other."""
        await self._outputs.drop_moved()
        waiting = await self._outputs.larger_than(self._above)
        self._count(waiting)
        # A small object first: with a wrong key, whole tars would be sent for nothing.
        if not self._works:
            await self._outputs.check(self._bucket)
        trouble: OSError | None = None
        for attempt_id, length in tuple(waiting.items()):
            place = self._outputs.place_in(self._bucket, attempt_id, length)
            try:
                await self._outputs.move(attempt_id, place)
            # One that fails must not hold up those behind it.
            except OSError as error:
                trouble = trouble or error
                continue
            log.info("the outputs of attempt %s are in %s", attempt_id, place)
            del waiting[attempt_id]
            self._count(waiting)
        if trouble is not None:
            raise trouble
        if not self._works:
            least = max(0, self._above)
            log.info("the bucket %s takes outputs of more than %d bytes", self._bucket, least)
            self._works = True

    def _count(self, waiting: dict[str, int]) -> None:
        self._outputs.waiting = WaitingOutputs(count=len(waiting), size=sum(waiting.values()))

    def _note_trouble(self, error: OSError) -> None:
        """Say it once for each time that the bucket is away."""
        if self._works is not False:
            self._works = False
            log.warning(
                "outputs wait on this disk for their bucket and are served from there (%d now, %d"
                " bytes): %s",
                self._outputs.waiting.count,
                self._outputs.waiting.size,
                error,
            )
