"""Fetches a repository's commit and changes it, with the image's git or else with the runtime's.

Credentials are files in memory (tmpfs) that only the job's user can read; they are removed after
the fetch, whatever its result. They are never an argument, and never stay in the repository's own
configuration.
"""

from __future__ import annotations

import asyncio
import base64
import os
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import NoReturn, Protocol
from urllib.parse import urlsplit

import msgspec

from fairlead.wire.job import Repo, RepoCredentials
from runner.code.helper import Helpers, Outcome, own_program
from runner.errors import CannotStart
from runner.processes.scratch import Scratch

SCHEMES = ("https", "http", "ssh", "git", "file")
_SCP_LIKE = re.compile(r"(?:[\w.-]+@)?[\w.-]+:(?!//|:)")
_HARMLESS_REF = re.compile(r"[A-Za-z0-9_][\w./+@-]*", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?", re.ASCII)
_SLOW = {"http.lowSpeedLimit": "1000", "http.lowSpeedTime": "60"}
"""Bytes a second, and seconds: a fetch that is slower for so long is given up."""
_KEPT_FOR_OURS = frozenset(
    {"http_proxy", "https_proxy", "all_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"}
)


class Git(Protocol):
    """Fetches and changes repositories. All methods raise CannotStart with a sentence for the
    user, without credentials."""

    async def fetch(self, repo: Repo, target: str, keys: RepoCredentials | None) -> None:
        """Fetch into the empty folder `target`."""

    async def apply(self, diff: Path, target: str) -> None: ...

    async def take_back(self, diff: Path, target: str) -> None:
        """Undo what `apply` did with the same diff."""


_QUERY = re.compile(r"(://[^\s'\"?]*\?)[^\s'\"]+")


def _without_query(text: str) -> str:
    """Hide the queries of URLs in a message: they may hold tokens."""
    return _QUERY.sub(r"\1***", text)


def check_repo(repo: Repo) -> str | None:
    """Return what is wrong with the repository; None: nothing."""
    url = repo.url or ""
    if urlsplit(url).scheme not in SCHEMES and not _SCP_LIKE.match(url):
        return f"{url!r} is not a URL of a git repository ({', '.join(SCHEMES)})"
    if repo.commit is not None and not _COMMIT.fullmatch(repo.commit):
        return f"{repo.commit!r} is not a full commit id"
    if repo.branch is not None and not _HARMLESS_REF.fullmatch(repo.branch):
        return f"{repo.branch!r} is not the name of a branch"
    return None


class ImageGit:
    def __init__(self, program: str, ssh: str | None, helpers: Helpers, scratch: Scratch) -> None:
        self._program = program
        self._ssh = ssh
        self._helpers = helpers
        self._scratch = scratch

    async def fetch(self, repo: Repo, target: str, keys: RepoCredentials | None) -> None:
        url = repo.url or ""
        async with _lent(self._scratch, url, keys, self._ssh) as lent:
            lent.env |= await asyncio.to_thread(self._trust, target)
            # A template of the image could bring hooks, which the checkout would run.
            await self._git(lent, "init", "-q", "--template=", target)
            await self._git(lent, "-C", target, "remote", "add", "origin", url)
            ref = await self._fetch_what_is_wanted(lent, repo, target)
            place = ("-B", repo.branch) if repo.branch else ("--detach",)
            await self._git(lent, "-C", target, "checkout", "-q", *place, ref)

    async def apply(self, diff: Path, target: str) -> None:
        done = await self._apply(diff, target)
        _require(done, "the local changes cannot be applied to the repository")

    async def take_back(self, diff: Path, target: str) -> None:
        done = await self._apply(diff, target, "--reverse")
        _require(done, "the earlier changes cannot be taken back from the repository")

    async def _apply(self, diff: Path, target: str, *options: str) -> Outcome:
        # Whitespace is the user's: git warns of it by default, once for each line.
        argv = ["-C", target, "apply", "--binary", "--whitespace=nowarn", *options, "-"]
        lent = _Lent(env=await asyncio.to_thread(self._trust, target))
        with diff.open("rb") as stdin:
            return await self._run(lent, argv, stdin.fileno())

    def _trust(self, target: str) -> dict[str, str]:
        """Return the variables that make git accept a folder of another user, such as a volume.

        git refuses such a folder unless a file of its own user allows it; older versions obey
        nothing else.
        """
        if os.stat(target).st_uid == self._helpers.uid:
            return {}
        file = self._scratch.file(".gitconfig", "[safe]\n\tdirectory = *\n", 0o600)
        return {"HOME": str(file.parent), "GIT_CONFIG_GLOBAL": str(file)}

    async def _fetch_what_is_wanted(self, lent: _Lent, repo: Repo, target: str) -> str:
        """Fetch only that commit; from servers that give no single commits, fetch all."""
        wanted = repo.commit or repo.branch or "HEAD"
        shallow = ("-C", target, "fetch", "-q", "--depth=1", "--no-tags", "origin", wanted)
        done = await self._run(lent, shallow)
        if done.code == 0:
            return "FETCH_HEAD"
        if repo.commit is None:
            _refuse(done, f"{repo.url} cannot be fetched")
        everything = "+refs/heads/*:refs/remotes/origin/*"
        fetch_all = ("-C", target, "fetch", "-q", "--tags", "origin", everything)
        _require(await self._run(lent, fetch_all), f"{repo.url} cannot be fetched")
        known = await self._run(lent, ("-C", target, "cat-file", "-e", f"{repo.commit}^{{commit}}"))
        if known.code != 0:
            raise CannotStart(
                f"{_without_query(repo.url or '')} cannot be fetched:"
                f" it has no commit {repo.commit} (is it pushed?)"
            )
        return repo.commit

    async def _git(self, lent: _Lent, *arguments: str) -> None:
        _require(await self._run(lent, arguments), "git failed")

    async def _run(
        self, lent: _Lent, arguments: tuple[str, ...] | list[str], stdin: int | None = None
    ) -> Outcome:
        options = [word for name, value in _SLOW.items() for word in ("-c", f"{name}={value}")]
        if lent.config is not None:
            options += ["-c", f"include.path={lent.config}"]
        argv = [self._program, *options, *arguments]
        env = {**self._helpers.env, **_GIT_ENV, **lent.env}
        env.pop("LD_PRELOAD", None)  # meant for the job, not for programs of ours that git starts
        if stdin is None:
            return await self._helpers.run(argv, cwd="/", env=env)
        return await self._helpers.run(argv, cwd="/", env=env, stdin=stdin)


class RuntimeGit:
    """The runtime's git as its own process: it needs TLS, which the runner does without, and the
    job's identity."""

    def __init__(self, ssh: str | None, helpers: Helpers, scratch: Scratch) -> None:
        self._ssh = ssh
        self._helpers = helpers
        self._scratch = scratch

    async def fetch(self, repo: Repo, target: str, keys: RepoCredentials | None) -> None:
        url = repo.url or ""
        async with _lent(self._scratch, url, keys, self._ssh) as lent:
            order = {"repo": repo, "target": target, "ssh": lent.env.get("GIT_SSH_COMMAND")}
            if keys is not None and not is_ssh(url):
                order["login"] = [keys.username, keys.token]
            with _in_memory(msgspec.json.encode(order)) as stdin:
                done = await self._run("fetch", target, stdin)
        _require(done, f"{url} cannot be fetched")

    async def apply(self, diff: Path, target: str) -> None:
        with diff.open("rb") as file:
            done = await self._run("apply", target, file.fileno())
        _require(done, "the local changes cannot be applied to the repository")

    async def take_back(self, diff: Path, target: str) -> None:
        raise CannotStart("the earlier changes cannot be taken back: the image has no git")

    async def _run(self, what: str, target: str, stdin: int) -> Outcome:
        argv = (*own_program("runner.code.fetch"), what, target)
        env = {name: value for name, value in self._helpers.env.items() if name in _KEPT_FOR_OURS}
        env["PATH"] = self._helpers.env.get("PATH", os.defpath)
        return await self._helpers.run(argv, cwd="/", env=env, stdin=stdin)


def is_ssh(url: str) -> bool:
    return urlsplit(url).scheme == "ssh" or ("://" not in url and ":" in url)


class _Lent(msgspec.Struct):
    """The place of the credentials while a fetch needs them."""

    config: str | None = None
    env: dict[str, str] = {}


_GIT_ENV = {
    # No user is there to answer: git would wait for a login until the job's limit.
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_ASKPASS": "",
    "GIT_ALLOW_PROTOCOL": ":".join(SCHEMES),
    # A configuration of the image could name helpers that keep the login.
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "HOME": "/nonexistent",
    "XDG_CONFIG_HOME": "/nonexistent",
    "LC_ALL": "C",
}


@asynccontextmanager
async def _lent(
    scratch: Scratch, url: str, keys: RepoCredentials | None, ssh: str | None
) -> AsyncIterator[_Lent]:
    lent = _Lent()
    made: list[Path] = []
    try:
        if is_ssh(url):
            command = await asyncio.to_thread(_ssh, scratch, keys, ssh, made)
            lent.env = {"GIT_SSH_COMMAND": command, "GIT_SSH_VARIANT": "ssh"}
        elif keys is not None and keys.token is not None:
            made.append(await asyncio.to_thread(_config, scratch, url, keys))
            lent.config = str(made[0])
        yield lent
    finally:
        for path in made:
            # They hold the repository's credentials, and the job comes next.
            path.unlink(missing_ok=True)


def _config(scratch: Scratch, url: str, keys: RepoCredentials) -> Path:
    parts = urlsplit(url)
    login = base64.b64encode(f"{keys.username}:{keys.token}".encode()).decode()
    place = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}/"
    # Without a URL, git would send this header to every host.
    text = f'[http "{place}"]\n\textraHeader = "Authorization: Basic {login}"\n'
    return scratch.secret_file("git-config", text)


