from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from msgspec.structs import replace

from common.links.host_keys import fingerprint
from controller.commands.serve_options import parse_listen
from controller.metric_history import Sample
from fairlead.cli import main, output
from fairlead.cli.commands.runs.show import show_run, sparkline
from fairlead.cli.errors import CliError
from fairlead.rest import decode
from fairlead.views import RunView
from fairlead.wire.frames import Stream
from tests.unit.api.conftest import ADMIN_TOKEN, HOST_KEY, RSA_HOST_KEY, Controller
from tests.unit.cli.conftest import Fairlead, PlayedNode
from tests.unit.cli.output import of
from tests.unit.scheduling.cluster import gpu_node


async def test_a_controller_that_is_away_is_named_by_its_url(start: Fairlead) -> None:
    result = await of(start, "ps", FAIRLEAD_URL="http://127.0.0.1:9")
    assert result.status == 1
    assert "cannot reach the controller at http://127.0.0.1:9" in result.err
    assert "is it running?" in result.err


@pytest.mark.parametrize("token", ["", "wrong"])
async def test_without_the_right_token_it_says_where_one_is(start: Fairlead, token: str) -> None:
    result = await of(start, "ps", FAIRLEAD_TOKEN=token)
    assert result.status == 1
    assert "FAIRLEAD_TOKEN_FILE" in result.err


async def test_the_token_may_come_from_a_file(start: Fairlead, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(f"{ADMIN_TOKEN}\n")
    result = await of(start, "ps", FAIRLEAD_TOKEN="", FAIRLEAD_TOKEN_FILE=str(path))
    assert (result.status, result.err) == (0, "")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("FAIRLEAD_URL", "127.0.0.1"),
        ("FAIRLEAD_TOKEN", "two words"),
        ("FAIRLEAD_TOKEN", "schlüssel"),
    ],
)
async def test_a_setting_that_cannot_be_right_is_named(
    start: Fairlead, name: str, value: str
) -> None:
    result = await of(start, "ps", **{name: value})
    assert result.status == 1
    assert result.err.startswith(f"fairlead: {name}")


@pytest.mark.parametrize(
    "arguments",
    [
        ("apply",),
        ("nonsense",),
        ("ps", "--nonsense"),
        ("logs", "x", "--offset", "-1"),
        ("ps", "--limit", "0"),
        ("inspect", ""),
        ("inspect", "\udcff"),
    ],
)
async def test_wrong_usage_is_status_2(start: Fairlead, arguments: tuple[str, ...]) -> None:
    result = await of(start, *arguments)
    assert result.status == 2
    assert result.err.startswith("fairlead: ")


async def test_wrong_usage_leads_to_the_help_of_its_command(start: Fairlead) -> None:
    scale = await of(start, "scale", "x", "main", "--nodes", "1")
    assert scale.err.endswith("Try `fairlead scale --help`.\n")
    assert "too many arguments: main" in scale.err
    key = await of(start, "service", "key", "add")
    assert key.err.endswith("Try `fairlead service key add --help`.\n")


async def test_an_unknown_run_is_status_1(start: Fairlead) -> None:
    for command in ("inspect", "stop", "logs"):
        result = await of(start, command, "nobody")
        assert result.status == 1
        assert "'nobody'" in result.err


async def test_inspect_json_is_the_apis_document(
    start: Fairlead, controller: Controller, task: str
) -> None:
    await of(start, "apply", "-f", task, "-d")
    result = await of(start, "inspect", "hello", "--json")
    shown = json.loads(result.out)
    assert list(shown)[:5] == ["id", "name", "type", "user", "status"]
    assert shown["jobs"][0]["pending_reason"] == "no node is connected"


