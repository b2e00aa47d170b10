"""A rented machine gets a host key of its own, whoever dies between two steps."""

from __future__ import annotations

from typing import Any, cast

import pytest
from msgspec.structs import replace

from common.links.errors import HostKeyRefused
from common.links.host_keys import new_host_key
from controller.lifecycle.inventory import Node, NodeAddress
from controller.links.base import NodeConnection, NodeLink, ShimApi
from controller.nodes import host_keys
from controller.nodes.host_keys import FreshHostKey
from controller.store.errors import LeaseLost, StoreError, StoreRefused, StoreUnavailable
from fairlead.wire.node import HostKey
from shim.client import ShimError, ShimUnavailable
from tests.unit.pipelines.parts import a_node

SENT, OTHER = new_host_key()[1], new_host_key()[1]
STEPS = 5
"""The effects of one replacement: prepare, commit, use, log in, commit."""


class Dead(Exception):
    """The controller was killed."""


class Machine:
    """A rented machine and the record of it. `dies_at`: the number of the effect that is the last
    one of this controller, whose answer it does not hear."""

    def __init__(self) -> None:
        address = NodeAddress(shim_socket="/s", host="h", host_key=SENT)
        self.nodes = {"n1": replace(a_node("n1"), address=address)}
        self.stored = dict(self.nodes)
        """What a controller finds that starts now. `nodes` shows a change before its commit."""
        self.refusals: list[StoreError] = []
        """What the next commits are refused with; then the record is the one before."""
        self.cut_commits = 0
        """How many commits end with the connection whose work waits for them."""
        self.key, self.next = SENT, ""
        self.effects: list[str] = []
        self.dies_at: int | None = None
        self.stalls = 0
        """How many logins still find the key of before, as if sshd had not read the new one."""
        self.before = SENT

    @property
    def address(self) -> NodeAddress:
        return self.nodes["n1"].address

    def done(self, effect: str) -> None:
        trusted = self.stored["n1"].address
        assert self.key in (trusted.host_key, trusted.next_host_key), "locked out"
        self.effects.append(effect)
        if len(self.effects) == self.dies_at:
            raise Dead

    async def save_node(self, node: Node | None, node_id: str) -> None:
        assert node is not None
        if self.refusals:
            raise self.refusals.pop()
        self.nodes[node_id] = node
        if self.cut_commits:
            self.cut_commits -= 1
            raise ShimUnavailable("cut")
        self.stored[node_id] = node
        self.done("commit")

    async def prepare_host_key(self) -> HostKey:
        self.next = self.next or new_host_key()[1]
        self.done("prepare")
        return HostKey(key=self.next)

    async def use_host_key(self, key: str) -> None:
        if key == self.next:
            self.before, self.key, self.next = self.key, key, ""
        assert key == self.key
        self.done("use")

    def link(self, node: Node) -> NodeLink:
        return cast(NodeLink, _Link(self, node.address))

    async def replaced(self, shim: Any = None) -> None:
        """One life of a controller."""
        await FreshHostKey(
            "n1",
            self,
            cast(ShimApi, shim or self),
            self.link,
            lambda node: node.address.host_key == SENT,
        ).run()


class _Link:
    def __init__(self, machine: Machine, address: NodeAddress) -> None:
        self._machine = machine
        self._address = address

    async def connect(self) -> NodeConnection:
        machine = self._machine
        presented = machine.key
        if machine.stalls:
            machine.stalls -= 1
            presented = machine.before
        if presented not in (self._address.host_key, self._address.next_host_key):
            raise HostKeyRefused("another key")
        machine.done("login")
        return cast(NodeConnection, self)

    async def close(self) -> None:
        pass


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_keys, "_FIRST_RETRY_SECONDS", 0.0)
    monkeypatch.setattr(host_keys, "_SSHD_LOOK_SECONDS", 0.0)


def has_its_own(machine: Machine) -> bool:
    address = machine.address
    return machine.key != SENT and (address.host_key, address.next_host_key) == (machine.key, None)


