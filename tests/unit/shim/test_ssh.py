"""SSH into tasks on a node in memory: keys, ports, and what the jump user may reach and when."""

from __future__ import annotations

import asyncio
import json
import stat
from collections.abc import Callable
from pathlib import Path

import asyncssh
import msgspec
import pytest

from fairlead.wire.errors import Refused
from fairlead.wire.public_keys import public_key
from fairlead.wire.shim import NetworkMode, SshMode, SshRequest, TaskResources, TaskStatus
from shim.access.jump_keys import Visit, render
from shim.daemon import Daemon
from shim.state.records import TaskRecord
from tests.doubles.engines import MemoryEngine
from tests.doubles.failing_engines import HangingEngine
from tests.doubles.records import MemoryRecords
from tests.unit.shim.parts import CALLER, DEADLINE, Node, request, until, until_event

ANNA = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGPVyTRMIwzFz9YG3FyO9s0bnv5UZTB8JQcqSMUpLCfq anna@home"
BEN = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIIU2Wo2tRuDI0SdJ4jGEtIRTtBEfrkUwwGI9VkHNuhjK ben"


@pytest.fixture
def node(tmp_path: Path) -> Node:
    made = Node(tmp_path)
    made.settings = msgspec.structs.replace(made.settings, jump_keys=tmp_path / "jump_keys")
    return made


def jump_keys(node: Node) -> str:
    assert node.settings.jump_keys is not None
    return node.settings.jump_keys.read_text()


async def until_keys(node: Node, daemon: Daemon, wanted: Callable[[str], bool]) -> str:
    """Each announcement is followed by the file a moment later."""
    async with asyncio.timeout(DEADLINE):
        async for _ in daemon.events.follow(f"{daemon.events.epoch}.0", heartbeat=0.01):
            text = await asyncio.to_thread(jump_keys, node)
            if wanted(text):
                return text
    raise AssertionError("the events ended")


async def put(daemon: Daemon, task_id: str, *keys: str, mode: SshMode = SshMode.AUTO) -> None:
    ssh = SshRequest(authorized_keys=keys, mode=mode)
    body = request(ssh=ssh, allocation_id=f"place-{task_id}")
    await daemon.supervisor.put(task_id, body, CALLER)


async def until_port(daemon: Daemon, task_id: str) -> int:
    event = await until_event(
        daemon.events,
        lambda e: e.task is not None and e.task.id == task_id and "ssh" in e.task.ports,
    )
    assert event.task is not None
    return event.task.ports["ssh"]


async def test_the_key_for_terminals_opens_the_task_and_is_not_lent_to_visitors(
    node: Node,
) -> None:
    async with node.shim() as daemon:
        ssh = SshRequest(authorized_keys=(ANNA,), terminal_key=BEN)
        await daemon.supervisor.put("t1", request(ssh=ssh, allocation_id="place-t1"), CALLER)
        await until_port(daemon, "t1")
        lent = await until_keys(node, daemon, lambda text: "permitopen" in text)
        folder = node.settings.job_folder("t1")
        told = json.loads(await asyncio.to_thread((folder / "ssh.json").read_bytes))
    assert told["authorized_keys"] == [ANNA, BEN]
    assert BEN.split()[1] not in lent


async def test_a_task_gets_a_host_key_that_is_published_and_a_port(node: Node) -> None:
    async with node.shim() as daemon:
        await put(daemon, "t1", ANNA, mode=SshMode.EMBEDDED)
        port = await until_port(daemon, "t1")
        info = daemon.supervisor.info("t1")
        folder = node.settings.job_folder("t1")
        told = json.loads(await asyncio.to_thread((folder / "ssh.json").read_bytes))
        key = folder / "ssh_host_ed25519_key"
        mode = stat.S_IMODE((await asyncio.to_thread(key.stat)).st_mode)
    assert node.host.containers["c-t1"].spec.publish == 10022
    assert told == {
        "address": "0.0.0.0",
        "port": 10022,
        "authorized_keys": [ANNA],
        "mode": "embedded",
    }
    public = asyncssh.read_private_key(key).export_public_key().decode().split()
    assert (mode, port) == (0o640, 40001)
    assert info.ssh_host_key == " ".join(public[:2])


