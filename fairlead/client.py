"""`Client` and `Run`: what Python programs and notebooks do with runs.

All methods block the calling thread and nothing else: they need no event loop and work inside one,
as in a notebook. Programs with an event loop of their own use `AsyncClient`.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, TypeVar

import msgspec

from fairlead import settings
from fairlead.configuration.values.units import parse_duration
from fairlead.connections.closing import Closing
from fairlead.documents.accounts import CallerView, SecretView
from fairlead.documents.jobs import AttemptOutputsView, AttemptView, JobView, OutputsView
from fairlead.documents.machines import CostsView
from fairlead.documents.metrics import MetricsAnswer, MetricsHistoryAnswer
from fairlead.documents.nodes import NodeView
from fairlead.documents.plans import ExplainView, OffersView, PlanView
from fairlead.documents.runs import BatchItem, EventView, RunSummary, RunView, WatchLine
from fairlead.documents.services import DeployView, NewServiceKeyView, ServiceKeyView, ServiceView
from fairlead.documents.sweeps import SetView
from fairlead.errors import ClientClosed, RunFailed, UsageError
from fairlead.files import outputs
from fairlead.files.ssh_keys import public_keys
from fairlead.follow import Outages, follow_events, follow_log, follow_run, unread
from fairlead.model.answers import OfferedPlace
from fairlead.model.statuses import FINAL_RUN_STATUSES, RunStatus
from fairlead.model.sweep import SetStatus, Value
from fairlead.queries import CostsQuery, EventQuery, RunQuery
from fairlead.rest import (
    ControllerClient,
    decode,
    job_path,
    run_path,
    secret_path,
    service_key_path,
    service_path,
)
from fairlead.submission import (
    submit,
    submit_all,
    submit_together,
    with_code,
    with_code_unsent,
)
from fairlead.summaries import notebook
from fairlead.summaries.offers import Offer, offers
from fairlead.summaries.progress import exit_status, find_job, job_name, never_ran, step_of, why
from fairlead.sweeps import all_sets, sets_as_written
from fairlead.task import Task
from fairlead.wire.frames import Frame, Stream

if TYPE_CHECKING:
    from fairlead.forward import LocalPort

Tell = Callable[[str], None]
Source = Task | str | os.PathLike[str] | Mapping[str, object]
IfExists = Literal["error", "keep", "replace"]
_PAGE = 1000


class Output(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of a job's output. To resume after it, give `attempt` and `end` as the offset."""

    job: str
    attempt: str
    offset: int
    end: int
    at: datetime
    stream: Literal["stdout", "stderr", "system", "marker"]
    data: bytes

    @property
    def text(self) -> str:
        """The data as text; bytes that are no UTF-8 become marks."""
        return self.data.decode(errors="replace")


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one parameter set of a sweep."""

    number: int
    parameters: dict[str, Value]
    status: SetStatus
    exit_code: int | None
    """None: its job never ended by itself."""
    message: str | None
    job: str | None
    """The id of its first job, for `logs` and `pull_outputs`; None: it never began."""
    attempt: str | None
    outputs: AttemptOutputsView | None
    """What it left; `Run.pull_outputs` brings it."""


_RESULTS_SECONDS = 0.3
_ENDED_SETS = f"{SetStatus.DONE},{SetStatus.FAILED},{SetStatus.STOPPED}"


def _result(one: SetView) -> Result:
    return Result(
        number=one.number,
        parameters=one.parameters,
        status=one.status,
        exit_code=one.exit_code,
        message=one.message,
        job=one.jobs[0] if one.jobs else None,
        attempt=one.attempt_id,
        outputs=one.outputs,
    )


class _Page(Protocol):
    next_cursor: str | None


P = TypeVar("P", bound=_Page)


class _Runs(msgspec.Struct):
    runs: list[RunSummary]


class _Submitted(msgspec.Struct):
    runs: list[RunView]


class _Nodes(msgspec.Struct):
    nodes: list[NodeView]
    next_cursor: str | None = None


class _Secrets(msgspec.Struct):
    secrets: list[SecretView]
    next_cursor: str | None = None


class _Keys(msgspec.Struct):
    keys: list[ServiceKeyView]
    next_cursor: str | None = None


class _Events(msgspec.Struct):
    events: list[EventView]


class Client(Closing):
    """A controller, as its user sees it.

    Without arguments it talks to the controller that the `fairlead` command would: FAIRLEAD_URL and
    FAIRLEAD_TOKEN, else what `fairlead login` saved; `controller` is the name of a saved one.
    `url` may be several URLs of controllers that share a database, separated by commas: the client
    goes on to the next one when one cannot be reached.
    `tell` gets sentences about what takes time, such as a controller that is away; by default they
    go to stderr. Every method raises FairleadError.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        controller: str | None = None,
        tell: Tell | None = None,
    ) -> None:
        if controller is not None and (url or token):
            raise UsageError("give either `controller` or `url` and `token`")
        if controller is not None:
            saved = settings.named(settings.load(), controller)
            url, token = saved.url, saved.token
        elif url is not None:
            token = token or settings.token_for(url)
        elif token is None:
            url, token = settings.chosen()
        self.tell = tell or _to_stderr
        self.rest = ControllerClient(url or settings.DEFAULT_URL, token, tell=self.tell)

    @property
    def url(self) -> str:
        """The URL of the controller; of several, the one that answered last."""
        return self.rest.url

    def another(self) -> Client:
        """Return another client of the same controller, which is closed on its own."""
        other = copy(self)
        other.rest = self.rest.another()
        return other

    def close(self) -> None:
        """End all streams of this client, also those of other threads."""
        self.rest.close()

    def __repr__(self) -> str:
        return f"Client({self.url!r})"

    def whoami(self) -> CallerView:
        """Return the user of the token."""
        return decode(self.rest.get("/v1/me"), CallerView)

    def submit(
        self,
        task: Source,
        *,
        name: str | None = None,
        env: Mapping[str, str] | None = None,
        if_exists: IfExists = "error",
        parent: KnownRun | str | None = None,
    ) -> Run:
        """Submit a run and return it at once.

        `task`: a Task, a mapping with the fields of the YAML, or the path of a YAML file; its code
        is uploaded first. `env` overrides variables. The other arguments are those of `fairlead
        apply`. Raises InvalidConfiguration, Conflict when a live run has the name.
        """
        body = {
            **self._submission(task, env),
            "name": name,
            "if_exists": if_exists,
            "parent": None if parent is None else _key(parent),
        }
        data, _ = submit(self.rest, body, self.tell)
        return Run(self, decode(data, RunView))

    def submit_many(
        self,
        tasks: Iterable[Source],
        *,
        names: Sequence[str] | None = None,
        env: Mapping[str, str] | None = None,
        if_exists: Literal["error", "keep"] = "error",
        parent: KnownRun | str | None = None,
    ) -> list[BatchItem]:
        """Submit many runs with few requests, and return at once what became of each, in their
        order.

        A refused one keeps none of the others from being made: its `error` says why. `names`: one
        for each task. The other arguments are those of `submit`, for all of them. Raises
        InvalidConfiguration before anything is sent.
        """
        found = list(tasks)
        if names is not None and len(names) != len(found):
            raise UsageError(f"`names` has {len(names)} names for {len(found)} tasks")
        known: dict[int, dict[str, object]] = {}
        for task in found:
            if id(task) not in known:
                known[id(task)] = self._submission(task, env)
        bodies = (
            {
                **known[id(task)],
                "name": None if names is None else names[number],
                "if_exists": if_exists,
                "parent": None if parent is None else _key(parent),
            }
            for number, task in enumerate(found)
        )
        return submit_all(self.rest, bodies, self.tell)

    def submit_together(
        self,
        tasks: Sequence[Source],
        *,
        names: Sequence[str] | None = None,
        env: Mapping[str, str] | None = None,
        parent: KnownRun | str | None = None,
    ) -> list[Run]:
        """Submit several runs as one act: all of them or none. Return them in their order.

        They may wait for each other by name (`after`), in any order. The arguments are those of
        `submit_many`. Raises InvalidConfiguration before anything is sent, and ApiError, whose
        `field` begins with `runs[NUMBER]`, when the controller refuses one of them.
        """
        if names is not None and len(names) != len(tasks):
            raise UsageError(f"`names` has {len(names)} names for {len(tasks)} tasks")
        if not tasks:
            raise UsageError("tasks: give at least one task")
        bodies = [
            {
                **self._submission(task, env),
                "name": None if names is None else names[number],
                "parent": None if parent is None else _key(parent),
            }
            for number, task in enumerate(tasks)
        ]
        data = submit_together(self.rest, bodies, self.tell)
        return [Run(self, state) for state in decode(data, _Submitted).runs]

    def sweep(
        self,
        task: Source,
        params: Mapping[str, Sequence[Value]] | Sequence[Mapping[str, Value]],
        *,
        max_parallel: int | None = None,
        stop_after_failures: int | str | None = None,
        reuse_container: bool = False,
        name: str | None = None,
        env: Mapping[str, str] | None = None,
        parent: KnownRun | str | None = None,
    ) -> Run:
        """Submit a run that executes the task once for each parameter set, and return it at once.

        `params`: a list of sets, or lists of values by name, of which all combinations are made.
        `max_parallel`: how many sets run at once. `stop_after_failures`: a number of sets or a
        share such as "10%". `reuse_container`: tiny jobs run one after another in one container.
        `Run.results` yields what became of each. The other arguments, and what
        is raised, are those of `submit`.
        """
        given = {"max_parallel": max_parallel, "stop_after_failures": stop_after_failures}
        fields = {key: value for key, value in given.items() if value is not None}
        fields |= {"reuse_container": True} if reuse_container else {}
        swept = _task(task).with_sweep({**sets_as_written(params), **fields})
        wish = {
            **self._submission(swept, env),
            "name": name,
            "parent": None if parent is None else _key(parent),
        }
        data, _ = submit(self.rest, wish, self.tell)
        return Run(self, decode(data, RunView))

    def deploy(
        self, service: KnownRun | str, task: Source, *, env: Mapping[str, str] | None = None
    ) -> DeployView:
        """Roll a changed configuration out to a live service; nothing is done when it is the same.

        Returns when this is recorded: `Run.service` tells how far it is. The arguments are those of
        `submit`.
        """
        path = service_path(_key(service), "deployments")
        return decode(self.rest.post(path, self._submission(task, env)), DeployView)

    def _submission(self, task: Source, env: Mapping[str, str] | None) -> dict[str, object]:
        """Return the complete configuration, its code uploaded, and the user's SSH keys."""
        found = _task(task)
        configuration = with_code(
            self.rest, found.configuration(env), found.base, found.name, os.environ, self.tell
        )
        return {
            "configuration": configuration,
            "ssh_keys": public_keys(os.environ, Path.home()),
        }

    def plan(self, task: Source, *, name: str | None = None) -> PlanView:
        """Return where the run's jobs would go now; nothing is submitted."""
        found = _task(task)
        configuration = with_code_unsent(found.configuration(), found.base, found.name, os.environ)
        return decode(
            self.rest.post("/v1/plan", {"configuration": configuration, "name": name}), PlanView
        )

    def offers_for(self, task: Source) -> tuple[OfferedPlace, ...]:
        """Return where the run's jobs could go, free nodes and machines to rent, in the order in
        which they are tried; nothing is submitted."""
        found = _task(task)
        configuration = with_code_unsent(found.configuration(), found.base, found.name, os.environ)
        answer = self.rest.post("/v1/offers", {"configuration": configuration, "name": None})
        return decode(answer, OffersView).places

    def costs(
        self, by: Sequence[str] = ("user", "fleet"), *, since: float | str = "30d"
    ) -> CostsView:
        """Return what rented machines have cost, summed up by `user`, `fleet` and `run`. `since`:
        how far back, as seconds or such as 30d."""
        query = CostsQuery(by=",".join(by), seconds=parse_duration(since))
        return decode(self.rest.get("/v1/costs", **query.parameters()), CostsView)

    def run(self, key: str) -> Run:
        """Return the run with this id or name. Raises NotFound."""
        return Run(self, self.rest.run(key))

    def runs(
        self,
        name: str | None = None,
        *,
        all: bool = False,
        status: Sequence[str] = (),
        user: str | None = None,
        limit: int = 100,
    ) -> list[RunSummary]:
        """Return the newest live runs; `all`: finished ones too.

        `name`: a pattern with `*` and `?`. `status`: only these, finished ones too.
        """
        query = RunQuery(
            all=all, limit=limit, status=",".join(status) or None, user=user, name=name
        )
        return decode(self.rest.get("/v1/runs", **query.parameters()), _Runs).runs

    def nodes(self) -> list[NodeView]:
        """Return the nodes, with what they have and what of it is in use."""
        pages = self._pages("/v1/nodes", _Nodes)
        return [node for page in pages for node in page.nodes]

    def offers(self) -> list[Offer]:
        """Return what is free now, by the kind of GPU."""
        return offers(self.nodes())

    def outputs(self, run: KnownRun | str) -> tuple[OutputsView, ...]:
        """Return what the run's jobs left in their output folders, as `Run.outputs` does."""
        return outputs.listed(outputs.read(self.rest, _key(run)))

    def events(
        self, run: KnownRun | str | None = None, *, after: int = 0, follow: bool = False
    ) -> Iterator[EventView]:
        """Yield what happened, oldest first; `after` is the `seq` of the last known event.

        `follow`: continue, with a run until its end.
        """
        key = None if run is None else _key(run)
        if follow:
            yield from follow_events(self.rest, key, after, Outages(self.tell))
            return
        while True:
            query = EventQuery(run=key, after=after, limit=_PAGE)
            page = decode(self.rest.get("/v1/events", **query.parameters()), _Events).events
            yield from page
            if len(page) < _PAGE:
                return
            after = page[-1].seq

    def secrets(self) -> list[SecretView]:
        """Return your stored secrets and the shared ones, without their values."""
        pages = self._pages("/v1/secrets", _Secrets)
        return [secret for page in pages for secret in page.secrets]

    def set_secret(self, name: str, value: str, *, shared: bool = False) -> SecretView:
        """Store a secret, or a new value of it. Jobs get it by `${{ secrets.NAME }}`.

        `shared`: for the runs of all users; only an admin may store these.
        """
        body = {"value": value, "shared": shared}
        return decode(self.rest.put(secret_path(name), body), SecretView)

    def delete_secret(self, name: str, *, shared: bool = False) -> SecretView:
        """Delete a stored secret; jobs that have it keep it. Raises NotFound."""
        return decode(self.rest.delete(secret_path(name), shared=shared), SecretView)

    def service_keys(self, service: str | None = None) -> list[ServiceKeyView]:
        """Return the keys of your services, or of this one, without their secrets."""
        pages = self._pages("/v1/service-keys", _Keys, service=service)
        return [key for page in pages for key in page.keys]

    def add_service_key(self, service: str, *, label: str = "") -> NewServiceKeyView:
        """Make a key that opens one service alone; its `secret` is in no other answer."""
        body = {"service": service, "label": label}
        return decode(self.rest.post("/v1/service-keys", body), NewServiceKeyView)

    def revoke_service_key(self, key: ServiceKeyView | str) -> ServiceKeyView:
        """Revoke a key (or the one with this id) at once; its open requests end."""
        id = key if isinstance(key, str) else key.id
        return decode(self.rest.delete(service_key_path(id)), ServiceKeyView)

    def _pages(self, path: str, shape: type[P], **query: object) -> Iterator[P]:
        """Yield all pages of a list."""
        cursor: str | None = None
        while True:
            page = decode(self.rest.get(path, cursor=cursor, **query), shape)
            yield page
            cursor = page.next_cursor
            if cursor is None:
                return


