from __future__ import annotations

import subprocess
from pathlib import Path

import asyncssh

from common.links import host_keys
from controller.machines import boot_data

SECRET = b"the controller's key"


def test_a_host_key_is_the_same_at_each_call_and_another_for_each_machine() -> None:
    assert boot_data.host_key(SECRET, "m1") == boot_data.host_key(SECRET, "m1")
    assert boot_data.host_key(SECRET, "m1") != boot_data.host_key(SECRET, "m2")
    assert boot_data.host_key(b"another", "m1") != boot_data.host_key(SECRET, "m1")


def test_openssh_reads_the_key(tmp_path: Path) -> None:
    private, public = boot_data.host_key(SECRET, "m1")
    file = tmp_path / "key"
    file.write_text(private)
    file.chmod(0o600)
    shown = subprocess.run(
        ["ssh-keygen", "-y", "-f", file], check=True, capture_output=True, text=True
    ).stdout
    assert host_keys.normalise(shown) == public
    assert host_keys.public_line(asyncssh.import_private_key(private)) == public


def test_the_controller_keeps_no_secret() -> None:
    pinned = boot_data.pin(SECRET, "m1")
    assert pinned.host_key == boot_data.host_key(SECRET, "m1")[1]
    assert boot_data.join_token(SECRET, "m1") not in repr(pinned)
