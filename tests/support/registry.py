"""An image registry of our own, of the few requests that a pull needs, that can misbehave.

It holds one image of one layer; `user:password` when it is private; and a gate in the middle of the
layer, so that a test can look at a pull that is going on.
"""

from __future__ import annotations

import asyncio
import base64
import gzip
import hashlib
import io
import json
import os
import tarfile
from contextlib import suppress

from aiohttp import web

_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
_LAYER = "application/vnd.docker.image.rootfs.diff.tar.gzip"
_CONFIG = "application/vnd.docker.container.image.v1+json"


class Registry:
    """`name` is the image's reference once the registry is open."""

    def __init__(self, login: str | None = None, layer_bytes: int = 4 << 20) -> None:
        self._login = login
        self.gate = asyncio.Event()
        self.gate.set()
        self.half_sent = asyncio.Event()
        layer = _layer(layer_bytes)
        config = _config(layer)
        zipped = gzip.compress(layer, 1)
        self._blobs = {_digest(blob): blob for blob in (zipped, config)}
        self._layer_digest = _digest(zipped)
        self._manifest = _manifest(config, zipped)
        self._runner: web.AppRunner | None = None
        self.name = ""

    async def open(self) -> None:
        app = web.Application(middlewares=[self._check_login])
        app.add_routes(
            [
                web.get("/v2/", self._hello),
                web.get("/v2/tool/manifests/{reference}", self._send_manifest),
                web.get("/v2/tool/blobs/{digest}", self._send_blob),
            ]
        )
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.name = f"127.0.0.1:{self._runner.addresses[0][1]}/tool:1"

    async def close(self) -> None:
        self.gate.set()
        assert self._runner is not None
        await self._runner.cleanup()

    @web.middleware
    async def _check_login(self, request: web.Request, handler: object) -> web.StreamResponse:
        given = request.headers.get("Authorization", "")
        wanted = base64.b64encode((self._login or "").encode()).decode()
        if self._login is not None and given != f"Basic {wanted}":
            challenge = {"WWW-Authenticate": 'Basic realm="test"'}
            errors = {"errors": [{"code": "UNAUTHORIZED", "message": "authentication required"}]}
            return web.json_response(errors, status=401, headers=challenge)
        response: web.StreamResponse = await handler(request)  # type: ignore[operator]
        return response

    async def _hello(self, request: web.Request) -> web.Response:
        return web.json_response({})

    async def _send_manifest(self, request: web.Request) -> web.Response:
        if request.match_info["reference"] not in ("1", _digest(self._manifest)):
            errors = {"errors": [{"code": "MANIFEST_UNKNOWN", "message": "manifest unknown"}]}
            return web.json_response(errors, status=404)
        headers = {"Docker-Content-Digest": _digest(self._manifest)}
        return web.Response(body=self._manifest, content_type=_MANIFEST, headers=headers)

    async def _send_blob(self, request: web.Request) -> web.StreamResponse:
        digest = request.match_info["digest"]
        blob = self._blobs[digest]
        response = web.StreamResponse(headers={"Content-Length": str(len(blob))})
        await response.prepare(request)
        half = len(blob) // 2 if digest == self._layer_digest else 0
        with suppress(ConnectionError):
            await response.write(blob[:half])
            if half:
                self.half_sent.set()
                await self.gate.wait()
            await response.write(blob[half:])
        return response


def _layer(size: int) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        info = tarfile.TarInfo("data")
        info.size = size
        archive.addfile(info, io.BytesIO(os.urandom(size)))
    return buffer.getvalue()


def _config(layer: bytes) -> bytes:
    content = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Cmd": ["/data"], "User": "7", "WorkingDir": "/srv"},
        "rootfs": {"type": "layers", "diff_ids": [_digest(layer)]},
    }
    return json.dumps(content).encode()


def _manifest(config: bytes, layer: bytes) -> bytes:
    return json.dumps(
        {
            "schemaVersion": 2,
            "mediaType": _MANIFEST,
            "config": {"mediaType": _CONFIG, "size": len(config), "digest": _digest(config)},
            "layers": [{"mediaType": _LAYER, "size": len(layer), "digest": _digest(layer)}],
        }
    ).encode()


def _digest(blob: bytes) -> str:
    return f"sha256:{hashlib.sha256(blob).hexdigest()}"
