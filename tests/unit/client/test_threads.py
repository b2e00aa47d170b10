"""Programs that ask from several threads at once, as AsyncClient does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec

from tests.unit.api.test_views import GOLDEN

# Threads that take turns after each bytecode meet in the first look at a struct's fields.
PROGRAM = """
import sys, threading
from pathlib import Path
from fairlead.configuration.parse import parse
from fairlead.documents.runs import RunView
from fairlead.rest import decode

data, names, together = Path(sys.argv[1]).read_bytes(), [], threading.Barrier(6)
sys.setswitchinterval(1e-6)

def read():
    together.wait()
    parse({"type": "task", "image": "busybox", "commands": ["true"]})
    names.append(decode(data, RunView).name)

threads = [threading.Thread(target=read) for _ in range(6)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(*names)
"""


def test_several_threads_may_check_a_file_and_read_an_answer_first_at_once(tmp_path: Path) -> None:
    """Each try is a process of its own: what is looked at for the first time was not seen there."""
    answer = tmp_path / "answer.json"
    answer.write_bytes(msgspec.json.encode(GOLDEN))
    argv = [sys.executable, "-c", PROGRAM, str(answer)]
    for _ in range(8):
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout.split()) == (0, [GOLDEN["name"]] * 6), done.stderr
