"""One job of a batch: what it was asked for, what it does, and what was not fetched of it."""

from __future__ import annotations

from fairlead.wire.frames import Stream, notice_line
from fairlead.wire.job import SubmitRequest
from fairlead.wire.runner import BatchRequest, CarriedStop, ExitRecord
from fairlead.wire.sizes import OutputsAbout
from runner.job.end_signal import EndSignals
from runner.job.execution import Execution
from runner.job.keeping import Keeping
from runner.logs.segments import SegmentLog


class BatchJob:
    """One job of the batch; `log` None: it has not begun."""

    def __init__(self, request: SubmitRequest) -> None:
        self.request = request
        self.began_at: float | None = None
        self.started_at: float | None = None
        self.returned = False
        self.exit: ExitRecord | None = None
        self.log: SegmentLog | None = None
        self.execution: Execution | None = None
        self.stopped: CarriedStop | None = None
        self.signals: EndSignals | None = None
        """None: it has not begun, is over, or gets none."""
        self.keeping = Keeping()
        self.outputs: OutputsAbout | None = None
        """What is packed of its output folder; None: nothing."""
        self.outputs_are_lost = False
        self.log_is_damaged = False
        self.reported = (False, False)
        """Whether its start and its end stood in an answer."""

    @property
    def id(self) -> str:
        return self.request.job.attempt_id

    @property
    def is_over(self) -> bool:
        return self.returned or self.exit is not None

    def has_more(self, request: BatchRequest) -> bool:
        if self.reported != (self.started_at is not None, self.is_over) or self.outputs_left(
            request
        ):
            return True
        offset = request.offsets.get(self.id, 0)
        return self.log is not None and not self.log_is_damaged and self.log.end > offset

    def outputs_left(self, request: BatchRequest) -> int:
        """Return how many bytes of its packed outputs the controller does not have."""
        if self.outputs is None or self.outputs_are_lost or not self.is_over:
            return 0
        return max(0, self.outputs.length - request.outputs.get(self.id, 0))

    def say(self, text: str) -> None:
        """Tell this in its log, on a line of its own."""
        if self.log is not None:
            lead = b"" if self.log.at_line_start else b"\n"
            self.log.append(Stream.SYSTEM, lead + notice_line(text))
