"""A fleet rents a machine of EC2 that really boots: moto behind the front makes the record, and a
virtual machine starts with the user-data of that RunInstances by cloud-init's Ec2 data source."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import botocore.session
import pytest

from tests.support.ec2_account import front_in_thread, moto_server
from tests.support.ec2_front import Ec2Front
from tests.support.processes import ControllerProcess
from tests.support.waiting import wait_until
from tests.vm.conftest import Figures
from tests.vm.ec2_computers import VirtualComputers
from tests.vm.jobs import Jobs
from tests.vm.machine import BOOT_SECONDS
from tests.vm.test_rented_machine import machines

REGION, ZONE, TYPE = "eu-central-1", "eu-central-1a", "t3.medium"
_METADATA = "http://169.254.169.254/latest"
_WITH_TOKEN = f"PUT {_METADATA}/api/token"


class Account:
    """EC2 as the controller sees it, and what stands behind it."""

    def __init__(self, moto: str, front: Ec2Front, computers: VirtualComputers) -> None:
        self.front = front
        self.computers = computers
        self.ec2: Any = botocore.session.Session().create_client(
            "ec2", region_name=REGION, endpoint_url=moto
        )

    def provider(self) -> dict[str, Any]:
        image = self.ec2.register_image(Name="fairlead", RootDeviceName="/dev/sda1")["ImageId"]
        subnets = self.ec2.describe_subnets()["Subnets"]
        (subnet,) = [one["SubnetId"] for one in subnets if one["AvailabilityZone"] == ZONE]
        group = self.ec2.describe_security_groups()["SecurityGroups"][0]["GroupId"]
        region = {"image": image, "subnets": {ZONE: subnet}, "security_groups": [group]}
        return {
            "type": "aws",
            "regions": {REGION: region},
            "endpoint": self.front.url,
            "disk": "30GB",
        }

    def states(self) -> dict[str, str]:
        """Return the state of each machine that the account has had."""
        reservations = self.ec2.describe_instances()["Reservations"]
        every = [one for each in reservations for one in each["Instances"]]
        return {one["InstanceId"]: one["State"]["Name"] for one in every}


@pytest.fixture
def account(
    image_with_busybox: Path, accel: str, vm_folder: Path, tmp_path: Path
) -> Iterator[Account]:
    computers = VirtualComputers(vm_folder / "ec2", image_with_busybox, accel)
    with pytest.MonkeyPatch.context() as patch, moto_server(tmp_path) as moto:
        patch.setenv("AWS_ACCESS_KEY_ID", "fairlead-tests")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "canary-of-ec2")
        patch.setenv("AWS_ENDPOINT_URL_STS", moto)
        with front_in_thread(moto, computers) as front:
            front.spot_prices, front.zones = {TYPE: 0.02}, (ZONE,)
            try:
                yield Account(moto, front, computers)
            finally:
                computers.close()


@pytest.fixture
def renting(account: Account, tmp_path: Path) -> Iterator[ControllerProcess]:
    config = tmp_path / "renting.yaml"
    config.write_text(json.dumps({"providers": {"aws": account.provider()}}))
    started = ControllerProcess(tmp_path / "renting", "--config", config)
    started.start()
    yield started
    started.close()


def rent(controller: ControllerProcess, folder: Path, **fields: Any) -> None:
    """Make the fleet `burst` rent machines, with these fields."""
    policy = {
        "provider": "aws",
        "nodes": "0..1",
        "instance_types": [TYPE],
        "spot": "never",
        "idle_duration": "10s",
        "boot_limit": "40m",
        **fields,
    }
    file = folder / "fleet.yaml"
    fleet = {"type": "fleet", "name": "burst", "machines": policy, "budget": {"per_hour": 1}}
    file.write_text(json.dumps(fleet))
    controller.cli("apply", "-f", file).succeeded()


@contextmanager
def consoles(account: Account) -> Iterator[None]:
    """Show the machines' consoles if what is in here fails."""
    try:
        yield
    except BaseException:
        sys.stderr.write(account.computers.tail())
        raise


def wait_for_machines(controller: ControllerProcess, count: int, status: str) -> None:
    wait_until(
        lambda: [one["status"] for one in machines(controller)] == [status] * count,
        BOOT_SECONDS,
        f"{count} machines to be {status}",
    )


