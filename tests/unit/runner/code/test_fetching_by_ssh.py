"""Private repositories by key, with the image's ssh or, where it has none, with ours."""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import asyncssh
import msgspec
import pytest

from fairlead.wire.job import Repo, RepoCredentials
from runner.code.git import Git, ImageGit, RuntimeGit
from runner.code.helper import Helpers
from runner.errors import CannotStart
from runner.processes.scratch import Scratch
from runner.processes.spawn import Children
from tests.support.git_server import commit, git

KEY = asyncssh.generate_private_key("ssh-ed25519")
OTHER = asyncssh.generate_private_key("ssh-ed25519")
HOST_KEY = asyncssh.generate_private_key("ssh-ed25519")


class Server(msgspec.Struct):
    root: Path
    port: int
    commit: str

    def repo(self) -> Repo:
        return Repo(path="r", url=f"ssh://git@127.0.0.1:{self.port}/project", commit=self.commit)

    def known_hosts(self, key: asyncssh.SSHKey = HOST_KEY) -> str:
        line = key.convert_to_public().export_public_key().decode().strip()
        return f"[127.0.0.1]:{self.port} {line}\n"


def private(key: asyncssh.SSHKey) -> str:
    return key.export_private_key().decode()


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    root = tmp_path / "served"
    made = await asyncio.to_thread(_project, root)

    async def serve(process: asyncssh.SSHServerProcess[bytes]) -> None:
        program, path = shlex.split(process.command or "")
        upload = await asyncio.create_subprocess_exec(
            program,
            str(root / path.lstrip("/")),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null"},
        )
        assert upload.stdin is not None
        assert upload.stdout is not None
        asking = asyncio.create_task(_copy(process.stdin, upload.stdin))
        while piece := await upload.stdout.read(1 << 16):
            process.stdout.write(piece)
            await process.stdout.drain()
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        process.exit(await upload.wait())

    allowed = asyncssh.import_authorized_keys(KEY.export_public_key().decode())
    listener = await asyncssh.listen(
        "127.0.0.1",
        0,
        server_host_keys=[HOST_KEY],
        authorized_client_keys=allowed,
        process_factory=serve,
        encoding=None,
    )
    async with listener:
        yield Server(root, listener.get_port(), made)


async def _copy(source: asyncssh.SSHReader[bytes], target: asyncio.StreamWriter) -> None:
    while piece := await source.read(1 << 16):
        target.write(piece)
        await target.drain()
    target.close()


def _project(root: Path) -> str:
    folder = root / "project"
    folder.mkdir(parents=True)
    git(folder, "init", "-q")
    (folder / "f").write_text("1\n")
    return commit(folder)


@pytest.fixture(params=["image-image", "image-ours", "runtime-image", "runtime-ours"])
def my_git(request: pytest.FixtureRequest, scratch: Scratch) -> Git:
    """Its git and its ssh are the image's, ours or the runtime's."""
    helpers = Helpers(Children(), dict(os.environ), None)
    whose_git, whose_ssh = request.param.split("-")
    ssh = shutil.which("ssh") if whose_ssh == "image" else None
    if whose_git == "runtime":
        return RuntimeGit(ssh, helpers, scratch)
    program = shutil.which("git")
    assert program is not None
    return ImageGit(program, ssh, helpers, scratch)


@pytest.fixture
def scratch(tmp_path: Path) -> Scratch:
    (tmp_path / "memory").mkdir()
    return Scratch("a1", None, (tmp_path / "memory",))


@pytest.fixture
def target(tmp_path: Path) -> str:
    (tmp_path / "target").mkdir()
    return str(tmp_path / "target")


async def test_the_users_key_opens_it_and_is_gone_afterwards(
    server: Server, my_git: Git, target: str, scratch: Scratch
) -> None:
    keys = RepoCredentials(private_key=private(KEY), known_hosts=server.known_hosts())
    await my_git.fetch(server.repo(), target, keys)
    assert git(Path(target), "rev-parse", "HEAD") == server.commit
    assert os.listdir(scratch.folder) == []
    assert "PRIVATE" not in (Path(target) / ".git/config").read_text()


async def test_another_key_does_not(server: Server, my_git: Git, target: str) -> None:
    keys = RepoCredentials(private_key=private(OTHER), known_hosts=server.known_hosts())
    with pytest.raises(CannotStart, match="cannot be fetched"):
        await my_git.fetch(server.repo(), target, keys)


async def test_a_host_with_another_key_is_not_believed(
    server: Server, my_git: Git, target: str
) -> None:
    keys = RepoCredentials(private_key=private(KEY), known_hosts=server.known_hosts(OTHER))
    with pytest.raises(CannotStart, match="cannot be fetched"):
        await my_git.fetch(server.repo(), target, keys)


async def test_a_host_that_nobody_knows_is_believed(
    server: Server, my_git: Git, target: str
) -> None:
    await my_git.fetch(server.repo(), target, RepoCredentials(private_key=private(KEY)))
    assert git(Path(target), "rev-parse", "HEAD") == server.commit
