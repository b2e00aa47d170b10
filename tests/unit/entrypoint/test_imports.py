"""What a job's first process must not load: each job pays for it with CPU time and memory."""

from __future__ import annotations

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
