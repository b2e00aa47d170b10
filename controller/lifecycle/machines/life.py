"""The life of one machine's record: a pure function of reports, its node, and time.

PROVISIONING ──► JOINED ──► TERMINATING ──► TERMINATED
     │                          ▲               ▲
     ├── boot limit, gang ──────┘               │
     └── the provider refuses ──────────────────┘
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from controller.lifecycle.inventory import MachinesPolicy, Node
from controller.lifecycle.machines.model import (
    MACHINE_MOVES,
    Machine,
    MachineEnd,
    MachineStatus,
    Reach,
)
from controller.lifecycle.machines.sizes import size_of
from fairlead.model.statuses import NodeStatus

_DEFAULT_BOOT_LIMIT = 1200.0
MIN_LIFE_SECONDS = 600.0
"""A node that is lost sooner after its machine joined shows that the next one would be, too."""
IN_ACCOUNT = "it is in account"
"""The trouble of a machine that is out of reach begins so."""


class _Report(msgspec.Struct, frozen=True, kw_only=True):
    machine_id: str


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where the machine's shim is reached: by SSH at `host` as `user`, or without a host at a
    socket of the controller's own machine. None: as on the images of Fairlead."""

    host: str | None = None
    port: int = 22
    user: str | None = None
    socket: str | None = None


class InstanceKnown(_Report, frozen=True, kw_only=True):
    """The provider made the machine, or lists it. `place` None: it has no address yet."""

    instance_id: str
    place: Place | None = None


class AccountKnown(_Report, frozen=True, kw_only=True):
    """The machine is in this account of its provider, by whatever name it was known before."""

    account: str


class OrderRefused(_Report, frozen=True, kw_only=True):
    """The provider has definitely not made the machine. `reach`: which offers it would refuse, too.
    `after`: seconds before which it wants no other try."""

    end: MachineEnd
    message: str
    reach: Reach = Reach.OFFER
    after: float | None = None


class InstanceGone(_Report, frozen=True, kw_only=True):
    """The provider says that the machine does not exist any more."""


class Forgotten(_Report, frozen=True, kw_only=True):
    """An admin answers for a machine in an account that nobody asks any more."""

    by: str


class InstanceLost(_Report, frozen=True, kw_only=True):
    """The provider lists the machine no longer, and its node does not answer."""

    message: str


class ReleaseAnswered(_Report, frozen=True, kw_only=True):
    """The shim of a closing machine tells whether it is empty."""

    is_empty: bool


class ReleaseUnanswered(_Report, frozen=True, kw_only=True):
    """The shim of a closing machine could not be asked for long. `message`: for how long."""

    message: str


class CallFailed(_Report, frozen=True, kw_only=True):
    """A call about the machine failed and is repeated; shown to operators. `nothing_made`: no call
    so far can have made the machine, so it is in no account."""

    message: str
    nothing_made: bool = False


MachineReport = (
    InstanceKnown
    | AccountKnown
    | OrderRefused
    | InstanceGone
    | Forgotten
    | InstanceLost
    | ReleaseAnswered
    | ReleaseUnanswered
    | CallFailed
)


class Surroundings(msgspec.Struct, frozen=True, kw_only=True):
    """What decides about a machine besides its own record.

    `is_used`: something of a run is on its node, or may be. `policy` None: its fleet rents no
    machines any more. `may_release`: the fleet has more than its least. `is_broke`: the month's
    budget is used up. `is_awaited`: a gang needs it with machines that are not there yet.
    """

    node: Node | None
    is_used: bool = False
    policy: MachinesPolicy | None = None
    may_release: bool = True
    is_broke: bool = False
    is_awaited: bool = False
    is_wanted: bool | None = None
    """Whether something waits for it, while it is on order; None: that is not known yet."""


def moved(
    machine: Machine, reports: Iterable[MachineReport], around: Surroundings, now: float
) -> Machine:
    """Return the record after these reports and at this time; the same object if nothing moved."""
    machine = _without_future(machine, now)
    for report in reports:
        machine = _reported(machine, report, around, now)
    match machine.status:
        case MachineStatus.PROVISIONING:
            return _provisioning(machine, around, now)
        case MachineStatus.JOINED:
            return _joined(machine, around, now)
    return machine


def _without_future(machine: Machine, now: float) -> Machine:
    """Return the record with no time that is still to come: the clock was put back since, and a
    machine would be idle, or boot, for as long as the clock was wrong."""
    late = {name: now for name in _TIMES if (at := getattr(machine, name)) is not None and at > now}
    return replace(machine, **late) if late else machine


_TIMES = ("ordered_at", "joined_at", "idle_since", "terminating_at")


