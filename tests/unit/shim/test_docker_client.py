"""A client of an engine asks the engine itself, whatever the shim's environment names."""

from __future__ import annotations

from contextlib import closing
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import TCPServer, UnixStreamServer
from typing import ClassVar

import pytest

from shim.engines.docker.api import Client
from tests.support.server_threads import served

ANSWER = b'{"ApiVersion":"1.44"}'


class Asked(BaseHTTPRequestHandler):
    """Answers as an engine that is asked for its version, and notes the credentials."""

    credentials: ClassVar[list[str | None]] = []

    def do_GET(self) -> None:
        self.credentials.append(self.headers.get("Authorization"))
        self.send_response(200)
        self.send_header("Content-Length", str(len(ANSWER)))
        self.end_headers()
        self.wfile.write(ANSWER)

    def log_message(self, format: str, *args: object) -> None:
        """A unix socket has no address that could be told."""


@pytest.mark.parametrize("kind", ["unix", "tcp"])
def test_neither_a_proxy_nor_a_netrc_leads_to_an_engine(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".netrc").write_text("default login ada password secret\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    Asked.credentials.clear()
    server: TCPServer
    if kind == "unix":
        server = UnixStreamServer(str(tmp_path / "engine.sock"), Asked)
        url = f"unix://{tmp_path}/engine.sock"
    else:
        server = TCPServer(("127.0.0.1", 0), Asked)
        url = f"tcp://127.0.0.1:{server.server_address[1]}"
    with served(server), closing(Client(base_url=url, version="auto", timeout=10)) as client:
        assert client.version() == {"ApiVersion": "1.44"}
    assert Asked.credentials == [None, None]
