"""The front of EC2 turns computers on and off as EC2 does, and its metadata service is EC2's."""

from __future__ import annotations

import base64
import urllib.request
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.error import HTTPError

import botocore.session
import pytest

from tests.doubles.metadata import MetadataService, metadata_service
from tests.support.ec2_account import front_in_thread, moto_server
from tests.support.ec2_front import Ec2Front

REGION = "eu-central-1"
IMAGE = "ami-0123456789abcdef0"


class Lamps:
    """Computers that only note what happens to them."""

    def __init__(self) -> None:
        self.on: dict[str, tuple[str, str]] = {}
        self.off: set[str] = set()

    def boot(self, instance: str, address: str, wish: Mapping[str, str]) -> None:
        self.on[instance] = address, base64.b64decode(wish["UserData"]).decode()

    def end(self, instance: str) -> None:
        self.on.pop(instance, None)
        self.off.discard(instance)

    def powered_off(self) -> frozenset[str]:
        return frozenset(self.off)


@pytest.fixture(scope="module")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with moto_server(tmp_path_factory.mktemp("ec2")) as url:
        yield url


@pytest.fixture
def lamps() -> Lamps:
    return Lamps()


@pytest.fixture
def front(moto: str, lamps: Lamps) -> Iterator[Ec2Front]:
    with front_in_thread(moto, lamps) as made:
        yield made


@pytest.fixture
def ec2(front: Ec2Front, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "fairlead-tests")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "canary-of-ec2")
    client = botocore.session.Session().create_client(
        "ec2", region_name=REGION, endpoint_url=front.url
    )
    yield client
    client.close()


def run(ec2: Any, token: str) -> str:
    wish = {"ImageId": IMAGE, "MinCount": 1, "MaxCount": 1, "InstanceType": "t3.medium"}
    answer = ec2.run_instances(**wish, ClientToken=token, UserData="#cloud-config\n")
    return str(answer["Instances"][0]["InstanceId"])


def described(ec2: Any, instance: str) -> Any:
    ((found,),) = (
        one["Instances"] for one in ec2.describe_instances(InstanceIds=[instance])["Reservations"]
    )
    return found


def test_a_machine_is_turned_on_once_with_its_user_data_at_the_address_that_lists_tell(
    ec2: Any, lamps: Lamps
) -> None:
    made = run(ec2, "once")
    assert run(ec2, "once") == made
    assert lamps.on == {made: (described(ec2, made)["PublicIpAddress"], "#cloud-config\n")}
    assert lamps.on[made][0].startswith("127.77.")


def test_the_end_of_a_machine_cuts_its_power(ec2: Any, lamps: Lamps) -> None:
    made, other = run(ec2, "first"), run(ec2, "other")
    ec2.terminate_instances(InstanceIds=[made])
    assert set(lamps.on) == {other}
    assert described(ec2, made)["State"]["Name"] == "terminated"


def test_a_machine_that_turns_itself_off_has_ended(ec2: Any, lamps: Lamps) -> None:
    made, other = run(ec2, "itself"), run(ec2, "stays")
    lamps.off.add(made)
    assert described(ec2, made)["State"]["Name"] == "terminated"
    assert described(ec2, other)["State"]["Name"] == "running"
    assert set(lamps.on) == {other}


@pytest.fixture
def service() -> Iterator[MetadataService]:
    with metadata_service() as found:
        found.answers = {
            "/latest/user-data": "#cloud-config\n",
            "/latest/meta-data/instance-id": "i-1",
            "/latest/meta-data/placement/region": REGION,
            "/latest/meta-data/placement/availability-zone": f"{REGION}a",
        }
        yield found


def get(service: MetadataService, path: str, token: str | None) -> str:
    headers = {} if token is None else {"X-aws-ec2-metadata-token": token}
    wish = urllib.request.Request(f"http://127.0.0.1:{service.port}{path}", headers=headers)
    with urllib.request.urlopen(wish, timeout=30) as answer:
        return str(answer.read().decode())


def test_a_metadata_service_lists_its_folders_in_each_version(service: MetadataService) -> None:
    names = "instance-id\nplacement/"
    assert get(service, "/latest/meta-data/", service.token) == names
    assert get(service, "/2021-03-23/meta-data/", service.token) == names
    zones = "availability-zone\nregion"
    assert get(service, "/latest/meta-data/placement/", service.token) == zones
    assert get(service, "/latest/meta-data/placement", service.token) == zones
    assert get(service, "/2021-03-23/user-data", service.token) == "#cloud-config\n"


@pytest.mark.parametrize("token", [None, "old"])
def test_a_metadata_service_tells_nothing_without_its_token(
    service: MetadataService, token: str | None
) -> None:
    with pytest.raises(HTTPError, match="401"):
        get(service, "/latest/user-data", token)
    assert service.refused == ["/latest/user-data"]