def _reported(machine: Machine, report: MachineReport, around: Surroundings, now: float) -> Machine:
    if not machine.is_live:
        return machine
    match report:
        case InstanceKnown() if machine.instance_id is None:
            return replace(machine, instance_id=report.instance_id, unmade=False, trouble=None)
        case AccountKnown():
            was_away = (machine.trouble or "").startswith(IN_ACCOUNT)
            if was_away or machine.account != report.account:
                trouble = None if was_away else machine.trouble
                return replace(machine, account=report.account, unmade=False, trouble=trouble)
        case OrderRefused() if machine.instance_id is None:
            # It never existed, so it costs nothing: it ends when it was ordered.
            end = machine.end or report.end
            return _to(
                machine,
                MachineStatus.TERMINATED,
                end=end,
                message=machine.message or report.message,
                reach=report.reach,
                terminated_at=machine.ordered_at,
                trouble=None,
            )
        case InstanceGone() if machine.status is MachineStatus.TERMINATING:
            return _to(machine, MachineStatus.TERMINATED, terminated_at=now, trouble=None)
        case Forgotten() if can_be_forgotten(machine):
            message = f"{report.by} had it forgotten; {_left_behind(machine)}"
            return _to(
                machine,
                MachineStatus.TERMINATED,
                message=message,
                terminated_at=now,
                trouble=None,
            )
        case InstanceLost() if machine.status is not MachineStatus.TERMINATING:
            return _lost(machine, around.node, report.message, now)
        case ReleaseAnswered() if machine.closing:
            if report.is_empty and not around.is_used:
                return ending(machine, MachineEnd.IDLE, _unused(around.node), now)
            return replace(machine, closing=False, idle_since=None)
        case ReleaseUnanswered() if machine.closing and not around.is_used:
            return ending(machine, MachineEnd.IDLE, report.message, now)
        case CallFailed():
            is_free = report.nothing_made and machine.instance_id is None
            account = None if is_free else machine.account
            after = replace(machine, trouble=report.message, account=account, unmade=is_free)
            return machine if after == machine else after
    return machine


def _unused(node: Node | None) -> str:
    """Return why a machine is released."""
    if node is None or node.unfit is None:
        return "nothing used it"
    return f"nothing used it, and its node takes no work: {node.unfit}"


def _lost(machine: Machine, node: Node | None, message: str, now: float) -> Machine:
    """Return the record of a machine that its provider has no more, or whose node is lost."""
    if machine.status is MachineStatus.PROVISIONING:
        # As at EC2 with a disk that may not be encrypted: the next one would end so, too.
        return ending(machine, MachineEnd.BOOT_FAILED, f"{message}; it was no node yet", now)
    ended = ending(machine, MachineEnd.LOST, message, now)
    seconds = now - (now if machine.joined_at is None else machine.joined_at)
    is_recalled = node is not None and node.recalled_at is not None
    if seconds >= MIN_LIFE_SECONDS or is_recalled:
        return ended
    why = f"{message}, {seconds:.0f} s after it had become a node"
    return replace(ended, message=why, short_lived=True)


def of_another(
    machine: Machine, report: InstanceKnown, machines: Iterable[Machine]
) -> OrderRefused | None:
    """Return the refusal that follows when the provider answers an order with the machine of
    another record; None: it did not. It made none, and the end of one would end the other's."""
    if machine.instance_id is not None:
        return None
    holder = next((one for one in machines if holds(one, machine, report.instance_id)), None)
    if holder is None:
        return None
    message = (
        f"provider {machine.offer.provider} answered with machine {report.instance_id}, which is "
        f"that of {holder.name}: it must make a machine of its own for each order"
    )
    return OrderRefused(machine_id=machine.id, end=MachineEnd.REFUSED, message=message)


def holds(one: Machine, other: Machine, instance_id: str) -> bool:
    """Return whether the provider's machine of this id, told about the record `other`, is that of
    the record `one`."""
    is_same_provider = one.offer.provider == other.offer.provider
    is_held = one.is_live and one.instance_id == instance_id
    return is_held and is_same_provider and one.id != other.id and one.account == other.account


def can_be_forgotten(machine: Machine) -> bool:
    """Return whether only another account could tell whether this machine, which is to end, is
    gone."""
    is_away = (machine.trouble or "").startswith(IN_ACCOUNT)
    return machine.status is MachineStatus.TERMINATING and is_away


def _left_behind(machine: Machine) -> str:
    """Return what nobody looks after any more."""
    which = machine.name if machine.instance_id is None else machine.instance_id
    return (
        f"{which} may still run in account {machine.account} and cost money, which no budget "
        f"counts: see there that it has ended"
    )


def _to(machine: Machine, status: MachineStatus, **fields: Any) -> Machine:
    """Return the record in its next status, with these fields. Raises ValueError: an illegal move
    is a fault of ours."""
    if status not in MACHINE_MOVES[machine.status]:
        raise ValueError(f"machine {machine.name}: {machine.status} -> {status}")
    return replace(machine, status=status, **fields)


