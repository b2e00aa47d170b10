"""A git server over HTTP on this machine, private or not, that remembers who came how."""

from __future__ import annotations

import asyncio
import base64
import os
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from aiohttp import web

_ENV = {
    **os.environ,
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_SYSTEM": "/dev/null",
    **{f"GIT_{who}_NAME": "Ann" for who in ("AUTHOR", "COMMITTER")},
    **{f"GIT_{who}_EMAIL": "ann@example.com" for who in ("AUTHOR", "COMMITTER")},
}


def git(folder: Path, *arguments: str) -> str:
    argv = ["git", "-C", str(folder), "-c", "init.defaultBranch=main", *arguments]
    done = subprocess.run(argv, capture_output=True, text=True, env=_ENV, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def commit(folder: Path, message: str = "change") -> str:
    git(folder, "add", "--all")
    git(folder, "commit", "-q", "-m", message)
    return git(folder, "rev-parse", "HEAD")


class GitServer:
    """Serves the bare repositories below `root`."""

    def __init__(self, root: Path, token: str | None = None) -> None:
        self.root = root
        self.token = token
        self.port = 0
        self.requests: list[str] = []
        self.agents: set[str] = set()

    def url(self, name: str, host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}/{name}"

    def make(self, name: str) -> Path:
        """An empty bare repository."""
        path = self.root / name
        path.mkdir(parents=True)
        git(path, "init", "-q", "--bare")
        # http-backend takes pushes only from a client that the web server has authenticated.
        git(path, "config", "http.receivepack", "true")
        return path

    async def handle(self, request: web.Request) -> web.Response:
        self.requests.append(f"{request.method} {request.rel_url}")
        self.agents.add(request.headers.get("User-Agent", ""))
        if self.token is not None and not self._may(request):
            return web.Response(status=401, headers={"WWW-Authenticate": 'Basic realm="git"'})
        body = await request.read()
        env = {
            **_ENV,
            "GIT_PROJECT_ROOT": str(self.root),
            "GIT_HTTP_EXPORT_ALL": "1",
            "REQUEST_METHOD": request.method,
            "PATH_INFO": request.path,
            "QUERY_STRING": request.query_string,
            "CONTENT_TYPE": request.headers.get("Content-Type", ""),
            "CONTENT_LENGTH": str(len(body)),
            "HTTP_CONTENT_ENCODING": request.headers.get("Content-Encoding", ""),
            "HTTP_GIT_PROTOCOL": request.headers.get("Git-Protocol", ""),
        }
        program = await asyncio.create_subprocess_exec(
            "git",
            "http-backend",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=env,
        )
        answer, _ = await program.communicate(body)
        return _as_response(answer)

    def _may(self, request: web.Request) -> bool:
        scheme, _, login = request.headers.get("Authorization", "").partition(" ")
        if scheme != "Basic":
            return False
        return base64.b64decode(login).decode().partition(":")[2] == self.token


def _as_response(answer: bytes) -> web.Response:
    head, _, body = answer.partition(b"\r\n\r\n")
    fields = dict(line.split(": ", 1) for line in head.decode().splitlines())
    status = int(fields.pop("Status", "200").split()[0])
    return web.Response(status=status, headers=fields, body=body)


@asynccontextmanager
async def serving(server: GitServer, host: str = "127.0.0.1") -> AsyncIterator[GitServer]:
    app = web.Application(client_max_size=64 << 20)
    app.router.add_route("*", "/{path:.*}", server.handle)
    # git compresses large requests, and http-backend unpacks them itself.
    runner = web.AppRunner(app, access_log=None, auto_decompress=False)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, 0).start()
        server.port = runner.addresses[0][1]
        yield server
    finally:
        await runner.cleanup()
