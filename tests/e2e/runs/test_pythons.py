"""`python` and `setup` on Docker: an image without Python gets the node's, or says why not."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from tests.e2e.store.process_lab import ProcessLab
from tests.support.daemons import run
from tests.support.docker_daemon import DockerDaemon
from tests.support.images import busybox_root
from tests.support.lab import RunLab
from tests.support.python_mirror import HERE, mirror_of_this_python
from tests.support.testbed import ControllerFactory, ShimFactory


@pytest.fixture(scope="module")
def glibc_image(dockerd: DockerDaemon, testbed_folder: Path) -> str:
    """busybox and the libraries that this machine's Python needs, but no Python."""
    root = busybox_root(testbed_folder / "glibc")
    program = Path(sys.base_prefix) / "bin" / f"python{HERE}"
    words = run(["ldd", program]).split()
    for library in (Path(word) for word in words if word.startswith("/")):
        target = root / library.relative_to("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(library.resolve(), target)
        target.chmod(0o755)
    return dockerd.import_image("glibc:e2e", root)


def test_an_image_without_python_gets_the_nodes_read_only(lab: RunLab, glibc_image: str) -> None:
    listing = mirror_of_this_python(lab.folder / "pythons")
    commands = [
        "python -c 'import sys; print(\"in\", sys.version_info[:2], sys.base_prefix)'",
        "command -v pip; command -v uv; pip --version",
        "echo 2>/dev/null >/opt/fairlead/pythons/mine || echo read-only",
        "echo $CARRIED; id -u",
    ]
    fields = {"image": glibc_image, "user": "1000:1000", "read_only_root": True}
    wanted = {"python": HERE, "setup": ["export CARRIED=over"], "working_dir": "/tmp"}
    result = lab.apply("venv", commands=commands, **fields, **wanted).succeeded()
    major, minor = HERE.split(".")
    first, pip, uv, about, *rest = result.output.splitlines()
    assert first.startswith(f"in ({major}, {minor}) /opt/fairlead/pythons/cpython-{HERE}.0-")
    assert (pip, uv) == tuple(f"/opt/fairlead/task/python/venv/bin/{one}" for one in ("pip", "uv"))
    assert about.startswith("pip ")
    assert rest == ["read-only", "over", "1000"]

    listing.unlink()
    lab.apply("again", commands=["python -c ''"], image=glibc_image, python=HERE).succeeded()
    other = lab.apply("other", commands=["true"], image=glibc_image, python="3.99")
    assert "the node could not bring it" in other.output + other.errors


def test_an_image_that_is_not_built_on_glibc_is_refused_with_a_sentence(lab: RunLab) -> None:
    mirror_of_this_python(lab.folder / "pythons")
    result = lab.apply("musl", commands=["true"], python=HERE)
    assert "is not built on glibc" in result.output + result.errors


def test_a_setup_that_fails_is_told_where_the_run_is_told(lab: RunLab) -> None:
    result = lab.apply("unset", setup=["exit 7"], commands=["echo ran"])
    assert "setup failed: exited with code 7" in result.output + result.errors


def test_without_containers_the_venv_is_of_this_machines_python(
    shim_process: ShimFactory, controller_process: ControllerFactory, tmp_path: Path
) -> None:
    shim, controller = shim_process("process"), controller_process()
    lab = ProcessLab(controller, tmp_path)
    lab.cli("node", "add", "here", "--local", shim.socket).succeeded()
    commands = ["python -c 'import sys; print(sys.version_info[:2], sys.prefix)'", "pip list -q"]
    result = lab.apply("venv", commands=commands, python=HERE).succeeded()
    assert f"{shim.data}/tasks/" in result.output
