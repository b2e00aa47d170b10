"""The calls to one provider. All of them follow from committed records, and each can be repeated: a
controller that was killed between two steps goes on from the records alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import TypeVar

import msgspec

from controller.clock import Clock
from controller.clouds.base import (
    Cloud,
    CloudAway,
    CloudError,
    Created,
    NoCapacity,
    Order,
    QuotaReached,
    Refused,
    Throttled,
    Unauthorized,
    account_or_none,
    answer_of,
)
from controller.lifecycle.machines.life import (
    AccountKnown,
    CallFailed,
    InstanceGone,
    InstanceKnown,
    MachineReport,
    OrderRefused,
    ReleaseAnswered,
    ReleaseUnanswered,
    holds,
)
from controller.lifecycle.machines.model import Machine, MachineEnd, MachineStatus
from controller.lifecycle.machines.orphans import KnownOrphan
from controller.lifecycle.machines.reconcile import (
    Circumstances,
    Found,
    Orphan,
    elsewhere,
    reconcile,
    until_next_list,
)

log = logging.getLogger(__name__)
T = TypeVar("T")
CALLS_AT_ONCE = 16
START_SECONDS = 180.0
"""For so long after a start lists follow each other sooner."""
DESCRIBE_EVERY_SECONDS = 5.0
"""One call for all machines whose address is not known yet."""
_FIRST_RETRY_SECONDS = 2.0
_MAX_RETRY_SECONDS = 60.0
_FIRST_END_SECONDS = 2.0
_MAX_END_SECONDS = 600.0
_RELEASE_RETRY_SECONDS = 10.0
RELEASE_LIMIT_SECONDS = 1800.0
"""After this time without an answer a machine on which nothing is ends all the same."""
_DEFINITE = {
    NoCapacity: MachineEnd.NO_CAPACITY,
    QuotaReached: MachineEnd.QUOTA_REACHED,
    Refused: MachineEnd.REFUSED,
}


class Desk(msgspec.Struct, frozen=True, kw_only=True):
    """What the calls need of the controller.

    `records`: the committed ones, newest. `order_of`: the same bytes at each call. `answers`: ids
    of machines whose node is connected. `tell_orphans` takes all that a provider's whole list has,
    and its account, where that is known.
    `tell_trouble` takes why a list failed, once for each cause. `is_anothers`: whether another
    provider has this orphan of the provider, whose account is told, too. `stored_orphan` returns an
    orphan of a provider as it is committed, by its id there.
    `found_at` returns when an orphan of a provider was first found, by its id there; `is_to_end`
    whether an admin had it ended. `tried`: ids of machines that a check makes and ends. `is_empty`
    asks a machine's shim whether it has no task; it raises when the shim does not answer.
    """

    installation: str
    records: Callable[[], Iterable[Machine]]
    post: Callable[[MachineReport], None]
    order_of: Callable[[Machine], Order]
    answers: Callable[[], frozenset[str]]
    tell_orphans: Callable[[str, tuple[Orphan, ...], str | None], None]
    tell_trouble: Callable[[str, str], None]
    is_anothers: Callable[[str, str | None, Found], bool]
    stored_orphan: Callable[[str, str], KnownOrphan | None]
    is_empty: Callable[[str], Awaitable[bool]]
    found_at: Callable[[str, str], float | None]
    is_to_end: Callable[[str, str], bool]
    tried: Callable[[], frozenset[str]]
    restored_at: float | None = None


class ElsewhereNow(CloudAway):
    """The machine is in another account than the provider uses now."""


class _Listed(msgspec.Struct, frozen=True):
    """A whole list; `account` None: it is not known which one has these machines."""

    found: list[Found]
    account: str | None


class ProviderCalls:
    """Makes and ends the machines of one provider."""

    def __init__(self, provider: str, cloud: Cloud, desk: Desk, clock: Clock) -> None:
        self.orphans: tuple[Orphan, ...] = ()
        """The machines that the last whole list had and no record knows."""
        self._by_id: dict[str, Orphan] = {}
        self.listed_at: float | None = None
        """When the last whole list was made (Unix time)."""
        self.account: str | None = None
        """The account of that list; None: that is not known."""
        self._has_compared = False
        """Whether the orphans are those of a list: to adopt a machine makes one, too."""
        self.trouble: str | None = None
        """Why the last call for a list failed; None: it did not."""
        self._provider = provider
        self._cloud = cloud
        self._desk = desk
        self._clock = clock
        self.began = clock.now()
        self._slots = asyncio.Semaphore(CALLS_AT_ONCE)
        self._busy: dict[str, asyncio.Task[None]] = {}
        self._asked_at: dict[str, float] = {}
        """When the provider was last asked to make a machine, by the machine's id."""
        self._fresh: set[str] = set()
        """Machines that this controller itself ordered: nobody can have asked for them before."""
        self._answered: set[str] = set()
        """Machines whose request has been answered; the answer is not committed yet."""
        self._missing: frozenset[str] = frozenset()

    # -- what follows from the records -------------------------------------------------------

    def ordered(self, machine_id: str) -> None:
        """Note that this controller has just committed the order."""
        self._fresh.add(machine_id)

    def look(self) -> None:
        """Begin what the committed records ask for and is not under way."""
        for machine in self._own():
            if machine.id in self._busy:
                continue
            work = self._work_for(machine)
            if work != self._create:
                self._answered.discard(machine.id)
            elif machine.id in self._answered:
                # A second request for what was refused would make a machine without a record.
                continue
            if work is not None:
                task = asyncio.create_task(self._perform(machine.id, work), name="machine")
                self._busy[machine.id] = task

    def _own(self) -> list[Machine]:
        records = self._desk.records()
        return [one for one in records if one.is_live and one.offer.provider == self._provider]

    def _record(self, machine_id: str) -> Machine | None:
        return next((one for one in self._own() if one.id == machine_id), None)

    def _work_for(self, machine: Machine) -> Callable[[str], Awaitable[None]] | None:
        match machine.status:
            case MachineStatus.PROVISIONING if machine.instance_id is None:
                return self._create
            case MachineStatus.TERMINATING:
                return self._end
            case MachineStatus.JOINED if machine.closing:
                return self._release
        return None

    async def _perform(self, machine_id: str, work: Callable[[str], Awaitable[None]]) -> None:
        try:
            await work(machine_id)
        except Exception:
            # A fault of ours about one machine must not stop the calls about all others.
            log.exception("internal error: machine %s", machine_id)
            await asyncio.sleep(_MAX_RETRY_SECONDS)
        finally:
            del self._busy[machine_id]
        # What was posted meanwhile may be committed by now, and nothing else wakes these calls.
        self.look()

    async def close(self) -> None:
        tasks = list(self._busy.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # -- making a machine ---------------------------------------------------------------------

    async def _create(self, machine_id: str) -> None:
        """Ask until the outcome is known. A list between two tries finds what an earlier one
        made."""
        wait = _FIRST_RETRY_SECONDS
        first = nothing_made = machine_id in self._fresh
        self._fresh.discard(machine_id)
        while (machine := self._record(machine_id)) is not None:
            if self._work_for(machine) != self._create:
                return
            # Whoever takes over must know where the machine may be before it is asked for.
            try:
                account = await self._account() if machine.account is None else None
            except CloudError as error:
                self._failed(machine_id, error, nothing_made=nothing_made)
                await asyncio.sleep(wait)
                wait = min(_MAX_RETRY_SECONDS, 2 * wait)
                continue
            if account is not None:
                nothing_made = nothing_made or machine.unmade
                self._desk.post(AccountKnown(machine_id=machine_id, account=account))
                await asyncio.sleep(_FIRST_RETRY_SECONDS)
                continue
            try:
                await self._require_here(machine)
                is_unique = self._cloud.abilities.idempotent
                if not first and not is_unique and await self._adopt(machine):
                    return
                first = False
                created = await self._made(machine)
            except (NoCapacity, QuotaReached, Refused) as refusal:
                self._answered.add(machine_id)
                self._refused(machine_id, refusal)
                return
            except CloudError as error:
                self._asked_at[machine_id] = self._clock.now()
                pause = max(wait, error.after if isinstance(error, Throttled) else 0.0)
                nothing_made = nothing_made and isinstance(error, (Unauthorized, ElsewhereNow))
                self._failed(machine_id, error, nothing_made=nothing_made)
                await asyncio.sleep(pause)
                wait = min(_MAX_RETRY_SECONDS, 2 * wait)
                continue
            self._answered.add(machine_id)
            self._desk.post(
                InstanceKnown(
                    machine_id=machine_id, instance_id=created.instance_id, place=created.place
                )
            )
            return

    async def _made(self, machine: Machine) -> Created:
        """Raises CloudError."""
        async with self._slots:
            # To look for what was made takes a minute, and to get a slot may take long, too.
            await self._require_here(machine, surely=True)
            self._asked_at[machine.id] = self._clock.now()
            begun = await self._answer(self._cloud.create(self._desk.order_of(machine)))
        # What is accepted may take minutes, and must hold up no other call.
        return begun if isinstance(begun, Created) else await self._answer(begun.outcome())

    async def _require_here(self, machine: Machine, *, surely: bool = False) -> bool:
        """Return whether the machine is in the account that calls go to; False: nobody says now.
        Raises CloudError for one that is in another account, or `surely`: that may be."""
        if machine.account is None:
            return True
        try:
            account = await self._account()
        except CloudError:
            if surely:
                raise
            return False
        if account != machine.account:
            raise ElsewhereNow(elsewhere(machine, account))
        return True

    async def _account(self) -> str | None:
        """Raises CloudError."""
        return await self._answer(self._cloud.account())

    def _refused(self, machine_id: str, refusal: CloudError) -> None:
        end, reach = _DEFINITE[type(refusal)], refusal.reach
        refused = OrderRefused(machine_id=machine_id, end=end, message=str(refusal), reach=reach)
        self._desk.post(refused)

    def _failed(self, machine_id: str, error: CloudError, *, nothing_made: bool = False) -> None:
        log.warning("machine %s: %s", machine_id, error)
        self._desk.post(
            CallFailed(machine_id=machine_id, message=str(error), nothing_made=nothing_made)
        )

    async def _adopt(self, machine: Machine) -> bool:
        """Return whether a list has the machine, once it must have what was asked for."""
        return await self._found(machine) is not None

    async def _found(self, machine: Machine) -> Found | None:
        """Return the machine as listed when everything that was asked for is visible; None: no call
        has made it. Raises CloudError: the list of another account tells nothing of that."""
        machine_id = machine.id
        # A former controller may have asked right before this one began.
        asked_at = self._asked_at.get(machine_id, self.began)
        while True:
            begun = self._clock.now()
            # The clock may have been put back since.
            asked_at = min(asked_at, begun)
            visible_at = asked_at + self._cloud.abilities.visible_after
            async with self._slots:
                listed = await self._list()
            for one in () if listed is None else listed.found:
                if one.machine_id == machine_id and not self._is_of_another(machine, one):
                    self._desk.post(
                        InstanceKnown(
                            machine_id=machine_id, instance_id=one.instance_id, place=one.place
                        )
                    )
                    return one
            if listed is not None and begun >= visible_at:
                if machine.account is not None and listed.account is None:
                    raise CloudAway("it is not known which account listed its machines")
                if machine.account not in (None, listed.account):
                    raise ElsewhereNow(elsewhere(machine, listed.account))
                return None
            await asyncio.sleep(max(_FIRST_RETRY_SECONDS, min(visible_at - begun, 15.0)))

    def _is_of_another(self, machine: Machine, found: Found) -> bool:
        return any(holds(one, machine, found.instance_id) for one in self._own())

    # -- ending one ---------------------------------------------------------------------------

    async def _end(self, machine_id: str) -> None:
        """Ask until the provider says that the machine is gone."""
        wait = _FIRST_END_SECONDS
        while (machine := self._record(machine_id)) is not None:
            if machine.status is not MachineStatus.TERMINATING:
                return
            try:
                await self._require_here(machine)
                if await self._has_ended(machine):
                    # Another account does not know the machine either.
                    await self._require_here(machine, surely=True)
                    self._desk.post(InstanceGone(machine_id=machine_id))
                    return
            except CloudError as error:
                self._failed(machine_id, error)
            await asyncio.sleep(wait)
            wait = min(_MAX_END_SECONDS, 2 * wait)

    async def _has_ended(self, machine: Machine) -> bool:
        """Ask for the machine's end; True: there is none. Raises CloudError."""
        instance = machine.instance_id
        if instance is None:
            if (found := await self._found(machine)) is None:
                # The answer to its order may have been committed during that look.
                now = self._record(machine.id)
                return now is None or now.instance_id is None
            instance = found.instance_id
        async with self._slots:
            # The account may be put back between the call and the look at it after the call. So an
            # answer while nobody told the account tells nothing of the machine.
            is_here = await self._require_here(machine)
            has_ended = await self._answer(self._cloud.terminate(instance))
        return has_ended and is_here

    async def _release(self, machine_id: str) -> None:
        """Ask the shim of a closing machine whether it is empty."""
        asked_since = self._clock.now()
        while (machine := self._record(machine_id)) is not None and machine.closing:
            try:
                is_empty = await self._desk.is_empty(machine_id)
            except Exception as error:
                # A node that stays away is lost; one that comes and goes never is.
                log.info("machine %s does not answer: %s", machine.name, error)
                if self._clock.now() - asked_since >= RELEASE_LIMIT_SECONDS:
                    minutes = RELEASE_LIMIT_SECONDS / 60
                    message = f"nothing used it, and its shim did not answer for {minutes:.0f} min"
                    self._desk.post(ReleaseUnanswered(machine_id=machine_id, message=message))
            else:
                self._desk.post(ReleaseAnswered(machine_id=machine_id, is_empty=is_empty))
            await asyncio.sleep(_RELEASE_RETRY_SECONDS)

    # -- comparing ----------------------------------------------------------------------------

    async def run(self) -> None:
        """Compare the provider's list with the records until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._reconcile_for_ever())
                group.create_task(self._find_places())
        finally:
            await self.close()

    async def _reconcile_for_ever(self) -> None:
        now = asyncio.get_running_loop().time
        began = ended = float("-inf")
        while True:
            if (wait := self._until_next_list(began, ended, now())) > 0:
                await asyncio.sleep(wait)
                continue
            began = now()
            await self._reconcile()
            ended = now()

    def _until_next_list(self, began: float, ended: float, now: float) -> float:
        return until_next_list(
            began,
            ended,
            now,
            missing=self._missing,
            answering=self._desk.answers(),
            is_urgent=self._clock.now() < self.began + START_SECONDS
            or any(self._desk.is_to_end(self._provider, one.instance_id) for one in self.orphans),
        )

    async def _reconcile(self) -> None:
        # Before the list: a check that ends meanwhile has no machine any more.
        tried = self._desk.tried()
        listed = await self._list()
        if listed is None:
            return
        # The records are read after the list: one that was committed meanwhile is among them.
        records = {one.id: one for one in self._desk.records()}
        case = Circumstances(
            provider=self._provider,
            account=listed.account,
            missing=self._missing,
            orphans=self.orphans,
            answering=self._desk.answers(),
            found_at=partial(self._desk.found_at, self._provider),
            is_to_end=partial(self._desk.is_to_end, self._provider),
            tried=tried,
            is_anothers=partial(self._desk.is_anothers, self._provider, listed.account),
            visible_after=self._cloud.abilities.visible_after,
            restored_at=self._desk.restored_at,
        )
        self._asked_at = {key: at for key, at in self._asked_at.items() if key in records}
        now = self._clock.now()
        result = reconcile(listed.found, records, case, now)
        self._missing = result.missing
        self._note_orphans(result.orphans, listed.account)
        for report in result.reports:
            if isinstance(report, CallFailed):
                log.warning("machine %s: %s", report.machine_id, report.message)
            if self._changes_something(report, records):
                self._desk.post(report)
        due = (one for one in result.orphans if (at := one.ends_at()) is not None and at <= now)
        # Of a thousand orphans, the last one must not wait for all calls before it.
        async with asyncio.TaskGroup() as group:
            for orphan in due:
                group.create_task(self._end_orphan(orphan))

    @staticmethod
    def _changes_something(report: MachineReport, records: dict[str, Machine]) -> bool:
        """Return whether the report can change anything."""
        if not isinstance(report, InstanceKnown):
            return True
        machine = records[report.machine_id]
        waits = machine.status is MachineStatus.PROVISIONING and report.place is not None
        return machine.instance_id is None or waits

    def has_orphan(self, found: Found, account: str | None) -> bool:
        """Return whether this is an orphan of this provider, listed by another one of the account.

        Until the first comparison it is one if it was: else the end that an admin asked for would
        be forgotten at each start.
        """
        known: Orphan | KnownOrphan | None = self._by_id.get(found.instance_id)
        own = self.account
        if not self._has_compared:
            stored = self._desk.stored_orphan(self._provider, found.instance_id)
            known, own = stored, None if stored is None else stored.account
        if known is None or known.machine_id != found.machine_id:
            return False
        # The tag of a machine is unique. Without one, only the account tells that it is the same.
        return found.machine_id is not None or (account is not None and account == own)

    def _note_orphans(self, orphans: tuple[Orphan, ...], account: str | None) -> None:
        known = {one.instance_id for one in self.orphans}
        for one in orphans:
            if one.instance_id not in known:
                kept = "it is kept for an admin" if one.quarantined else "it will be ended"
                log.warning(
                    "orphan at %s: machine %s (of %s) has no record; %s",
                    self._provider,
                    one.instance_id,
                    one.machine_id,
                    kept,
                )
        self.orphans, self.account, self._has_compared = orphans, account, True
        self._by_id = {one.instance_id: one for one in orphans}
        self._desk.tell_orphans(self._provider, orphans, account)

    async def _end_orphan(self, orphan: Orphan) -> None:
        try:
            async with self._slots:
                await self._answer(self._cloud.terminate(orphan.instance_id))
        # The next comparison finds it again.
        except CloudError as error:
            log.warning("orphan %s at %s: %s", orphan.instance_id, self._provider, error)

    async def _answer(self, call: Awaitable[T]) -> T:
        """Raises CloudError."""
        return await answer_of(self._provider, call)

    async def _list(self) -> _Listed | None:
        """Return the whole list; None: there was none."""
        try:
            before = await account_or_none(self._provider, self._cloud)
            found = list(await self._answer(self._cloud.list_tagged(self._desk.installation)))
            # Credentials may change while they are used.
            is_same = before == await account_or_none(self._provider, self._cloud)
        except CloudError as error:
            if str(error) != self.trouble:
                # A provider that stays away is asked every few seconds.
                log.warning("provider %s tells no list: %s", self._provider, error)
                self._desk.tell_trouble(self._provider, str(error))
            self.trouble = str(error)
            return None
        self.listed_at, self.trouble = self._clock.now(), None
        return _Listed(found, before if is_same else None)

    async def _find_places(self) -> None:
        """Ask for addresses of machines that have none yet, all with one call."""
        logged = ""
        while True:
            await asyncio.sleep(DESCRIBE_EVERY_SECONDS)
            self.look()
            answering = self._desk.answers()
            wanted = {
                one.instance_id: one.id
                for one in self._own()
                if one.status is MachineStatus.PROVISIONING
                and one.instance_id is not None
                and one.id not in answering
            }
            if not wanted:
                continue
            try:
                described = await self._answer(self._cloud.describe(list(wanted)))
            except CloudError as error:
                if str(error) != logged:
                    log.info("provider %s tells no addresses: %s", self._provider, error)
                logged = str(error)
                continue
            logged = ""
            for instance_id, state in described.items():
                if state.place is not None and instance_id in wanted:
                    self._desk.post(
                        InstanceKnown(
                            machine_id=wanted[instance_id],
                            instance_id=instance_id,
                            place=state.place,
                        )
                    )
