"""What one host shall become as a node, and what that asks of the bundle's `install`."""

from __future__ import annotations

import msgspec

from controller.commands.hosts.bundle import Bundle
from controller.commands.hosts.connection import Target
from controller.commands.hosts.preflight import (
    DockerChoice,
    Facts,
    Wish,
)


class HostPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The plan for one host. `address`: at which the controller reaches its sshd; `host_key`: the
    trusted key line; `options`: further arguments of the bundle's `install`. What is None stays as
    it is on a host that is a node."""

    target: Target
    name: str
    address: tuple[str, int]
    keeps_address: bool = False
    """The address was not named: a node with this host key keeps its own."""
    host_key: str
    bundle: Bundle
    fleet: str | None = None
    attributes: dict[str, str] = {}
    docker: DockerChoice | None = None
    blocks: str | None = None
    """The shim's `--blocks`."""
    options: tuple[str, ...] = ()
    upgrade: bool = False
    takeover: bool = False
    """Join a host also when it is another controller's node."""


def options_of(plan: HostPlan, facts: Facts, key: str) -> tuple[str, ...]:
    """Return the arguments of the bundle's `install`, which keeps what is not among them."""
    docker = plan.docker or (None if facts.chosen else "install")
    words = () if docker is None else ("--docker", docker)
    takeover = ("--takeover",) if plan.takeover else ()
    return (*words, "--tunnel-key", key, *takeover, *plan.options)


def wish_of(
    plan: HostPlan, now: float = 0.0, has_root: bool = True, controller: str | None = None
) -> Wish:
    return Wish(
        version=plan.bundle.version,
        arch=plan.bundle.arch,
        docker=plan.docker,
        now=now,
        has_root=has_root,
        upgrade=plan.upgrade,
        controller=controller,
        takeover=plan.takeover,
    )