class KnownRun(ABC):
    """A run as far as it is known; `Run` and `AsyncRun` renew what is known of it."""

    @property
    @abstractmethod
    def state(self) -> RunView:
        """What is known of the run."""

    @property
    def id(self) -> str:
        """The id of the run."""
        return self.state.id

    @property
    def name(self) -> str:
        """The name of the run."""
        return self.state.name

    @property
    def status(self) -> RunStatus:
        """The status of the run as of `state`."""
        return self.state.status

    @property
    def is_final(self) -> bool:
        """Whether the run has ended."""
        return self.state.status in FINAL_RUN_STATUSES

    @property
    def exit_status(self) -> int | None:
        """The exit status of `fairlead apply`; None while the run is live."""
        return exit_status(self.state) if self.is_final else None

    @property
    def why(self) -> str:
        """The sentence that says why the run is as it is."""
        return why(self.state) if self.is_final else step_of(self.state, {}).text

    def __repr__(self) -> str:
        return f"<Run {self.name}: {self.status}>"


def _key(run: KnownRun | str) -> str:
    """Return the id of a run, or the id or name that was given for one."""
    return run if isinstance(run, str) else run.id


class Run(KnownRun):
    """A run. `state` is what is known of it; `refresh` and `wait` renew it."""

    def __init__(self, client: Client, state: RunView) -> None:
        self.client = client
        self._rest = client.rest
        self._state = state

    def another(self) -> Run:
        """Return the same run, asked about through a client of its own."""
        return Run(self.client.another(), self.state)

    def close(self) -> None:
        """End all streams of its client."""
        self.client.close()

    @property
    def state(self) -> RunView:
        """What is known of the run; `refresh`, `wait` and `states` renew it."""
        return self._state

    def learn(self, state: RunView) -> None:
        """Take what another reader learnt of the run."""
        self._state = state

    def refresh(self) -> Run:
        """Ask for the present state."""
        self._state = self._rest.run(self.id)
        return self

    def states(self, *, timeout: float | None = None) -> Iterator[RunView]:
        """Yield the state now and after each change, until it is final. Raises TimeoutError after
        so many seconds."""
        for line in self._watched(timeout):
            assert line.run is not None
            self._state = line.run
            yield line.run

    def wait(
        self,
        *,
        timeout: float | None = None,
        check: bool = True,
        progress: bool | Tell | None = None,
    ) -> Run:
        """Wait until the run has ended; the run goes on when this is interrupted.

        `check`: raise RunFailed when it ended otherwise than done. `timeout`: seconds, then
        TimeoutError. `progress`: show each step, or give it to a function; by default a notebook
        shows one line that changes.
        """
        show = notebook.shower(progress)
        for line in self._watched(timeout):
            assert line.run is not None
            self._state = line.run
            if not self.is_final:
                step = step_of(self.state, line.progress)
                show(f"{self.name}: {step.text}" + (f" ({step.detail})" if step.detail else ""))
        show(f"{self.name}: {self.status}: {self.why}")
        return self.check() if check else self

    def check(self) -> Run:
        """Raise RunFailed when the run has ended otherwise than done."""
        if self.is_final and self.status is not RunStatus.DONE:
            raise RunFailed(
                f"{self.name} ended {self.status}: {self.why} (`run.logs()` has its output)",
                self.state,
                exit_status(self.state),
            )
        return self

    def logs(
        self,
        job: str | int | None = None,
        *,
        follow: bool = False,
        attempt: str | None = None,
        offset: int = 0,
    ) -> Iterator[Output]:
        """Yield the output of a job: its latest attempt, or `attempt`, from this offset on.

        `job`: id, GROUP/COOKIE or index; by default the first. `follow`: continue as it comes,
        through cut connections, with the later attempts of the job, until the run has ended. To
        resume, give the `attempt` and the `end` of the last piece.
        """
        if offset < 0:
            raise UsageError(f"offset: {offset} is less than 0; it counts bytes from 0")
        found = self._job(job)
        if follow:
            yield from self._followed(found, attempt, offset)
            return
        chosen = attempt or (found.attempts[-1].id if found.attempts else None)
        if chosen is None:
            return
        stored = self._rest.stored_frames(self.id, attempt=chosen, job=found.id, offset=offset)
        for frame in unread(stored, offset):
            yield _output(found, chosen, frame)

    def results(self, *, timeout: float | None = None) -> Iterator[Result]:
        """Yield what became of each parameter set of a sweep, as the sets end: each once, when its
        outputs are here, and what never ran at the end. Raises TimeoutError after so many seconds.
        """
        known: set[int] = set()
        counted: tuple[int, ...] | None = None
        asked_at = float("-inf")
        for state in self.states(timeout=timeout):
            if state.sweep is None:
                raise UsageError(f"{self.name} is no sweep: it has no parameter sets")
            sweep, is_final = state.sweep, state.status in FINAL_RUN_STATUSES
            now = (sweep.done, sweep.failed, sweep.stopped, len(state.jobs))
            if now == counted and not is_final:
                continue
            # One question for all that end within a moment: a list has up to 10,000 sets.
            time.sleep(max(0.0, asked_at + _RESULTS_SECONDS - time.monotonic()))
            asked_at, counted = time.monotonic(), now
            for one in all_sets(self._rest, self.id, status=None if is_final else _ENDED_SETS):
                if one.number not in known and (is_final or one.finished_at is not None):
                    known.add(one.number)
                    yield _result(one)

    def retry(self, sets: str | None = None) -> Run:
        """Run parameter sets of this live sweep again: those that failed, or `sets`, by number
        (`3,7-9`) or value (`seed=3`), of those that failed or were stopped."""
        return self._do("sets/retry", {"which": sets})

    def stop_sets(self, sets: str) -> Run:
        """Stop parameter sets of this live sweep, by number (`3,7-9`) or value (`seed=3`)."""
        return self._do("sets/stop", {"which": sets})

    def scale_sweep(self, max_parallel: int | None) -> Run:
        """Change how many parameter sets of this live sweep run at once; None: as many as there is
        room for."""
        return self._do("sets/parallel", {"max_parallel": max_parallel})

    def lines(self, job: str | int | None = None, *, follow: bool = False) -> Iterator[str]:
        """Yield the output as lines of text, without their ends."""
        rest = b""
        for piece in self.logs(job, follow=follow):
            *whole, rest = (rest + piece.data).split(b"\n")
            yield from (line.decode(errors="replace") for line in whole)
        if rest:
            yield rest.decode(errors="replace")

    def print_logs(self, job: str | int | None = None, *, follow: bool = True) -> None:
        """Print the output as it comes, until the run has ended."""
        for piece in self.logs(job, follow=follow):
            sys.stdout.write(piece.text)
            sys.stdout.flush()

    def outputs(
        self, job: str | int | None = None, *, attempt: str | int | None = None
    ) -> tuple[OutputsView, ...]:
        """Return what the jobs left in their output folders; of one job with its files.

        `job`: id, GROUP/COOKIE or index; by default all. `attempt`: id, or number from 0; by
        default the latest.
        """
        key = None if job is None else self._job(job).id
        return outputs.listed(outputs.read(self._rest, self.id, job=key, attempt=attempt))

    def pull_outputs(
        self,
        folder: str | os.PathLike[str],
        job: str | int | None = None,
        *,
        attempt: str | int | None = None,
        progress: bool | Tell | None = None,
    ) -> list[Path]:
        """Download what the jobs left, and return the folders that have it.

        The outputs of one job go into `folder`, those of several each into GROUP-COOKIE below it. A
        download that was cut goes on where it stopped, also when this is called again. `progress`
        is shown as by `wait`. Raises OutputsMissing, after the others, when some cannot be brought.
        """
        found = self.outputs(job, attempt=attempt)
        show = notebook.shower(progress)
        pulled = outputs.pull(
            self._rest, self.id, found, Path(folder), lambda text: show(f"{self.name}: {text}")
        )
        return [one.folder for one in pulled]

    def events(self, *, after: int = 0, follow: bool = False) -> Iterator[EventView]:
        """Yield what happened to the run, as `Client.events` does."""
        return self.client.events(self, after=after, follow=follow)

    def metrics(self, job: str | int | None = None) -> MetricsAnswer:
        """Return what the running jobs use now."""
        key = None if job is None else self._job(job).id
        return decode(self._rest.get(run_path(self.id, "metrics"), job=key), MetricsAnswer)

    def metrics_history(
        self, job: str | int | None = None, *, seconds: float = 3600.0, points: int = 120
    ) -> MetricsHistoryAnswer:
        """Return what the jobs used in the last `seconds`, or before their end, for a plot."""
        key = None if job is None else self._job(job).id
        path = run_path(self.id, "metrics/history")
        data = self._rest.get(path, job=key, seconds=seconds, points=points)
        return decode(data, MetricsHistoryAnswer)

    def explain(self) -> ExplainView:
        """Return why the run waits."""
        return decode(self._rest.get(run_path(self.id, "explain")), ExplainView)

    def forward(
        self, port: int, *, local: int = 0, host: str = "127.0.0.1", job: str | int | None = None
    ) -> LocalPort:
        """Open a local port that leads to a port of a job, also one on its loopback, until closed.

            with run.forward(8080) as tensorboard:
                print(f"http://{tensorboard.address}")

        `local`: the local port; 0: any free one. `job`: id, GROUP/COOKIE or index; by default the
        first. Raises PortTaken, UsageError.
        """
        from fairlead.forward import Forward, Forwarding, LocalPort

        if not 0 < port < 65536 or not 0 <= local < 65536:
            raise UsageError(f"{port} and {local}: give a port from 1 to 65535; `local` may be 0")
        key = None if job is None else self._job(job).id
        wanted = [Forward(port, local)]
        forwarding = Forwarding(self._rest, self.state, key, wanted, self.client.tell, host)
        return LocalPort(forwarding, host)

    def service(self) -> ServiceView:
        """Return the service that this run is: its replicas, its load and its deployments.

        Raises ApiError when the run is no service.
        """
        return decode(self._rest.get(service_path(self.id)), ServiceView)

    def rollback(self, to: int | None = None) -> ServiceView:
        """Bring an earlier deployment of the service back: `to`, by default the latest other one
        that was rolled out. Returns when this is recorded."""
        data = self._rest.post(service_path(self.id, "rollback"), {"to": to})
        return decode(data, ServiceView)

    def stop(self, *, abort: bool = False) -> Run:
        """Stop the run; `abort`: without the grace of its jobs. Returns when this is recorded."""
        return self._do("stop", {"abort": abort})

    def complete(self) -> Run:
        """End the run as done now."""
        return self._do("complete", {})

    def suspend(self, *, abort_running: bool = False) -> Run:
        """Suspend the run: no placements, retries or triggers."""
        return self._do("suspend", {"abort_running": abort_running})

    def resume(self) -> Run:
        """Resume a suspended run."""
        return self._do("resume", {})

    def scale(self, nodes: int, *, group: str = "main") -> Run:
        """Change the number of jobs of a group that is no gang."""
        return self._do("scale", {"group": group, "nodes": nodes})

    def abort_job(self, job: str | int) -> Run:
        """End a job's attempt at once; it comes back under the default retry."""
        return self._do_job(job, "abort")

    def abandon_job(self, job: str | int) -> Run:
        """Let the run go on without a job."""
        return self._do_job(job, "abandon")

    def interrupt_job(self, job: str | int) -> Run:
        """Ask a job to end by itself."""
        return self._do_job(job, "interrupt")

    def _do(self, action: str, body: Mapping[str, object]) -> Run:
        self._state = decode(self._rest.post(run_path(self.id, action), body), RunView)
        return self

    def _do_job(self, job: str | int, action: str) -> Run:
        path = job_path(self.id, self._job(job).id, action)
        self._state = decode(self._rest.post(path, {}), RunView)
        return self

    def _job(self, key: str | int | None) -> JobView:
        try:
            return find_job(self.state, key)
        except UsageError:
            if self.state.sweep is None:
                raise
        # A watch of a sweep tells of the sets that have not ended; the run itself has all.
        return find_job(self.refresh().state, key)

    def _watched(self, timeout: float | None) -> Iterator[WatchLine]:
        with _ending_after(self._rest, timeout, self) as rest:
            yield from follow_run(rest, self.id, Outages(self.client.tell))

    def _followed(self, job: JobView, attempt: str | None, offset: int) -> Iterator[Output]:
        """Yield the output of this attempt (by default the present one) and of all later ones."""
        done = set[str]()
        for state in self.states():
            present = next((one for one in state.jobs if one.id == job.id), job)
            first = attempt or (present.attempts[-1].id if present.attempts else None)
            if not done and first is None:
                continue
            for one in _from(present.attempts, first if not done else None):
                if one.id not in done and not never_ran(one):
                    done.add(one.id)
                    yield from self._attempt(job, one.id, offset if one.id == attempt else 0)

    def _attempt(self, job: JobView, attempt: str, offset: int) -> Iterator[Output]:
        for frame in follow_log(self._rest, self.id, attempt, offset, Outages(self.client.tell)):
            yield _output(job, attempt, frame)


