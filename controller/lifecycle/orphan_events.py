"""What is known of orphans, and their events: one when a list first has an orphan, one when it is
kept instead, one when an admin has it ended, and one when the provider lists it no longer or an
admin has it forgotten (docs/rules.md 12.9, 12.21). They belong to no run.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from typing import Final

from msgspec.structs import replace

from controller.lifecycle.events import NO_RUN, Event, EventKind
from controller.lifecycle.machines.orphans import (
    KEPT_SECONDS,
    KnownOrphan,
    OrphanStatus,
    OrphanTerms,
    known,
    name_of,
)
from controller.lifecycle.machines.reconcile import (
    ORPHAN_GRACE_SECONDS,
    Orphan,
    in_another_account,
)

_CAUSE: Final = "the provider lists a machine that no record knows"
_GONE_CAUSE: Final = "the provider lists it no longer"


class OrphanBook:
    """The orphans as they are stored. A controller that starts gets those of its predecessors, so
    it tells nothing twice, and forgets no end that an admin asked for."""

    def __init__(
        self,
        stored: Iterable[KnownOrphan] = (),
        is_homeless: Callable[[KnownOrphan], bool] = lambda orphan: False,
        counts: Callable[[str], bool] = lambda provider: True,
    ) -> None:
        """`is_homeless`: whether the controller's file leaves out where an orphan is. `counts`:
        whether budgets count what is at a provider."""
        self._is_homeless = is_homeless
        self._counts = counts
        self._known: dict[str, KnownOrphan] = {}
        """Those that are there, by name."""
        self._gone: dict[str, KnownOrphan] = {}
        """Those that are gone, by id: the month still counts them."""
        self._listed: dict[str, Mapping[str, Orphan]] = {}
        """By provider, and by name."""
        self._accounts: dict[str, str | None] = {}
        """The account of each of these lists; None: it was not told."""
        self._asked: dict[str, str] = {}
        """The user who wants an orphan ended, by the name of the orphan; not committed yet."""
        self._forgotten: dict[str, str] = {}
        """The user who has an orphan forgotten, by the name of the orphan; not committed yet."""
        self._offered: dict[str, KnownOrphan] = {}
        """What is to be stored, by id."""
        self._same_ids: Mapping[str, Sequence[KnownOrphan]] = {}
        """What is committed, by its id at its provider."""
        self._is_dirty = True
        """Something changed since the last offer."""
        self._is_pending = False
        """What was offered last is not stored yet."""
        self.follow(stored)

    def follow(self, stored: Iterable[KnownOrphan]) -> None:
        """Take over what is stored."""
        for one in stored:
            if one.gone_at is None:
                self._known[one.name] = one
                continue
            # Each turn goes through those that are gone. A list that was asked for before a machine
            # ended makes it an orphan for a minute, which costs nothing.
            if one.gone_at > one.costs_since:
                self._gone[one.id] = one
            before = self._known.get(one.name)
            if before is not None and before.id == one.id:
                del self._known[one.name]

    def listed(self, provider: str, orphans: Sequence[Orphan], account: str | None = None) -> bool:
        """Take the orphans of a whole list of this account; return whether there is something to
        tell."""
        self._accounts[provider] = account
        there = {name_of(provider, one.instance_id): one for one in orphans}
        self._listed[provider] = there
        # An id that the provider gives again later is another machine.
        self._asked = {
            name: by
            for name, by in self._asked.items()
            if _provider_of(name) != provider or name in there
        }
        # Its account is back, so it is known again what becomes of it.
        self._forgotten = {name: by for name, by in self._forgotten.items() if name not in there}
        self._is_dirty = True
        return any(self._statuses(provider))

    def ask_for_end(self, provider: str, instance_ids: Iterable[str], by: str) -> None:
        """Note that `by` has these orphans ended."""
        for instance_id in instance_ids:
            if not self.is_to_end(provider, instance_id):
                self._asked[name_of(provider, instance_id)] = by
                self._is_dirty = True

    def forget(self, provider: str, instance_id: str, by: str) -> None:
        """Note that `by` has an orphan forgotten that is in another account."""
        self._forgotten[name_of(provider, instance_id)] = by
        self._is_dirty = True

    def terms_changed(self) -> None:
        """Look for the prices again that are not known yet."""
        self._is_dirty = True

    def is_to_end(self, provider: str, instance_id: str) -> bool:
        """Return whether an admin had this orphan ended, as far as that is committed."""
        found = self._known.get(name_of(provider, instance_id))
        return found is not None and found.status is OrphanStatus.ENDING

    def found_at(self, provider: str, instance_id: str) -> float | None:
        """Return when a list first had this orphan (Unix time), as far as that is committed."""
        found = self._known.get(name_of(provider, instance_id))
        return None if found is None else found.found_at

    def get(self, provider: str, instance_id: str) -> KnownOrphan | None:
        """Return the orphan as it is committed; None: it is not there."""
        return self._known.get(name_of(provider, instance_id))

    def lists(self, orphan: KnownOrphan) -> bool:
        """Return whether the provider's latest list has it."""
        return orphan.name in self._listed.get(orphan.provider, {})

    def has_list(self, provider: str) -> bool:
        """Return whether the provider has told a whole list to this controller."""
        return provider in self._listed

    def elsewhere(self, orphan: KnownOrphan) -> str | None:
        """Return why a list of another account tells nothing of it, and the fix; None: the latest
        one is of its account."""
        provider = orphan.provider
        if provider not in self._listed or self.lists(orphan):
            return None
        if orphan.account in self._same_accounts(provider):
            return None
        why = in_another_account(orphan.account, provider, self._accounts[provider])
        return f"{why}, or `fairlead machine forget {shlex.quote(orphan.name)}`"

    @property
    def there(self) -> tuple[KnownOrphan, ...]:
        """Those that are there, as far as that is committed."""
        return tuple(self._known.values())

    @property
    def committed_ones(self) -> tuple[KnownOrphan, ...]:
        """Those that are there or gone, as they are committed."""
        return (*self._gone.values(), *self._known.values())

    @property
    def decided(self) -> tuple[KnownOrphan, ...]:
        """Those that are there or gone, with what is decided and not committed yet."""
        if not self._offered:
            return self.committed_ones
        return tuple(({one.id: one for one in self.committed_ones} | self._offered).values())

    @property
    def offered(self) -> Mapping[str, KnownOrphan]:
        """What is to be stored with the events, by id."""
        return self._offered

    def offer(self, now: float, terms: OrphanTerms | None = None) -> tuple[Event, ...]:
        """Return the events to commit now, with what is `offered`. They are offered again until
        `committed`."""
        if not (self._is_dirty or self._is_pending):
            return ()
        self._is_dirty = False
        self._gone = {
            key: one for key, one in self._gone.items() if (one.gone_at or 0.0) > now - KEPT_SECONDS
        }
        found = terms or OrphanTerms()
        events: list[Event] = []
        self._offered = {}
        # The file may leave out the provider of what is forgotten, or has another one now.
        known_at = (one.provider for one in self._known.values())
        self._same_ids = _by_instance_id(self.committed_ones)
        for provider in dict.fromkeys((*self._listed, *known_at)):
            for name, orphan, status, by in self._statuses(provider):
                row, event = self._changed(name, orphan, status, by, found, now)
                self._offered[row.id] = row
                events.append(event)
            for row in self._completed(provider, found):
                self._offered.setdefault(row.id, row)
        self._is_pending = bool(self._offered)
        return tuple(events)

    def committed(self) -> None:
        """What was offered is stored."""
        offered, self._offered = self._offered, {}
        self._is_pending = False
        self.follow(offered.values())
        for one in offered.values():
            if one.status is OrphanStatus.ENDING or one.gone_at is not None:
                self._asked.pop(one.name, None)
            if one.gone_at is not None:
                self._forgotten.pop(one.name, None)

    def refused(self) -> None:
        """What was offered can never be stored. It is not offered again; nothing is ended that
        another controller would not know of."""
        offered, self._offered = self._offered, {}
        self._is_pending, self._is_dirty = False, True
        for one in offered.values():
            if self._forgotten.pop(one.name, None) is not None:
                continue
            if one.status is OrphanStatus.ENDING and one.gone_at is None:
                self._asked.pop(one.name, None)
            else:
                self.follow([one])

    def _statuses(
        self, provider: str
    ) -> Iterator[tuple[str, Orphan | None, OrphanStatus, str | None]]:
        """Yield each orphan of the provider with another status than it has, and who wants it; None
        for one that is gone."""
        there = self._listed.get(provider, {})
        for name, orphan in there.items():
            before = self._known.get(name)
            status = None if before is None else before.status
            # What an admin had ended stays so, whatever the orphan counts as later.
            if (by := self._asked.get(name)) is not None and status is not OrphanStatus.ENDING:
                yield name, orphan, OrphanStatus.ENDING, by
                continue
            wanted = OrphanStatus.KEPT if orphan.quarantined else OrphanStatus.FOUND
            if status not in (wanted, OrphanStatus.ENDING):
                yield name, orphan, wanted, None
        same = self._same_accounts(provider)
        for name, one in self._known.items():
            if one.provider != provider or name in there:
                continue
            # A list of another account tells nothing of it.
            is_gone = one.account in same and not self._is_homeless(one)
            if is_gone or self._taken_over_by(one) is not None:
                yield name, None, OrphanStatus.GONE, None
            elif (by := self._forgotten.get(name)) is not None:
                yield name, None, OrphanStatus.GONE, by

    def _taken_over_by(self, orphan: KnownOrphan) -> str | None:
        """Return another provider whose orphan it is now: its account, or its region, may have been
        moved from one to the other in the controller's file."""
        for provider, there in self._listed.items():
            found = there.get(name_of(provider, orphan.instance_id))
            if found is None or provider == orphan.provider:
                continue
            if _is_same(orphan, found, self._accounts[provider]):
                return provider
        return None

    def _counted_until(self, orphan: Orphan, now: float) -> float:
        """Return until when it counted as the orphan of another provider (Unix seconds)."""
        account = self._accounts[orphan.provider]
        ends = (
            now if one.gone_at is None else one.gone_at
            for one in self._same_ids.get(orphan.instance_id, ())
            if one.provider != orphan.provider
            and self._counts(one.provider)
            and _is_same(one, orphan, account)
        )
        return max(ends, default=0.0)

    def _same_accounts(self, provider: str) -> Set[str | None]:
        """Return the accounts of which the provider's list is. One that has an orphan of an account
        is a list of that account, whatever its name is now."""
        if (listed := self._listed.get(provider)) is None:
            return set()
        known = (self._known.get(name) for name in listed)
        there = {one.account for one in known if one is not None}
        return {None, self._accounts[provider], *there}

    def _changed(
        self,
        name: str,
        orphan: Orphan | None,
        status: OrphanStatus,
        by: str | None,
        terms: OrphanTerms,
        now: float,
    ) -> tuple[KnownOrphan, Event]:
        before = self._known.get(name)
        old = None if before is None else before.status
        if orphan is None:
            assert before is not None, "only what is known can be gone"
            row = replace(before, status=status, gone_at=now)
            if (other := self._taken_over_by(before)) is not None:
                return row, _event(name, old, status, None, f"provider {other} lists it now", now)
            if by is None:
                return row, _event(name, old, status, None, _GONE_CAUSE, now)
            cause = f"{by} had it forgotten"
            return row, _event(name, old, status, left_behind(before), cause, now)
        if before is None:
            row = known(orphan, status, terms.record(orphan), now)
            row = replace(row, costs_since=max(row.costs_since, self._counted_until(orphan, now)))
        else:
            row = before
        account = self._accounts[orphan.provider]
        row = _complete(replace(row, status=status), orphan, account, terms)
        if by is not None:
            return row, _event(name, old, status, None, f"{by} had it ended", now)
        return row, _event(name, old, status, _becomes(orphan), _CAUSE, now)

    def _completed(self, provider: str, terms: OrphanTerms) -> Iterator[KnownOrphan]:
        """Yield those of which more is known now."""
        for name, orphan in self._listed.get(provider, {}).items():
            before = self._known.get(name)
            if before is None:
                continue
            row = _complete(before, orphan, self._accounts[provider], terms)
            if row is not before:
                yield row


