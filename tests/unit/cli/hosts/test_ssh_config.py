"""A host has the login here that `~/.ssh/config` gives it; the command's own words count first."""

from __future__ import annotations

from pathlib import Path

import pytest

from controller.commands.hosts.connection import HostError, Jump, Target
from controller.commands.hosts.ssh_config import target_of
from tests.unit.links.sshd import CLIENT_KEY

CONFIG = """\
Host gpu-1
    HostName 10.0.0.5
    Port 2222
    User ubuntu
    IdentityFile ~/.ssh/missing
    IdentityFile ~/.ssh/node
    ProxyJump gate
Host gate
    HostName gate.example
    User me
    IdentityFile ~/.ssh/gate
Host direct
    ProxyJump none
Host by-command
    ProxyCommand nc %h %p
"""


@pytest.fixture
def ssh(home: Path) -> Path:
    folder = home / ".ssh"
    (folder / "config").write_text(CONFIG)
    for name in ("node", "gate"):
        (folder / name).write_bytes(CLIENT_KEY.export_private_key())
    return folder


def test_an_alias_has_address_login_and_jump_host_of_the_configuration(ssh: Path) -> None:
    gate = Jump(host="gate.example", user="me", identity=ssh / "gate")
    wanted = Target(host="10.0.0.5", port=2222, user="ubuntu", identity=ssh / "node", jump=gate)
    assert target_of("gpu-1") == wanted


def test_given_options_override_the_configuration(ssh: Path) -> None:
    given = target_of("gpu-1", port=22, user="root", identity=Path("/k"), jump="you@other:2200")
    other = Jump(host="other", port=2200, user="you", identity=Path("/k"))
    assert given == Target(host="10.0.0.5", identity=Path("/k"), jump=other)


def test_a_host_without_an_entry_is_reached_as_root(ssh: Path) -> None:
    assert target_of("10.0.0.9") == Target(host="10.0.0.9")
    assert target_of("direct") == Target(host="direct")


def test_no_configuration_is_needed() -> None:
    assert target_of("gpu-1", jump="gate") == Target(host="gpu-1", jump=Jump(host="gate"))


def test_a_key_with_a_passphrase_is_left_to_the_agent(ssh: Path) -> None:
    locked = CLIENT_KEY.export_private_key("pkcs8-pem", passphrase="secret")
    (ssh / "node").write_bytes(locked)
    assert target_of("gpu-1").identity is None


@pytest.mark.parametrize(
    ("alias", "jump", "why"),
    [
        ("by-command", None, "ProxyCommand"),
        ("gpu-1", "a,b", "give one host"),
        ("gpu-1", "a:port", "give one host"),
    ],
)
def test_a_way_that_cannot_be_gone_is_told(
    ssh: Path, alias: str, jump: str | None, why: str
) -> None:
    with pytest.raises(HostError, match=why):
        target_of(alias, jump=jump)


def test_a_damaged_configuration_is_named_with_its_line(ssh: Path) -> None:
    (ssh / "config").write_text("Host gpu-1\n    Port many\n")
    with pytest.raises(HostError, match=r"config cannot be read: .*line 2"):
        target_of("gpu-1")
