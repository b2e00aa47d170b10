"""Which keys a submit sends, and the configuration that a user's own ssh is given."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from fairlead.cli.commands.jobs.ssh import run_and_path
from fairlead.cli.openssh import (
    host_blocks,
    identity,
    install,
    state_folder,
    write_config,
    write_known_hosts,
)
from fairlead.documents.jobs import SshTarget
from fairlead.errors import UsageError
from fairlead.files.ssh_keys import public_keys
from tests.unit.cli import output
from tests.unit.cli.conftest import Fairlead

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIE+XK8EfMlRDiwuR2PXDMZhYsKNAJsYlKFT8pCHPJ2cF"
TARGET = SshTarget(
    run_name="train",
    attempt_id="a1",
    port=40022,
    host_key=KEY,
    node_host="10.0.0.5",
    node_port=2222,
    node_host_key=KEY,
    jump_user="fairlead-jump",
)


def a_home(folder: Path, **files: str) -> Path:
    (folder / ".ssh").mkdir()
    for name, text in files.items():
        (folder / ".ssh" / f"{name}.pub").write_text(text)
    return folder


def test_all_public_keys_are_sent_without_their_comments(tmp_path: Path) -> None:
    other = KEY.replace("ssh-ed25519", "ssh-rsa")
    home = a_home(
        tmp_path,
        id_ed25519=f"{KEY} anna@home\n",
        id_rsa=f"{other}\n",
        copy=f"{KEY} again\n",
        certificate=f"ssh-ed25519-cert-v01@openssh.com {KEY.split()[1]}\n",
        notes="not a key\n",
    )
    assert set(public_keys({}, home)) == {KEY, other}


def test_a_user_without_keys_sends_none(tmp_path: Path) -> None:
    assert public_keys({}, tmp_path) == ()


@pytest.mark.parametrize("suffix", ["", ".pub"])
def test_a_named_key_is_the_only_one(tmp_path: Path, suffix: str) -> None:
    home = a_home(tmp_path, id_ed25519="ssh-ed25519 BBBB\n")
    (tmp_path / "work.pub").write_text(f"{KEY} comment\n")
    named = {"FAIRLEAD_SSH_KEY": str(tmp_path / f"work{suffix}")}
    assert public_keys(named, home) == (KEY,)
    assert identity(named) == tmp_path / "work"


def test_a_named_key_that_is_not_there_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"FAIRLEAD_SSH_KEY: .*missing"):
        public_keys({"FAIRLEAD_SSH_KEY": str(tmp_path / "missing")}, tmp_path)


def test_a_job_is_reached_through_its_node_and_both_keys_are_pinned(tmp_path: Path) -> None:
    blocks = host_blocks(TARGET, "root", tmp_path, None)
    write_known_hosts(TARGET, tmp_path)
    job, node = blocks.split("Host train.node\n")
    for line in ("HostName 127.0.0.1", "Port 40022", "User root", "ProxyJump train.node"):
        assert f"    {line}\n" in job
    for line in ("HostName 10.0.0.5", "Port 2222", "User fairlead-jump"):
        assert f"    {line}\n" in node
    assert blocks.count("StrictHostKeyChecking yes") == 2
    assert (tmp_path / "train.known_hosts").read_text() == (
        f"fairlead-a1 {KEY}\nfairlead-node-10.0.0.5-2222 {KEY}\n"
    )


def test_a_job_with_an_address_of_its_own_is_reached_there(tmp_path: Path) -> None:
    target = msgspec.structs.replace(TARGET, host="172.30.252.9", port=10022)
    job, _ = host_blocks(target, "root", tmp_path, None).split("Host train.node\n")
    assert "    HostName 172.30.252.9\n    Port 10022\n" in job


@pytest.mark.parametrize(
    ("key", "algorithms"),
    [
        (KEY, "ssh-ed25519"),
        ("ecdsa-sha2-nistp256 AAAA", "ecdsa-sha2-nistp256"),
        ("ssh-rsa AAAA", "rsa-sha2-512,rsa-sha2-256"),
    ],
)
def test_only_the_algorithm_of_each_pinned_key_is_negotiated(
    tmp_path: Path, key: str, algorithms: str
) -> None:
    target = msgspec.structs.replace(TARGET, node_host_key=key)
    job, node = host_blocks(target, "root", tmp_path, None).split("Host train.node\n")
    assert "    HostKeyAlgorithms ssh-ed25519\n" in job
    assert f"    HostKeyAlgorithms {algorithms}\n" in node


def test_a_hostile_host_key_becomes_one_line_and_no_setting(tmp_path: Path) -> None:
    evil = "ssh-ed25519\n  ProxyCommand\tevil\n* ssh-ed25519 AAAA"
    target = msgspec.structs.replace(TARGET, host_key=evil)
    write_known_hosts(target, tmp_path)
    assert "evil" not in host_blocks(target, "root", tmp_path, None)
    assert (tmp_path / "train.known_hosts").read_text().count("\n") == 2


def test_a_job_on_the_controllers_own_machine_is_reached_directly(tmp_path: Path) -> None:
    target = msgspec.structs.replace(TARGET, node_host=None, node_host_key=None)
    blocks = host_blocks(target, "anna", tmp_path, tmp_path / "key")
    write_known_hosts(target, tmp_path)
    assert "ProxyJump" not in blocks
    assert f'    IdentityFile "{tmp_path / "key"}"\n' in blocks
    assert (tmp_path / "train.known_hosts").read_text() == f"fairlead-a1 {KEY}\n"


def test_the_users_own_settings_come_after_ours(tmp_path: Path) -> None:
    path = write_config(TARGET, host_blocks(TARGET, "root", tmp_path, None), tmp_path / "state")
    assert path.read_text().endswith("Match all\nInclude ~/.ssh/config\n")


def test_written_files_lie_where_the_system_keeps_state(tmp_path: Path) -> None:
    given = state_folder({"XDG_STATE_HOME": "/state"}, tmp_path)
    assert given == Path("/state/fairlead/ssh")
    assert state_folder({}, tmp_path) == tmp_path / ".local/state/fairlead/ssh"


async def test_a_run_that_does_not_run_yet_says_so(start: Fairlead, tmp_path: Path) -> None:
    (tmp_path / "key.pub").write_text(KEY)
    file = tmp_path / "task.yaml"
    file.write_text("type: task\nname: waiting\ncommands: [echo hi]\n")
    env = {"FAIRLEAD_SSH_KEY": str(tmp_path / "key"), "XDG_STATE_HOME": str(tmp_path / "state")}
    submitted = await (await start("apply", "-d", "-f", str(file), **env)).ended()
    assert submitted.status == 0
    refused = await (await start("ssh", "waiting", **env)).ended()
    assert refused.status == 1
    assert "waiting has no container yet (submitted)" in refused.err


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("train:/tmp/a", ("train", "/tmp/a")),
        ("train:", ("train", "")),
        ("a.txt", (None, "a.txt")),
        ("./odd:name", (None, "./odd:name")),
        (":x", (None, ":x")),
    ],
)
def test_a_colon_names_a_run_unless_a_slash_comes_before_it(
    text: str, place: tuple[str | None, str]
) -> None:
    assert run_and_path(text) == place


@pytest.mark.parametrize("places", [("a", "b"), ("one:a", "two:b")])
async def test_cp_wants_one_path_here_and_one_in_a_job(
    start: Fairlead, places: tuple[str, str]
) -> None:
    ended = await output.of(start, "cp", *places)
    assert ended.status == 2
    assert "give one path of this machine and one RUN:PATH" in ended.err


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ("nodes: 2\ncommands: [x]", "nodes: a shell is one job"),
        ("schedule: 0 8 * * *\ncommands: [x]", "schedule: a shell is one job"),
        ("ssh: off\ncommands: [x]", "ssh: a shell needs it"),
    ],
)
async def test_a_shell_is_one_job_with_ssh(
    start: Fairlead, tmp_path: Path, fields: str, said: str
) -> None:
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "id_ed25519.pub").write_text(KEY)
    file = tmp_path / "job.yml"
    file.write_text(f"type: task\n{fields}\n")
    ended = await output.of(start, "shell", "-f", str(file), HOME=str(tmp_path))
    assert (ended.status, said in ended.err) == (2, True)


async def test_a_shell_without_a_key_says_how_to_make_one(start: Fairlead, tmp_path: Path) -> None:
    file = tmp_path / "job.yml"
    file.write_text("type: task\ncommands: [x]\n")
    ended = await output.of(start, "shell", "-f", str(file), HOME=str(tmp_path))
    assert "you have no SSH key: make one (`ssh-keygen -t ed25519`)" in ended.err


def test_an_installed_entry_stands_before_what_the_user_wrote(tmp_path: Path) -> None:
    (tmp_path / ".ssh").mkdir()
    config = tmp_path / ".ssh/config"
    config.write_text("Host other\n    User me\n")
    state = tmp_path / "my state"
    for port in (1, 40022):
        install(TARGET, f"Host train\n    Port {port}\n", state, tmp_path)

    assert config.read_text() == f'Include "{state}/*.entry"\n\nHost other\n    User me\n'
    assert config.stat().st_mode & 0o777 == 0o600
    assert (state / "train.entry").read_text() == "Host train\n    Port 40022\n"