def ending(machine: Machine, end: MachineEnd, message: str, now: float) -> Machine:
    """Return the record of a machine that is to end."""
    return _to(
        machine,
        MachineStatus.TERMINATING,
        end=end,
        message=message,
        closing=False,
        terminating_at=now,
    )


def _provisioning(machine: Machine, around: Surroundings, now: float) -> Machine:
    node = around.node
    if node is None:
        return ending(machine, MachineEnd.ASKED, "its node was removed", now)
    if around.is_wanted is not None and around.is_wanted is (machine.idle_since is not None):
        machine = replace(machine, idle_since=None if around.is_wanted else now)
    # One whose clock or engine is not ready yet is still on its way: nothing else is bought for it.
    if node.status is NodeStatus.CONNECTED and node.unfit is None:
        # Its release may be due. It waits for the next turn: jobs may be placed there first.
        unused_since = now if machine.idle_since is None else machine.idle_since
        return _to(
            machine,
            MachineStatus.JOINED,
            size=size_of(node.capacity),
            joined_at=now,
            idle_since=None if around.is_used else unused_since,
            trouble=None,
        )
    if around.policy is None:
        return ending(machine, MachineEnd.FLEET_REMOVED, "its fleet rents no more", now)
    # A retry of the job, or a next run, may come: it is kept as long as an idle machine is.
    due = release_at(machine, around)
    if due is not None and now >= due and not around.is_used:
        return ending(machine, MachineEnd.IDLE, "nothing waits for it any more", now)
    if now >= boots_until(machine, around.policy):
        seconds = now - machine.ordered_at
        message = f"it was no node {seconds:.0f} s after its order"
        if node.status is NodeStatus.CONNECTED:
            message = f"its node took no work {seconds:.0f} s after its order: {node.unfit}"
        return ending(machine, MachineEnd.BOOT_FAILED, message, now)
    return machine


def _joined(machine: Machine, around: Surroundings, now: float) -> Machine:
    node = around.node
    if node is None:
        return ending(machine, MachineEnd.ASKED, "its node was removed", now)
    if node.status is NodeStatus.LOST:
        return _lost(machine, node, "its node is lost", now)
    if around.is_used:
        if machine.idle_since is None and not machine.closing:
            return machine
        return replace(machine, idle_since=None, closing=False)
    if machine.idle_since is None:
        machine = replace(machine, idle_since=now)
    due = release_at(machine, around)
    if due is not None and now >= due and not machine.closing:
        return replace(machine, closing=True)
    return machine


def boots_until(machine: Machine, policy: MachinesPolicy | None) -> float:
    """Return the time by which the machine must be a node."""
    limit = _DEFAULT_BOOT_LIMIT if policy is None else policy.boot_limit
    return machine.ordered_at + limit


def release_at(machine: Machine, around: Surroundings) -> float | None:
    """Return when an unused machine is released; None: it is kept."""
    if machine.idle_since is None:
        return None
    policy, node = around.policy, around.node
    if policy is None or around.is_broke or (node is not None and node.draining):
        return machine.idle_since
    broken_at = None
    if node is not None and node.unfit_since is not None:
        broken_at = max(machine.idle_since, node.unfit_since + policy.boot_limit)
    # The first machine of a gang may be there longer than `idle_duration` before the last one is.
    if around.is_awaited or not around.may_release:
        return broken_at
    due = machine.idle_since + min(
        policy.idle_duration,
        policy.idle_duration if machine.idle_duration is None else machine.idle_duration,
    )
    return due if broken_at is None else min(due, broken_at)


def wakes_at(machine: Machine, around: Surroundings) -> float | None:
    """Return when time alone next moves the record."""
    match machine.status:
        case MachineStatus.PROVISIONING if around.is_wanted is False and machine.idle_since is None:
            return machine.ordered_at
        case MachineStatus.PROVISIONING:
            due = release_at(machine, around)
            until = boots_until(machine, around.policy)
            return until if due is None else min(due, until)
        case MachineStatus.JOINED if not machine.closing:
            return release_at(machine, around)
    return None


_NEVER_CAME = frozenset(
    {
        MachineEnd.NO_CAPACITY,
        MachineEnd.QUOTA_REACHED,
        MachineEnd.REFUSED,
        MachineEnd.BOOT_FAILED,
        MachineEnd.LOST,
    }
)


def of_broken_orders(machines: Sequence[Machine]) -> list[Machine]:
    """Return the live machines of gangs' orders of which one machine never came.

    A gang gets all or nothing; what came would wait, and cost, for what does not come.
    """
    broken = {
        one.group
        for one in machines
        if one.group is not None and one.joined_at is None and one.end in _NEVER_CAME
    }
    waiting = (MachineStatus.PROVISIONING, MachineStatus.JOINED)
    return [one for one in machines if one.group in broken and one.status in waiting]
