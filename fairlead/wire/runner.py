"""The runner's wire types: what its unix socket carries in both directions.

The runner owns them; the controller imports them (and `runner.client`). Unknown fields of a newer
peer are ignored. Times are Unix seconds (float), durations seconds, sizes bytes.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from fairlead.wire.job import SubmitRequest
from fairlead.wire.sizes import OutputsAbout


class RunnerState(StrEnum):
    """The states of a runner, in their order."""

    WAITING_FOR_JOB = "waiting_for_job"
    WAITING_FOR_CODE = "waiting_for_code"
    READY = "ready"
    """Spec and code are there; `POST /v1/run` starts the commands."""
    PREPARING = "preparing"
    RUNNING = "running"
    SERVING_LOGS = "serving_logs"
    """The commands have ended and the exit record is on disk."""


class ExitReason(StrEnum):
    """Why a job ended, as its runner may say it; the names are those of docs/rules.md."""

    DONE_BY_RUNNER = "done_by_runner"
    CONTAINER_EXITED_WITH_ERROR = "container_exited_with_error"
    OUT_OF_MEMORY = "out_of_memory"
    EXECUTOR_ERROR = "executor_error"
    MAX_DURATION_EXCEEDED = "max_duration_exceeded"
    LOG_QUOTA_EXCEEDED = "log_quota_exceeded"
    INTERRUPTED = "interrupted"


class ExitRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The end of the job: `exit.json` in the task's folder, fsynced before it is reported.

    `reason` is an ExitReason; a job that forges its record, or a newer runner, may give another
    one. `exit_code` is None when the commands could not be started, and 128 + n when signal n ended
    them (`signal` then holds its name). While a stopped job's last processes are waited for, the
    file may already hold the end of its main process; it is replaced later.
    """

    reason: str
    message: str | None = None
    exit_code: int | None = None
    signal: str | None = None
    started_at: float | None = None
    finished_at: float
    log_end: int
    """Offset after the last byte of output."""
    container_stopped: bool = False
    """The whole container was being stopped: the shim knows why."""
    clean: bool = False
    """The job left nothing behind, and its runner waits for other jobs (docs/rules.md 11.14)."""


class StartEnd(msgspec.Struct, frozen=True, kw_only=True):
    """The end of one start of a job whose container now waits for the next one (docs/rules.md
    2.15). `number` 0: the first. `reason` is an ExitReason."""

    number: int
    at: float
    reason: str
    message: str | None = None
    exit_code: int | None = None


class StatusEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One line (JSON, `\\n`) of `GET /v1/status?after=<seq>&heartbeat=<seconds>`, a stream that
    ends with the runner.

    `seq` counts from 1; `after=0` (the default) repeats all. A heartbeat repeats the last event
    every so many seconds (default 10, at most 300) when nothing else comes. `exit` comes with
    SERVING_LOGS. `start_end` comes with RUNNING when the commands have ended and the container
    waits.
    """

    seq: int
    at: float
    state: RunnerState
    pid: int | None = None
    exit: ExitRecord | None = None
    start_end: StartEnd | None = None


class RunnerHealth(msgspec.Struct, frozen=True, kw_only=True):
    version: str
    api_versions: tuple[str, ...]
    state: RunnerState
    log_start: int
    """The oldest stored offset."""
    log_end: int
    log_acked: int


class AckRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The controller has stored all bytes before `offset` durably."""

    offset: int


class NoticeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Body of `POST /v1/notices`: a line for the job's log from outside of the job.

    It is shown once, however often the same `id` is sent; after the job's end it is refused (409).
    """

    id: str
    text: str


class StopRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Signal the job's process group, and SIGKILL what is left after `grace` seconds.

    The same signal again is not sent; the kill can only come earlier. `delay`: seconds that the
    signal waits, while the job's main process lives; the grace counts from now.

    `interrupt`: the job may come back. Then its exit code says how it ended (0: it is done,
    `restart_exit_code`: interrupted), and a job that does not end within the grace counts as
    interrupted.
    """

    signal: str | None = None
    grace: float = 10.0
    interrupt: bool = False
    delay: float = 0.0


class SignalRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Body of `POST /v1/signal`: send the job its `signal`, because an end comes.

    The same `id` again is not sent. Those processes get it that catch it; while there is none, it
    waits for one. `cause`: the reason with which the job will end. `ends_in`: seconds until its
    stop signal. Both are in the job's file first.
    """

    id: str
    cause: str
    ends_in: float


class SuspendRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Body of `POST /v1/suspend`: the job's run is suspended or resumed; `max_duration` stands
    still while it is suspended."""

    suspended: bool


class AgainRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Body of `POST /v1/again`: start the job again in this container, with what changed.

    `number` counts the starts that were asked for; the same one again, or an earlier one, changes
    nothing. The job goes on until all code has come: send what the answer names, then the same
    request again.
    """

    number: int
    submission: SubmitRequest


class AgainAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """`missing`: the blobs without which the job is not started again. `begun`: it has started; as
    long as that is false and nothing is missing, ask again."""

    missing: tuple[str, ...] = ()
    begun: bool = False


class CarriedStop(msgspec.Struct, frozen=True, kw_only=True):
    """Stop this job of a batch as StopRequest does; one that has not begun never will. `unbegun`:
    one that has begun goes on."""

    attempt_id: str
    signal: str | None = None
    grace: float = 10.0
    delay: float = 0.0
    unbegun: bool = False


class CarriedSignal(msgspec.Struct, frozen=True, kw_only=True):
    """Send this job of a batch its `signal` as SignalRequest does; one that has not begun, or has
    ended, gets none."""

    attempt_id: str
    request: SignalRequest


class BatchRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Body of `POST /v1/batch`: jobs to run one after another in the container of an ended job, and
    what the controller has of them. It may be repeated.

    `jobs`: a job that the runner has already is not run again. `stored`: jobs whose end the
    controller has for good; the runner forgets them. `offsets`: how much of each log the controller
    has; `outputs`: how much of each tar of outputs. `outputs_limit`: the most bytes of content that
    are kept of a job; None: its outputs are not stored. `signals` are
    sent before `stop` is obeyed. The answer comes at once when there is news, else within `wait`
    seconds.
    """

    jobs: tuple[SubmitRequest, ...] = ()
    stop: tuple[CarriedStop, ...] = ()
    signals: tuple[CarriedSignal, ...] = ()
    stored: tuple[str, ...] = ()
    offsets: dict[str, int] = {}
    outputs: dict[str, int] = {}
    outputs_limit: int | None = None
    wait: float = 0.0


class CarriedJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job of a batch. `began_at` None: it has not begun; `started_at` None: it has no process
    yet.

    `returned`: it has not begun and never will here. `log`: frames from the controller's offset on;
    `log_complete`: the job has ended and they reach the end of its log. `outputs` comes with the
    end: what the tar of its outputs holds; `outputs_piece`: bytes of it from the controller's
    offset on. `outputs_lost`: it left outputs that cannot be read.
    """

    attempt_id: str
    began_at: float | None = None
    started_at: float | None = None
    returned: bool = False
    exit: ExitRecord | None = None
    log: bytes = b""
    log_complete: bool = False
    outputs: OutputsAbout | None = None
    outputs_piece: bytes = b""
    outputs_lost: bool = False


class BatchAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """`jobs`: all that the runner has, in the order in which they run. `dirty`: why no other job
    runs in this container, as a sentence."""

    jobs: tuple[CarriedJob, ...] = ()
    dirty: str | None = None


class JobMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """`GET /v1/metrics`: what the job's cgroup has used, including the runner's own share.

    None: this kernel or engine does not count it.
    """

    at: float
    cpu_seconds: float | None
    memory: int | None
    """Bytes, the file cache included."""
    memory_working_set: int | None
    """Without the cache that the kernel would give up first."""
    memory_peak: int | None
    memory_limit: int | None
    oom_kills: int
    connections: int
    """TCP connections from outside to the job's listening ports, relayed ones included; 0: it is
    not in use."""
    relayed: dict[str, int] = {}
    """Those of them that the runner relays, by the job's port."""


class LogsHeader(msgspec.Struct, frozen=True, kw_only=True):
    """First message (text, JSON) of `WS /v1/logs/ws?offset=`; then come binary messages, each with
    whole frames.

    The server closes with 1000 after the last byte once the job has ended, and with 4008 when the
    follower is too slow (it may resume at its offset).
    """

    offset: int
    """The offset of the first frame: as requested, or later when older bytes are gone (a marker
    says so)."""


WS_TOO_SLOW = 4008
"""Close code for a follower whose limited buffer is full."""
SOCKET_OFFERED = b"Fairlead-Socket: offered"
"""A line of a CONNECT: the shim would rather give the runner the caller's own socket than pass on
bytes."""
SOCKET_WANTED = b"Fairlead-Socket: wanted"
"""A line of the answer: the next message is a `socket_offer`, with the socket if it can be given.
One byte answers it: SOCKET_TAKEN, after which the shim has no part in the connection, or
SOCKET_NOT_TAKEN, after which the stream goes on as without the offer."""
SOCKET_TAKEN, SOCKET_NOT_TAKEN = b"1", b"0"
SOCKETS = "/v1/sockets"
"""A CONNECT to it asks whether the runner takes sockets, and reaches no port of the job. It goes on
as one whose socket is wanted: the runner takes the one of the offer, sends back there the byte that
it finds there, and answers SOCKET_TAKEN. An older runner refuses it (400)."""
MAX_EARLY = 4096
"""Bytes of the caller's that go with its socket; with more of them it keeps its shim. The kernel
cuts no message of this size."""


def socket_offer(early: bytes) -> bytes:
    """Return the message with these first bytes of the caller."""
    return len(early).to_bytes(2, "big") + early


def early_in(offer: bytes) -> bytes:
    """Return the caller's first bytes. Raises ValueError."""
    if len(offer) < 2 or int.from_bytes(offer[:2], "big") != len(offer) - 2:
        raise ValueError("not an offer of a socket")
    return offer[2:]


LOG_COMPLETE_HEADER = "Fairlead-Log-Complete"
"""For `GET /v1/logs`: `true` when the job has ended and the body reaches the end of its output."""
LOG_END_HEADER = "Fairlead-Log-End"
"""For `GET /v1/logs`: the offset after the body, where the next page begins."""
