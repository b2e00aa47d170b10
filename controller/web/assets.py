"""The dashboard's scripts and styles, with one version in the address of all of them.

A new version has new addresses, so browsers may keep a file for ever. Modules import each other by
relative addresses, so they always come from one version.
"""

from __future__ import annotations

import gzip
import hashlib
import mimetypes
from functools import cache, cached_property
from pathlib import Path

import msgspec
from aiohttp import web

from controller.web.states import stylesheet

STATIC_PATH = "/dashboard/static/{version}/{name:.+}"
_FOREVER = "public, max-age=31536000, immutable"
STATIC = Path(__file__).parent / "static"
NEEDED = "vendor/htmx.min.js"
"""It is there when `./dev setup` has fetched what comes from npm."""
_TYPES = {".js": "text/javascript", ".mjs": "text/javascript", ".css": "text/css"}


class Asset(msgspec.Struct, frozen=True):
    content: bytes
    compressed: bytes
    media: str


@cache
def installed() -> Assets:
    """Return those of this installation, read once: a follower that begins to lead has them."""
    return Assets()


class Assets:
    """All files of one folder, and the stylesheet that is made from the table of states.

    Read at the first use. Blocking.
    """

    def __init__(self, folder: Path = STATIC) -> None:
        self._folder = folder

    @property
    def are_complete(self) -> bool:
        return NEEDED in self.files

    @cached_property
    def files(self) -> dict[str, Asset]:
        found = {"states.css": stylesheet().encode()}
        for path in sorted(self._folder.rglob("*")):
            if path.is_file() and not path.name.startswith("."):
                found[path.relative_to(self._folder).as_posix()] = path.read_bytes()
        return {name: _asset(name, content) for name, content in found.items()}

    @cached_property
    def version(self) -> str:
        every = hashlib.sha256()
        for name, asset in self.files.items():
            every.update(name.encode() + b"\0" + asset.content)
        return every.hexdigest()[:16]

    def address(self, name: str) -> str:
        return f"/dashboard/static/{self.version}/{name}"

    def response(self, request: web.Request) -> web.Response | None:
        """Answer a request for `STATIC_PATH`; None: there is no such file in this version."""
        asset = self.files.get(request.match_info["name"])
        # Another version's file must not be kept for ever under this address.
        if asset is None or request.match_info["version"] != self.version:
            return None
        answer = web.Response(
            body=asset.content, headers={"Cache-Control": _FOREVER, "Vary": "Accept-Encoding"}
        )
        answer.headers["Content-Type"] = f"{asset.media}; charset=utf-8"
        answer.headers["X-Content-Type-Options"] = "nosniff"
        if "gzip" in request.headers.get("Accept-Encoding", ""):
            answer.body = asset.compressed
            answer.headers["Content-Encoding"] = "gzip"
        return answer


def _asset(name: str, content: bytes) -> Asset:
    suffix = Path(name).suffix
    media = _TYPES.get(suffix) or mimetypes.guess_type(name)[0] or "application/octet-stream"
    # Without a time in its head, gzip gives the same bytes at each start.
    return Asset(content, gzip.compress(content, 9, mtime=0), media)