def _complete(
    known_: KnownOrphan, orphan: Orphan, account: str | None, terms: OrphanTerms
) -> KnownOrphan:
    """Return the orphan with what was not known of it so far; what was known stays, but the name
    of its account."""
    row = known_
    if account is not None and row.account != account:
        row = replace(row, account=account)
    if row.machine_id is None and orphan.machine_id is not None:
        row = replace(row, machine_id=orphan.machine_id)
    if row.fleet is None and orphan.fleet is not None:
        row = replace(row, fleet=orphan.fleet)
    if row.traits.instance_type is None and orphan.traits.instance_type is not None:
        row = replace(row, traits=orphan.traits)
    if row.fleet is not None and (fleet := terms.fleet(row.fleet)) != row.fleet:
        row = replace(row, fleet=fleet)
    if row.price is None and (price := terms.price(row)) is not None:
        row = replace(row, price=price)
    return row


def left_behind(orphan: KnownOrphan) -> str:
    """Return what nobody looks after any more once the orphan is forgotten."""
    where = (
        f"at provider {orphan.provider}"
        if orphan.account is None
        else f"in account {orphan.account}"
    )
    return (
        f"it may still run {where} and cost money, which no budget counts: see there that it has "
        f"ended"
    )


def _is_same(known_: KnownOrphan, listed: Orphan, account: str | None) -> bool:
    """Return whether they are one machine, of which the ids are equal. `account`: of the list."""
    if known_.machine_id != listed.machine_id:
        return False
    # The tag of a machine is unique. Without one, only the account tells that it is the same.
    return listed.machine_id is not None or (account is not None and account == known_.account)


def _by_instance_id(orphans: Iterable[KnownOrphan]) -> dict[str, list[KnownOrphan]]:
    found: dict[str, list[KnownOrphan]] = {}
    for one in orphans:
        found.setdefault(one.instance_id, []).append(one)
    return found


def _provider_of(name: str) -> str:
    return name.partition("/")[0]


def _event(
    name: str,
    before: OrphanStatus | None,
    after: OrphanStatus,
    message: str | None,
    cause: str,
    now: float,
) -> Event:
    return Event(
        run_id=NO_RUN,
        at=now,
        kind=EventKind.ORPHAN,
        from_status=None if before is None else before.value,
        to_status=after.value,
        reason=name,
        message=message,
        cause=cause,
    )


def _becomes(orphan: Orphan) -> str:
    if orphan.quarantined:
        return "it is older than the restore from a backup, so it is kept until an admin ends it"
    if orphan.is_duplicate:
        return "its record has another machine, so it is ended"
    return f"it is ended after {ORPHAN_GRACE_SECONDS / 60:.0f} min"
