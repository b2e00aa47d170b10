"""A host as its operator reaches it: by SSH with a pinned host key, as root or with sudo."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shlex
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import asyncssh
import msgspec

from common.links.errors import why_unreachable
from common.links.host_keys import describe, parse, public_line

CONNECT_SECONDS = 20.0
COMMAND_SECONDS = 900.0
_LAST_LINES = 4
_PIECE = 1 << 18
_ALGORITHMS = (("ssh-ed25519",), ("ecdsa-sha2-nistp256",), ("rsa-sha2-512", "rsa-sha2-256"))


class HostError(Exception):
    """The host failed; the message is for the operator and names the host."""


class Jump(msgspec.Struct, frozen=True, kw_only=True):
    """A host to reach another one through; its key is in the operator's known_hosts."""

    host: str
    port: int = 22
    user: str | None = None
    identity: Path | None = None

    @property
    def shown(self) -> str:
        port = "" if self.port == 22 else f":{self.port}"
        return f"{'' if self.user is None else f'{self.user}@'}{self.host}{port}"


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """A host's address and the operator's login."""

    host: str
    port: int = 22
    user: str = "root"
    identity: Path | None = None
    jump: Jump | None = None

    @property
    def shown(self) -> str:
        port = "" if self.port == 22 else f":{self.port}"
        return f"{self.user}@{self.host}{port}"


class Done(msgspec.Struct, frozen=True):
    status: int
    out: str
    err: str


class Host:
    """One connection to a host. `is_root`: whether `run(..., root=True)` works there."""

    def __init__(self, target: Target, ssh: asyncssh.SSHClientConnection) -> None:
        self._target = target
        self._ssh = ssh
        self.is_root = target.user == "root"
        self._sudo = False

    async def find_rights(self) -> None:
        self.is_root = (await self.run("id", "-u")).out.strip() == "0"
        if not self.is_root:
            # Without -n, sudo would wait for a password that nobody can type here.
            self._sudo = (await self.run("sudo", "-n", "true")).status == 0
            self.is_root = self._sudo

    async def run(self, *words: str, root: bool = False, stdin: str = "") -> Done:
        """Run a command. Raises HostError when the connection is lost."""
        prefix = ("sudo", "-n") if root and self._sudo else ()
        command = shlex.join((*prefix, *words))
        try:
            async with asyncio.timeout(COMMAND_SECONDS):
                done = await self._ssh.run(command, input=stdin, encoding="utf-8", errors="replace")
        except TimeoutError:
            raise HostError(
                f"{self._target.shown}: {words[0]} did not end in {COMMAND_SECONDS:.0f} s"
            ) from None
        except (OSError, asyncssh.Error) as error:
            raise HostError(f"{self._target.shown}: {why_unreachable(error)}") from None
        status = done.returncode if done.returncode is not None else -1
        return Done(status, str(done.stdout or ""), str(done.stderr or ""))

    async def must(
        self, *words: str, root: bool = False, stdin: str = "", fine: Sequence[int] = (0,)
    ) -> str:
        """Run a command. Raises HostError with its last output when its status is not `fine`."""
        done = await self.run(*words, root=root, stdin=stdin)
        if done.status not in fine:
            printed = (done.err.strip() or done.out.strip() or "it printed nothing").splitlines()
            last = " | ".join(printed[-_LAST_LINES:])
            raise HostError(
                f"{self._target.shown}: `{shlex.join(words)[:99]}` ended with {done.status}: {last}"
            )
        return done.out

    async def upload(self, file: Path, there: str, moved: Callable[[int], None]) -> None:
        """Upload a file and check its sha256. `moved` gets the bytes. Raises HostError."""
        digest = hashlib.sha256()
        try:
            async with self._ssh.create_process(
                f"cat > {shlex.quote(there)}", encoding=None
            ) as process:
                # A full disk ends `cat` early, and the channel breaks under the next piece.
                with suppress(ConnectionError), file.open("rb") as content:
                    while piece := await asyncio.to_thread(content.read, _PIECE):
                        digest.update(piece)
                        process.stdin.write(piece)
                        await process.stdin.drain()
                        moved(len(piece))
                    process.stdin.write_eof()
                done = await process.wait()  # also of a `cat` that did not read all: it says why
        except (OSError, asyncssh.Error) as error:
            raise HostError(
                f"{self._target.shown}: {file.name} could not be uploaded: {why_unreachable(error)}"
            ) from None
        if done.returncode:
            why = done.stderr.decode(errors="replace") if isinstance(done.stderr, bytes) else ""
            raise HostError(
                f"{self._target.shown}: {file.name} could not be written there: "
                f"{why.strip() or 'the connection was lost'}"
            )
        printed = (await self.must("sha256sum", there)).split()
        if printed[:1] != [digest.hexdigest()]:
            raise HostError(
                f"{self._target.shown}: {file.name} arrived damaged; is the disk of the host full?"
            )


