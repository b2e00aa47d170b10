"""Wrong input is answered in sentences: where it is, its fault, and a right value."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import asyncssh
import pytest

from tests.support.lab import RunLab
from tests.support.processes import CommandResult, run_cli
from tests.support.ssh_daemon import free_port
from tests.support.waiting import wait_until

pytestmark = pytest.mark.e2e


def _assert_refused(result: CommandResult, *words: str, status: int = 1) -> None:
    assert result.status == status
    assert result.output == ""
    assert result.errors.startswith("fairlead: ")
    assert "Traceback" not in result.errors
    for word in words:
        assert word in result.errors


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("type: task\ncomands: [x]\n", ("wrong.yaml:2", "comands", "did you mean commands")),
        ("type: job\n", ("wrong.yaml:1", "type", "task")),
        ("commands: [x]\n", ("wrong.yaml", "type", "missing")),
        (
            "type: task\ncommands: [x]\nresources:\n  cpu: 1\n  memory: 16QB\n",
            ("wrong.yaml:5", "resources.memory", "16QB", "8GB"),
        ),
        ("type: task\ncommands: [x]\nentrypoint: [y]\n", ("entrypoint", "commands")),
        ("type: task\ncommands: [x]\nmax_duration: soon\n", (":3", "max_duration", "90m")),
        ("type: task\ncommands: [x\n", ("wrong.yaml:",)),
        ("type: task\ntype: task\n", ("wrong.yaml:2", "twice")),
        ("", ("wrong.yaml",)),
        ("[]\n", ("wrong.yaml",)),
    ],
)
def test_a_wrong_file_is_explained(lab: RunLab, text: str, words: tuple[str, ...]) -> None:
    file = lab.folder / "wrong.yaml"
    file.write_text(text)
    _assert_refused(lab.cli("apply", "-f", file), *words, status=2)


def test_a_file_that_is_not_there_is_named(lab: RunLab) -> None:
    _assert_refused(lab.cli("apply", "-f", "/no/such.yaml"), "/no/such.yaml", status=2)


def test_commands_in_an_image_without_a_shell(lab: RunLab, noshell_image: str) -> None:
    result = lab.apply("shellless", image=noshell_image, commands=["echo hi"])
    assert result.status == 1
    assert "entrypoint: [" in result.errors
    assert "Traceback" not in result.errors
    message = lab.attempts("shellless")[0]["message"]
    assert "entrypoint" in message


def test_a_host_key_that_is_not_known_is_shown_to_be_compared(lab: RunLab) -> None:
    known = lab.sshd.fingerprints.values()
    _assert_refused(lab.add_node("n2"), *known, "--accept-host-key")
    assert [node["name"] for node in lab.get("/v1/nodes")["nodes"]] == ["n1"]


def test_a_host_key_that_is_not_the_accepted_one_is_refused_with_all(lab: RunLab) -> None:
    other = asyncssh.generate_private_key("ssh-ed25519").get_fingerprint()
    refused = lab.add_node("n2", "--accept-host-key", other)
    _assert_refused(refused, *lab.sshd.fingerprints.values(), other)


def test_a_node_that_does_not_answer_is_not_added(lab: RunLab) -> None:
    port = str(free_port())
    refused = lab.cli("node", "add", "n2", "--host", "127.0.0.1", "--port", port)
    _assert_refused(refused, f"127.0.0.1 port {port}")


def _told_about_n2(lab: RunLab, words: str) -> str:
    """The message that holds the words: where all is slow, others may come before it."""

    def told(node: Any) -> str | None:
        message: str = node["message"] or ""
        return message if words in message else None

    return lab.wait_for_node(told, "n2") or ""


@pytest.mark.parametrize(
    ("algorithm", "kind"),
    [("ssh-ed25519", "ed25519"), ("ecdsa-sha2-nistp256", "ecdsa"), ("ssh-rsa", "rsa")],
)
def test_a_changed_host_key_keeps_the_node_out_and_shows_both(
    lab: RunLab, algorithm: str, kind: str
) -> None:
    other = asyncssh.generate_private_key(algorithm)
    pinned = other.export_public_key().decode().strip()
    lab.add_node("n2", "--host-key", pinned).succeeded()
    try:
        said = _told_about_n2(lab, other.get_fingerprint())
        lab.wait_for_node(lambda node: node["status"] == "unreachable", "n2")
        both = (lab.sshd.fingerprints[kind], other.get_fingerprint())
        # Where all is slow, another message may stand there for a while.
        wait_until(lambda: _are_listed(lab, *both), what="both keys in the list")
    finally:
        lab.cli("node", "remove", "n2").succeeded()
    for fingerprint in both:
        assert fingerprint in said


def _are_listed(lab: RunLab, *words: str) -> bool:
    listed = lab.cli("node", "list", "--json").succeeded().output
    return all(word in listed for word in words)


def test_a_shim_that_is_not_there_is_told_in_the_list(lab: RunLab) -> None:
    elsewhere = replace(lab, shim_socket=Path("/run/no-such/shim.sock"))
    elsewhere.add_node("n2", "--host-key", lab.sshd.host_key).succeeded()
    try:
        _told_about_n2(lab, "/run/no-such/shim.sock")
    finally:
        lab.cli("node", "remove", "n2").succeeded()


def test_a_user_that_may_not_log_in_is_told_about_the_key(lab: RunLab) -> None:
    stranger = replace(lab, tunnel_user="nobody")
    stranger.add_node("n2", "--host-key", lab.sshd.host_key).succeeded()
    try:
        _told_about_n2(lab, "fairlead node key")
    finally:
        lab.cli("node", "remove", "n2").succeeded()


@pytest.mark.parametrize("command", [("ps",), ("inspect", "x"), ("node", "list"), ("events",)])
def test_without_the_right_token_nothing_is_told(lab: RunLab, command: tuple[str, ...]) -> None:
    url = lab.controller.url
    wrong = {"FAIRLEAD_URL": url, "FAIRLEAD_TOKEN": "f" * 43, "FAIRLEAD_TOKEN_FILE": ""}
    _assert_refused(run_cli(*command, env=wrong), "FAIRLEAD_TOKEN")
    none = {"FAIRLEAD_URL": url, "FAIRLEAD_TOKEN": "", "FAIRLEAD_TOKEN_FILE": ""}
    _assert_refused(run_cli(*command, env=none), "no token")


def test_a_controller_that_is_not_there(lab: RunLab) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    env = {"FAIRLEAD_URL": url, "FAIRLEAD_TOKEN": lab.controller.token}
    file = lab.write(commands=["true"])
    for command in (("ps",), ("apply", "-f", file), ("logs", "x"), ("stop", "x")):
        _assert_refused(run_cli(*command, env=env), url)


@pytest.mark.parametrize(
    "command",
    [("inspect", "no-such"), ("logs", "no-such"), ("stop", "no-such"), ("events", "no-such")],
)
def test_a_run_that_does_not_exist_is_named(lab: RunLab, command: tuple[str, ...]) -> None:
    _assert_refused(lab.cli(*command), "no-such", "fairlead ps")


def test_a_node_that_does_not_exist_is_named(lab: RunLab) -> None:
    for verb in ("drain", "resume", "remove"):
        _assert_refused(lab.cli("node", verb, "no-such"), "no-such", "fairlead node list")


def test_an_unknown_option_or_command_is_named(lab: RunLab) -> None:
    _assert_refused(lab.cli("ps", "--everything"), "--everything", status=2)
    _assert_refused(lab.cli("destroy"), "destroy", status=2)
