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
        "from entrypoint import lean, main; from pathlib import Path;"
        f"lean.load_msgspec = lambda: sys.exit(print(Path({str(path)!r}).is_socket(),"
        " *sys.modules)); main.main()"
    )
    listens, *loaded = said(code)
    assert listens == "True"
    assert {"socket", "typing", "asyncio", "aiohttp.web", "msgspec", "runner.runner"} & set(
        loaded
    ) == set()


def test_a_job_can_begin_before_what_takes_long_is_loaded() -> None:
    loaded = said(
        "import sys; from entrypoint import lean, main; lean.load_msgspec();"
        "import runner.early, runner.options, entrypoint.ssh.port; print(*sys.modules)"
    )
    assert "msgspec" in loaded
    late = {"asyncio", "aiohttp", "logging", "inspect", "typing_extensions", "platform", "shutil"}
    assert late & set(loaded) == set()


def test_nothing_is_left_of_what_was_put_in_the_way_of_loading() -> None:
    code = (
        "from entrypoint import lean; lean.load_msgspec(); import platform, typing_extensions;"
        "print(hasattr(platform, 'machine'), hasattr(typing_extensions, 'TypedDict'))"
    )
    assert said(code) == ["True", "True"]


def test_every_part_that_is_loaded_by_itself_is_there() -> None:
    code = (
        "import sys; from importlib import import_module; from entrypoint import main;"
        "[import_module(part) for part in main.PARTS];"
        "late = set(sys.modules); from entrypoint import life; print(*set(sys.modules) - late)"
    )
    assert said(code) == []


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
