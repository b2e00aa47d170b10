"""The metadata services of EC2 and GCP, as far as they announce that a machine is taken back, and
EC2's as far as cloud-init boots by it. Like EC2 with `HttpTokens: required`, it tells nothing
without a token (IMDSv2)."""

from __future__ import annotations

import re
import socketserver
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

from tests.support.server_threads import served

_VERSION = re.compile(r"/\d{4}-\d\d-\d\d/")
"""EC2 keeps each version that its service has had; clients choose one."""


class MetadataService:
    """`answers`: by path, without those that are 404; `token`: the one that EC2 gives."""

    def __init__(self, port: int = 0) -> None:
        self.port = port
        self.answers: dict[str, str] = {}
        self.token = "token-1"
        self.asked: list[tuple[str, str]] = []
        self.refused: list[str] = []
        """What was asked without a token."""

    def put(self, path: str, headers: dict[str, str]) -> tuple[int, str]:
        wanted = headers.get("x-aws-ec2-metadata-token-ttl-seconds")
        if path != "/latest/api/token" or wanted is None:
            return 400, ""
        return 200, self.token

    def get(self, path: str, headers: dict[str, str]) -> tuple[int, str]:
        path = _VERSION.sub("/latest/", path, count=1)
        if path.startswith("/latest/") and headers.get("x-aws-ec2-metadata-token") != self.token:
            return 401, ""
        if path.startswith("/computeMetadata/") and headers.get("metadata-flavor") != "Google":
            return 403, ""
        # EC2 lists a folder also without the slash at its end, and cloud-init asks in both ways.
        found = self.answers.get(path, self._listed(f"{path.rstrip('/')}/"))
        return (404, "") if found is None else (200, found)

    def _listed(self, folder: str) -> str | None:
        """Return the names in a folder, as EC2 lists them: those of folders end with a slash."""
        below = [path.removeprefix(folder) for path in self.answers if path.startswith(folder)]
        names = {first + slash for first, slash, _ in (one.partition("/") for one in below)}
        return "\n".join(sorted(names)) or None


class _UnixServer(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True


@contextmanager
def metadata_service() -> Iterator[MetadataService]:
    """Serve on a port of 127.0.0.1."""
    service = MetadataService()
    with HTTPServer(("127.0.0.1", 0), _handler_of(service)) as server, served(server):
        service.port = server.server_port
        yield service


@contextmanager
def metadata_at(socket: Path, service: MetadataService) -> Iterator[None]:
    """Serve at a unix socket."""
    with _UnixServer(str(socket), _handler_of(service)) as server, served(server):
        yield


def _handler_of(service: MetadataService) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            self._answer(service.put)

        def do_GET(self) -> None:
            self._answer(service.get)

        def _answer(self, how: object) -> None:
            assert callable(how)
            service.asked.append((self.command, self.path))
            headers = {name.lower(): value for name, value in self.headers.items()}
            status, text = how(self.path, headers)
            if status == 401:
                service.refused.append(self.path)
            content = text.encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            pass

    return Handler
