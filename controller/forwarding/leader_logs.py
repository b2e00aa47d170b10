"""The stream of a log from the leader, over a link, for the readers of a follower."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from common.proxy.headers import CLIENT, head_of
from common.proxy.upstream import UpstreamError
from controller.forwarding.follower_links import BY_ITSELF, LOGS_PATH
from controller.forwarding.leader_links import LeaderLinks, NobodyLeads, NoLink
from controller.forwarding.live_logs import StreamLost
from controller.relay import HOLD_SECONDS, while_it_leads
from controller.replica.alone import NeedsLeader


class LeaderLogs:
    """`hold_seconds`: so long a leader is waited for."""

    def __init__(self, links: LeaderLinks, hold_seconds: float = HOLD_SECONDS) -> None:
        self._links = links
        self._hold_seconds = hold_seconds

    async def follow(
        self, run_id: str, attempt_id: str, offset: int
    ) -> AsyncGenerator[bytes, None]:
        """See `live_logs.LeaderStream`."""
        try:
            link = await self._links.get(self._hold_seconds)
        except (NobodyLeads, NoLink) as error:
            raise NeedsLeader from error
        connection, over = link.connection, link.over
        path = LOGS_PATH.format(run=run_id, attempt=attempt_id)
        asked = [("Host", link.host), (CLIENT, BY_ITSELF)]
        try:
            await connection.send(head_of("GET", f"{path}?offset={offset}", asked))
            head = await while_it_leads(connection.answer("GET"), over)
            if head.status == 503:
                # It leads no more, or not yet; or its bucket is away.
                raise StreamLost
            if head.status != 200:
                # One of an earlier version, or the log was removed: it has the words for that.
                raise NeedsLeader
            yield b""
            while data := await while_it_leads(connection.read(), over):
                yield data
        except (UpstreamError, ConnectionError) as error:
            raise StreamLost from error
        finally:
            connection.close()
