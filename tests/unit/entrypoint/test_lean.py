"""What the first process of a container does not load, and that nothing is missing for it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def said(code: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_neither_tls_nor_a_client_is_loaded() -> None:
    loaded = said("import sys, entrypoint.main, entrypoint.life; print(*sys.modules)")
    assert "aiohttp.web" in loaded
    assert {"aiohttp.client", "aiohttp.connector", "_ssl"} & set(loaded) == set()


def test_it_listens_before_it_has_loaded_what_takes_long(tmp_path: Path) -> None:
    path = tmp_path / "runner.sock"
    code = (
        f"import sys; sys.argv[1:] = ['--socket', {str(path)!r}];"
        "from entrypoint import main; import socket;"
        "from types import ModuleType;"
        "life = sys.modules['entrypoint.life'] = ModuleType('life');"
        "life.run = lambda listener: print(listener.getsockopt(socket.SOL_SOCKET,"
        " socket.SO_ACCEPTCONN), *sys.modules);"
        "sys.modules['entrypoint'].life = life; main.main()"
    )
    listens, *loaded = said(code)
    assert listens == "1"
    assert {"asyncio", "aiohttp.web", "msgspec", "runner.lifecycle"} & set(loaded) == set()


def test_who_asks_for_more_of_the_library_gets_the_whole() -> None:
    code = (
        "import entrypoint.main, entrypoint.life, aiohttp, aiohttp.web as web;"
        "from aiohttp import ClientSession, web_request, __version__;"
        "print(ClientSession.__name__, aiohttp.web is web, bool(aiohttp.__version__),"
        " hasattr(aiohttp, 'nothing'), type(aiohttp).__name__)"
    )
    assert said(code) == ["ClientSession", "True", "True", "False", "module"]


def test_a_library_that_is_loaded_already_stays_as_it_is() -> None:
    code = "import aiohttp; from entrypoint import lean; print(type(aiohttp).__name__)"
    assert said(code) == ["module"]
