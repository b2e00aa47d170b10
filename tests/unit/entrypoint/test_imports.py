"""What a job's first process must not load: each job pays for it with CPU time and memory."""

from __future__ import annotations

import _datetime  # type: ignore[import-not-found]
import datetime
import subprocess
import sys

from tests.support.ssh_daemon import CHECKOUT

BUDGET = 260
"""Modules, with those that Python loads itself. asyncio and msgspec bring most of them."""
LEFT_OUT = (
    *("aiohttp", "websockets", "h11", "asyncssh", "dulwich", "obstore", "psutil", "certifi"),
    *("ssl", "_ssl", "_hashlib", "email", "http.client", "http.server", "html", "json", "yaml"),
    *("shutil", "tarfile", "zipfile", "bz2", "lzma", "pickle", "logging.handlers", "ctypes"),
    *(
        "typing_extensions",
        "argparse",
        "gettext",
        "dataclasses",
        "tempfile",
        "multiprocessing",
        "runner.client",
    ),
    *("runner.code.prepare", "runner.code.git", "entrypoint.ssh.server", "common.http"),
    *("_decimal", "decimal", "numbers", "_uuid", "uuid", "platform", "termios"),
)
BEFORE_IT_LISTENS = "import runner.options, runner.sockets"
ALL = "import entrypoint.life"
SHOW = """
import sys
from entrypoint import main
main.leave_out()
{imports}
print("\\n".join(name for name, module in sys.modules.items() if module is not None))
"""


def loaded(imports: str) -> set[str]:
    program = f"import sys; sys.path[:0] = {sys.path!r}\n{SHOW.format(imports=imports)}"
    argv = [sys.executable, "-I", "-S", "-c", program]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, cwd=CHECKOUT)
    return set(done.stdout.split())


def test_the_first_process_of_a_job_loads_little() -> None:
    found = loaded(ALL)
    assert found.isdisjoint(LEFT_OUT)
    assert len(found) <= BUDGET


def test_it_listens_before_it_loads_asyncio() -> None:
    # The order to start its job comes over two machines: it waits in the backlog meanwhile.
    assert loaded(BEFORE_IT_LISTENS).isdisjoint({"asyncio", "logging", "subprocess"})


AFTER_MSGSPEC = """
import sys
sys.path[:0] = {path!r}
from entrypoint import main
main.leave_out()
import msgspec
import datetime, decimal, uuid
print(decimal.Decimal(1) + 1, uuid.UUID(int=5).int, decimal.__spec__.name, uuid.__spec__.name)
print(msgspec.json.encode(datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)).decode())
print(msgspec.json.decode('"2026-01-02T00:00:00Z"', type=datetime.datetime).year)
"""


def test_modules_in_whose_place_msgspec_got_others_are_themselves_later() -> None:
    argv = [sys.executable, "-I", "-S", "-c", AFTER_MSGSPEC.format(path=sys.path)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, cwd=CHECKOUT)
    assert done.stdout.splitlines() == ["2 5 decimal uuid", '"2026-01-02T00:00:00Z"', "2026"]


def test_the_part_of_datetime_that_is_loaded_has_all_of_its_names() -> None:
    for name in datetime.__all__:
        assert getattr(_datetime, name) is getattr(datetime, name)


def test_no_library_of_the_image_is_looked_for() -> None:
    """asyncssh would ask for optional ones by name, and get files of the job's image."""
    program = f"""
import sys
sys.path[:0] = {sys.path!r}
import ctypes.util
asked = []
ctypes.util.find_library = asked.append
import entrypoint.ssh.server
print(asked)
"""
    argv = [sys.executable, "-I", "-S", "-c", program]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, cwd=CHECKOUT)
    assert done.stdout == "[]\n"
