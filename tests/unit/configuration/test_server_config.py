"""The controller's own file: what it changes, and how it is refused."""

from __future__ import annotations

import os
import shutil
from ipaddress import IPv4Network
from math import inf
from pathlib import Path
from typing import Any

import pytest

from controller import server_config
from controller.lifecycle.inventory import Budget, NodeFailure
from controller.lifecycle.model import Limits
from controller.provider_config.qemu import InstanceType, QemuProvider
from controller.server_config import Operating, OperatingFields
from fairlead.configuration.convert import ConfigurationError
from fairlead.configuration.field import fields_of
from fairlead.configuration.runs.plan import Defaults
from fairlead.configuration.text.source import SourceError

CHECKOUT = Path(__file__).parents[3]
WHOLE = """
limits:
  waiting_instance: 1m
  waiting_container: 3m
  waiting_runner: 2m
  reincarnation_timeout: 90s
  short_life: 5
  waits: [0s, 1s, 2s]
  no_capacity_wait: 3s
  jitter: 0
node_failure: {probe_every: 2s, unreachable_after: 8s, after: 40s}
defaults:
  image: busybox
  stop_duration: 10s
  max_duration: 1d
  scheduling_timeout: off
  priority: 70
cluster_networks: [10.1.0.0/16, 192.168.0.0/24]
"""


def test_all_of_it_counts(tmp_path: Path) -> None:
    file = tmp_path / "controller.yaml"
    file.write_text(WHOLE)
    limits = Limits(
        waiting_instance=60.0,
        waiting_container=180.0,
        waiting_runner=120.0,
        node_lost_after=40.0,
        reincarnation_timeout=90.0,
        short_life=5.0,
        waits=(0.0, 1.0, 2.0),
        no_capacity_wait=3.0,
        jitter=0.0,
    )
    defaults = Defaults(
        image="busybox", stop_duration=10.0, max_duration=86400.0, priority=70, limits=limits
    )
    networks = (IPv4Network("10.1.0.0/16"), IPv4Network("192.168.0.0/24"))
    failure = NodeFailure(probe_every=2.0, unreachable_after=8.0, lost_after=40.0)
    assert server_config.load(file) == Operating(
        defaults=defaults, node_failure=failure, cluster_networks=networks
    )


def test_an_empty_file_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "empty.yaml"
    file.touch()
    assert server_config.load(file) == Operating()


def test_a_mistake_is_told_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "controller.yaml"
    file.write_text("limits:\n  waiting_runner: soon\n")
    with pytest.raises(SourceError) as refused:
        server_config.load(file)
    assert str(refused.value).startswith(f"{file}:2: limits.waiting_runner: 'soon' is not")


