"""Reconciliation compares a provider's list with the records (docs/rules.md 12.9).

The list is made first and the records are read afterwards. A record is committed before its machine
is asked for, so a machine on the list without a record is no machine that is being made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set

import msgspec

from controller.lifecycle.machines.life import (
    IN_ACCOUNT,
    AccountKnown,
    CallFailed,
    InstanceKnown,
    InstanceLost,
    Place,
)
from controller.lifecycle.machines.model import Machine, MachineStatus

SPARED_SECONDS = 30.0
"""A younger machine is never ended (Karpenter's rule for AWS)."""
ORPHAN_GRACE_SECONDS = 600.0
LIST_EVERY_SECONDS = 30.0
LIST_SOON_SECONDS = 10.0
"""Between the beginnings of two lists. A machine that vanished counts as lost once two lists lack
it: with lists that take up to 10 s, within a minute."""
LIST_PAUSE_SECONDS = 5.0
"""The least between the end of a list and the beginning of the next; and how soon it is noticed
that a node ceased to answer whose machine a list lacks."""


class Traits(msgspec.Struct, frozen=True, kw_only=True):
    """What a machine is, as far as its provider's list tells. With it admins find the machine at
    the provider, and its price among the offers."""

    instance_type: str | None = None
    region: str | None = None
    zone: str | None = None
    spot: bool = False


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """A machine as its provider lists it, with this installation's tag. `machine_id`, `fleet`: its
    other tags."""

    instance_id: str
    machine_id: str | None
    fleet: str | None = None
    created_at: float
    place: Place | None = None
    traits: Traits = Traits()


class Orphan(msgspec.Struct, frozen=True, kw_only=True):
    """A machine of this installation that no record knows.

    `quarantined`: it is older than a restore of the database, whose backup may not know it; only an
    admin has it ended. `is_to_end`: an admin did.
    """

    provider: str
    instance_id: str
    machine_id: str | None
    created_at: float
    seen_at: float
    """When it was first listed without a record."""
    is_duplicate: bool = False
    quarantined: bool = False
    is_to_end: bool = False
    fleet: str | None = None
    """Its tag."""
    traits: Traits = Traits()
    unlisted: str | None = None
    """Why no list tells now whether it is there, and the fix."""

    def ends_at(self) -> float | None:
        """Return when it is ended; None: it is not."""
        if self.unlisted is not None:
            return None
        if self.quarantined and not self.is_to_end:
            return None
        if self.is_duplicate or self.is_to_end:
            return self.created_at + SPARED_SECONDS
        return max(self.created_at + SPARED_SECONDS, self.seen_at + ORPHAN_GRACE_SECONDS)


class Reconciled(msgspec.Struct, frozen=True, kw_only=True):
    """What follows from one whole list. `missing`: live machines that are not on it, which counts
    once the next list lacks them too."""

    reports: tuple[InstanceKnown | AccountKnown | InstanceLost | CallFailed, ...]
    orphans: tuple[Orphan, ...]
    missing: frozenset[str]


class Circumstances(msgspec.Struct, frozen=True, kw_only=True):
    """What a list is judged by. `missing` and `orphans`: of the list before. `answering`: ids of
    machines whose node answers. `visible_after`: seconds after which a list must have a machine.
    `account`: the one that was listed; None: that is not known. `found_at`: when an orphan, by its
    id at the provider, was first found, also by a controller before this one. `is_to_end`: whether
    an admin had it ended. `tried`: the machines of checks that are under way, which end them.
    `is_anothers`: whether another provider of the file has the orphan already."""

    provider: str
    account: str | None = None
    missing: frozenset[str] = frozenset()
    orphans: Sequence[Orphan] = ()
    answering: frozenset[str] = frozenset()
    found_at: Callable[[str], float | None] = lambda instance_id: None
    is_to_end: Callable[[str], bool] = lambda instance_id: False
    tried: Set[str] = frozenset()
    is_anothers: Callable[[Found], bool] = lambda found: False
    visible_after: float
    restored_at: float | None = None


def reconcile(
    found: Iterable[Found], machines: Mapping[str, Machine], case: Circumstances, now: float
) -> Reconciled:
    """Return what a whole list tells. `machines`: the committed records, read after the list."""
    listed = list(found)
    own = [one for one in machines.values() if one.is_live and one.offer.provider == case.provider]
    holders = {one.instance_id: one.id for one in own if one.instance_id is not None}
    reports: list[InstanceKnown | AccountKnown | InstanceLost | CallFailed] = []
    orphans: list[Orphan] = []
    before = {one.instance_id: one for one in case.orphans}
    for one in listed:
        machine = machines.get(one.machine_id or "")
        is_second = machine is not None and machine.instance_id not in (None, one.instance_id)
        if holders.get(one.instance_id, one.machine_id) != one.machine_id:
            # A program gave one machine to two orders; as an orphan the first one's would end.
            continue
        if machine is None and one.machine_id in case.tried:
            continue
        if machine is None or not machine.is_live or is_second:
            # Two providers of the file may name one account: each machine is the orphan of one.
            if not case.is_anothers(one):
                was = before.get(one.instance_id)
                is_duplicate = machine is not None and machine.is_live
                orphans.append(_orphan(one, was, case, now, is_duplicate=is_duplicate))
        else:
            reports.append(
                InstanceKnown(machine_id=machine.id, instance_id=one.instance_id, place=one.place)
            )
    there = {one.instance_id for one in listed}
    # A list that has one machine of an account is a list of that account, whatever its name is now.
    same = {one.account for one in own if one.instance_id in there} | {case.account}
    reports += _placed(own, case.account, same, there)
    missing = frozenset(
        machine.id
        for machine in own
        if machine.account in (None, *same)
        and machine.status in (MachineStatus.PROVISIONING, MachineStatus.JOINED)
        and machine.instance_id is not None
        and machine.instance_id not in there
        and now - machine.ordered_at > case.visible_after
    )
    lost = (missing & case.missing) - case.answering
    reports += [
        InstanceLost(machine_id=machine_id, message="the provider lists it no longer")
        for machine_id in sorted(lost)
    ]
    return Reconciled(reports=tuple(reports), orphans=tuple(orphans), missing=missing)


def _placed(
    machines: Iterable[Machine], account: str | None, same: Set[str | None], there: Set[str]
) -> Iterator[AccountKnown | CallFailed]:
    """Yield the account of each machine that it is now known of, and which are out of reach."""
    for one in machines:
        if account is None:
            continue
        is_here = one.instance_id in there if one.account is None else one.account in same
        if is_here:
            was_away = (one.trouble or "").startswith(IN_ACCOUNT)
            if one.account != account or was_away:
                yield AccountKnown(machine_id=one.id, account=account)
        elif one.account is not None and one.trouble != (why := elsewhere(one, account)):
            yield CallFailed(machine_id=one.id, message=why)


def elsewhere(machine: Machine, account: str | None) -> str:
    """Return why nothing is known of a machine in another account than the provider's present one,
    and the fix."""
    return in_another_account(machine.account, machine.offer.provider, account)


def in_another_account(own: str | None, provider: str, account: str | None) -> str:
    """Return why nothing is known of what is in the account `own`; `account`: the present one."""
    now = "tells none" if account is None else f"uses {account}"
    return (
        f"{IN_ACCOUNT} {own} of provider {provider}, which now {now}: go back to that account "
        f"until the machine has ended"
    )


def until_next_list(
    began: float,
    ended: float,
    now: float,
    *,
    missing: Set[str],
    answering: Set[str],
    is_urgent: bool,
) -> float:
    """Return the seconds after which to look again, 0 when the next list is due. `began`, `ended`:
    of the last list; `missing`, `answering`: as above, the latter now; `is_urgent`: whether this
    controller has just started, or an admin waits for the end of an orphan."""
    every = LIST_SOON_SECONDS if is_urgent or missing - answering else LIST_EVERY_SECONDS
    # From one beginning to the next: what a slow list takes must not come on top.
    left = max(began + every, ended + LIST_PAUSE_SECONDS) - now
    return min(max(left, 0.0), LIST_PAUSE_SECONDS)


def _orphan(
    one: Found, before: Orphan | None, case: Circumstances, now: float, *, is_duplicate: bool
) -> Orphan:
    restored = case.restored_at
    # The grace goes on where a controller is restarted within it.
    since = case.found_at(one.instance_id) if before is None else before.seen_at
    return Orphan(
        provider=case.provider,
        instance_id=one.instance_id,
        machine_id=one.machine_id,
        created_at=one.created_at,
        seen_at=now if since is None else min(since, now),
        is_duplicate=is_duplicate,
        quarantined=not is_duplicate and restored is not None and one.created_at < restored,
        is_to_end=case.is_to_end(one.instance_id),
        fleet=one.fleet,
        traits=one.traits,
    )
