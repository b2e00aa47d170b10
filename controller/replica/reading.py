"""Keeps a copy of the leader's state as new as each request asks for."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Generic, TypeVar

from controller.clock import Clock
from controller.pipelines.followed_runs import LostTrack
from controller.replica.copy import Copy, Submitters
from controller.store.errors import StoreError, StoreHangs
from controller.store.reading import Moment, StoreReader
from controller.store.turns.changed_state import Beginning
from controller.store.turns.notes import Changed, Turn, together

C = TypeVar("C", bound=Copy)
WAIT_SECONDS = 2.0
"""A request that has waited for the copy for so long is the leader's."""
LOAD_SECONDS = 60.0
"""Of a read of all that is live. It goes on without those who asked for it."""
KEEP_SECONDS = 30.0
"""Between two looks when nobody asks: the first question must not wait for all to be read."""
NOTE_SECONDS = 1.0
"""Between two notes of what changed. Only the latest 2,000 turns are listed."""
MANY_CHANGED = 5000
"""When so many runs have changed, they are read although nobody asks: a question would wait for
that. A run takes 0.1 to 0.2 ms of CPU, however often it has changed, so fewer wait for the time."""
MAX_CHANGED = 10_000
"""More runs at once are read with all that is live: their names would make too long a list."""


class Following(Generic[C]):
    """`reader`: its own, because a read of all that is live takes long. `make`: a copy over what
    was read; called in a thread."""

    def __init__(self, reader: StoreReader, make: Callable[[Beginning], C], clock: Clock) -> None:
        self._reader = reader
        self._make = make
        self._clock = clock
        self._copy: C | None = None
        self._noted = Changed()
        """What changed since the copy was read, up to the turn `_noted_to`."""
        self._noted_to = Turn()
        self._submitters: Submitters | None = None
        self._reading = asyncio.Lock()
        self._next: asyncio.Task[C] | None = None
        """A look that has not begun: what it finds is right for all who come until then."""
        self._tasks: set[asyncio.Task[C]] = set()
        self._keeping: asyncio.Task[None] | None = None
        self._is_wanted = True

    @property
    def is_loaded(self) -> bool:
        return self._copy is not None

    @property
    def submitters(self) -> Submitters | None:
        """Those of the copy that was read last; None: none was. They are there while all is read
        again, as after a thousand submissions, and may lack the latest changes."""
        return self._submitters

    async def now(self) -> C:
        """Return the copy, with all that was committed before this call. Raises StoreError."""
        if self._next is None:
            self._next = asyncio.create_task(self._look())
            self._tasks.add(self._next)
            self._next.add_done_callback(self._looked)
        look = self._next
        # It is shared: one who leaves ends it for no other one.
        await asyncio.wait((look,), timeout=WAIT_SECONDS)
        if not look.done():
            raise StoreHangs("the state is still being read")
        return look.result()

    def keep(self, *, wanted: bool) -> None:
        """Keep a copy from now on; or forget it, when this controller leads and has the state."""
        self._is_wanted = wanted
        if wanted and self._keeping is None:
            self._keeping = asyncio.create_task(self._keep())
        elif not wanted and self._keeping is not None:
            self._keeping.cancel()
            self._keeping = self._copy = self._submitters = None

    async def _keep(self) -> None:
        """Until cancelled."""
        while True:
            # The next request finds an outage by itself, and says so.
            with contextlib.suppress(StoreError):
                await self.now()
            until = asyncio.get_running_loop().time() + KEEP_SECONDS
            while asyncio.get_running_loop().time() < until:
                await asyncio.sleep(NOTE_SECONDS)
                with contextlib.suppress(StoreError):
                    if await self._is_much_noted():
                        break

    async def _is_much_noted(self) -> bool:
        """Note what changed. Return whether it is time to read it. Raises StoreUnavailable."""
        async with self._reading:
            if self._copy is None:
                return False
            async with self._reader.moment() as moment:
                is_listed = await self._note(moment)
            return not is_listed or self._noted.all or len(self._noted.runs) >= MANY_CHANGED

    async def close(self) -> None:
        self.keep(wanted=False)
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._reader.close()

    def _looked(self, task: asyncio.Task[C]) -> None:
        self._tasks.discard(task)
        # All who waited may have left. asyncio logs an error that nothing retrieves.
        if not task.cancelled():
            task.exception()

    async def _look(self) -> C:
        async with self._reading:
            # A request from now on may follow a commit that this look does not see.
            self._next = None
            copy = self._copy
            # What changed is no longer listed, or another leader listed it: read all again (14.25).
            with contextlib.suppress(LostTrack):
                if copy is not None and await self._follow(copy):
                    return copy
            self._copy = None
            async with self._reader.moment(LOAD_SECONDS) as moment:
                beginning = await moment.beginning(self._clock.now())
            made = await asyncio.to_thread(self._make, beginning)
            self._noted, self._noted_to = Changed(), made.turn
            # A look may end after this controller began to lead.
            self._copy = made if self._is_wanted else None
            self._submitters = made.submitters if self._is_wanted else None
            return made

    async def _follow(self, copy: C) -> bool:
        """Bring the copy up to date. Return False if all has to be read again. Raises LostTrack,
        StoreUnavailable."""
        async with self._reader.moment() as moment:
            if not await self._note(moment):
                return False
            changed = self._noted
            if self._noted_to == copy.turn:
                return True
            if changed.all or len(changed.runs) > MAX_CHANGED:
                return False
            stored = await moment.changed_state(changed, copy.unseen_ends(changed.runs))
        await copy.follow(self._noted_to, stored)
        self._noted = Changed()
        return True

    async def _note(self, moment: Moment) -> bool:
        """Note what changed up to this moment. Return False if that is not listed. Raises
        StoreUnavailable."""
        found = await moment.changed_since(self._noted_to)
        if found is None:
            return False
        if found[0] != self._noted_to:
            self._noted_to, self._noted = found[0], together((self._noted, found[1]))
        return True