@asynccontextmanager
async def tunnel(target: Target) -> AsyncIterator[asyncssh.SSHClientConnection | None]:
    """Yield the connection to the jump host, if there is one. Raises HostError."""
    if (jump := target.jump) is None:
        yield None
        return
    options = {**_login(jump.identity), **({"username": jump.user} if jump.user else {})}
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            connection = await asyncssh.connect(jump.host, jump.port, config=None, **options)
    except asyncssh.HostKeyNotVerifiable:
        raise HostError(
            f"the host key of the jump host {jump.host} is not known: log in once with ssh, and "
            f"compare"
        ) from None
    except (OSError, asyncssh.Error) as error:
        raise HostError(f"jump host {jump.shown}: {_why(error)}") from None
    async with connection:
        yield connection


@asynccontextmanager
async def connect(target: Target, host_key: str) -> AsyncIterator[Host]:
    """Connect. `host_key` is the only trusted key. Raises HostError."""
    async with AsyncExitStack() as stack:
        through = await stack.enter_async_context(tunnel(target))
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                ssh = await asyncssh.connect(
                    target.host,
                    target.port,
                    username=target.user,
                    known_hosts=([parse(host_key)], [], []),
                    tunnel=through or (),
                    config=None,  # asyncssh would read ~/.ssh/config, which `target_of` has done
                    keepalive_interval=15,
                    **_login(target.identity),
                )
        except asyncssh.PermissionDenied:
            raise HostError(
                f"{target.shown} accepts none of your keys: give --identity FILE, or add one to "
                f"ssh-agent"
            ) from None
        except asyncssh.HostKeyNotVerifiable:
            raise HostError(
                f"{target.host} has the host key {described(await host_keys(target))}, but "
                f"{described((host_key,))} is trusted: if the host was reinstalled, compare "
                f"them there; else another machine answers at this address"
            ) from None
        except (OSError, asyncssh.Error) as error:
            raise HostError(f"cannot connect to {target.shown}: {_why(error)}") from None
        await stack.enter_async_context(ssh)
        host = Host(target, ssh)
        await host.find_rights()
        yield host


def _login(identity: Path | None) -> dict[str, Any]:
    """Use the file alone, or what ssh would try: the agent and ~/.ssh/id_*. Raises HostError."""
    if identity is None:
        return {}
    try:
        key = asyncssh.read_private_key(identity)
    except OSError as error:
        raise HostError(f"--identity {identity}: {error.strerror}") from None
    except asyncssh.KeyImportError as error:
        # asyncssh tells a missing passphrase from a broken file by its text alone.
        if "passphrase" not in str(error).lower():
            raise HostError(f"--identity {identity} is not a private key") from None
        raise HostError(
            f"--identity {identity} has a passphrase: add it to ssh-agent (`ssh-add {identity}`) "
            f"and leave --identity out"
        ) from None
    # The keys of the agent would come too; sshd counts each as a failed login (MaxAuthTries).
    return {"client_keys": [key], "agent_path": None}


async def host_keys(target: Target) -> tuple[str, ...]:
    """Return the host's public key lines, the preferred one first. Raises HostError."""
    async with tunnel(target) as through:
        answers = [await _ask(target, names, through) for names in _ALGORITHMS]
    found = tuple(answer for answer in answers if isinstance(answer, str))
    if not found:
        why = next(answer for answer in answers if isinstance(answer, Exception))
        raise HostError(f"cannot reach sshd at {target.host}:{target.port}: {_why(why)}")
    return found


async def _ask(
    target: Target, names: Sequence[str], through: asyncssh.SSHClientConnection | None
) -> str | Exception:
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            key = await asyncssh.get_server_host_key(
                target.host,
                target.port,
                tunnel=through or (),
                server_host_key_algs=list(names),
                config=None,
            )
    except (OSError, asyncssh.Error) as error:
        return error
    return public_line(key) if key is not None else OSError("no host key was presented")


def known_key(target: Target, found: Sequence[str]) -> str | None:
    """Return the one of these keys that is in the operator's known_hosts for this host.
    Blocking."""
    file = Path(os.environ.get("HOME", "/")) / ".ssh/known_hosts"
    try:
        trusted = asyncssh.match_known_hosts(str(file), target.host, "", target.port)[0]
    # A user without a known_hosts file, or with lines in it that asyncssh cannot read.
    except (OSError, ValueError, asyncssh.Error):
        return None
    lines = {public_line(key) for key in trusted}
    return next((line for line in found if line in lines), None)


def described(lines: Sequence[str]) -> str:
    return ", ".join(describe(parse(line)) for line in lines)


def _why(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return f"it did not answer in {CONNECT_SECONDS:.0f} s"
    return why_unreachable(error)