async def test_inspect_shows_the_configuration_without_its_secrets(
    start: Fairlead, tmp_path: Path
) -> None:
    (tmp_path / "notes").write_text("hello")
    job = tmp_path / "job.yaml"
    job.write_text(
        "type: task\nname: secret\ncommands: [echo hi]\nenv: {TOKEN: canary-1}\n"
        f"secrets: {{KEY: canary-2}}\nfiles: ['{tmp_path}/notes:/notes']\n"
    )
    assert (await of(start, "apply", "-f", str(job), "-d")).status == 0
    shown = (await of(start, "inspect", "secret", "--configuration")).out.decode()
    assert yaml.safe_load(shown) == {
        "type": "task",
        "name": "secret",
        "commands": ["echo hi"],
        "env": {"TOKEN": "***"},
        "secrets": {"KEY": "***"},
        "files": [{"local_path": f"{tmp_path}/notes", "path": "/notes"}],
    }
    document = (await of(start, "inspect", "secret", "--json")).out
    assert json.loads(document)["configuration"] == yaml.safe_load(shown)
    assert b"canary" not in document


async def test_ps_lists_what_lives_and_with_all_what_has_ended(start: Fairlead, task: str) -> None:
    await of(start, "apply", "-f", task, "-d", "-n", "ended")
    await of(start, "apply", "-f", task, "-d", "-n", "alive")
    assert b"terminated" in (await of(start, "stop", "ended")).out
    living = await of(start, "ps")
    everything = await of(start, "ps", "-a", "--json")
    assert b"alive" in living.out
    assert b"ended" not in living.out
    names = [run["name"] for run in json.loads(everything.out)["runs"]]
    assert names == ["alive", "ended"]


async def test_ps_lists_the_runs_that_fit(start: Fairlead, task: str) -> None:
    for name in ("train-1", "train-2", "other"):
        await of(start, "apply", "-f", task, "-d", "-n", name)
    stopped = await of(start, "stop", "train-1", "missing", "other")
    assert (stopped.status, stopped.out) == (1, b"train-1: terminated\nother: terminated\n")
    assert "missing: run: there is no run 'missing'" in stopped.err

    async def names(*filters: str) -> list[str]:
        listed = await of(start, "ps", *filters, "--json")
        return [run["name"] for run in json.loads(listed.out)["runs"]]

    assert await names("train-*") == ["train-2"]
    assert await names("train-?", "-a") == ["train-2", "train-1"]
    assert await names("-s", "terminated", "-s", "failed") == ["other", "train-1"]
    assert await names("--user", "admin", "%") == []
    assert await names("--user", "ada", "-a") == []
    wrong = await of(start, "ps", "-s", "dead")
    assert (wrong.status, "status: 'dead' is no status: give one" in wrong.err) == (2, True)


async def test_ps_goes_on_showing_what_changes_until_it_is_interrupted(
    start: Fairlead, task: str
) -> None:
    watching = await start("ps", "-w")
    assert b"NAME" in await watching.reads(5)
    await of(start, "apply", "-f", task, "-d", "-n", "fresh")
    await watching.prints(b"fresh")
    watching.interrupt()
    assert (await watching.ended()).status == 130


async def test_ps_gives_a_line_of_json_for_each_change(start: Fairlead, task: str) -> None:
    await of(start, "apply", "-f", task, "-d", "-n", "first")
    watching = await start("ps", "-w", "--json")
    assert [run["name"] for run in json.loads(await watching.line())["runs"]] == ["first"]
    await of(start, "apply", "-f", task, "-d", "-n", "second")
    assert [run["name"] for run in json.loads(await watching.line())["runs"]] == ["second", "first"]
    watching.interrupt()
    assert (await watching.ended()).status == 130


async def test_completion_knows_the_commands(start: Fairlead) -> None:
    script = (await of(start, "completion", "bash")).out.decode()
    assert " port-forward " in script
    assert "--if-exists" in script


async def test_offer_shows_only_nodes_that_take_work(start: Fairlead) -> None:
    assert (await of(start, "node", "add", "n1", "--local", "/run/shim.sock")).status == 0
    assert json.loads((await of(start, "offer", "--json")).out) == {"offers": []}


