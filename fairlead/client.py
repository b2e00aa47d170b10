"""`Client`: what Python programs and notebooks ask of a controller; `run.py` has a run.

All methods block the calling thread and nothing else: they need no event loop and work inside one,
as in a notebook. Programs with an event loop of their own use `AsyncClient`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from functools import partial
from pathlib import Path
from typing import Literal, Protocol, TypeVar

import msgspec

from fairlead import settings
from fairlead.configuration.values.units import parse_duration
from fairlead.connections.closing import Closing
from fairlead.documents.accounts import CallerView, SecretView
from fairlead.documents.jobs import OutputsView
from fairlead.documents.machines import CostsView
from fairlead.documents.nodes import NodeView
from fairlead.documents.plans import OffersView, PlanView
from fairlead.documents.runs import BatchItem, EventView, RunSummary, RunView
from fairlead.documents.services import DeployView, NewServiceKeyView, ServiceKeyView
from fairlead.errors import UsageError
from fairlead.files import outputs
from fairlead.files.ssh_keys import public_keys
from fairlead.follow import follow_events
from fairlead.model.answers import OfferedPlace
from fairlead.model.costs import CostPeriod
from fairlead.model.sweep import Value
from fairlead.patience import Outages
from fairlead.queries import CostsQuery, EventQuery, RunQuery
from fairlead.rest import (
    ControllerClient,
    decode,
    secret_path,
    service_key_path,
    service_path,
)
from fairlead.run import KnownRun, Run, Tell, key_of
from fairlead.submission import (
    SENT_AGAIN,
    new_client_key,
    submit,
    submit_all,
    submit_together,
    with_code,
    with_code_there,
    with_code_unsent,
)
from fairlead.summaries.offers import Offer, offers
from fairlead.sweeps import sets_as_written
from fairlead.task import Task
from fairlead.wire.errors import NOT_UPLOADED

Source = Task | str | os.PathLike[str] | Mapping[str, object]
IfExists = Literal["error", "keep", "replace"]
_PAGE = 1000


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
        wish = {
            "name": name,
            "if_exists": if_exists,
            "parent": None if parent is None else key_of(parent),
        }
        return self._submitted(task, env, wish)

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
        keys = [new_client_key() for _ in found]

        def answered(chosen: Sequence[int]) -> list[BatchItem]:
            known: dict[int, dict[str, object]] = {}
            for number in chosen:
                task = found[number]
                if id(task) not in known:
                    known[id(task)] = self._submission(task, env)
            bodies = (
                {
                    **known[id(found[number])],
                    "name": None if names is None else names[number],
                    "if_exists": if_exists,
                    "parent": None if parent is None else key_of(parent),
                    "client_key": keys[number],
                }
                for number in chosen
            )
            return submit_all(self.rest, bodies, self.tell)

        answers = answered(range(len(found)))
        # As of one submission: the next leader may lack the code.
        lost = [number for number, one in enumerate(answers) if _lacks_code(one)]
        if lost:
            self.tell(SENT_AGAIN)
            for number, again in zip(lost, answered(lost), strict=True):
                answers[number] = again
        return answers

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
        keys = [new_client_key() for _ in tasks]

        def bodies() -> list[dict[str, object]]:
            return [
                {
                    **self._submission(task, env),
                    "name": None if names is None else names[number],
                    "parent": None if parent is None else key_of(parent),
                    "client_key": keys[number],
                }
                for number, task in enumerate(tasks)
            ]

        data = with_code_there(
            bodies, lambda made: submit_together(self.rest, made, self.tell), self.tell
        )
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
        wish = {"name": name, "parent": None if parent is None else key_of(parent)}
        return self._submitted(swept, env, wish)

    def deploy(
        self, service: KnownRun | str, task: Source, *, env: Mapping[str, str] | None = None
    ) -> DeployView:
        """Roll a changed configuration out to a live service; nothing is done when it is the same.

        Returns when this is recorded: `Run.service` tells how far it is. The arguments are those of
        `submit`.
        """
        path = service_path(key_of(service), "deployments")
        data = with_code_there(
            lambda: self._submission(task, env), partial(self.rest.post, path), self.tell
        )
        return decode(data, DeployView)

    def _submitted(
        self, task: Source, env: Mapping[str, str] | None, wish: Mapping[str, object]
    ) -> Run:
        """Submit a task with what else its submission says."""
        keyed = {**wish, "client_key": new_client_key()}
        data, _ = with_code_there(
            lambda: {**self._submission(task, env), **keyed},
            lambda body: submit(self.rest, body, self.tell),
            self.tell,
        )
        return Run(self, decode(data, RunView))

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
        self,
        by: Sequence[str] = ("user", "fleet"),
        *,
        since: float | str = "30d",
        per: Literal["day", "month"] | None = None,
    ) -> CostsView:
        """Return what rented machines have cost, summed up by `user`, `fleet` and `run`. `since`:
        how far back, as seconds or such as 30d. `per`: "day" or "month" for rows of each one."""
        period = None if per is None else CostPeriod(per)
        query = CostsQuery(by=",".join(by), seconds=parse_duration(since), per=period)
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
        return outputs.listed(outputs.read(self.rest, key_of(run)))

    def events(
        self, run: KnownRun | str | None = None, *, after: int = 0, follow: bool = False
    ) -> Iterator[EventView]:
        """Yield what happened, oldest first; `after` is the `seq` of the last known event.

        `follow`: continue, with a run until its end.
        """
        key = None if run is None else key_of(run)
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


def _task(source: Source) -> Task:
    if isinstance(source, Task):
        return source
    if isinstance(source, Mapping):
        return Task.of(source)
    return Task.load(os.fspath(source))


def _to_stderr(text: str) -> None:
    sys.stderr.write(f"fairlead: {text}\n")


def _lacks_code(answer: BatchItem) -> bool:
    return answer.error is not None and answer.error.code == NOT_UPLOADED
