"""An attempt of a job, and the parts of which it is made."""

from __future__ import annotations

import msgspec

from controller.lifecycle.pending_reasons import NoNodeConnected, NoNodeInFleets, PendingReason
from controller.lifecycle.renting_reasons import BuysMachine, MachineReason
from fairlead.model.job_links import JobLink
from fairlead.model.reasons import ROWS, Reason
from fairlead.model.service import ProbeResult
from fairlead.model.starts import Starts
from fairlead.model.statuses import AttemptStatus


class Incarnation(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One life of a gang between two switches."""

    number: int
    id: str


class CollectedOutputs(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The stored outputs of an attempt. What is `left_out` was beyond a limit, or no plain file."""

    files: int
    size: int
    """Bytes of their content."""
    left_out: int = 0
    left_out_size: int = 0


class Unrentable(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    gc=False,
    rename={
        "since": "unrentable_since",
        "why": "unrentable_why",
        "paused_at": "unrentable_paused_at",
    },
):
    """No node could hold the waiting job, and no machine is to be had for it (rule 12.14)."""

    since: float
    """Later than it began by the time for which it stood still."""
    why: str
    paused_at: float | None = None
    """Since then a machine is on order that could hold the job; None: none is."""


class Interruption(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    gc=False,
    rename={
        "requested_at": "interrupt_requested_at",
        "ends_at": "interrupt_ends_at",
        "paused_since": "interrupt_paused_since",
        "report_by": "interrupt_told_by",
    },
):
    """A user asked the job to end by itself, so that it can come back (docs/rules.md 2.12)."""

    requested_at: float
    ends_at: float | None = None
    """When its runner kills the rest of the job; None in older rows."""
    paused_since: float | None = None
    """When that time was paused, because its node is silent or the run suspended; None: it runs."""
    report_by: float | None = None
    """The latest time at which the runner must report how the job ended."""


class LimitPause(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    gc=False,
    rename={"since": "limit_paused_since", "total": "limit_paused_total"},
):
    """The time for which an attempt's present limit stands still."""

    since: float | None = None
    """When it was paused: its node is not healthy, the run is suspended, or it waits for its turn
    by `startup_order`; None: the limit runs. Of an attempt that has ended it is kept while its
    grace has not begun, because nobody can ask its job to stop."""
    total: float = 0.0
    """Seconds of earlier pauses of the same limit."""


NO_PAUSE = LimitPause()


class Pull(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How far its node is with image and container, before the container runs."""

    progress: int = 0
    """The progress at `progressed_at`: any number that changes while the pull goes on."""
    progressed_at: float | None = None
    """When image or container last made progress, rounded to a step."""
    creating_seen: bool = False
    """The shim reported `creating` or later."""
    credentials_asked: int | None = None
    """The task version at which the shim last asked for the registry's credentials again, as it
    does after a restart; None: it does not wait for them."""


class TaskDetails(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What the attempt's task has on its node, and how it is reached there."""

    gpus: tuple[str, ...] = ()
    ports: dict[str, int] = {}
    ssh_host_key: str | None = None
    ssh_host: str = "127.0.0.1"
    """Where its node reaches its SSH server."""
    address: str | None = None
    """Its address in its run's network on its node; None: it has the node's network, or it is not
    known yet."""
    runner_socket: str | None = None
    image_digest: str | None = None
    """The digest of its image; later attempts of the job in this occurrence use the same."""


class Seen(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    gc=False,
    rename={"allocation_released": "place_released"},
):
    """The facts seen on the node during this attempt; each only ever goes from false to true."""

    container_started: bool = False
    container_started_at: float | None = None
    runner_exited: bool = False
    container_gone: bool = False
    logs_complete: bool = False
    has_outputs: bool = False
    """The job left outputs on its node."""
    outputs: CollectedOutputs | None = None
    """The outputs as the controller stored them; None: it has stored none."""
    task_removed: bool = False
    allocation_released: bool = False
    """The shim released its allocation together with its task."""


class Serving(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Whether a replica of a service, or an IDE in the browser, gets requests."""

    probes: tuple[ProbeResult, ...] = ()
    """In the order of the configuration; empty before the first result."""
    ready: bool = False
    registered_at: float | None = None
    """Since when it gets traffic; None: it gets none."""
    was_registered: bool = False
    """It got traffic once."""
    registering_since: float | None = None
    """Since when it is ready and waits for its service's gateway; None: it does not wait."""
    registering_error: str | None = None
    """Why the last try to register it failed, as a sentence."""
    exposed_socket: str | None = None
    """The socket on its node at which the gateway reaches its port; None: the gateway has not
    confirmed it."""


class Inactivity(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    gc=False,
    rename={"since": "inactive_since", "seen_at": "inactive_seen_at"},
):
    """A dev environment with an `inactivity_duration` is not in use."""

    since: float
    seen_at: float | None = None
    """When a committed look last found it unused since then."""


class SignalledEnd(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An end of which the job is told by its signal (docs/rules.md 4.20)."""

    cause: Reason
    number: int = 0
    """Counted from 0 among those of this cause."""
    at: float
    """When the signal was due."""
    ends_at: float
    """When its stop signal comes, as foreseen then."""
    sent: bool = False
    """Its runner has it."""

    @property
    def id(self) -> str:
        """How its runner knows it."""
        return f"{self.cause} {self.number}"


class Attempt(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One try of a job; its id is also the id of the shim's task.

    A part without content is one shared default, so most attempts hold few objects. The store keeps
    the parts' fields next to the attempt's own, under the names that `rename` gives them.
    """

    id: str
    job_id: str
    number: int
    """Counted from 0 within the job."""
    status: AttemptStatus
    occurrence: int = 1
    incarnation: Incarnation | None = None
    rank: int | None = None
    deployment: int = 0
    """The version of its service when the attempt was made."""
    allocation_id: str | None = None
    node_id: str | None = None
    node_name: str | None = None
    reason: Reason | None = None
    message: str | None = None
    later_reasons: tuple[Reason, ...] = ()
    """Reasons that came after the first one and were not applied."""
    pending_reason: PendingReason | None = None
    exit_code: int | None = None
    remove_at: float | None = None
    drains_until: float | None = None
    """It gets no new requests. Its container is not stopped before those in flight have ended, or
    this time has come; None: nothing is in flight."""
    disconnected: bool = False
    cleanup_unknown: bool = False
    limit_pause: LimitPause = NO_PAUSE
    pull: Pull = Pull()
    task: TaskDetails = TaskDetails()
    seen: Seen = Seen()
    serving: Serving = Serving()
    unrentable: Unrentable | None = None
    """None: a node could hold it, or a machine may come for it."""
    renting: MachineReason | None = None
    """What is rented for it while it waits, or why nothing is; None: nothing is asked for."""
    inactivity: Inactivity | None = None
    """None: it is in use, nothing is known yet, or nothing looks."""
    signalled: tuple[SignalledEnd, ...] = ()
    """The latest of each cause."""
    interruption: Interruption | None = None
    carrier: str | None = None
    """The attempt in whose container its job runs (docs/rules.md 11.14). Empty: it waits outside of
    the queue; None: it gets an allocation of its own."""
    carries_until: float | None = None
    """Its job has ended, and until then its container takes jobs of other sets; 0: it takes no more
    and is to end."""
    starts: Starts | None = None
    """The starts in this attempt's container after the first; None: nobody asked for one."""
    links: tuple[JobLink, ...] = ()
    """Links to its run in another tool, that the job printed: data of the job."""
    submitted_at: float
    provisioned_at: float | None = None
    pulling_at: float | None = None
    running_at: float | None = None
    terminating_at: float | None = None
    finished_at: float | None = None

    @property
    def waits_for(self) -> str | None:
        """Return why it has no allocation yet, or what is done for a job that its provider's recall
        ends, as a sentence (docs/rules.md 12.17, 12.18).

        A machine that is on its way is the whole answer. So is the market's where no node is there;
        else what the nodes lack comes first.
        """
        pending, renting = self.pending_reason, self.renting
        if self.status is AttemptStatus.TERMINATING:
            return self._recalled()
        if renting is None:
            return None if pending is None else pending.sentence()
        if pending is None or isinstance(pending, NoNodeConnected | NoNodeInFleets):
            return renting.sentence()
        if isinstance(renting, BuysMachine):
            return renting.sentence()
        return f"{pending.sentence()}; {renting.sentence()}"

    def _recalled(self) -> str | None:
        """Return what becomes of it, if it stops because its provider takes the machine back."""
        if self.reason is not Reason.INTERRUPTED_BY_NO_CAPACITY:
            return None
        why, renting = self.message or ROWS[self.reason].sentence, self.renting
        if renting is None:
            return why
        if isinstance(renting, BuysMachine):
            return f"{why}; {renting.as_replacement()}"
        return f"{why}; no replacement is ordered yet: {renting.sentence()}"