async def test_why_a_run_ended_is_told_by_name_and_in_words(
    start: Fairlead, tmp_path: Path
) -> None:
    file = tmp_path / "now.yml"
    file.write_text("type: task\nname: now\nscheduling_timeout: 0\ncommands: [x]\n")
    assert (await of(start, "apply", "-f", str(file))).status == 1
    assert b"  unschedulable: no allocation within 0 s: " in (await of(start, "ps", "-a")).out
    assert b"(unschedulable): no allocation within" in (await of(start, "inspect", "now")).out
    shown = json.loads((await of(start, "inspect", "now", "--json")).out)
    (job,) = shown["jobs"]
    states = [job["state"], job["attempts"][0]["state"]]
    assert [shown["termination_reason"], *states] == ["unschedulable"] * 3


async def test_inspect_shows_one_incarnation_of_a_gang(start: Fairlead, tmp_path: Path) -> None:
    for name, nodes in (("alone", 1), ("gang", 2)):
        file = tmp_path / f"{name}.yml"
        file.write_text(f"type: task\nname: {name}\nnodes: {nodes}\ncommands: [x]\n")
        assert (await of(start, "apply", "-f", str(file), "-d")).status == 0
    shown = await of(start, "inspect", "gang", "--incarnation", "1", "--json")
    assert [len(job["attempts"]) for job in json.loads(shown.out)["jobs"]] == [1, 1]
    later = await of(start, "inspect", "gang", "--incarnation", "2")
    assert (later.status, "its present one is 1" in later.err) == (1, True)
    alone = await of(start, "inspect", "alone", "--incarnation", "1")
    assert (alone.status, "alone has no gang" in alone.err) == (1, True)


async def test_inspect_shows_attempts_and_why_a_job_waits(start: Fairlead, task: str) -> None:
    await of(start, "apply", "-f", task, "-d")
    shown = (await of(start, "inspect", "hello")).out.decode()
    assert "main/0" in shown
    assert "waits: no node is connected" in shown


