"""`fairlead service`: what it shows of a service, and how it brings a version back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.unit.api.conftest import Controller
from tests.unit.cli.conftest import Fairlead, PlayedNode
from tests.unit.cli.output import of


def service(folder: Path, command: str) -> str:
    file = folder / "web.yaml"
    lines = ("type: service", "name: web", "image: busybox", "port: 80", "auth: false")
    file.write_text("\n".join((*lines, f"commands: [{command}]", "")))
    return str(file)


@pytest.fixture
async def changed(start: Fairlead, tmp_path: Path, node: PlayedNode) -> Fairlead:
    """The service `web`: deployment 0 runs on n1, deployment 1 is being rolled out."""
    await of(start, "apply", "-d", "-f", service(tmp_path, "serve"))
    await node.runs("web")
    await of(start, "apply", "-d", "-f", service(tmp_path, "serve --fast"))
    return start


async def test_show_tells_each_replica_with_its_version_and_why_it_gets_no_requests(
    changed: Fairlead,
) -> None:
    shown = (await of(changed, "service", "show", "web")).out.decode().splitlines()
    assert shown[0].split(" ", 2)[2] == "running, deployment 1"
    assert shown[1] == "path /services/web/, open to all"
    group = next(line for line in shown if line.startswith("main "))
    assert group.split()[:3] == ["main", "1", "1..1"]
    old, new = (line.split() for line in shown if line.startswith("main/"))
    assert old[:4] == ["main/0", "0", "running", "n1"]
    assert new[:4] == ["main/1", "1", "submitted", "-"]


async def test_history_lists_the_deployments_and_their_states(changed: Fairlead) -> None:
    table = (await of(changed, "service", "history", "web")).out.decode().splitlines()
    assert [line.split()[:3] for line in table[1:]] == [
        ["0", "replaced", "admin"],
        ["1", "rolling", "admin"],
    ]
    document = json.loads((await of(changed, "service", "history", "web", "--json")).out)
    assert [one["number"] for one in document["deployments"]] == [0, 1]


async def test_history_tells_that_a_service_ended_during_a_rollout(
    start: Fairlead, tmp_path: Path
) -> None:
    await of(start, "apply", "-d", "-f", service(tmp_path, "serve"))
    assert (await of(start, "stop", "web")).status == 0
    table = (await of(start, "service", "history", "web")).out.decode().splitlines()
    assert table[1].startswith("0 ")
    assert table[1].endswith("the service ended before it was rolled out")


async def test_rollback_to_a_version_begins_a_deployment_with_its_content(
    changed: Fairlead, controller: Controller
) -> None:
    refused = await of(changed, "service", "rollback", "web", "--to", "7")
    assert (refused.status, "no deployment 7 to go back to (kept: 0)" in refused.err) == (1, True)
    result = await of(changed, "service", "rollback", "web", "--to", "0")
    assert result.out == b"web: deployment 2 brings deployment 0 back\n"
    run = (await controller.service.runs.lookup.get("web")).run
    assert (run.deployment, run.deployments[-1].of) == (2, 0)


async def test_a_task_is_no_service(start: Fairlead, task: str) -> None:
    await of(start, "apply", "-d", "-f", task)
    result = await of(start, "service", "show", "hello")
    assert (result.status, "hello is a task, no service" in result.err) == (1, True)


async def test_a_key_for_a_service_that_is_not_there_says_so(changed: Fairlead) -> None:
    early = await of(changed, "service", "key", "add", "later")
    assert early.out.startswith(b"flk_")
    assert "has no service later now; the key opens the next one" in early.err
    assert (await of(changed, "service", "key", "add", "web")).err == ""
