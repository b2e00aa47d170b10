"""Images that are on the node before a job asks: those of its fleet, and of a nominated job."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.daemons import DaemonFailed
from tests.support.docker_daemon import DockerDaemon
from tests.support.docker_registry import DockerRegistry
from tests.support.images import busybox_root
from tests.support.lab import UNTIL_ASKED, RunLab
from tests.support.planted_secrets import in_files
from tests.support.testbed import ControllerFactory, ShimFactory
from tests.support.waiting import wait_until

pytestmark = pytest.mark.e2e

PASSWORD = "s3cret-of-the-fleet"


@pytest.fixture(scope="module")
def private(testbed_folder: Path) -> Iterator[DockerRegistry]:
    registry = DockerRegistry(testbed_folder / "registry-ahead", f"anna:{PASSWORD}")
    registry.start()
    yield registry
    registry.stop()


@pytest.fixture(scope="module")
def tool(dockerd: DockerDaemon, testbed_folder: Path) -> str:
    root = busybox_root(testbed_folder / "ahead")
    (root / "word").write_text("ahead\n")
    return dockerd.import_image("ahead:made", root)


def login(password: str = PASSWORD) -> dict[str, str]:
    return {"username": "anna", "password": password}


def is_here(lab: RunLab, image: str) -> bool:
    try:
        lab.dockerd.docker("image", "inspect", image)
    except DaemonFailed:
        return False
    return True


def pull_ahead(lab: RunLab, *images: str, **more: Any) -> None:
    fleet = {"type": "fleet", "name": "default", "images": images, **more}
    file = lab.folder / "fleet.yaml"
    file.write_text("".join(f"{name}: {json.dumps(value)}\n" for name, value in fleet.items()))
    lab.cli("apply", "-f", file).succeeded()


def shown(lab: RunLab) -> dict[str, tuple[str, str]]:
    images = json.loads(lab.cli("node", "show", "n1", "--json").succeeded().output)["images"]
    return {one["image"]: (one["state"], one["message"] or "") for one in images}


@pytest.fixture
def pulling(lab: RunLab) -> Iterator[RunLab]:
    yield lab
    pull_ahead(lab)


def test_a_private_image_of_the_fleet_is_there_before_its_first_job_and_open_to_no_other(
    pulling: RunLab, private: DockerRegistry, tool: str
) -> None:
    lab = pulling
    image, missing = (
        private.push(lab.dockerd, tool, "team/ahead:1"),
        f"{private.address}/team/none:1",
    )
    secret = lab.folder / "secret"
    secret.write_text(PASSWORD)
    lab.cli("secret", "set", "REGISTRY", "--shared", "--from-file", secret).succeeded()
    pull_ahead(lab, image, missing, registry_auth=login("${{ secrets.REGISTRY }}"))

    wait_until(lambda: shown(lab)[image] == ("here", ""), what=f"{image} on the node")
    assert is_here(lab, image)
    wait_until(lambda: shown(lab)[missing][0] == "failed", what="a failure")
    assert "team/none:1" in shown(lab)[missing][1]
    text = lab.cli("node", "show", "n1").succeeded().output
    assert "here" in text
    assert f"image {missing} could not be pulled ahead" in " ".join(text.split())
    assert not lab.node()["cordoned"]

    daemons = lab.shim.daemon, lab.controller.daemon
    assert not [one for one in daemons if PASSWORD in one.log.read_text(errors="replace")]
    secret.unlink()
    assert list(in_files(lab.folder, PASSWORD)) == []

    lab.apply("none", image=image, commands=["cat /word"])
    assert lab.attempts("none")[0]["termination_reason"] == "image_pull_failed"
    right = lab.apply("right", image=image, commands=["cat /word"], registry_auth=login())
    assert right.succeeded().output == "ahead\n"


def test_a_job_that_waits_for_its_victim_has_its_image_pulled_meanwhile(
    lab: RunLab, private: DockerRegistry, tool: str
) -> None:
    image = private.push(lab.dockerd, tool, "team/nominated:1")
    whole = {"cpu": 2, "memory": "64MiB"}
    stubborn = f"trap '' TERM INT; {UNTIL_ASKED}"
    lab.start("victim", commands=[stubborn], resources=whole, band="batch", stop_duration="120s")
    lab.submit(
        "urgent",
        image=image,
        commands=["cat /word"],
        resources=whole,
        band="interactive",
        registry_auth=login(),
    )
    wait_until(lambda: is_here(lab, image), what="the image of the nominated job")
    urgent = lab.inspect("urgent")
    assert urgent["status"] == "submitted"
    assert urgent["jobs"][0]["attempts"][0]["node"] is None
    assert "1 victim" in urgent["jobs"][0]["pending_reason"]
    assert shown(lab) == {}
    lab.let_go("victim")
    assert lab.wait_for("urgent")["status"] == "done"
    assert lab.log("urgent") == b"ahead\n"


def test_a_node_without_images_says_that_it_is_not_asked(
    shim_process: ShimFactory, controller_process: ControllerFactory, tmp_path: Path
) -> None:
    shim, controller = shim_process("process"), controller_process()
    controller.cli("node", "add", "n1", "--local", shim.socket).succeeded()
    file = tmp_path / "fleet.yaml"
    file.write_text("type: fleet\nname: default\nimages: ['busybox:1']\n")
    controller.cli("apply", "-f", file).succeeded()

    def why() -> str:
        node = json.loads(controller.cli("node", "show", "n1", "--json").succeeded().output)
        (image,) = node["images"]
        return str(image["message"]) if node["status"] == "connected" else ""

    assert "no images" in wait_until(why, what="the node")
