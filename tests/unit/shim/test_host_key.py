"""The node makes a host key of its own and puts it in the place of the one it booted with."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from fairlead.wire.errors import Refused
from shim.access.host_key import NodeHostKey
from shim.options import host_key


class Sshd:
    """sshd's folder. `fails`: how many reloads fail."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "ssh_host_ed25519_key"
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "root@image", "-f"]
        subprocess.run([*command, self.path], check=True)
        self.fails = 0
        self.reloads = 0
        self.first = self.key

    @property
    def key(self) -> str:
        """Return the public half of what sshd would load."""
        shown = ["ssh-keygen", "-y", "-f", str(self.path)]
        done = subprocess.run(shown, check=True, capture_output=True, text=True)
        return " ".join(done.stdout.split()[:2])

    def reload(self) -> None:
        if self.fails:
            self.fails -= 1
            raise subprocess.CalledProcessError(1, ["systemctl", "reload"], stderr="not loaded")
        self.reloads += 1

    def again(self) -> NodeHostKey:
        """Return what the shim has after a restart."""
        return NodeHostKey(self.path, self.reload)


@pytest.fixture
def sshd(tmp_path: Path) -> Sshd:
    return Sshd(tmp_path)


async def test_a_next_key_is_made_once_and_changes_nothing_yet(sshd: Sshd) -> None:
    made = await sshd.again().prepare()
    assert await sshd.again().prepare() == made
    assert made.key not in ("", sshd.first)
    assert (sshd.key, sshd.reloads) == (sshd.first, 0)
    (kept,) = (one for one in sshd.path.parent.iterdir() if one.name.startswith("fairlead"))
    assert kept.stat().st_mode & 0o777 == 0o600


async def test_the_next_key_takes_the_place_of_the_first_of_which_nothing_is_left(
    sshd: Sshd,
) -> None:
    before = sshd.path.read_bytes()
    made = await sshd.again().prepare()
    await sshd.again().use(made.key)
    assert (sshd.key, sshd.reloads) == (made.key, 1)
    assert sshd.path.stat().st_mode & 0o777 == 0o600
    assert sshd.path.with_name("ssh_host_ed25519_key.pub").read_text() == f"{made.key}\n"
    assert not [one for one in sshd.path.parent.iterdir() if one.read_bytes() == before]
    assert {one.name for one in sshd.path.parent.iterdir()} == {
        sshd.path.name,
        f"{sshd.path.name}.pub",
    }


async def test_a_use_whose_answer_was_lost_or_that_failed_half_way_is_repeated(sshd: Sshd) -> None:
    made = await sshd.again().prepare()
    sshd.fails = 1
    with pytest.raises(Refused, match="systemctl reload failed: not loaded"):
        await sshd.again().use(made.key)
    assert sshd.key == made.key
    await sshd.again().use(made.key)
    await sshd.again().use(made.key)
    assert (sshd.key, sshd.reloads) == (made.key, 2)


async def test_another_key_is_refused(sshd: Sshd) -> None:
    await sshd.again().prepare()
    with pytest.raises(Refused, match="neither") as caught:
        await sshd.again().use("ssh-ed25519 AAAA")
    assert caught.value.field == "key"
    assert (sshd.key, sshd.reloads) == (sshd.first, 0)


async def test_a_folder_without_keys_is_told(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="could not be changed"):
        await NodeHostKey(tmp_path / "none" / "key").prepare()


def test_only_a_rented_machine_says_which_key_to_replace() -> None:
    assert host_key({}) is None
    assert host_key({"FAIRLEAD_HOST_KEY": "/etc/ssh/key"}) == Path("/etc/ssh/key")
