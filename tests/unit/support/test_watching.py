"""The watchers themselves: a check that never fails is worth nothing."""

from __future__ import annotations

import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

_CHECKOUT = Path(__file__).parents[3]
_IMPATIENT = """
from tests.conftest import *
from tests.support import leaks
leaks.SETTLES_WITHIN = 0.5
"""
_WATCHED = """
import asyncio, gc, os, subprocess, threading, time, types
import pytest

ours = types.ModuleType("shim.fake")
exec("def f():\\n    import time; time.sleep(0)", ours.__dict__)
kept = []

@pytest.fixture(scope="session")
def held():
    with open("/etc/hostname") as file:
        yield file

async def test_quick():
    await asyncio.sleep(0)

async def test_slow():
    end = time.thread_time() + 1.2
    while time.thread_time() < end:
        pass

async def test_collecting():
    def burn(phase, info):
        end = time.thread_time() + 1.2
        while phase == "start" and time.thread_time() < end:
            pass
    gc.callbacks.append(burn)
    gc.collect()
    gc.callbacks.remove(burn)

async def test_blocking():
    ours.f()

async def test_task():
    kept.append(asyncio.create_task(asyncio.sleep(60)))

def test_file():
    kept.append(os.open("/etc/passwd", os.O_RDONLY))

def test_thread():
    threading.Thread(target=threading.Event().wait, daemon=True, name="stray").start()

def test_child():
    kept.append(subprocess.Popen(["sleep", "30"]))

def test_held(held):
    assert held
"""


@pytest.fixture(scope="module")
def complaints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The watchers' complaint about each test above; "" where they had none."""
    folder = tmp_path_factory.mktemp("watched")
    (folder / "pytest.ini").write_text("[pytest]\nasyncio_mode = auto\n")
    (folder / "conftest.py").write_text(_IMPATIENT)
    (folder / "test_watched.py").write_text(_WATCHED)
    report = folder / "report.xml"
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
    environment = {**os.environ, "PYTHONPATH": str(_CHECKOUT)}
    subprocess.run(argv, cwd=folder, env=environment, capture_output=True, check=False)
    cases = ElementTree.parse(report).getroot().iter("testcase")
    return {
        case.attrib["name"]: "".join(child.text or "" for child in case.iter("error"))
        for case in cases
    }


@pytest.mark.parametrize(
    ("test", "complaint"),
    [
        ("test_slow", "kept the event loop for"),
        ("test_blocking", "shim.fake:2 (f) called sleep in the event loop"),
        ("test_task", "leaked task"),
        ("test_file", "→ /etc/passwd"),
        ("test_thread", "leaked thread stray"),
        ("test_child", "sleep 30"),
    ],
)
def test_a_blocking_call_or_a_leak_is_named(
    complaints: dict[str, str], test: str, complaint: str
) -> None:
    assert complaint in complaints[test]


@pytest.mark.parametrize("test", ["test_quick", "test_held", "test_collecting"])
def test_nothing_is_said_about_a_clean_test(complaints: dict[str, str], test: str) -> None:
    assert complaints[test] == ""