def _task(source: Source) -> Task:
    if isinstance(source, Task):
        return source
    if isinstance(source, Mapping):
        return Task.of(source)
    return Task.load(os.fspath(source))


def _from(attempts: tuple[AttemptView, ...], first: str | None) -> tuple[AttemptView, ...]:
    """Return the attempts from `first` on; all of them when it is not among the recent ones."""
    starts = [at for at, one in enumerate(attempts) if one.id == first]
    return attempts[starts[0] :] if starts else attempts


def _output(job: JobView, attempt: str, frame: Frame) -> Output:
    return Output(
        job=job_name(job),
        attempt=attempt,
        offset=frame.offset,
        end=frame.end,
        at=datetime.fromtimestamp(frame.time_ns / 1e9, UTC),
        stream=_STREAMS[frame.stream],
        data=frame.payload,
    )


_STREAMS: dict[Stream, Literal["stdout", "stderr", "system", "marker"]] = {
    Stream.STDOUT: "stdout",
    Stream.STDERR: "stderr",
    Stream.SYSTEM: "system",
    Stream.MARKER: "marker",
}


@contextmanager
def _ending_after(
    rest: ControllerClient, timeout: float | None, run: Run
) -> Iterator[ControllerClient]:
    """Give a client whose streams end after so many seconds, with TimeoutError."""
    if timeout is None:
        yield rest
        return
    limited = rest.another()
    timer = threading.Timer(timeout, limited.close)
    # Python waits for other threads before it ends.
    timer.daemon = True
    timer.start()
    try:
        yield limited
    except ClientClosed:
        raise TimeoutError(f"{run.name} is {run.status} after {timeout:g} s; it goes on") from None
    finally:
        timer.cancel()
        limited.close()


def _to_stderr(text: str) -> None:
    sys.stderr.write(f"fairlead: {text}\n")
