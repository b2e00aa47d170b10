"""What a controller with rented machines needs of its file when it starts."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import asyncssh
import msgspec
import pytest

from controller.daemon.options import CannotStart, Options
from controller.daemon.providers import (
    Catalogs,
    machine_settings,
    make_cloud,
    require_providers,
    warn_of_homeless_orphans,
    warn_of_unknown_users,
)
from controller.lifecycle.inventory import Budget, Spending
from controller.lifecycle.machines.model import MachineStatus
from controller.lifecycle.machines.reconcile import Traits
from controller.provider_config.aws import AwsProvider, AwsRegion
from controller.provider_config.gcp import GcpProvider, GcpRegion
from controller.provider_config.hetzner import HetznerProvider
from controller.provider_config.program import ExecProvider
from controller.provider_config.qemu import QemuPrograms, QemuProvider
from controller.provider_config.reading import ProviderConfig
from controller.store.accounts import User
from controller.store.base import Snapshot
from fairlead.model.spec import Role
from tests.doubles.memory_store import MemoryStore
from tests.unit.machines.parts import known_orphan, machine, offer

AWS = AwsProvider(
    regions={
        "eu-central-1": AwsRegion(
            image="ami-0123abcd", subnets={"eu-central-1a": "subnet-1"}, security_groups=("sg-1",)
        )
    }
)


def start(tmp_path: Path, region: str, status: MachineStatus, **providers: ProviderConfig) -> None:
    rented = machine("m1", offer=offer(region=region), status=status)
    options = Options(data=tmp_path, providers=providers)
    require_providers(options, Snapshot(machines=(rented,)))


def test_a_provider_with_a_live_machine_stays_in_the_file(tmp_path: Path) -> None:
    with pytest.raises(CannotStart, match="provider lab, which --config does not name"):
        start(tmp_path, "north", MachineStatus.TERMINATING)
    start(tmp_path, "north", MachineStatus.TERMINATED)
    # A program names its regions itself.
    start(tmp_path, "north", MachineStatus.JOINED, lab=ExecProvider(command=("/bin/true",)))


def test_a_budget_of_a_user_that_there_is_not_is_told_at_the_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    known = Snapshot(users=(User(name="ada", role=Role.USER, created_at=0.0),))
    mine = Spending(users={"ada": Budget(per_hour=1.0)})
    warn_of_unknown_users(Options(data=tmp_path, spending=mine), known)
    assert caplog.messages == []
    wrong = Spending(users={**mine.users, "adda": Budget(per_hour=1.0)})
    warn_of_unknown_users(Options(data=tmp_path, spending=wrong), known)
    assert caplog.messages == [
        "budget.users.adda limits nobody: there is no user adda; did you mean ada?"
    ]


def test_machines_without_a_record_that_nothing_ends_are_told_at_the_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    orphans = (
        known_orphan(id="o1", instance_id="i-1", traits=Traits(region="us-east-1")),
        known_orphan(id="o2", instance_id="i-2", traits=Traits(region="eu-central-1")),
        known_orphan(id="o3", instance_id="i-3", provider="former"),
        known_orphan(id="o4", instance_id="i-4", provider="former", gone_at=1.0),
        # A list of Hetzner has the machines of all locations.
        known_orphan(id="o5", instance_id="5", provider="hz", traits=Traits(region="nbg1")),
    )
    hetzner = HetznerProvider(token_file=tmp_path / "token", locations=("fsn1",), image=1)
    options = Options(data=tmp_path, providers={"lab": AWS, "hz": hetzner})
    warn_of_homeless_orphans(options, Snapshot(orphans=orphans))
    first, second = caplog.messages
    assert first.startswith(
        "machine lab/i-1 has no record: the controller's file names no region us-east-1"
    )
    assert second.startswith(
        "machine former/i-3 has no record: the controller's file names no provider former"
    )


def test_lists_are_of_the_regions_that_the_file_names_but_those_of_hetzner(tmp_path: Path) -> None:
    key = asyncssh.generate_private_key("ssh-ed25519")
    hetzner = HetznerProvider(token_file=tmp_path / "token", locations=("fsn1",), image=1)
    options = Options(data=tmp_path, providers={"lab": AWS, "hz": hetzner})
    made = machine_settings(options, key, None, Catalogs(MemoryStore(), ()))
    assert made is not None
    assert made.regions == {"lab": AWS.regions, "hz": None}


def test_a_region_with_a_live_machine_stays_in_the_file(tmp_path: Path) -> None:
    with pytest.raises(CannotStart, match=r"region us-east-1 of provider lab.*providers\.lab"):
        start(tmp_path, "us-east-1", MachineStatus.PROVISIONING, lab=AWS)
    start(tmp_path, "us-east-1", MachineStatus.TERMINATED, lab=AWS)
    start(tmp_path, "eu-central-1", MachineStatus.JOINED, lab=AWS)


def test_what_the_file_says_of_a_provider_is_known_again(tmp_path: Path) -> None:
    secret = "canary-of-argument"
    key, other = (asyncssh.generate_private_key("ssh-ed25519") for _ in range(2))
    programs = QemuPrograms(system="/bin/true", img="/bin/true", iso="/bin/true")
    qemu = QemuProvider(image=tmp_path / "i", folder=tmp_path, types={}, most=1, programs=programs)
    program = ExecProvider(command=("/bin/true", secret))

    def setups(key: asyncssh.SSHKey, **providers: ProviderConfig) -> Mapping[str, str]:
        options = Options(data=tmp_path, providers=providers)
        made = machine_settings(options, key, None, Catalogs(MemoryStore(), ()))
        assert made is not None
        return made.setups

    known = setups(key, lab=program, here=qemu)
    assert known == setups(key, here=qemu, lab=program)
    assert known["here"] == setups(key, here=qemu, lab=ExecProvider(command=("/bin/id",)))["here"]
    changed = msgspec.structs.replace(qemu, image=tmp_path / "j")
    assert known["here"] != setups(key, here=changed)["here"]
    # A reader of the database cannot try which argument it was.
    assert known["lab"] != setups(other, lab=program)["lab"]


def test_googles_library_that_is_not_installed_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "google.auth", None)
    for name in ("calls", "cloud"):
        monkeypatch.delitem(sys.modules, f"controller.clouds.gcp.{name}", raising=False)
    where = GcpRegion(zones=("us-central1-a",), subnetwork="default")
    settings = GcpProvider(project="mine", image="node", regions={"us-central1": where})
    with pytest.raises(CannotStart, match=r"install 'fairlead-daemons\[gcp\]'"):
        make_cloud("us", settings, Catalogs(MemoryStore(), ()))


def test_a_library_that_is_not_installed_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "botocore.config", None)
    for name in ("calls", "cloud"):
        monkeypatch.delitem(sys.modules, f"controller.clouds.aws.{name}", raising=False)
    with pytest.raises(CannotStart, match=r"install 'fairlead-daemons\[aws\]'"):
        make_cloud("eu", AWS, Catalogs(MemoryStore(), ()))
