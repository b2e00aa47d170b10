"""A controller that waits for its turn to lead."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Callable

from controller.identity import IDENTITY_NAME
from controller.relay import Leader, Relay, leader_at
from controller.store.base import BEFORE_BUCKET, Peer, Sight
from controller.store.errors import (
    OtherInstallation,
    OtherTimeline,
    StoreError,
    StoreUnavailable,
    StoreUnusable,
)
from controller.store.peers import Peers
from controller.vault import SECRETS_KEY_NAME

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.1
"""It bounds what a takeover adds to the death of a leader."""
_OLD_LEADER_SECONDS = 1.0
FIRST_SECONDS = 0.3
"""So long a controller that may lead lets the one go first that got the leader's lock, if there is
one. It needs 0.1 s to take the lease."""
MIN_REST_SECONDS = 1.0
MAX_REST_SECONDS = 60.0
"""Between two tries to lead where the database's address leads to two servers by turns."""
MAX_CLOCK_DIFFERENCE = 300.0
"""Seconds between this machine's clock and the database's."""


class Wait:
    """Looks at the other controllers until this one may lead, or `stop` is set.

    `now` is this machine's time of day in Unix seconds.
    """

    def __init__(
        self, peers: Peers, stop: asyncio.Event, now: Callable[[], float] = time.time
    ) -> None:
        self._peers = peers
        self._stop = stop
        self._now = now
        self._away_since: float | None = None
        """When the database was found to be away, by the loop's clock."""
        self._tried_at = float("-inf")
        self._may_lead_since = math.inf
        """By the loop's clock."""
        self._timelines: set[int] = set()
        """Of the database's servers on which this controller has led."""
        self._rests = 0.0
        self._rests_until = float("-inf")
        """Until when this controller does not try to lead, by the loop's clock."""
        self._first_seen: dict[str, float] = {}
        """When others with this one's URL had been seen at its first look."""

    async def begin(self) -> None:
        """Look for the first time: what cannot work is refused now. Raises StoreUnavailable,
        StoreUnusable."""
        tied, found = self._peers.installation_id, await asyncio.to_thread(self._peers.installation)
        if tied is None:
            self._peers.installation_id = found
        elif found != tied:
            raise OtherInstallation(tied, found)
        # Without showing itself: one that is refused has written nothing, and no other one has seen
        # its keys.
        sight = await asyncio.to_thread(self._peers.look_on)
        if sight is not None:
            alive = [peer for peer in sight.peers if sight.is_alive(peer)]
            for peer in [peer for peer in alive if peer.leads] or alive:
                self._compare(peer)
        if sight is not None and abs(off := self._now() - sight.now) > MAX_CLOCK_DIFFERENCE:
            word = "ahead of" if off > 0 else "behind"
            raise StoreUnusable(
                f"this machine's clock is {abs(off):.0f} s {word} the database's: set it right "
                "(timedatectl), then start again"
            )

    async def until_it_may_lead(self, relay: Relay) -> bool:
        """Return True when it is worth a try; False: `stop` was set. Meanwhile `relay` learns who
        leads. Raises StoreUnusable."""
        while not self._stop.is_set():
            try:
                sight = await self._look()
            except StoreUnavailable as error:
                # The leader may reach the database, and serves what it can in any case.
                if self._away_since is None:
                    log.warning("%s", error)
                    self._away_since = asyncio.get_running_loop().time()
            else:
                self._say_that_it_answers()
                rests = asyncio.get_running_loop().time() < self._rests_until
                if not rests and self._may_try(sight):
                    relay.lead_to(None)
                    return True
                relay.lead_to(self._elsewhere(sight))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._stop.wait()
        return False

    def note_end(self, error: StoreError) -> None:
        """Note why the last lead of this controller ended. It tries to lead less and less often
        while the database's address leads to two servers by turns: on either one it would lead
        until its next connection."""
        if not isinstance(error, OtherTimeline):
            return
        both = {error.before, error.found}
        returns, self._timelines = error.found in self._timelines, self._timelines | both
        # A server that was promoted begins a timeline of its own. None comes back.
        if not returns:
            return
        self._rests = min(max(2 * self._rests, MIN_REST_SECONDS), MAX_REST_SECONDS)
        self._rests_until = asyncio.get_running_loop().time() + self._rests
        log.error(
            "the database's address leads to two servers by turns, of the timelines %d and %d, and "
            "both take changes: stop the one that was replaced, or give the other one's address. "
            "This controller tries to lead again in %.0f s",
            *sorted(both),
            self._rests,
        )

    async def linger(self, relay: Relay, seconds: float) -> None:
        """Let `relay` carry what still comes to a controller that is being stopped: clients that
        know only its address, or have just chosen it, notice nothing. Where there is no other
        controller, nobody could do it."""
        # Clients that come now may be refused: that must not hold up the end of this process.
        # What looks on has no lock, and shows no controller that could lead.
        await asyncio.to_thread(self._peers.leave)
        with contextlib.suppress(TimeoutError, StoreUnavailable):
            async with asyncio.timeout(seconds):
                while True:
                    if not await self._has_successor(relay):
                        return
                    await asyncio.sleep(LOOK_SECONDS)

    async def _has_successor(self, relay: Relay) -> bool:
        """Return whether another controller leads or may do so."""
        sight = await asyncio.to_thread(self._peers.look_on)
        relay.lead_to(self._elsewhere(sight))
        return sight is not None and any(
            peer.id != self._peers.id for peer in filter(sight.is_alive, sight.peers)
        )

    def _say_that_it_answers(self) -> None:
        if self._away_since is not None:
            seconds = asyncio.get_running_loop().time() - self._away_since
            log.warning("the database answers again, after %.0f s", seconds)
            self._away_since = None

    def _elsewhere(self, sight: Sight | None) -> Leader | None:
        """Return where the leader is. One that was here is gone: its row stays until another one
        leads, and a connection to its address would arrive here again and again."""
        leader = None if sight is None else sight.leader
        if leader is None or leader.url == self._peers.url:
            return None
        return leader_at(leader.url, leader.id)

    def _may_try(self, sight: Sight | None) -> bool:
        """A database that no controller of this version has opened shows nothing: then the lease
        alone tells, and asking for it takes a transaction."""
        now = asyncio.get_running_loop().time()
        if sight is not None:
            if not sight.may_lead:
                self._may_lead_since = math.inf
                return False
            self._may_lead_since = min(self._may_lead_since, now)
            # Several that open the database at once, on one busy machine, hold each other up.
            return self._peers.has_lock or now - self._may_lead_since >= FIRST_SECONDS
        if now - self._tried_at < _OLD_LEADER_SECONDS:
            return False
        self._tried_at = now
        return True

    async def _look(self) -> Sight | None:
        """Raises StoreUnavailable, StoreUnusable."""
        sight = await asyncio.to_thread(self._peers.look)
        leader = None if sight is None else sight.leader
        if sight is not None and leader is not None and sight.is_alive(leader):
            self._compare(leader)
        if sight is not None:
            self._refuse_double(sight)
        return sight

    def _refuse_double(self, sight: Sight) -> None:
        """Raises StoreUnusable if an older controller, which still works, has this one's URL. Each
        would take connections to the other one for its own, and hold them."""
        own = next((peer for peer in sight.peers if peer.id == self._peers.id), None)
        if own is None:
            return
        for peer in sight.peers:
            if peer.id == own.id or peer.url != own.url:
                continue
            first_seen = self._first_seen.setdefault(peer.id, peer.seen_at)
            # One that was killed before this one was started is not seen again. Its row alone may
            # be from the future, if the database's clock was set back.
            is_seen_again = peer.seen_at != first_seen
            if is_seen_again and peer.started_at < own.started_at < peer.seen_at:
                raise StoreUnusable(
                    f"another controller of this database works with --url {peer.url}: give each "
                    "its own, at which the others reach it"
                )

    def _compare(self, peer: Peer) -> None:
        """Raises StoreUnusable if this controller and the other one can't take each other's
        place."""
        if peer.id == self._peers.id:
            return
        # Of this one's URL: it is the one that this one replaces, or is refused for its URL.
        is_other = peer.url != self._peers.url
        if is_other and minor_steps(peer.version, self._peers.version) > 1:
            raise StoreUnusable(
                f"the controller {peer.url} has version {peer.version}, and this one is "
                f"{self._peers.version}: they are more than one minor version apart, and can't "
                "share a database. Upgrade one minor version after the other"
            )
        if peer.keys in (None, self._peers.keys):
            return
        own = self._peers.keys
        if own is not None and own.partition(BEFORE_BUCKET)[0] == peer.key_files:
            raise StoreUnusable(
                f"the controller {peer.url} has another bucket: give all controllers the same "
                "--bucket and --logs-bucket, and the same endpoints of them"
            )
        raise StoreUnusable(
            f"the controller {peer.url} has other keys: copy {IDENTITY_NAME} and "
            f"{SECRETS_KEY_NAME} from its data folder to this one's, then start again"
        )


def minor_steps(one: str, other: str) -> int:
    """Return how many minor versions are between the two; those of two majors are far apart."""
    try:
        (a, b), (c, d) = (tuple(map(int, text.split(".")[:2])) for text in (one, other))
    except ValueError:
        return 0  # a build of a developer
    return abs(b - d) if a == c else 1000
