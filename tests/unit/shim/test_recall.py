"""The clouds' announcements that they take a machine back, read from doubles of their services."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from fairlead.wire.node import Recall
from shim import recall
from shim.recall import Ec2, Gcp, RecallWatch, metadata_here
from tests.doubles.metadata import MetadataService, metadata_service
from tests.support.waiting import eventually

ACTION = "/latest/meta-data/spot/instance-action"
GCP = "/computeMetadata/v1/instance/"


@pytest.fixture
def service() -> Iterator[MetadataService]:
    with metadata_service() as found:
        yield found


def test_ec2_says_when_it_takes_a_spot_instance_back(service: MetadataService) -> None:
    cloud = Ec2("127.0.0.1", service.port)
    assert cloud.recall() is None
    service.answers[ACTION] = '{"action": "terminate", "time": "2026-11-28T08:22:00Z"}'
    found = cloud.recall()
    assert found is not None
    assert found.at == datetime(2026, 11, 28, 8, 22, tzinfo=UTC).timestamp()
    assert found.why == "EC2 takes the spot instance back (terminate)"
    assert service.asked.count(("PUT", "/latest/api/token")) == 1


def test_a_token_of_ec2_that_has_expired_is_renewed(service: MetadataService) -> None:
    cloud = Ec2("127.0.0.1", service.port)
    assert cloud.recall() is None
    service.token = "token-2"
    assert cloud.recall() is None
    assert service.asked.count(("PUT", "/latest/api/token")) == 2


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"action": "stop", "time": "soon"}'])
async def test_an_answer_that_makes_no_sense_recalls_nothing(
    service: MetadataService, text: str
) -> None:
    service.answers[ACTION] = text
    told: list[str] = []
    watch = RecallWatch(Ec2("127.0.0.1", service.port), lambda: told.append("recall"))
    await watch.look()
    assert (watch.found, told) == (None, [])


@pytest.mark.parametrize(
    ("answers", "found"),
    [
        ({"preempted": "FALSE", "maintenance-event": "NONE"}, None),
        ({"preempted": "FALSE", "maintenance-event": "MIGRATE_ON_HOST_MAINTENANCE"}, None),
        ({"preempted": "TRUE"}, Recall(at=1030.0, why="GCP takes the spot VM back")),
        (
            {"preempted": "FALSE", "maintenance-event": "TERMINATE_ON_HOST_MAINTENANCE"},
            Recall(at=1060.0, why="GCP ends the VM for maintenance of its host"),
        ),
    ],
)
def test_gcp_says_that_it_takes_a_vm_back(
    service: MetadataService, answers: dict[str, str], found: Recall | None
) -> None:
    service.answers = {f"{GCP}{name}": value for name, value in answers.items()}
    assert Gcp("127.0.0.1", service.port, now=lambda: 1000.0).recall() == found


async def test_a_service_that_does_not_answer_recalls_nothing(service: MetadataService) -> None:
    watch = RecallWatch(Gcp("127.0.0.1", 1), lambda: None)
    await watch.look()
    assert watch.found is None


async def test_a_recall_is_told_once_and_stays(
    service: MetadataService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recall, "LOOK_SECONDS", 0.001)
    told: list[str] = []
    cloud = Gcp("127.0.0.1", service.port)
    service.answers = {f"{GCP}preempted": "FALSE", f"{GCP}maintenance-event": "NONE"}
    watch = RecallWatch(cloud, lambda: told.append("recall"))
    watch.start()
    await eventually(lambda: len(service.asked) > 4)
    service.answers[f"{GCP}preempted"] = "TRUE"
    await eventually(lambda: told != [])
    await watch.close()
    assert watch.found is not None
    assert told == ["recall"]


@pytest.mark.parametrize(
    ("vendor", "kind"),
    [("Amazon EC2\n", Ec2), ("Google\n", Gcp), ("QEMU\n", None), (None, None)],
)
def test_only_a_clouds_machine_is_asked(
    tmp_path: Path, vendor: str | None, kind: type[object] | None
) -> None:
    if vendor is not None:
        (tmp_path / "sys_vendor").write_text(vendor)
    found = metadata_here(tmp_path)
    assert found is None if kind is None else isinstance(found, kind)