async def test_a_task_needs_one_record_between_its_submission_and_its_container(
    node: Node,
) -> None:
    engine = HangingEngine(MemoryEngine(node.host), "create")
    records: MemoryRecords[TaskRecord] = MemoryRecords()
    node.books = type(node.books)(records, node.books.allocations, node.books.fences)
    async with node.shim(engine.engine) as daemon:
        await put(daemon, "t1", ANNA)
        await engine.reached.wait()
        stored = records.kept["t1"].info
        assert (records.saves, stored) == (2, daemon.supervisor.info("t1"))
        assert None not in (stored.address, stored.ssh_host_key)


async def test_a_task_with_the_nodes_network_listens_on_its_loopback_alone(node: Node) -> None:
    async with node.shim() as daemon:
        resources = TaskResources(cpu=4.0, memory=1 << 30, whole_node=True)
        body = request(ssh=SshRequest(authorized_keys=(ANNA,)), resources=resources)
        await daemon.supervisor.put("t1", body, CALLER)
        running = await until(daemon, "t1", TaskStatus.RUNNING)
        path = node.settings.job_folder("t1") / "ssh.json"
        told = json.loads(await asyncio.to_thread(path.read_bytes))
    assert running.network_mode is NetworkMode.HOST
    assert (told["address"], told["port"]) == ("127.0.0.1", running.ports["ssh"])
    assert 20000 <= running.ports["ssh"] < 32768
    assert node.host.containers["c-t1"].spec.publish is None


async def test_the_jobs_of_a_run_reach_each_other_at_one_port_by_the_runs_key_alone(
    node: Node,
) -> None:
    async with node.shim() as daemon:
        ssh = SshRequest(authorized_keys=(ANNA,), cluster_key=BEN)
        resources = TaskResources(cpu=4.0, memory=1 << 30, whole_node=True)
        await daemon.supervisor.put("t1", request(ssh=ssh, resources=resources), CALLER)
        await until(daemon, "t1", TaskStatus.RUNNING)
        path = node.settings.job_folder("t1") / "ssh.json"
        told = json.loads(await asyncio.to_thread(path.read_bytes))
        lent = await until_keys(node, daemon, lambda text: text != "")
    assert (told["address"], told["port"]) == ("0.0.0.0", 10022)
    assert told["authorized_keys"] == [ANNA, BEN]
    assert BEN.split()[1] not in lent


async def test_links_of_a_job_lead_neither_its_key_nor_its_settings_out(node: Node) -> None:
    """A shim that was killed sets a task up again, over what may lie there by then."""
    folder, outside = node.settings.job_folder("t1"), node.settings.data.parent / "outside"
    folder.mkdir(parents=True)
    outside.mkdir()
    for name in ("ssh.json", "ssh_host_ed25519_key", "ssh_host_ed25519_key.pub"):
        (outside / name).write_text("untouched")
        (folder / name).symlink_to(outside / name)
    async with node.shim() as daemon:
        await put(daemon, "t1", ANNA)
        await until(daemon, "t1", TaskStatus.RUNNING)
    written = [path for path in folder.iterdir() if path.is_file() and not path.is_symlink()]
    assert {"ssh.json", "ssh_host_ed25519_key"} <= {path.name for path in written}
    assert {path.read_text() for path in outside.iterdir()} == {"untouched"}