@pytest.mark.parametrize(
    ("written", "complaint"),
    [
        ({"limit": {}}, "limit: is not a field; did you mean limits?"),
        ({"limits": {"waits": []}}, "limits.waits: is empty"),
        ({"limits": {"jitter": 2}}, "limits.jitter: is out of range"),
        ({"limits": {"waiting_instance": 0}}, "limits.waiting_instance: is 0"),
        ({"limits": {"waiting_container": 0}}, "limits.waiting_container: is 0"),
        ({"node_failure": {"after": 0}}, "node_failure.after: is 0"),
        ({"node_failure": {"unreachable_after": 0}}, "node_failure.unreachable_after: is 0"),
        ({"node_failure": {"probe_every": "0s"}}, "node_failure.probe_every: is 0 s"),
        (
            {"node_failure": {"after": "20s"}},
            "node_failure.after: is 20 s beside unreachable_after: 30 s",
        ),
        ({"node_failure": {"afer": 1}}, "node_failure.afer: is not a field; did you mean after?"),
        ({"cluster_networks": ["10.0.0.1/8"]}, "cluster_networks[0]: '10.0.0.1/8' is not an IPv4"),
        ({"cluster_networks": [10]}, "cluster_networks[0]: '10' is not an IPv4 network"),
        ({"defaults": {"priority": 101}}, "defaults.priority: is out of range"),
        ({"providers": {"a": {"type": "azure"}}}, "providers.a.type: 'azure' is no type of"),
        ({"providers": {"a": {}}}, "providers.a.type: is missing"),
        ({"providers": {"a": {"type": "exec"}}}, "providers.a.command: is missing"),
        (
            {"providers": {"a": {"type": "exec", "command": []}}},
            "providers.a.command: is empty",
        ),
        (
            {"providers": {"a": {"type": "exec", "command": ["rent"]}}},
            "providers.a.command: rent is not an absolute path",
        ),
        (
            {"providers": {"a": {"type": "exec", "command": ["/none"]}}},
            "providers.a.command: /none is no program that can be run",
        ),
        (
            {"providers": {"A b": {"type": "exec", "command": ["/bin/true"]}}},
            "providers.A b: is not a provider's name",
        ),
        ([], "is a mapping of fields to values, not a list"),
    ],
)
def test_a_wrong_value_is_named(written: object, complaint: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        server_config.parse(written)
    assert str(refused.value).startswith(complaint)


def test_every_field_is_explained_in_the_docs() -> None:
    page = (CHECKOUT / "docs/controller.md").read_text()
    assert [field for field in fields_of(OperatingFields) if f"`{field}`" not in page] == []


def test_the_budgets_of_users_and_of_all_are_read() -> None:
    found = server_config.parse(
        {"budget": {"per_month": 9, "each_user": {"per_hour": 2}, "users": {"ada": {}}}}
    ).spending
    assert found.together == Budget(per_month=9.0)
    assert found.of("bob") == Budget(per_hour=2.0)
    assert found.of("ada") == Budget()


@pytest.mark.parametrize("field", ["per_hour", "per_month"])
def test_a_budget_of_nothing_is_refused_with_what_is_allowed(field: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        server_config.parse({"budget": {field: 0}})
    assert refused.value.field == f"budget.{field}"
    assert str(refused.value.allowed).startswith("a price of more than 0")


@pytest.mark.parametrize(
    ("written", "field", "allowed"),
    [
        ({"each_user": {"per_hour": 0}}, "each_user.per_hour", "a price of more than 0"),
        ({"users": {"ada": {"per_hour": 0}}}, "users.ada.per_hour", "a price of more than 0"),
        ({"users": {"a.b": {"per_month": "x"}}}, "users.a.b.per_month", "a price of more than 0"),
        ({"users": {"ada": {"per_hor": 1}}}, "users.ada.per_hor", "per_hour, per_month"),
        ({"users": {"ada": 3}}, "users.ada", "a mapping of per_hour and per_month"),
        ({"users": {"ada": None}}, "users.ada", "a mapping of per_hour and per_month"),
        ({"users": 3}, "users", "a mapping of users to mappings"),
    ],
)
def test_a_wrong_budget_of_a_user_is_refused_with_what_is_allowed(
    written: dict[str, Any], field: str, allowed: str
) -> None:
    with pytest.raises(ConfigurationError) as refused:
        server_config.parse({"budget": written})
    assert refused.value.field == f"budget.{field}"
    assert str(refused.value.allowed).startswith(allowed)


def test_a_budget_that_contradicts_itself_is_refused_by_its_field() -> None:
    written = {"budget": {"users": {"ada": {"per_hour": 5, "per_month": 2}}}}
    with pytest.raises(ConfigurationError) as refused:
        server_config.parse(written)
    assert refused.value.field == "budget.users.ada.per_hour"


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A provider of virtual machines, on a host that has all programs, for a controller that is not
    root."""
    (tmp_path / "node.qcow2").touch()
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    return {
        "type": "qemu",
        "image": str(tmp_path / "node.qcow2"),
        "folder": "/srv/machines",
        "machines": 4,
        "instance_types": {"small": {"cpu": 2, "memory": "4GB", "disk": "20GB", "price": 0.1}},
    }


def test_this_host_is_a_provider(host: dict[str, Any]) -> None:
    found = server_config.parse({"providers": {"here": host}}).providers["here"]
    assert isinstance(found, QemuProvider)
    assert found.types == {
        "small": InstanceType(cpu=2, memory=4_000_000_000, disk=20_000_000_000, price=0.1)
    }
    assert (found.most, found.user, found.accelerator, found.is_open) == (4, None, None, False)
    assert (found.programs.img, found.programs.iso) == (
        "/usr/bin/qemu-img",
        "/usr/bin/genisoimage",
    )


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"image": "node.qcow2"}, "image: node.qcow2 is not an absolute path"),
        ({"image": "/none.qcow2"}, "image: there is no file /none.qcow2"),
        ({"folder": "machines"}, "folder: machines is not an absolute path"),
        ({"folder": "/" + 60 * "a"}, "folder: is too long for a socket's path"),
        ({"instance_types": {}}, "instance_types: is empty"),
        (
            {"instance_types": {"s": {"cpu": 1, "memory": "1MB", "disk": "9GB"}}},
            "instance_types.s.memory: is 1000000 (allowed: a size",
        ),
        (
            {"instance_types": {"s": {"cpu": 1, "memory": "1GB", "disk": "1GB"}}},
            "instance_types.s.disk: is 1000000000 (allowed: a size",
        ),
        (
            {"instance_types": {"s": {"cpu": 1, "memory": "1GB", "disk": "9GB", "price": inf}}},
            "instance_types.s.price: is inf",
        ),
        ({"instance_types": {"s": {"cpu": 0}}}, "instance_types.s.cpu: is out of range"),
        ({"folder": "/srv/a,b"}, "folder: may have no comma"),
        ({"folder": "/etc/passwd"}, "folder: /etc/passwd is no folder"),
        ({"machines": 0}, "machines: is out of range"),
        ({"user": "nobody-of-this-name"}, "user: there is no account nobody-of-this-name"),
        ({"user": "root"}, "user: root is root"),
        ({"user": "nobody"}, "user: only a controller that runs as root can start"),
        ({"network": "wide"}, "network: 'wide' is not"),
        ({"acelerator": "kvm"}, "acelerator: is not a field; did you mean accelerator?"),
    ],
)
def test_what_a_host_cannot_do_is_named(
    host: dict[str, Any], change: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ConfigurationError) as refused:
        server_config.parse({"providers": {"here": host | change}})
    assert str(refused.value).startswith(f"providers.here.{complaint}")


def test_two_providers_do_not_share_a_folder(host: dict[str, Any]) -> None:
    twin = host | {"folder": "/srv/../srv/machines"}
    with pytest.raises(ConfigurationError, match=r"there\.folder: is that of provider here"):
        server_config.parse({"providers": {"here": host, "there": twin}})
    server_config.parse({"providers": {"here": host, "there": host | {"folder": "/srv/other"}}})


def test_a_controller_that_is_root_needs_an_account_for_the_machines(
    host: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(ConfigurationError, match="this controller runs as root"):
        server_config.parse({"providers": {"here": host}})
    found = server_config.parse({"providers": {"here": host | {"user": "nobody"}}})
    provider = found.providers["here"]
    assert isinstance(provider, QemuProvider)
    assert provider.user == "nobody"


def test_a_program_that_is_missing_is_named(
    host: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None if "iso" in name else f"/bin/{name}")
    with pytest.raises(ConfigurationError, match="needs the program genisoimage"):
        server_config.parse({"providers": {"here": host}})
