"""A machine of each cloud becomes a node by the user-data of its order alone.

The cloud is a double; the machine is an sshd and a shim of this host, made from that user-data."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import botocore.session
import pytest

from tests.doubles.gcp import IMAGE as GCP_IMAGE
from tests.doubles.gcp import PROJECT, GcpDouble, gcp
from tests.doubles.hetzner import IMAGE, TOKEN, HetznerDouble, hetzner
from tests.support.cloud_computers import CloudComputers
from tests.support.ec2_account import front_in_thread, moto_server
from tests.support.in_thread import served_in_thread
from tests.support.processes import ControllerProcess
from tests.support.testbed import ControllerFactory
from tests.support.waiting import LONG, wait_until

REGION, ZONE = "eu-central-1", "eu-central-1a"


class Account(NamedTuple):
    """`provider`: its entry in the controller's file. `machines`: address and user-data of each
    machine that runs, by its id."""

    provider: dict[str, Any]
    instance_type: str
    machines: Callable[[], dict[str, tuple[str, str]]]


@contextmanager
def _of_gcp(folder: Path, public: str) -> Iterator[Account]:
    def machines(double: GcpDouble) -> dict[str, tuple[str, str]]:
        user_data = {
            wish["name"]: item["value"]
            for wish in list(double.wishes)
            for item in wish["metadata"]["items"]
            if item["key"] == "user-data"
        }
        return {
            name: (one["networkInterfaces"][0]["accessConfigs"][0]["natIP"], user_data[name])
            for (_, name), one in list(double.instances.items())
        }

    with served_in_thread(gcp()) as double:
        double.public = public
        provider = {
            "type": "gcp",
            "project": PROJECT,
            "image": GCP_IMAGE,
            "regions": {"us-central1": {"zones": ["us-central1-a"]}},
            "credentials_file": str(double.write_key(folder / "key.json")),
            "endpoint": double.url,
        }
        yield Account(provider, "g2-standard-4", lambda: machines(double))


@contextmanager
def _of_hetzner(folder: Path, public: str) -> Iterator[Account]:
    def machines(double: HetznerDouble) -> dict[str, tuple[str, str]]:
        user_data = {wish["name"]: wish["user_data"] for wish in list(double.wishes)}
        return {
            str(number): (one["public_net"]["ipv4"]["ip"], user_data[one["name"]])
            for number, one in list(double.servers.items())
        }

    token = folder / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    with served_in_thread(hetzner()) as double:
        double.public = public
        provider = {
            "type": "hetzner",
            "token_file": str(token),
            "locations": ["fsn1"],
            "image": IMAGE,
            "endpoint": double.url,
        }
        yield Account(provider, "cx23", lambda: machines(double))


@contextmanager
def _of_aws(folder: Path, public: str) -> Iterator[Account]:
    with pytest.MonkeyPatch.context() as patch, moto_server(folder) as moto:
        patch.setenv("AWS_ACCESS_KEY_ID", "fairlead-tests")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "canary-of-ec2")
        patch.setenv("AWS_ENDPOINT_URL_STS", moto)
        with front_in_thread(moto) as front:
            front.address = f"{public}.1"
            session = botocore.session.Session()
            ec2: Any = session.create_client("ec2", region_name=REGION, endpoint_url=front.url)
            image = ec2.register_image(Name="fairlead", RootDeviceName="/dev/sda1")["ImageId"]
            subnets = ec2.describe_subnets()["Subnets"]
            (subnet,) = [one["SubnetId"] for one in subnets if one["AvailabilityZone"] == ZONE]
            group = ec2.describe_security_groups()["SecurityGroups"][0]["GroupId"]
            place = {"image": image, "subnets": {ZONE: subnet}, "security_groups": [group]}

            def machines() -> dict[str, tuple[str, str]]:
                found = ec2.describe_instances()["Reservations"]
                every = [one for each in found for one in each["Instances"]]
                live = [one for one in every if one["State"]["Name"] in ("pending", "running")]
                wishes = list(front.wishes)
                assert len(live) <= len(wishes) <= 1, "there is one machine"
                return {
                    one["InstanceId"]: (
                        one["PublicIpAddress"],
                        base64.b64decode(wishes[0]["UserData"]).decode(),
                    )
                    for one in live
                }

            provider = {"type": "aws", "regions": {REGION: place}, "endpoint": front.url}
            try:
                yield Account(provider, "t3.medium", machines)
            finally:
                ec2.close()


@pytest.fixture
def computers(testbed_folder: Path, numbers: Iterator[int]) -> Iterator[CloudComputers]:
    found = CloudComputers(testbed_folder / f"clouds{next(numbers)}")
    yield found
    found.close()


def _apply(controller: ControllerProcess, folder: Path, **document: Any) -> None:
    file = folder / f"{document['name']}.yaml"
    file.write_text(json.dumps(document))
    controller.cli("apply", "-d", "-f", file).succeeded()


@pytest.mark.parametrize("cloud", [_of_gcp, _of_hetzner, _of_aws])
def test_a_machine_becomes_a_node_by_the_user_data_of_its_order(
    cloud: Callable[[Path, str], AbstractContextManager[Account]],
    computers: CloudComputers,
    controller_process: ControllerFactory,
    tmp_path: Path,
) -> None:
    with cloud(tmp_path, computers.public) as account:
        _rent_and_give_back(account, computers, controller_process, tmp_path)


def _rent_and_give_back(
    account: Account,
    computers: CloudComputers,
    controller_process: ControllerFactory,
    folder: Path,
) -> None:
    config = folder / "controller.yaml"
    config.write_text(json.dumps({"providers": {"cloud": account.provider}}))
    controller = controller_process("--config", config)
    rented = {
        "provider": "cloud",
        "nodes": "0..1",
        "instance_types": [account.instance_type],
        "spot": "never",
        "idle_duration": "1h",
    }
    _apply(controller, folder, type="fleet", name="burst", machines=rented)
    need = {"cpu": 1, "memory": "64MB"}
    job = {"commands": ["echo hello from a cloud"], "fleets": ["burst"], "resources": need}
    _apply(controller, folder, type="task", name="hello", **job)

    def is_done() -> bool:
        computers.follow(account.machines())
        run: dict[str, Any] = controller.cli("inspect", "hello", "--json").succeeded().json
        return bool(run["status"] == "done")

    wait_until(is_done, LONG, "the job on a machine of the cloud")
    assert "hello from a cloud" in controller.cli("logs", "hello").succeeded().output
    (computer,) = computers.running.values()
    # What others may have read of its order is worth nothing any more.
    wait_until(lambda: computer.host_key() != computer.first_key, LONG, "a host key of its own")
    rented["idle_duration"] = "1s"
    _apply(controller, folder, type="fleet", name="burst", machines=rented)

    def has_ended() -> bool:
        listed = controller.cli("machine", "list", "--all", "--json").succeeded().json
        return [one["status"] for one in listed["machines"]] == ["terminated"]

    wait_until(has_ended, LONG, "the idle machine to end")
    assert account.machines() == {}
