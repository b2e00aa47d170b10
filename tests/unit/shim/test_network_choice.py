"""Who connects containers on a node, and what becomes of runs that began with another choice."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, TypeVar

import pytest

from fairlead.wire.node import EngineKind
from shim.engines.base import NetworkChoice, NodeFault
from shim.engines.docker import choice
from shim.engines.docker.choice import NetworkChooser, why_not_here
from shim.engines.docker.dialect import DOCKER
from shim.engines.podman import PODMAN
from shim.settings import NetworkKind, Settings
from shim.wires.namespace import WireError

T = TypeVar("T")
AGENT, AUTO, ENGINE = NetworkKind.AGENT, NetworkKind.AUTO, NetworkKind.DOCKER


class FakeNetworks:
    """Networks of either kind that remember what they were asked."""

    capacity = 3

    def __init__(self, kind: NetworkKind, why_not: str | None = None, conflict: str | None = None):
        self.kind, self._why_not, self._conflict = kind, why_not, conflict
        self.is_open = False
        self.asked: list[str] = []

    async def open(self, *args: object, conflicts_count: bool = False) -> None:
        why = self._why_not or (self._conflict if conflicts_count else None)
        if why is not None:
            raise WireError(why)
        self.is_open = True

    async def close(self) -> None:
        self.asked.append("close")

    def routes_to(self, run_id: str) -> bool:
        return self.kind is AGENT

    async def ensure(
        self, run_id: str, taken: Collection[str] = (), wanted: str | None = None
    ) -> str | None:
        self.asked.append(f"ensure {run_id}")
        return self.kind.value

    async def remove(self, run_id: str) -> None:
        self.asked.append(f"remove {run_id}")


class Parts:
    """`why_not`: why the node cannot have wires; `conflict`: why it may be unable to."""

    def __init__(
        self, patched: pytest.MonkeyPatch, why_not: str | None = None, conflict: str | None = None
    ) -> None:
        self.wired = FakeNetworks(AGENT, why_not, conflict)
        self.of_engine = FakeNetworks(ENGINE)
        patched.setattr(choice, "WiredNetworks", lambda *args: self.wired)
        patched.setattr(choice, "RunNetworks", lambda *args, **options: self.of_engine)

    async def open(
        self,
        asked: NetworkKind,
        *labels: Mapping[str, str],
        info: Mapping[str, Any] | None = None,
        dialect: Any = DOCKER,
    ) -> choice.ChosenNetworks:
        settings = Settings(data=Path("/d"), socket=Path("/s"), gid=0, networks=asked)
        containers = [{"Labels": {"fairlead.run": "old", **one}} for one in labels]
        chooser = NetworkChooser(_call, None, dialect, "install", settings, info or {}, containers)
        return await chooser.open()


async def _call(act: Callable[[], T]) -> T:
    return act()


OF_WIRES = {"fairlead.wire": "10.0.0.1"}
OF_ENGINE = {"fairlead.network": "fairlead-1"}


async def test_the_shim_connects_containers_where_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    made = await Parts(monkeypatch).open(AUTO)
    assert made.choice == NetworkChoice(kind=AGENT)
    assert await made.ensure("new") == "agent"


@pytest.mark.parametrize(("lack"), [{"why_not": "no nft"}, {"conflict": "no nft"}])
async def test_the_engine_does_where_the_shim_cannot_or_may_not(
    monkeypatch: pytest.MonkeyPatch, lack: dict[str, str]
) -> None:
    made = await Parts(monkeypatch, **lack).open(AUTO)
    assert made.choice == NetworkChoice(kind=ENGINE, why="no nft")
    assert await made.ensure("new") == "docker"


async def test_an_operators_choice_is_kept_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = Parts(monkeypatch, conflict="firewalld")
    assert (await parts.open(AGENT)).choice == NetworkChoice(kind=AGENT)
    assert (await parts.open(ENGINE)).choice == NetworkChoice(kind=ENGINE)
    with pytest.raises(NodeFault, match="--networks agent: no nft; use --networks docker"):
        await Parts(monkeypatch, why_not="no nft").open(AGENT)


async def test_podman_connects_its_containers_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    assert PODMAN.kind is EngineKind.PODMAN
    made = await Parts(monkeypatch).open(AUTO, dialect=PODMAN)
    assert made.choice == NetworkChoice(kind=ENGINE)
    with pytest.raises(NodeFault, match="need the Docker engine"):
        await Parts(monkeypatch).open(AGENT, dialect=PODMAN)


@pytest.mark.parametrize(
    ("asked", "label", "old", "new"),
    [(AGENT, OF_ENGINE, "docker", "agent"), (ENGINE, OF_WIRES, "agent", "docker")],
)
async def test_a_run_keeps_its_kind_until_its_last_container_is_gone(
    monkeypatch: pytest.MonkeyPatch, asked: NetworkKind, label: dict[str, str], old: str, new: str
) -> None:
    made = await Parts(monkeypatch).open(asked, label)
    assert [await made.ensure("old"), await made.ensure("new")] == [old, new]
    assert made.routes_to("old") is (old == "agent")
    assert made.routes_to("new") is (new == "agent")
    await made.remove("old")
    assert await made.ensure("old") == new


async def test_wires_that_are_not_kept_up_are_still_those_of_their_runs(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made = await Parts(monkeypatch, why_not="no nft").open(AUTO, OF_WIRES)
    assert (made.routes_to("old"), made.routes_to("new")) == (True, False)
    assert "the connections of running jobs are not repaired: no nft" in caplog.text


@pytest.mark.parametrize(
    ("info", "why"),
    [
        ({}, None),
        ({"SecurityOptions": ["name=seccomp,profile=default"]}, None),
        ({"SecurityOptions": ["name=seccomp", "name=userns"]}, "remaps users"),
        ({"SecurityOptions": ["name=rootless"]}, "runs without root"),
        ({"FirewallBackend": {"Driver": "iptables"}}, None),
        ({"FirewallBackend": {"Driver": "nftables+firewalld"}}, "no chain DOCKER-USER"),
        ({"FirewallBackend": None, "SecurityOptions": None}, None),
    ],
)
def test_what_the_engine_says_of_itself_counts(info: dict[str, Any], why: str | None) -> None:
    found = why_not_here(info)
    assert found is None if why is None else why in (found or "")
