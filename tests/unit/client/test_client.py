"""The blocking client, as programs and notebooks use it."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest
from aiohttp.test_utils import TestServer

from fairlead import (
    ApiError,
    Client,
    ClientClosed,
    Conflict,
    ConnectionLost,
    InvalidConfiguration,
    NotFound,
    NotLoggedIn,
    Run,
    RunFailed,
    Task,
    UsageError,
)
from fairlead.wire.frames import Stream
from tests.support.ssh_daemon import free_port
from tests.unit.api.conftest import ADMIN_TOKEN, Controller
from tests.unit.cli.conftest import PlayedNode

HELLO = Task(name="hello", commands=["echo hello"])


async def submitted(client: Client, task: Task = HELLO) -> Run:
    return await asyncio.to_thread(client.submit, task)


async def test_a_run_is_submitted_and_awaited_to_its_end(client: Client, node: PlayedNode) -> None:
    run = await submitted(client)
    assert (run.name, run.is_final, run.exit_status) == ("hello", False, None)
    steps: list[str] = []
    waiting = asyncio.create_task(asyncio.to_thread(run.wait, progress=steps.append))
    await node.runs("hello")
    await node.ends("hello", 0)
    assert (await waiting).status == "done"
    assert run.exit_status == 0
    assert steps[-1].startswith("hello: done")


async def test_a_run_that_fails_raises_with_its_state_and_what_to_do(
    client: Client, node: PlayedNode
) -> None:
    run = await submitted(client)
    await node.runs("hello")
    await node.ends("hello", 3)
    with pytest.raises(RunFailed, match=r"hello ended failed: .*`run.logs\(\)`") as caught:
        await asyncio.to_thread(run.wait)
    assert caught.value.exit_status == 3
    assert caught.value.run.termination_reason == "job_failed"
    assert (await asyncio.to_thread(run.wait, check=False)).exit_status == 3


async def test_the_client_works_inside_a_running_event_loop(client: Client) -> None:
    async def cell() -> str:
        return client.submit(HELLO).name

    assert await asyncio.to_thread(asyncio.run, cell()) == "hello"


async def test_a_wait_ends_at_its_timeout_and_the_run_goes_on(
    client: Client, told: list[str]
) -> None:
    run = await submitted(client)
    with pytest.raises(TimeoutError, match=r"hello is \w+ after 0.05 s; it goes on"):
        await asyncio.to_thread(run.wait, timeout=0.05)
    assert not (await asyncio.to_thread(run.refresh)).is_final
    assert told == []


async def test_output_is_followed_through_the_attempts_and_resumed_at_an_offset(
    client: Client, node: PlayedNode
) -> None:
    run = await submitted(client)
    attempt = await node.runs("hello")
    await node.prints("hello", b"one\ntwo\n")
    await node.prints("hello", b"oh\n", Stream.STDERR)
    following = asyncio.create_task(
        asyncio.to_thread(lambda: [*run.logs(follow=True, attempt=attempt, offset=4)])
    )
    await node.ends("hello", 0)
    pieces = await following
    assert [(one.stream, one.data) for one in pieces] == [("stdout", b"two\n"), ("stderr", b"oh\n")]
    assert (pieces[0].job, pieces[0].offset, pieces[-1].end) == ("main/0", 4, 11)
    assert await asyncio.to_thread(lambda: [*run.lines()]) == ["one", "two", "oh"]


async def test_the_attempts_of_a_job_follow_one_another(client: Client, node: PlayedNode) -> None:
    run = await submitted(client, Task(name="hello", commands=["work"], retry=True))
    following = asyncio.create_task(asyncio.to_thread(lambda: [*run.lines(follow=True)]))
    await node.runs("hello")
    await node.prints("hello", b"first\n")
    await asyncio.to_thread(run.abort_job, "main/0")
    await node.ends("hello", 1)
    await asyncio.to_thread(run.stop)
    assert await following == ["first"]


async def test_a_closed_client_ends_its_streams_and_says_so(
    client: Client, told: list[str]
) -> None:
    run = await submitted(client)
    heard = asyncio.Event()
    loop = asyncio.get_running_loop()

    def follow() -> None:
        for _ in client.events(run, follow=True):
            loop.call_soon_threadsafe(heard.set)

    following = asyncio.create_task(asyncio.to_thread(follow))
    await heard.wait()
    client.close()
    with pytest.raises(ClientClosed, match="make another one"):
        await following
    with pytest.raises(ClientClosed):
        client.whoami()
    assert told == []


async def test_refusals_have_types_and_say_what_to_do(client: Client, server: TestServer) -> None:
    await submitted(client)
    with pytest.raises(Conflict, match="hello") as caught:
        await asyncio.to_thread(client.submit, HELLO)
    assert caught.value.status == 409
    with pytest.raises(NotFound):
        await asyncio.to_thread(client.run, "nothing")
    stranger = Client(str(server.make_url("")), "another-token")
    with pytest.raises(NotLoggedIn):
        await asyncio.to_thread(stranger.whoami)
    away = Client(f"http://127.0.0.1:{free_port()}", "token")
    with pytest.raises(ConnectionLost, match="is it running"):
        await asyncio.to_thread(away.whoami)


@pytest.mark.parametrize(
    ("task", "said"),
    [
        ({"commands": ["true"], "imag": "x"}, "Task: imag: is not a field"),
        ({"commands": ["true"], "resources": {"memory": "much"}}, r"Task: resources.memory: .*8GB"),
        ({"commands": ["true"], "env": ["NOT_SET_HERE"]}, "'NOT_SET_HERE' is not set"),
        ({"commands": [object()]}, "give strings, numbers, lists, mappings and paths"),
    ],
)
def test_a_wrong_task_is_refused_before_anything_is_sent(
    task: dict[str, object], said: str
) -> None:
    with pytest.raises(InvalidConfiguration, match=said):
        Client("http://127.0.0.1:1", "token").submit(task)


async def test_a_yaml_file_brings_its_code_and_errors_name_its_lines(
    client: Client, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text("print(1)")
    file = tmp_path / "task.yml"
    file.write_text("type: task\nname: coded\nfiles: [train.py]\ncommands: [python train.py]\n")
    run = await asyncio.to_thread(client.submit, file, env={"SEED": "7"})
    assert run.state.configuration["files"][0]["path"] == "train.py"
    file.write_text("type: task\ncommands: 7\n")
    with pytest.raises(InvalidConfiguration, match=r"task.yml:2: commands: is a whole number"):
        client.submit(file)
    with pytest.raises(InvalidConfiguration, match="the YAML:1: type: is missing"):
        client.submit(Task.parse("nonsense: 1"))


async def test_runs_are_listed_stopped_planned_and_explained(client: Client) -> None:
    run = await submitted(client)
    assert [one.name for one in await asyncio.to_thread(client.runs)] == ["hello"]
    assert (await asyncio.to_thread(client.whoami)).name == "admin"
    assert (await asyncio.to_thread(client.nodes)) == []
    assert (await asyncio.to_thread(client.plan, HELLO)).refused is None
    assert (await asyncio.to_thread(run.explain)).name == "hello"
    assert (await asyncio.to_thread(run.metrics)).jobs == ()
    await asyncio.to_thread(run.suspend)
    assert run.state.suspended
    await asyncio.to_thread(run.stop)
    await asyncio.to_thread(run.wait, check=False)
    assert run.status == "terminated"
    kinds = await asyncio.to_thread(lambda: [event.kind for event in run.events()])
    assert "run" in kinds
    with pytest.raises(UsageError, match="hello has no job 7: give one of main/0"):
        run.abort_job(7)


async def test_settings_are_those_of_the_command(
    server: TestServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = str(server.make_url("")).rstrip("/")
    monkeypatch.setenv("FAIRLEAD_URL", url)
    monkeypatch.setenv("FAIRLEAD_TOKEN", ADMIN_TOKEN)
    assert (await asyncio.to_thread(Client().whoami)).name == "admin"
    assert (await asyncio.to_thread(Client(url).whoami)).name == "admin"


def test_a_token_of_the_environment_goes_to_no_other_controller(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("FAIRLEAD_URL", "https://fairlead.example.com")
    monkeypatch.setenv("FAIRLEAD_TOKEN", ADMIN_TOKEN)
    _, headers = Client("https://other.example.com").rest.socket("/v1/me")
    assert headers == {}


def test_importing_the_package_imports_neither_servers_nor_drawing() -> None:
    program = (
        "import json, sys; import fairlead; bare = len(sys.modules); fairlead.Client;"
        "print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    loaded = set(json.loads(done.stdout))
    assert loaded.isdisjoint({"aiohttp", "asyncssh", "sqlalchemy", "rich", "cyclopts", "asyncio"})


def test_errors_are_all_of_one_kind() -> None:
    import fairlead

    for name in fairlead.__all__:
        found = getattr(fairlead, name)
        if isinstance(found, type) and issubclass(found, Exception):
            assert issubclass(found, fairlead.FairleadError), name
    assert issubclass(Conflict, ApiError)


async def test_a_run_replaces_another_and_has_a_parent(
    client: Client, controller: Controller
) -> None:
    parent = await submitted(client)
    child = await asyncio.to_thread(
        client.submit, Task(name="child", commands=["true"]), parent=parent
    )
    assert child.state.parent_id == parent.id
    kept = await asyncio.to_thread(client.submit, HELLO, if_exists="keep")
    assert kept.id == parent.id


async def test_many_runs_are_submitted_with_few_requests(client: Client) -> None:
    await submitted(client, Task(name="taken", commands=["echo"]))
    names = [f"r{number}" for number in range(1200)]
    names[7] = "taken"
    results = await asyncio.to_thread(client.submit_many, [HELLO] * 1200, names=names)
    assert [number for number, one in enumerate(results) if one.error] == [7]
    assert [one.name for one in results[:3]] == ["r0", "r1", "r2"]
    assert results[7].error is not None
    assert results[7].error.code == "name_taken"
    assert (await asyncio.to_thread(client.run, results[1199].id or "")).name == "r1199"


async def test_several_runs_are_submitted_as_one_act(client: Client) -> None:
    train = Task(name="train", commands=["true"], after=["prepare"])
    prepare = Task(name="prepare", commands=["true"])
    runs = await asyncio.to_thread(client.submit_together, [train, prepare])
    assert [run.name for run in runs] == ["train", "prepare"]
    await asyncio.to_thread(runs[0].refresh)
    assert runs[0].state.after[0].run_id == runs[1].id


async def test_none_of_several_runs_is_made_when_one_is_refused(client: Client) -> None:
    train = Task(name="train", commands=["true"], after=["prepare"])
    with pytest.raises(ApiError) as caught:
        await asyncio.to_thread(client.submit_together, [HELLO, train])
    assert (caught.value.field or "").startswith("runs[1].")
    with pytest.raises(UsageError, match="at least one"):
        await asyncio.to_thread(client.submit_together, [])
    assert await asyncio.to_thread(client.runs) == []


async def test_nothing_is_sent_of_many_runs_when_one_is_wrong(client: Client) -> None:
    wrong = Task.of({"type": "task", "comands": []})
    with pytest.raises(InvalidConfiguration, match="comands"):
        await asyncio.to_thread(client.submit_many, [HELLO, wrong])
    with pytest.raises(UsageError, match="1 names for 2 tasks"):
        await asyncio.to_thread(client.submit_many, [HELLO, HELLO], names=["a"])
    assert await asyncio.to_thread(client.runs) == []