async def test_a_node_without_ssh_keygen_runs_jobs_that_did_not_ask_for_ssh_by_name(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    async with node.shim() as daemon:
        await put(daemon, "t1", ANNA)
        await put(daemon, "t2", ANNA, mode=SshMode.EMBEDDED)
        running = await until(daemon, "t1", TaskStatus.RUNNING)
        refused = await until(daemon, "t2", TaskStatus.TERMINATED)
    assert (running.ssh_host_key, running.ports) == (None, {})
    assert refused.message is not None
    assert "install openssh-client" in refused.message


async def test_the_jump_user_reaches_a_tasks_port_while_it_lives_and_not_longer(
    node: Node,
) -> None:
    async with node.shim() as daemon:
        assert jump_keys(node) == ""
        await put(daemon, "t1", ANNA)
        port = await until_port(daemon, "t1")
        lent = await until_keys(node, daemon, lambda text: text != "")
        node.host.containers["c-t1"].end(0)
        await until(daemon, "t1", TaskStatus.TERMINATED)
        await until_keys(node, daemon, lambda text: text == "")
    key = " ".join(ANNA.split()[:2])
    assert lent == (f'restrict,port-forwarding,permitopen="127.0.0.1:{port}" {key} fairlead\n')


async def test_keys_of_ended_tasks_are_gone_and_those_of_living_ones_back_before_the_shim_answers(
    node: Node,
) -> None:
    async with node.shim() as daemon:
        await put(daemon, "t1", ANNA)
        await put(daemon, "t2", BEN)
        await until_keys(node, daemon, lambda text: text.count("\n") == 2)
        before = daemon.supervisor.info("t1")
    node.host.containers["c-t2"].end(0)
    assert node.settings.jump_keys is not None
    node.settings.jump_keys.write_text(f"{BEN}\n")
    async with node.shim() as daemon:
        text = await until_keys(node, daemon, lambda text: "permitopen" in text)
        after = daemon.supervisor.info("t1")
    assert text.count("\n") == 1
    assert ANNA.split()[1] in text
    assert after.ssh_host_key == before.ssh_host_key


@pytest.mark.parametrize(
    "line",
    [
        "",
        "ssh-ed25519",
        "ssh-ed25519 not-base64 anna",
        f'command="sh" {ANNA}',
        f"{ANNA}\n{BEN}",
        ANNA.replace("ssh-ed25519", "ssh-rsa"),
        "ssh-dss AAAAB3NzaC1kc3MAAAAA",
        f"ssh-ed25519 {'A' * 5000}",
    ],
)
async def test_a_line_that_is_no_plain_public_key_is_refused_by_its_position(
    node: Node, line: str
) -> None:
    async with node.shim() as daemon:
        with pytest.raises(Refused) as caught:
            await put(daemon, "t1", ANNA, line)
    assert caught.value.field == "ssh.authorized_keys[1]"
    assert public_key(line) is None


def test_a_key_of_several_tasks_is_one_line_since_sshd_takes_the_first() -> None:
    visits = [Visit(port=2, keys=(ANNA, BEN)), Visit(port=1, keys=(ANNA,))]
    anna, ben = (" ".join(line.split()[:2]) for line in (ANNA, BEN))
    assert render(visits) == (
        f'restrict,port-forwarding,permitopen="127.0.0.1:1",permitopen="127.0.0.1:2" {anna} '
        f"fairlead\n"
        f'restrict,port-forwarding,permitopen="127.0.0.1:2" {ben} fairlead\n'
    )


def test_a_key_opens_a_container_at_its_own_address() -> None:
    text = render([Visit(host="172.30.252.9", port=10022, keys=(ANNA,))])
    assert 'permitopen="172.30.252.9:10022" ' in text


async def test_a_task_without_ssh_has_no_key_no_port_and_no_file(node: Node) -> None:
    async with node.shim() as daemon:
        await daemon.supervisor.put("t1", request(), CALLER)
        running = await until(daemon, "t1", TaskStatus.RUNNING)
    assert (running.ssh_host_key, running.ports) == (None, {})
    assert not (node.settings.job_folder("t1") / "ssh.json").exists()
