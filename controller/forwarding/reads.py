"""Reads that a follower answers from the database, as the leader would.

The leader answers a write after its commit, and a read begins its transaction after it was asked
for: so whoever wrote reads his own writes, at any controller, without a word about it between the
two. Nothing is kept between two requests.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TypeVar

import msgspec
from aiohttp import web

from common.http import json_response
from common.tokens import digest
from controller.api.app import token_of
from controller.api.http.paging import cut, one_more
from controller.api.http.routes import NoQuery, decode_query
from controller.api.jobs.jobs import AttemptsAnswer
from controller.api.runs.events import EventsAnswer, event_view
from controller.api.runs.runs import RunsAnswer, RunSubmission
from controller.api.views import past_attempt_view, run_summary, run_view
from controller.clock import Clock
from controller.lifecycle.model import RunState
from controller.replica.alone import NeedsLeader
from controller.service.accounts.users import Credential, Gate
from controller.service.runs.lookup import RunReader
from controller.store.accounts import User
from controller.store.reading import Moment, StoreReader
from fairlead.model.statuses import OutputsState
from fairlead.queries import AttemptQuery, EventQuery, Query, RunQuery

Q = TypeVar("Q", bound=Query)


class Proof(msgspec.Struct, frozen=True):
    """What admits a request: the digest of the token that was sent; or, if that is None, the id of
    the token for which a login of the dashboard stands, and the login's."""

    digest: str | None
    token_id: str = ""
    login: str | None = None

    async def user(self, moment: Moment, clock: Clock) -> User:
        """Raises Unauthenticated, StoreError."""
        if self.digest is not None:
            found = await moment.account(self.digest)
        else:
            found = await moment.account_of(self.token_id)
        users, tokens = ((), ()) if found is None else ((found[0],), (found[1],))
        gate = Gate(users, tokens, clock)
        if self.digest is not None:
            token = gate.token_of_digest(self.digest)
        else:
            token = gate.token_by_id(self.token_id)
        gate.require_login(Credential(token=token, login=self.login))
        return gate.users[token.user]


def proof_of(request: web.Request, clock: Clock) -> Proof:
    """Return the token that the request has. Raises Unauthenticated."""
    given = token_of(request)
    if not given:
        # With the words of a gate.
        Gate((), (), clock).token_of(given)
    return Proof(digest(given or ""))


class _NoLiveRuns:
    """A follower has none in memory: the store's are as new."""

    runs: Mapping[str, RunState] = {}
    revision = 0

    def live_run_named(self, name: str) -> str | None:
        return None

    def children_of(self, run_id: str) -> list[RunState]:
        return []


class _Read(msgspec.Struct, frozen=True):
    """One read of a user."""

    request: web.Request
    user: User
    moment: Moment
    runs: RunReader

    def query(self, shape: type[Q]) -> Q:
        return decode_query(dict(self.request.query), shape)

    async def run(self) -> RunState:
        """Return the run of the path, if the user may see it."""
        return await self.runs.seen(self.request.match_info["run"], self.user)


PATHS = (
    "/v1/runs",
    "/v1/runs/{run}",
    "/v1/runs/{run}/submission",
    "/v1/runs/{run}/attempts",
    "/v1/events",
)


class Reads:
    """Answers routes of the API. Each answer raises ServiceError, StoreError, and NeedsLeader."""

    def __init__(self, store: StoreReader, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    @property
    def routes(self) -> Mapping[str, Callable[[web.Request], Awaitable[web.StreamResponse]]]:
        """What is answered, by the path of the route. All are for GET."""
        answers = (self._list_runs, self._run, self._submission, self._attempts, self._events)
        return dict(zip(PATHS, answers, strict=True))

    @asynccontextmanager
    async def begun(self, request: web.Request) -> AsyncIterator[_Read]:
        """Begin a read of the request's user. Raises Unauthenticated."""
        proof = self._proof(request)
        async with self._store.moment() as moment:
            user = await proof.user(moment, self._clock)
            # A new reader each time: it keeps the run that it read last.
            yield _Read(request, user, moment, RunReader(_NoLiveRuns(), moment))

    def _proof(self, request: web.Request) -> Proof:
        """Raises Unauthenticated."""
        return proof_of(request, self._clock)

    async def _list_runs(self, request: web.Request) -> web.Response:
        async with self.begun(request) as read:
            query = read.query(RunQuery)
            states = await read.runs.page(one_more(query), user=read.user)
            names = await read.moment.node_names()
        states, cursor = cut(states, query.limit, lambda state: state.run.id)
        now = self._clock.now()
        summaries = tuple(run_summary(state, names, now) for state in states)
        return json_response(RunsAnswer(runs=summaries, next_cursor=cursor))

    async def _run(self, request: web.Request) -> web.Response:
        async with self.begun(request) as read:
            state = await read.run()
            read.query(NoQuery)
            run = state.run
            # The address of a service is its gateway's.
            if run.service is not None or run.policy.dev_environment is not None:
                raise NeedsLeader
            children = await read.runs.family(state)
            names = await read.moment.node_names()
        view = run_view(state, names, children, with_ended=True, now=self._clock.now())
        # The bytes of a collection that goes on are in no database.
        last = [attempt for job in view.jobs for attempt in job.attempts[-1:]]
        if any(one.outputs.state is OutputsState.COLLECTING for one in last):
            raise NeedsLeader
        return json_response(view)

    async def _submission(self, request: web.Request) -> web.Response:
        async with self.begun(request) as read:
            run = (await read.run()).run
            read.query(NoQuery)
        return json_response(
            RunSubmission(id=run.id, name=run.name, configuration=run.configuration)
        )

    async def _attempts(self, request: web.Request) -> web.Response:
        async with self.begun(request) as read:
            state = await read.run()
            query = read.query(AttemptQuery)
            found = await read.runs.attempts(state, one_more(query))
            names = await read.moment.node_names()
        found, cursor = cut(found, query.limit, lambda attempt: attempt.id)
        views = tuple(past_attempt_view(attempt, names) for attempt in found)
        return json_response(AttemptsAnswer(attempts=views, next_cursor=cursor))

    async def _events(self, request: web.Request) -> web.Response:
        async with self.begun(request) as read:
            query = read.query(EventQuery)
            found = await read.runs.events(one_more(query), user=read.user)
        found, cursor = cut(found, query.limit, lambda event: str(event.seq))
        return json_response(EventsAnswer(events=tuple(map(event_view, found)), next_cursor=cursor))
