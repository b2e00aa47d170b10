"""The metadata services of EC2 and GCP, as far as they announce that a machine is taken back."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer


class MetadataService:
    """`answers`: by path, without those that are 404; `token`: the one that EC2 gives."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.answers: dict[str, str] = {}
        self.token = "token-1"
        self.asked: list[tuple[str, str]] = []

    def put(self, path: str, headers: dict[str, str]) -> tuple[int, str]:
        wanted = headers.get("x-aws-ec2-metadata-token-ttl-seconds")
        if path != "/latest/api/token" or wanted is None:
            return 400, ""
        return 200, self.token

    def get(self, path: str, headers: dict[str, str]) -> tuple[int, str]:
        if path.startswith("/latest/") and headers.get("x-aws-ec2-metadata-token") != self.token:
            return 401, ""
        if path.startswith("/computeMetadata/") and headers.get("metadata-flavor") != "Google":
            return 403, ""
        found = self.answers.get(path)
        return (404, "") if found is None else (200, found)


@contextmanager
def metadata_service() -> Iterator[MetadataService]:
    """Serve on a port of 127.0.0.1."""

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
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        service = MetadataService(server.server_port)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield service
        finally:
            server.shutdown()
            thread.join()
