"""Images of a private registry: asked for with a password, and the same when a job is retried."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.docker_daemon import DockerDaemon
from tests.support.docker_registry import DockerRegistry
from tests.support.images import busybox_root
from tests.support.lab import UNTIL_ASKED, RunLab
from tests.support.testbed import ControllerFactory, ProxyFactory, ShimFactory
from tests.support.waiting import wait_until

pytestmark = pytest.mark.e2e

PASSWORD = "s3cret-of-the-registry"


@pytest.fixture(scope="module")
def private(testbed_folder: Path) -> Iterator[DockerRegistry]:
    registry = DockerRegistry(testbed_folder / "private-registry", f"anna:{PASSWORD}")
    registry.start()
    yield registry
    registry.stop()


@pytest.fixture(scope="module")
def words(dockerd: DockerDaemon, testbed_folder: Path) -> dict[str, str]:
    """Two images that differ in what /word says."""
    made = {}
    for word in ("first", "second"):
        root = busybox_root(testbed_folder / f"word-{word}")
        (root / "word").write_text(f"{word}\n")
        made[word] = dockerd.import_image(f"word:{word}", root)
    return made


def login(password: str) -> dict[str, str]:
    return {"username": "anna", "password": password}


def test_a_private_image_runs_with_the_users_password(
    lab: RunLab, private: DockerRegistry, words: dict[str, str]
) -> None:
    image = private.push(lab.dockerd, words["first"], "team/tool:1")
    result = lab.apply(
        "private", image=image, commands=["cat /word"], registry_auth=login(PASSWORD)
    )
    assert result.succeeded().output == "first\n"
    digest = lab.dockerd.docker("inspect", "-f", "{{index .RepoDigests 0}}", image)
    assert digest.startswith(f"{private.address}/team/tool@sha256:")


def test_a_run_gets_an_image_that_another_pulled_with_a_password_only_from_the_registry(
    lab: RunLab, private: DockerRegistry, words: dict[str, str]
) -> None:
    """By its tag, its digest or its id; what the operator has brought is open to all."""
    image = private.push(lab.dockerd, words["second"], "team/shared:1")
    show = {"commands": ["cat /word"]}
    lab.apply("first", image=image, registry_auth=login(PASSWORD), **show).succeeded()
    by_digest = lab.dockerd.docker("inspect", "-f", "{{index .RepoDigests 0}}", image)
    by_id = lab.dockerd.docker("inspect", "-f", "{{.Id}}", image)
    for number, name in enumerate((image, by_digest, by_id, by_id[7:19])):
        for policy in ("if-not-present", "never", "always"):
            refused = lab.apply(f"none{number}-{policy}", image=name, pull_policy=policy, **show)
            assert (refused.status, refused.output) == (1, "")
            assert lab.attempts(f"none{number}-{policy}")[0]["termination_reason"] == (
                "image_pull_failed"
            )
    wrong = lab.apply("wrong2", image=image, registry_auth=login("hunter2"), **show)
    assert wrong.status == 1
    assert f"user name or password of registry_auth for {image}" in wrong.errors
    right = lab.apply("right", image=image, registry_auth=login(PASSWORD), **show)
    assert right.succeeded().output == "second\n"
    assert lab.apply("own", image=words["second"], **show).succeeded().output == "second\n"


def test_an_operator_may_open_private_images_to_all(
    shim_process: ShimFactory,
    controller_process: ControllerFactory,
    lab: RunLab,
    private: DockerRegistry,
    words: dict[str, str],
    tmp_path: Path,
) -> None:
    controller = controller_process()
    lab.sshd.authorize(controller.public_key)
    shim = shim_process("docker", "--cpus", "1", "--memory", "2GiB", "--private-images", "open")
    made = RunLab(controller, shim, lab.dockerd, lab.sshd, lab.sshd.port, tmp_path, lab.image)
    made.connect_node("n1", "--host-key", lab.sshd.host_key)
    image = private.push(lab.dockerd, words["first"], "team/open:1")
    made.apply("one", image=image, commands=["true"], registry_auth=login(PASSWORD)).succeeded()
    assert made.apply("two", image=image, commands=["cat /word"]).succeeded().output == "first\n"


def test_a_wrong_password_is_said_and_shown_nowhere(
    lab: RunLab, private: DockerRegistry, words: dict[str, str]
) -> None:
    image = private.push(lab.dockerd, words["first"], "team/tool:2")
    lab.submit("wrong", image=image, commands=["true"], registry_auth=login("hunter2"))
    lab.wait_for("wrong", "failed")
    (attempt,) = lab.attempts("wrong")
    assert attempt["termination_reason"] == "image_pull_failed"
    assert f"user name or password of registry_auth for {image}" in attempt["message"]
    assert "hunter2" not in str(lab.inspect("wrong"))


@pytest.mark.parametrize("kills", [1, 3])
def test_a_shim_killed_during_a_private_pull_gets_the_password_again(
    lab: RunLab,
    private: DockerRegistry,
    words: dict[str, str],
    cuttable_proxy: ProxyFactory,
    kills: int,
) -> None:
    network = cuttable_proxy(private.port)
    pushed = private.push(lab.dockerd, words["first"], f"team/slow:{kills}")
    image = pushed.replace(f":{private.port}/", f":{network.port}/")
    network.stall()

    def pull_begins(after: int) -> int:
        wait_until(lambda: network.connections > after, what="a pull")
        return network.connections

    lab.submit("slow", image=image, commands=["cat /word"], registry_auth=login(PASSWORD))
    seen = pull_begins(after=0)
    for _ in range(kills):
        lab.shim.restart()
        seen = pull_begins(after=seen)
    network.restore()
    lab.wait_for("slow", "done")
    assert (len(lab.attempts("slow")), lab.log("slow")) == (1, b"first\n")


def test_a_retry_runs_the_image_of_the_first_attempt_also_when_its_tag_has_moved(
    lab: RunLab, private: DockerRegistry, words: dict[str, str]
) -> None:
    image = private.push(lab.dockerd, words["first"], "team/moving:1")
    lab.submit(
        "retried",
        image=image,
        commands=["cat /word", UNTIL_ASKED, "exit 1"],
        registry_auth=login(PASSWORD),
        pull_policy="always",
        retry={"on_events": ["error"], "max_failures": 1},
    )
    lab.wait_for("retried", "running")
    private.push(lab.dockerd, words["second"], "team/moving:1")
    lab.let_go("retried")
    lab.wait_for_log("retried", b"first")
    wait_until(lambda: len(lab.attempts("retried")) == 2, what="the second attempt")
    lab.wait_for("retried", "running")
    lab.wait_for_log("retried", b"first")
    lab.let_go("retried")
    lab.wait_for("retried", "failed")
    assert len(lab.attempts("retried")) == 2
    assert lab.log("retried") == b"first\n"
    now = lab.apply(
        "moved",
        image=image,
        commands=["cat /word"],
        registry_auth=login(PASSWORD),
        pull_policy="always",
    )
    assert now.succeeded().output == "second\n"