async def test_inspect_cuts_nothing_on_a_terminal_of_80_columns(
    start: Fairlead,
    node: PlayedNode,
    task: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await of(start, "apply", "-f", task, "-d")
    await node.runs("hello")
    await node.ends("hello", 3)
    run = decode((await of(start, "inspect", "hello", "--json")).out, RunView)
    times = {"running_at": "2026-11-24T08:00:01Z", "terminating_at": "2026-11-24T18:10:01Z"}
    far = replace(run.jobs[0].attempts[0], node="gpu-node-in-rack-17", **times)
    monkeypatch.setattr(output, "table_width", lambda: 80)
    show_run(replace(run, jobs=(replace(run.jobs[0], attempts=(far,)),)))
    shown = capsys.readouterr().out.splitlines()
    at = next(at for at, line in enumerate(shown) if line.startswith("ATTEMPT"))
    table = shown[at : at + 4]
    assert max(map(len, table)) <= 80
    assert "…" not in "".join(table)
    assert table[2] == "main/0 #0  failed  gpu-node-in-rack-17  11-24 08:00:01  10h 10m"
    assert table[3] == "    container_exited_with_error, exit code 3"


async def test_events_tell_what_happened(start: Fairlead, task: str) -> None:
    await of(start, "apply", "-f", task, "-d")
    told = (await of(start, "events", "hello")).out.decode()
    assert "submitted by admin" in told
    events = json.loads((await of(start, "events", "--json")).out)["events"]
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
async def test_characters_that_a_terminal_cannot_show_are_escaped(
    start: Fairlead, task: str, encoding: str
) -> None:
    await of(start, "apply", "-f", task, "-d")
    told = await of(start, "events", "hello", PYTHONIOENCODING=encoding)
    assert (told.status, told.err) == (0, "")
    assert b"new \\u2192 submitted" in told.out
    helped = await of(start, "--help", PYTHONIOENCODING=encoding)
    assert (helped.status, b"apply" in helped.out) == (0, True)


async def test_stored_logs_are_shown_from_an_offset(
    start: Fairlead, node: PlayedNode, task: str
) -> None:
    await of(start, "apply", "-f", task, "-d")
    await node.runs("hello")
    await node.prints("hello", b"out")
    await node.prints("hello", b"err", Stream.STDERR)
    result = await of(start, "logs", "hello", "--offset", "1")
    assert (result.out, result.err) == (b"ut", "err")


async def test_a_reader_that_leaves_early_is_no_error_to_talk_about(
    start: Fairlead, node: PlayedNode, task: str, tmp_path: Path
) -> None:
    await of(start, "apply", "-f", task, "-d")
    await node.runs("hello")
    await node.prints("hello", b"x" * 500_000)
    command = await start("logs", "-f", "hello")
    assert await command.reads(10) == b"x" * 10
    command.close_output()
    await node.ends("hello", 0)
    result = await command.ended()
    assert (result.status, result.err) == (141, "")


async def test_a_node_is_added_listed_drained_and_removed(start: Fairlead) -> None:
    assert (await of(start, "node", "add", "n1", "--local", "/run/shim.sock")).status == 0
    assert b"/run/shim.sock" in (await of(start, "node", "list")).out
    assert (await of(start, "node", "drain", "n1", "--reason", "new disk")).status == 0
    assert b"draining: new disk" in (await of(start, "node", "list")).out
    resumed = await of(start, "node", "resume", "n1", "--json")
    assert json.loads(resumed.out)["draining"] is False
    assert (await of(start, "node", "remove", "n1")).status == 0
    assert json.loads((await of(start, "node", "list", "--json")).out)["nodes"] == []


async def test_explain_tells_why_a_run_waits(start: Fairlead, tmp_path: Path) -> None:
    file = tmp_path / "task.yaml"
    file.write_text("type: task\ncommands: [date]\n")
    assert (await of(start, "apply", "-d", "-n", "a", "-f", str(file))).status == 0
    result = await of(start, "explain", "a")
    assert b"main/0: no node is connected\n  number 1 in the queue\n" in result.out
    found = json.loads((await of(start, "explain", "a", "--json")).out)
    assert found["waiting"][0]["jobs"] == ["main/0"]


async def test_explain_tells_what_a_job_with_a_place_waits_for(
    start: Fairlead, node: PlayedNode, task: str
) -> None:
    await of(start, "apply", "-f", task, "-d")
    await node.runs("hello")
    result = await of(start, "explain", "hello")
    assert b"main/0, running: runs on node n1\n" in result.out


async def test_a_plan_shows_where_a_run_would_go_and_submits_nothing(
    start: Fairlead, tmp_path: Path, controller: Controller
) -> None:
    controller.pipeline.set_node(gpu_node("n1", 2), "n1")
    file = tmp_path / "task.yaml"
    file.write_text("type: task\ncommands: [date]\nresources: {gpu: 1}\nfiles: [.]\n")
    result = await of(start, "plan", "-f", str(file))
    assert result.status == 0
    _, row, grant, begins = result.out.splitlines()
    assert begins == b"main begins in image astral/uv:python3.13-bookworm"
    assert row.split() == [b"main/0", b"n1", b"n1-g0"]
    assert grant.endswith(b"/dev/shm; asked: nothing")
    file.write_text("type: task\ncommands: [date]\npython: 3.12\nsetup: [date]\n")
    begins = (await of(start, "plan", "-f", str(file))).out.splitlines()[-1]
    assert begins.endswith(b"python3.12-bookworm, a venv with Python 3.12, setup of 1 command")
    file.write_text("type: task\ncommands: [date]\nresources: {gpu: 3}\n")
    result = await of(start, "plan", "-f", str(file))
    assert (result.status, result.out[:34]) == (1, b"it would be refused: resources: no")
    assert json.loads((await of(start, "ps", "--json")).out)["runs"] == []


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("files: [gone.txt]", "task.yaml:3: files[0].local_path: "),
        ("files: [../outside]", "task.yaml:3: files[0]: give its path in the container"),
        ("repos: [gone]", "task.yaml:3: repos[0].local_path: "),
        ("repos: [task.yaml]", "task.yaml:3: repos[0].local_path: "),
        ("repos: [{url: 'https://h/r', token_env: NOT_SET}]", "task.yaml:3: repos[0].token_env: "),
        ("repos: [{url: 'git@h:r', key_file: gone}]", "task.yaml:3: repos[0].key_file: "),
        ("repos: [{url: 'https://h/r', token: '${{ secrets.GONE }}'}]", "GONE"),
    ],
)
async def test_a_plan_refuses_the_code_that_apply_refuses(
    start: Fairlead, tmp_path: Path, code: str, said: str
) -> None:
    file = tmp_path / "task.yaml"
    file.write_text(f"type: task\ncommands: [date]\n{code}\n")
    planned, applied = [await of(start, one, "-f", str(file)) for one in ("plan", "apply")]
    assert planned.status == applied.status != 0
    assert planned.err == applied.err
    assert said in planned.err


