"""What is known of the copies of logs on this disk, for those who write and read them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from controller.outputs.bucket import BucketError


class Copy:
    """What is known of one log's copy."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.running: Future[Any] | None = None
        """What works on it in a thread; its caller may be gone."""
        self.is_settled = False
        self.end = 0
        """The bucket's end of the log, when it was settled."""
        self._drops = 0

    @property
    def is_in_use(self) -> bool:
        return self.lock.locked() or (self.running is not None and not self.running.done())

    def drop(self) -> None:
        """Note that it goes. Called in the thread that removes it, before that does."""
        self._drops += 1

    def kept(self) -> Callable[[], None]:
        """Return what raises BucketError if the copy has been dropped since.

        One that another controller has passed can be read while the bucket is away. When that is
        back, the copy goes on where the bucket ends, beyond what its readers have. Without this
        they would miss the bytes between, and not notice; so they are cut, and come again.
        """
        drops = self._drops

        def require_kept() -> None:
            if self._drops != drops:
                raise BucketError("this disk's copy of the log was older than the bucket's")

        return require_kept