async def test_a_machine_gets_a_key_that_its_user_data_does_not_have() -> None:
    machine = Machine()
    await machine.replaced()
    assert machine.effects == ["prepare", "commit", "use", "login", "commit"]
    assert has_its_own(machine)
    await machine.replaced()
    assert len(machine.effects) == STEPS


@pytest.mark.parametrize("first", range(1, STEPS + 1))
@pytest.mark.parametrize("second", range(1, STEPS + 1))
async def test_a_controller_that_dies_at_any_step_is_followed_by_one_that_goes_on(
    first: int, second: int
) -> None:
    machine = Machine()
    for lived in (first, second):
        machine.dies_at = len(machine.effects) + lived
        try:
            await machine.replaced()
        except Dead:
            machine.nodes = dict(machine.stored)
    machine.dies_at = None
    await machine.replaced()
    assert has_its_own(machine)


async def test_the_first_key_is_trusted_until_a_login_with_the_new_one_alone() -> None:
    """sshd starts itself again for the new key; a slow one is not asked to do so once more."""
    machine = Machine()
    machine.stalls = 2
    await machine.replaced()
    assert machine.effects == ["prepare", "commit", "use", "login", "commit"]
    assert has_its_own(machine)


async def test_sshd_is_asked_again_where_it_never_had_the_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(host_keys, "_SSHD_SECONDS", -1.0)
    machine = Machine()
    machine.stalls = 2
    await machine.replaced()
    assert machine.effects == ["prepare", *["commit", "use"] * 3, "login", "commit"]
    assert has_its_own(machine)


async def test_a_key_is_used_only_when_its_pin_is_committed_not_when_it_is_shown() -> None:
    machine = Machine()
    machine.cut_commits = 1
    with pytest.raises(ShimUnavailable):
        await machine.replaced()
    assert machine.address.next_host_key is not None
    await machine.replaced()
    assert machine.effects == ["prepare", "commit", "use", "login", "commit"]
    assert has_its_own(machine)


async def test_a_record_that_the_store_refuses_is_tried_again_and_ends_no_session() -> None:
    machine = Machine()
    machine.refusals = [StoreRefused("no such value", nodes=["n1"]), StoreUnavailable("away")]
    await machine.replaced()
    assert machine.effects == ["prepare", "prepare", "prepare", "commit", "use", "login", "commit"]
    assert has_its_own(machine)


async def test_one_that_no_longer_leads_stops_at_once() -> None:
    machine = Machine()
    machine.refusals = [LeaseLost("another one leads")]
    with pytest.raises(LeaseLost):
        await machine.replaced()
    assert machine.address.host_key == SENT


async def test_a_shim_that_leaves_the_key_alone_is_asked_once() -> None:
    machine = Machine()

    class Old:
        async def prepare_host_key(self) -> HostKey:
            raise ShimError("not_found", "no such path", 404)

    await machine.replaced(Old())
    assert machine.address.host_key == SENT


async def test_a_key_that_is_none_is_never_pinned() -> None:
    machine = Machine()
    answers = ["nonsense", new_host_key()[1]]

    async def prepare() -> HostKey:
        machine.next = answers.pop(0)
        return HostKey(key=machine.next)

    machine.prepare_host_key = prepare  # type: ignore[method-assign]
    await machine.replaced()
    assert machine.effects.count("commit") == 2


async def test_what_an_admin_pins_meanwhile_stays() -> None:
    machine = Machine()
    link = machine.link

    def pin_and_link(node: Node) -> NodeLink:
        pinned = replace(machine.address, host_key=machine.key, next_host_key=None, port=23)
        machine.nodes["n1"] = replace(machine.nodes["n1"], address=pinned)
        machine.stored = dict(machine.nodes)
        return link(node)

    machine.link = pin_and_link  # type: ignore[method-assign]
    await machine.replaced()
    assert machine.effects == ["prepare", "commit", "use", "login"]
    assert machine.address.port == 23


async def test_a_lost_connection_ends_the_work() -> None:
    machine = Machine()

    class Gone:
        async def prepare_host_key(self) -> HostKey:
            raise ShimUnavailable("cut")

    with pytest.raises(ShimUnavailable):
        await machine.replaced(Gone())