async def test_an_unknown_host_key_is_shown_with_how_to_accept_it(start: Fairlead) -> None:
    result = await of(start, "node", "add", "n1", "--host", "node.example")
    assert result.status == 1
    assert f"--accept-host-key {fingerprint(HOST_KEY)}" in result.err


async def test_another_pinned_host_key_is_told_with_both_fingerprints(start: Fairlead) -> None:
    added = await of(start, "node", "add", "n1", "--host", "node.example", "--host-key", HOST_KEY)
    assert added.status == 0
    accepted = fingerprint(RSA_HOST_KEY)
    result = await of(start, "node", "set", "n1", "--accept-host-key", accepted)
    assert result.status == 0
    assert fingerprint(HOST_KEY).encode() in result.out
    assert accepted.encode() in result.out
    again = await of(start, "node", "set", "n1", "--host-key", RSA_HOST_KEY)
    assert again.out == b"node n1 changed\n"


async def test_the_controllers_key_is_shown_for_the_nodes(start: Fairlead) -> None:
    assert (await of(start, "node", "key")).out == b"ssh-ed25519 AAAA\n"


def test_an_unforeseen_error_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken() -> None:
        raise RuntimeError("first line\nsecond line")

    monkeypatch.setattr(main, "make_app", broken)
    monkeypatch.delenv("FAIRLEAD_DEBUG", raising=False)
    assert main.run(["whoami"]) == 1
    shown = capsys.readouterr().err
    assert shown.count("\n") == 1
    assert "FAIRLEAD_DEBUG=1" in shown


@pytest.mark.parametrize("text", ["8700", "host", "host:", ":8700", "host:port", "host:70000"])
def test_a_wrong_listen_address_is_refused(text: str) -> None:
    with pytest.raises(CliError, match="HOST:PORT"):
        parse_listen(text)


def test_listen_addresses_may_be_ipv6() -> None:
    assert parse_listen("[::1]:8700") == ("::1", 8700)
    assert parse_listen("127.0.0.1:0") == ("127.0.0.1", 0)


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ([0.0, 1.0, 2.0, 4.0, 8.0], "▁▂▃▅█"),
        ([None, 3.0], " █"),
        ([0.0, 0.0], "▁▁"),
        ([], ""),
    ],
)
def test_a_sparkline_is_of_the_share_of_the_most(values: list[float | None], line: str) -> None:
    assert sparkline(values) == line


async def test_metrics_shows_the_past_as_small_charts(
    start: Fairlead, controller: Controller, node: PlayedNode, task: str
) -> None:
    await of(start, "apply", "-f", task, "-d")
    attempt = await node.runs("hello")
    now = controller.service.clock.now()
    for number in range(60):
        sample = Sample(now - 600 + 10 * number, 20.0 * number, number << 20)
        controller.service.jobs.metric_history.append(attempt, sample)
    shown = (await of(start, "metrics", "hello", "--last", "20m")).out.decode()
    assert "main/0  CPU     2.00      2.00       █" in shown
    assert "main/0  MEMORY  59.0 MiB  59.0 MiB  ▁" in shown
    watching = await start("metrics", "hello", "-w")
    await watching.prints(b"CPU")
    watching.interrupt()
    assert (await watching.ended()).status == 130
