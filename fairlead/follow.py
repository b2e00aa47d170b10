"""Follow a run or a log until its end, over connections that break.

A lost connection is waited for with `patience`. A refusal ends it at once. A bucket of logs that is
away ends nothing while the run lives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, TypeVar

from fairlead.errors import ApiError, ConnectionLost
from fairlead.model.statuses import FINAL_RUN_STATUSES
from fairlead.patience import Outages, Patience
from fairlead.rest import ControllerClient

if TYPE_CHECKING:
    from fairlead.documents.runs import EventView, WatchLine
    from fairlead.wire.frames import Frame

LOGS_UNREACHABLE = "logs_unreachable"
"""The code of a controller that is there, and whose bucket of logs is not."""
T = TypeVar("T")


def follow_run(client: ControllerClient, run_id: str, outages: Outages) -> Iterator[WatchLine]:
    """Yield the run now and after each change; the last one is final. Raises ApiError,
    ConnectionLost."""
    patience = Patience(outages)
    while True:
        with patience:
            for line in client.watch(run_id, patience.found):
                yield line
                if line.run is not None and line.run.status in FINAL_RUN_STATUSES:
                    return
            # A controller that is stopped ends its streams in good order, long before the run ends.
            raise ConnectionLost(f"the controller at {client.url} ended the watch")


def follow_log(
    client: ControllerClient, run_id: str, attempt_id: str, offset: int, outages: Outages
) -> Iterator[Frame]:
    """Yield the attempt's frames from `offset` on, each byte once. Raises ApiError,
    ConnectionLost."""
    patience = Patience(outages)
    while True:
        with patience, _waiting_for_bucket(client, run_id, patience):
            frames = client.followed_frames(
                run_id, patience.found, attempt=attempt_id, offset=offset
            )
            for frame in unread(frames, offset):
                offset = frame.end
                yield frame
            return


@contextmanager
def _waiting_for_bucket(
    client: ControllerClient, run_id: str, patience: Patience
) -> Iterator[None]:
    """Let the log of a live run be waited for as long as its bucket is away.

    An attempt does not end before the bucket has its log, so the end of a live one is still to
    come. That of a final one may never come: the bucket may be gone for good.
    """
    try:
        yield
    except ApiError as error:
        is_for_bucket = error.code == LOGS_UNREACHABLE
        if is_for_bucket and client.run(run_id).status not in FINAL_RUN_STATUSES:
            patience.answered()
        raise


def follow_events(
    client: ControllerClient, run: str | None, after: int, outages: Outages
) -> Iterator[EventView]:
    """Yield each event after that number once; those of a run until it has ended. Raises ApiError,
    ConnectionLost."""
    patience = Patience(outages)
    while True:
        with patience:
            for event in client.watched_events(run, after, patience.found):
                after = event.seq
                yield event
            if run is not None and client.run(run).status in FINAL_RUN_STATUSES:
                return
            raise ConnectionLost(f"the controller at {client.url} ended the stream")


def until_answered(outages: Outages, ask: Callable[[], T]) -> T:
    """Return the answer of a question that can be repeated. Raises ApiError, ConnectionLost."""
    return _asked(outages, ask, lambda _: nullcontext())


def until_log_answered(
    client: ControllerClient, run: str, outages: Outages, ask: Callable[[], T]
) -> T:
    """Return the answer of a question about the log of this run, however long its bucket is away
    while the run lives. Raises ApiError, ConnectionLost."""
    return _asked(outages, ask, lambda patience: _waiting_for_bucket(client, run, patience))


def _asked(
    outages: Outages,
    ask: Callable[[], T],
    waiting: Callable[[Patience], AbstractContextManager[None]],
) -> T:
    patience = Patience(outages)
    while True:
        with patience, waiting(patience):
            answer = ask()
            patience.found()
            return answer


def unread(frames: Iterator[Frame], offset: int) -> Iterator[Frame]:
    """Yield the parts of the frames at or after `offset`, none twice."""
    from fairlead.wire.frames import tail_from

    for frame in frames:
        fresh = tail_from(frame, offset)
        if fresh is not None:
            offset = fresh.end
            yield fresh
