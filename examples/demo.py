"""`./dev demo`: the whole path on one machine, with the commands that a user would type.

Starts a shim and a controller in a folder of their own, adds this machine as a node, applies
`hello.yaml`, shows its log, its status and the dashboard's link, and ends what it started: at a
terminal when you press Ctrl-C, in a pipe at once. With Docker and an image the job runs in a
container; otherwise with the process engine, which isolates nothing.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import docker
from docker.errors import DockerException

HERE = Path(__file__).parent
RUNTIME = HERE.parent / ".build" / "runtimes" / "current"
BIN = Path(sys.executable).parent
LIKELY_IMAGES = ("busybox", "alpine", "debian", "ubuntu", "python")
DEMO_IMAGE = "fairlead-demo:1"
START_SECONDS = 30.0


class Engine(NamedTuple):
    name: str
    image: str | None
    why: str


def say(text: str) -> None:
    print(f"\n== {text}", flush=True)


def choose_engine() -> Engine:
    try:
        client = docker.from_env(version="auto", timeout=10)
        client.ping()
    except DockerException:
        return Engine("process", None, "no Docker engine answers here")
    try:
        image = usable_image(client)
    finally:
        client.close()
    if image is None:
        return Engine("process", None, "Docker has no image; name one in FAIRLEAD_DEMO_IMAGE")
    if os.geteuid() != 0:
        return Engine("process", None, "containers need a shim that runs as root")
    if not RUNTIME.exists():
        return Engine("process", None, "`./dev runtime` has not built the containers' runtime yet")
    return Engine("docker", image, f"Docker answers and has the image {image}")


def usable_image(client: docker.DockerClient) -> str | None:
    wanted = os.environ.get("FAIRLEAD_DEMO_IMAGE")
    if wanted:
        return wanted
    tags = sorted(tag for image in client.images.list() for tag in image.tags)
    for name in LIKELY_IMAGES:
        for tag in tags:
            if tag.split(":")[0].endswith(name):
                return tag
    return busybox_image(client) or next(iter(tags), None)


def busybox_image(client: docker.DockerClient) -> str | None:
    """An image made of the machine's own static busybox, if it has one."""
    busybox = shutil.which("busybox")
    if busybox is None or b"dynamically" in _described(busybox):
        return None
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "root"
        (root / "bin").mkdir(parents=True)
        shutil.copy(busybox, root / "bin" / "busybox")
        for applet in ("sh", "echo", "sleep", "hostname"):
            (root / "bin" / applet).symlink_to("busybox")
        archive = shutil.make_archive(str(Path(folder) / "image"), "tar", root)
        client.api.import_image_from_file(archive, repository="fairlead-demo", tag="1")
    return DEMO_IMAGE


def _described(program: str) -> bytes:
    return subprocess.run(["ldd", program], capture_output=True, check=False).stdout


@contextlib.contextmanager
def process(*command: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A daemon whose output goes to `log`; ended by pid."""
    print("$ " + " ".join([Path(command[0]).name, *command[1:]]), flush=True)
    with log.open("wb") as output:
        daemon = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        yield daemon
    finally:
        daemon.terminate()
        try:
            daemon.wait(10)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()


def wait_for(daemon: subprocess.Popen[bytes], log: Path, pattern: str) -> str:
    """The first match of `pattern` in the daemon's output; exits with its output if it ends."""
    deadline = time.monotonic() + START_SECONDS
    pause = threading.Event()
    while time.monotonic() < deadline:
        found = re.search(pattern, log.read_text(errors="replace"))
        if found:
            return found.group(0)
        if daemon.poll() is not None:
            break
        pause.wait(0.05)
    sys.exit(f"it did not start:\n{log.read_text(errors='replace')}")


def fairlead(*arguments: str, env: dict[str, str]) -> int:
    print("$ fairlead " + " ".join(arguments), flush=True)
    return subprocess.run([str(BIN / "fairlead"), *arguments], env=env, check=False).returncode


def main() -> int:
    engine = choose_engine()
    say(f"Fairlead on this machine, {engine.name} engine: {engine.why}")
    with tempfile.TemporaryDirectory(prefix="fairlead-demo-") as folder:
        return run(engine, Path(folder))


def run(engine: Engine, folder: Path) -> int:
    with started(engine, folder) as (socket, env):
        return show(engine, socket, env)


@contextlib.contextmanager
def started(engine: Engine, folder: Path) -> Iterator[tuple[Path, dict[str, str]]]:
    """Start a shim and a controller in the folder; give the shim's socket and the variables of the
    command."""
    socket, shim_log, controller_log = (
        folder / "run/shim.sock",
        folder / "shim.log",
        folder / "c.log",
    )
    shim_command = [
        str(BIN / "fairlead-shim"), "--data", str(folder / "node"), "--socket", str(socket),
        "--gateway-folder", str(folder / "run/exposed"),
        "--engine", engine.name,
    ]  # fmt: skip
    if engine.name == "docker":
        shim_command += ["--runtime", str(RUNTIME)]
    controller_command = [
        str(BIN / "fairlead"), "controller", "--data", str(folder / "controller"),
        "--listen", "127.0.0.1:0",
    ]  # fmt: skip
    say("Start the node's shim, and the controller")
    with process(*shim_command, log=shim_log) as shim:
        wait_for(shim, shim_log, "listening")
        with process(*controller_command, log=controller_log) as controller:
            url = wait_for(controller, controller_log, r"http://[0-9.]+:\d+")
            yield (
                socket,
                {
                    **os.environ,
                    "FAIRLEAD_URL": url,
                    "FAIRLEAD_TOKEN_FILE": str(folder / "controller" / "admin-token"),
                },
            )


def show(engine: Engine, socket: Path, env: dict[str, str]) -> int:
    say("Add this machine as a node")
    status = fairlead("node", "add", "this-machine", "--local", str(socket), env=env)
    say("Submit a task and follow its log")
    begun = time.monotonic()
    configuration = Path(os.path.relpath(HERE / "hello.yaml"))
    if engine.image is not None:
        configuration = socket.parent.parent / "hello.yaml"
        text = (HERE / "hello.yaml").read_text()
        configuration.write_text(text + f"image: {engine.image}\n")
    status = status or fairlead("apply", "-f", str(configuration), env=env)
    took = time.monotonic() - begun
    say(f"Its status ({took:.1f} s from submit to done)")
    status = status or fairlead("ps", "--all", env=env)
    say("Open its dashboard in a browser")
    status = status or fairlead("dashboard", "--print", env=env)
    say("It worked." if status == 0 else "It failed.")
    if status == 0 and sys.stdin.isatty() and sys.stdout.isatty():
        stay()
    return status


def stay() -> None:
    """Keep the controller and the node until Ctrl-C."""
    print("The controller and the node stay until you press Ctrl-C.", flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        threading.Event().wait()


if __name__ == "__main__":
    sys.exit(main())
