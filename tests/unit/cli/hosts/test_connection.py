"""An operator's key that cannot be used is told before a host is asked for anything."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import asyncssh
import pytest

from common.links.host_keys import fingerprint, public_line
from controller.commands.hosts.connection import Host, HostError, Target, connect
from tests.unit.links.sshd import CLIENT_KEY, HOST_KEYS, sshd

HOST_KEY = public_line(HOST_KEYS["ed25519"])
Runs = Callable[[asyncssh.SSHServerProcess[bytes]], Awaitable[None]]


def write(folder: Path, content: bytes) -> Path:
    file = folder / "identity"
    file.write_bytes(content)
    return file


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"not a key\n", "is not a private key"),
        (CLIENT_KEY.export_private_key("pkcs8-pem", passphrase="secret"), "ssh-add"),
    ],
)
async def test_an_identity_that_is_no_use_is_named_with_the_fix(
    tmp_path: Path, content: bytes, why: str
) -> None:
    target = Target(host="127.0.0.1", port=1, identity=write(tmp_path, content))
    with pytest.raises(HostError, match=why) as caught:
        async with connect(target, HOST_KEY):
            pass
    assert "identity" in str(caught.value)


async def test_an_identity_that_is_missing_is_named(tmp_path: Path) -> None:
    target = Target(host="127.0.0.1", port=1, identity=tmp_path / "none")
    with pytest.raises(HostError, match="none: No such file"):
        async with connect(target, HOST_KEY):
            pass


async def test_a_key_that_the_host_does_not_let_in_is_told(tmp_path: Path) -> None:
    stranger = asyncssh.generate_private_key("ssh-ed25519").export_private_key()
    async with sshd() as server:
        target = Target(host="127.0.0.1", port=server.port, identity=write(tmp_path, stranger))
        with pytest.raises(HostError, match="accepts none of your keys"):
            async with connect(target, HOST_KEY):
                pass


async def test_another_host_key_than_the_trusted_one_is_refused(tmp_path: Path) -> None:
    identity = write(tmp_path, CLIENT_KEY.export_private_key())
    async with sshd(HOST_KEYS["ed25519"]) as server:
        target = Target(host="127.0.0.1", port=server.port, identity=identity)
        wrong = public_line(asyncssh.generate_private_key("ssh-ed25519"))
        with pytest.raises(HostError, match="has the host key") as caught:
            async with connect(target, wrong):
                pass
        assert f"{fingerprint(wrong)} (ED25519) is trusted" in str(caught.value)
        assert fingerprint(HOST_KEY) in str(caught.value)


async def run_here(process: asyncssh.SSHServerProcess[bytes]) -> None:
    """As sshd does, with pipes."""
    started = await asyncio.create_subprocess_shell(
        process.command or "true",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    await process.redirect(started.stdin, started.stdout, started.stderr)
    status = await started.wait()
    # What is read of the pipes after the exit would be written to a closed channel, for which
    # asyncssh ends the whole connection.
    await process.stdout.drain()
    await process.stderr.drain()
    process.exit(status)
    await process.wait_closed()


async def fail_for_space(process: asyncssh.SSHServerProcess[bytes]) -> None:
    """As a `cat` whose disk is full after the first bytes."""
    if (process.command or "").startswith("cat"):
        await process.stdin.read(5)
        process.stderr.write(b"cat: write error: No space left on device\n")
        process.exit(1)
    else:
        process.exit(0)


@asynccontextmanager
async def a_host(tmp_path: Path, runs: Runs = run_here) -> AsyncIterator[Host]:
    identity = write(tmp_path, CLIENT_KEY.export_private_key())
    async with sshd(runs=runs) as server:
        target = Target(host="127.0.0.1", port=server.port, identity=identity)
        async with connect(target, HOST_KEY) as host:
            yield host


async def test_a_file_comes_whole(tmp_path: Path) -> None:
    file, moved = tmp_path / "bundle", list[int]()
    file.write_bytes(b"x" * 3_000_000)
    async with a_host(tmp_path) as host:
        await host.upload(file, str(tmp_path / "there"), moved.append)
    assert (tmp_path / "there").read_bytes() == file.read_bytes()
    assert sum(moved) == 3_000_000


@pytest.mark.parametrize("size", [10, 30_000_000])
async def test_a_full_disk_is_told_as_that(tmp_path: Path, size: int) -> None:
    file = tmp_path / "bundle"
    file.write_bytes(b"x" * size)
    async with a_host(tmp_path, fail_for_space) as host:
        with pytest.raises(HostError, match=r"could not be written there: .*No space left"):
            await host.upload(file, "/var/tmp/f/bundle.tar", lambda size: None)