def _ssh(
    scratch: Scratch, keys: RepoCredentials | None, program: str | None, made: list[Path]
) -> str:
    """Return an ssh command line: the image's ssh, else the runtime's.

    Without known hosts, the host's first key is accepted: no user is there to ask.
    """
    known = keys.known_hosts if keys is not None else None
    hosts = scratch.secret_file("git-known-hosts", known or "")
    made.append(hosts)
    checking = "yes" if known else "accept-new"
    options = ["BatchMode=yes", "ConnectTimeout=30", "ServerAliveInterval=15"]
    options += [f"StrictHostKeyChecking={checking}", f"UserKnownHostsFile={hosts}"]
    words = [*((program,) if program else own_program("runner.code.git_ssh")), "-F", "/dev/null"]
    if keys is not None and keys.private_key is not None:
        key = scratch.secret_file("git-key", keys.private_key.rstrip("\n") + "\n")
        made.append(key)
        words += ["-i", str(key)]
        options += ["IdentitiesOnly=yes"]
    return " ".join(words + [word for option in options for word in ("-o", option)])


@contextmanager
def _in_memory(content: bytes) -> Iterator[int]:
    fd = os.memfd_create("fairlead-order")
    try:
        os.write(fd, content)
        os.lseek(fd, 0, os.SEEK_SET)
        yield fd
    finally:
        os.close(fd)


def _require(done: Outcome, what: str) -> None:
    if done.code != 0:
        _refuse(done, what)


def _refuse(done: Outcome, what: str) -> NoReturn:
    lines = [line for line in done.output.splitlines() if line.strip()]
    message = f"{what}: {' / '.join(lines[-3:])[:600]}" if lines else what
    raise CannotStart(_without_query(message))


def choose(find: Callable[[str], str | None], helpers: Helpers, scratch: Scratch) -> Git:
    """Return the git to use. `find` looks a program up in the image."""
    program, ssh = find("git"), find("ssh")
    if program is not None:
        return ImageGit(program, ssh, helpers, scratch)
    return RuntimeGit(ssh, helpers, scratch)
