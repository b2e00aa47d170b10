"""The controller's image: it is built, runs without root on a root that it cannot write, and two of
them share a database. The one that waits leads when the other one is killed.

It needs Docker, PostgreSQL and a network: Debian's mirror for the base (mmdebstrap), and the index
of Python packages. With --base NAME the base is pulled instead; with --wheels FOLDER the packages
come from there.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
import urllib.request
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

from bench.proofs._table import conclude
from tests.support.daemons import run
from tests.support.docker_daemon import DockerDaemon
from tests.support.images import debian_archive
from tests.support.postgresql_server import PostgresqlServer
from tests.support.processes import run_cli
from tests.support.ssh_daemon import CHECKOUT, free_port
from tests.support.waiting import wait_until

_BASE = "fairlead-base"
_IMAGE = "fairlead-controller"
_PACKAGES = ("python3-venv", "ca-certificates")
_TAKEOVER_SECONDS = 15.0
_USER = "10001"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base", metavar="NAME", help="an image with Python 3.11 or newer")
    parser.add_argument("--wheels", type=Path, metavar="FOLDER", help="of requirements.lock")
    given = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="fl-image-", dir="/tmp"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        folder.chmod(0o755)
        (folder / "docker").mkdir()
        docker = DockerDaemon(folder / "docker")
        stack.callback(docker.stop)
        docker.start()
        began = time.monotonic()
        _build(docker, given.base or _imported(docker), given.wheels)
        built = time.monotonic() - began
        server = PostgresqlServer(folder / "pg")
        stack.callback(server.stop)
        server.start()
        figures, broken = _two(docker, server, folder)
    conclude("the controller's image", [("seconds to build it", round(built)), *figures], broken)


def _imported(docker: DockerDaemon) -> str:
    archive = debian_archive("bookworm", *_PACKAGES)
    run(["docker", "import", archive, _BASE], env=docker.env)
    return _BASE


def _build(docker: DockerDaemon, base: str, wheels: Path | None) -> None:
    given = [f"{name}={os.environ[name]}" for name in ("PIP_INDEX_URL",) if name in os.environ]
    given += [] if wheels is None else ["PIP_NO_INDEX=1"]
    options = [part for one in (f"BASE={base}", *given) for part in ("--build-arg", one)]
    # The builder without a plugin reads this ignore file only at the top of what it sends.
    with tempfile.TemporaryDirectory(prefix="fl-context-") as context:
        _take(Path(context))
        if wheels is not None:
            shutil.copytree(wheels, Path(context, "wheels"))
        file = CHECKOUT / "packer/container/Containerfile"
        argv: list[str | Path] = ["docker", "build", "--network", "host", "-f", file, "-t", _IMAGE]
        argv += [*options, context]
        run(argv, env={**docker.env, "DOCKER_BUILDKIT": "0"}, timeout=1800)


def _take(context: Path) -> None:
    lines = (CHECKOUT / "packer/container/Containerfile.dockerignore").read_text().splitlines()
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", "build")
    for name in (line.removeprefix("!") for line in lines if line.startswith("!")):
        source = CHECKOUT / name
        if not source.exists():
            continue
        if source.is_dir():
            shutil.copytree(source, context / name, ignore=ignored)
        else:
            shutil.copy2(source, context / name)


def _two(
    docker: DockerDaemon, server: PostgresqlServer, folder: Path
) -> tuple[list[tuple[str, object]], list[str]]:
    url = server.new_database().partition("?")[0] + "?host=/pg"
    data = folder / "data"
    data.mkdir()
    os.chown(data, int(_USER), int(_USER))
    ports = {name: free_port() for name in ("c1", "c2")}
    for name, port in ports.items():
        options = ["--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL", "--network", "host"]
        options += ["--security-opt", "no-new-privileges", "-v", f"{data}:/data"]
        options += ["-v", f"{folder / 'pg'}:/pg"]
        # On one network, two need a port each, which the image's own command fixes.
        options += ["--entrypoint", "fairlead"]
        own = ["controller", "--data", "/data", "--listen", f"127.0.0.1:{port}"]
        own += ["--database", url, "--url", f"http://127.0.0.1:{port}"]
        docker.docker("run", "-d", "--name", name, *options, _IMAGE, *own)
        try:
            wait_until(partial(_is_healthy, port), 120, f"{name} to answer")
        except TimeoutError:
            raise SystemExit(f"{name} does not answer:\n{_log(docker, name)}") from None
    broken = []
    user = docker.docker("exec", "c1", "id", "-u").strip()
    if user != _USER:
        broken.append(f"it runs as user {user}")
    wrote = docker.docker("exec", "c1", "sh", "-c", "touch /opt/x 2>/dev/null || echo no").strip()
    if wrote != "no":
        broken.append("its root can be written")
    token = (data / "admin-token").read_text().strip()
    urls = ",".join(f"http://127.0.0.1:{port}" for port in ports.values())
    env = {"FAIRLEAD_URL": urls, "FAIRLEAD_TOKEN": token}
    run_cli("whoami", env=env).succeeded()
    began = time.monotonic()
    docker.docker("kill", "-s", "KILL", "c1")
    run_cli("fleet", "list", env=env).succeeded()
    gap = time.monotonic() - began
    if gap > _TAKEOVER_SECONDS:
        broken.append(f"no answer for {gap:.1f} s after the leader was killed")
    size = int(docker.docker("image", "inspect", "-f", "{{.Size}}", _IMAGE)) >> 20
    docker.docker("rm", "-f", "c1", "c2")
    return [("MiB of the image", size), ("seconds until the other one led", round(gap, 1))], broken


def _log(docker: DockerDaemon, name: str) -> str:
    return run(["docker", "logs", "--tail", "20", name], env=docker.env)


def _is_healthy(port: int) -> bool:
    with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/health") as got:
        return bool(got.status == 200)
    return False


if __name__ == "__main__":
    main()
