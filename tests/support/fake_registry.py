"""A registry that serves what a test says, true or not."""

from __future__ import annotations

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
BASIC = "Basic YW5uYTpzM2NyZXQ="
"""The login of anna with s3cret."""


def digest_of(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


class FakeRegistry:
    """Serves `documents` by path below `/v2/`. `wants`: the challenge, until a token is sent."""

    def __init__(self) -> None:
        self.documents: dict[str, bytes] = {}
        self.challenge: str | None = None
        self.claimed: str | None = None
        """The digest that it gives for each manifest, whatever the manifest is."""
        self.logins: list[str | None] = []
        self.token = json.dumps({"token": "t1"}).encode()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.host = f"127.0.0.1:{self.server.server_port}"
        self.repository = f"{self.host}/team/tool"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    def put(self, kind: str, content: bytes, digest: str | None = None) -> str:
        name = digest or digest_of(content)
        self.documents[f"/v2/team/tool/{kind}/{name}"] = content
        return name

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        registry = self

        class Handler(BaseHTTPRequestHandler):
            # Without it, what is no request (TLS) is answered without a status line, from which
            # containerd does not learn that this registry speaks HTTP.
            default_request_version = "HTTP/1.0"

            def do_HEAD(self) -> None:
                self.do_GET()

            def do_GET(self) -> None:
                sent = self.headers.get("Authorization")
                if self.path.startswith("/token"):
                    registry.logins.append(sent)
                    return self.answer(200, registry.token)
                if registry.challenge is not None and sent not in ("Bearer t1", BASIC):
                    return self.answer(401, b"")
                content = b"{}" if self.path == "/v2/" else registry.documents.get(self.path)
                return self.answer(404, b"") if content is None else self.answer(200, content)

            def answer(self, status: int, content: bytes) -> None:
                self.send_response(status)
                if status == 401 and registry.challenge is not None:
                    self.send_header("WWW-Authenticate", registry.challenge)
                self.send_header("Content-Length", str(len(content)))
                if "/manifests/" in self.path and status == 200:
                    self.send_header("Content-Type", MANIFEST)
                    claimed = registry.claimed or digest_of(content)
                    self.send_header("Docker-Content-Digest", claimed)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(content)

            def log_message(self, *args: Any) -> None:
                """Say nothing."""

        return Handler