def test_a_job_gets_a_machine_of_ec2_that_boots_by_its_own_user_data(
    renting: ControllerProcess, account: Account, tmp_path: Path, figures: Figures
) -> None:
    rent(renting, tmp_path)
    jobs = Jobs(renting, tmp_path)
    ask = f"wget -q -T 5 -O - {_METADATA}/user-data || echo no metadata for jobs"
    with consoles(account), figures.timed("seconds from apply to the log of a job, at EC2"):
        jobs.start("hello", "echo hello from EC2", ask, fleets=["burst"])
        wait_until(lambda: machines(renting) != [], BOOT_SECONDS, "the order")
        assert machines(renting)[0]["status"] == "provisioning"
        wait_until(lambda: "no metadata for jobs" in jobs.log("hello"), BOOT_SECONDS, "its log")
    assert "hello from EC2" in jobs.log("hello")
    ((instance,), (wish,)) = account.computers.booted, account.front.wishes
    service = account.computers.service_of(instance)
    # IMDSv2: cloud-init and the shim ask with a token, and nobody else reaches it.
    assert ("PUT", "/latest/api/token") in service.asked
    assert service.refused == []
    assert [path for _, path in service.asked if path.endswith("/user-data")] != []
    assert wish["MetadataOptions.HttpTokens"] == "required"
    wait_until(lambda: machines(renting) == [], BOOT_SECONDS, "the idle machine to end")
    (ended,) = machines(renting, "--all")
    assert (ended["status"], ended["end"]) == ("terminated", "idle")
    assert account.states() == {instance: "terminated"}
    assert account.computers.running == frozenset()


def test_a_spot_notice_drains_the_machine_and_the_job_goes_on_on_demand(
    renting: ControllerProcess, account: Account, tmp_path: Path, figures: Figures
) -> None:
    rent(renting, tmp_path, nodes="0..2", spot="auto")
    jobs = Jobs(renting, tmp_path)
    again = {"on_events": ["interruption"]}
    with consoles(account):
        jobs.start("trained", "echo begun", "sleep 3600", fleets=["burst"], retry=again)
        wait_until(lambda: "begun" in jobs.log("trained"), BOOT_SECONDS, "the first attempt")
        (spot,) = account.computers.booted
        bid = account.front.wishes[0]["InstanceMarketOptions.SpotOptions.MaxPrice"]
        assert float(bid) == pytest.approx(0.022)
        account.computers.recall(spot, 120.0)
        with figures.timed("seconds from a spot notice to the end of its attempt"):
            wait_until(
                lambda: jobs.attempts("trained")[0]["termination_reason"] is not None,
                120.0,
                "the notice to end the attempt",
            )
        assert jobs.attempts("trained")[0]["termination_reason"] == "interrupted_by_no_capacity"
        wait_until(lambda: len(account.computers.booted) == 2, BOOT_SECONDS, "the next machine")
        second = account.front.wishes[1]
        assert not [name for name in second if name.startswith("InstanceMarketOptions")]
        wait_until(lambda: account.states()[spot] == "terminated", BOOT_SECONDS, "the end of spot")
        wait_until(lambda: len(jobs.attempts("trained")) == 2, BOOT_SECONDS, "the next attempt")
        jobs.wait_for_log("trained", "begun")
    assert jobs.attempts("trained")[0]["node"] != jobs.attempts("trained")[1]["node"]


def test_a_machine_that_hears_no_controller_powers_itself_off_and_costs_no_more(
    renting: ControllerProcess, account: Account, tmp_path: Path, figures: Figures
) -> None:
    rent(renting, tmp_path, nodes="1..1", leash="60s")
    with consoles(account):
        wait_for_machines(renting, 1, "idle")
        (kept,) = machines(renting)
        (instance,) = account.computers.running
        renting.kill9()
        with figures.timed("seconds from the controller's end to that of a machine, leash 60 s"):
            wait_until(
                lambda: account.computers.powered_off() == {instance}, BOOT_SECONDS, "its leash"
            )
    renting.start()
    rent(renting, tmp_path, nodes="0..1")

    def has_ended() -> bool:
        every = {one["name"]: one["status"] for one in machines(renting, "--all")}
        return bool(every[kept["name"]] == "terminated")

    wait_until(has_ended, BOOT_SECONDS, "the record to end")
    assert account.states()[instance] == "terminated"
