"""Events tell what happened to a run: one for each transition, with its cause. A few are of no run.

`fairlead events` prints them in order. No decision reads them.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

import msgspec


class EventKind(StrEnum):
    """The kinds of events."""

    RUN = "run"
    """The run's status changed."""
    ATTEMPT = "attempt"
    """An attempt's status changed, or the attempt was made (`from_status` None)."""
    ALLOCATION = "allocation"
    """An allocation's state changed, or the allocation was made (`from_status` None)."""
    LATER_REASON = "later_reason"
    """A reason came after the first one: it is recorded, not applied."""
    CONNECTION = "connection"
    """The attempt's node was `connected` or `disconnected`."""
    WAIT = "wait"
    """The job waits before its next attempt."""
    SWITCH = "switch"
    """A gang began its next incarnation. `from_status` and `to_status` are the numbers; the attempt
    is the one that caused the switch."""
    REQUEST = "request"
    """A user made a request that no status shows: suspend, resume, scale, abandon or interrupt.
    `to_status` is what holds since then."""
    OCCURRENCE = "occurrence"
    """An occurrence of a scheduled run `started`, was `skipped`, or got its final status."""
    TRAFFIC = "traffic"
    """A replica of a service is `registered` for requests, or `unregistered`."""
    SCALE = "scale"
    """A replica group shall have another number of replicas: `from_status` and `to_status`."""
    DEPLOYMENT = "deployment"
    """A service's deployment is `rolling`, `done`, `rolled_back` or `replaced`."""
    OUTPUTS = "outputs"
    """The job's outputs were `collected`, or are `lost`."""
    AFTER = "after"
    """A condition of the run about another run is `met`."""
    SIGNAL = "signal"
    """The job gets its signal (`to_status`), because it will end for this reason."""
    STORING = "storing"
    """The database `refused` the run's new state: the run stays as it was before."""
    ORPHAN = "orphan"
    """A machine at a provider that no record knows (`reason`: which) is `found`, `kept`, `ending`
    or `gone`. It is of no run."""


NO_RUN: Final = ""
"""The `run_id` of an event that is of no run."""


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a run, or of none (`NO_RUN`). `cause` names the report, limit or rule that
    caused it; `at` is Unix seconds."""

    run_id: str
    job_id: str | None = None
    attempt_id: str | None = None
    at: float
    kind: EventKind
    from_status: str | None = None
    to_status: str | None = None
    reason: str | None = None
    message: str | None = None
    cause: str


CAUSES: Final[Mapping[str, str]] = {
    "StopRequested": "a user stopped the run",
    "CompleteRequested": "a user completed the run",
    "SuspendRequested": "a user suspended the run",
    "ResumeRequested": "a user resumed the run",
    "ScaleRequested": "a user scaled the group",
    "JobAbortRequested": "a user aborted the job",
    "JobAbandonRequested": "a user abandoned the job",
    "JobInterruptRequested": "a user interrupted the job",
    "SetsStopped": "a user stopped parameter sets",
    "SetsRetried": "a user retried parameter sets",
    "SweepResized": "a user changed how many parameter sets run at once",
    "ProbeSeen": "a probe ended",
    "ReplicaRegistered": "the gateway sends requests to the replica",
    "RegistrationFailed": "the gateway could not register the replica",
    "ReplicaDrained": "the replica has no requests left",
    "InactivitySeen": "the use of the dev environment was looked at",
    "ReplicasWanted": "the load changed",
    "WakeRequested": "a request woke the service",
    "DeployRequested": "a user deployed a new version",
    "RollbackRequested": "a user rolled the service back",
    "ParentEnded": "the run that began this one ended",
    "ServerFault": "the controller cannot go on with the run",
    "Nominated": "the scheduler keeps resources until other jobs have left them",
    "NominationEnded": "the scheduler keeps resources no longer",
    "Preempted": "a job of a higher band needs the resources",
    "recall": "the node's provider announced that it takes it back",
    "NodeDrained": "the node reached its drain deadline",
    "EngineGone": "the node's engine does not answer",
    "GangTooLarge": "the gang does not fit beside its surviving jobs",
    "StartAgainRequested": "a user changed the job's files",
    "StartedAgain": "the runner started the job again",
    "StartAgainRefused": "the job cannot start again in its container",
    "StartEnded": "the job's commands ended, and its container waits",
    "WatcherSeen": "a client watches the run",
    "limit watcher": "nobody watches for changed files any more",
    "Placed": "the scheduler placed the job",
    "FreedAllocationLost": "the node takes no more work",
    "NotPlaced": "no node has room",
    "MachineAnswered": "the providers were asked for a machine",
    "TaskAccepted": "the node accepted the task",
    "TaskRefused": "the node refused the task",
    "TaskSeen": "the node reported on the task",
    "TaskMissing": "the node has no such task",
    "RunnerStarted": "the runner started the job's commands",
    "RunnerExited": "the runner reported the job's end",
    "RunnerSilent": "the runner does not answer",
    "LeftClean": "the job left nothing behind in its container",
    "Carried": "the job was started in a container of its sweep",
    "NotReusable": "the container takes no more jobs",
    "LogsComplete": "the whole log is stored",
    "OutputsCollected": "the outputs are stored",
    "LinksFound": "the job printed a link",
    "TaskRemoved": "the node removed the task",
    "AllocationReleased": "the node released the resources",
    "NodeConnected": "the controller reaches the node",
    "NodeDisconnected": "the controller does not reach the node",
    "NodeGone": "the node was lost",
    "ControllerStarted": "the controller started",
    "JobSignalled": "the runner has the signal",
    "Tick": "time passed",
    "signal": "an end is foreseen",
    "after": "what became of the runs that it waits for",
    "begin": "its time to begin has come",
    "rule 1": "a job ended for good",
    "rule 2": "the master job is done",
    "rule 3": "a job is running",
    "rule 4": "a job is starting",
    "rule 5": "a job waits for a node",
    "rule 6": "every job is done",
    "rule 7": "the jobs wait for their next attempts",
    "rule 8": "the run is suspended",
    "rule 11.5": "the sweep reached its max_duration",
    "rule 11.6": "as many parameter sets failed as stop_after_failures says",
    "rule 11.7": "every parameter set has ended",
}
"""What the causes that are names of reports and rules mean; the others are sentences already. The
rules with one number are those of 4.1 to 4.8 in docs/rules.md."""


def sentence_of_cause(cause: str) -> str:
    """Return the cause as a user reads it."""
    name, _, limit = cause.partition(" ")
    if name == "limit":
        return f"the limit {limit} was reached"
    return CAUSES.get(cause, cause)
