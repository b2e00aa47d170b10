"""What a job needs of its node: each thing is looked at and, where it fails, told with a fix.

`fairlead-shim doctor` looks as root, whether a shim runs or not; the shim answers the same to its
controller. Programs are asked through `Asked`, so that each judgement can be tested by itself.
"""

from __future__ import annotations

import argparse
import io
import os
import shutil
import socket
import subprocess
import tarfile
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from shim.errors import StartError
from shim.schemas import EngineKind, Finding, FindingLevel
from shim.settings import RUNTIME, check_runtime

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_SECONDS = 20.0
_CONTAINER_SECONDS = 60
_LEAST_DATA, _LEAST_IMAGES = 1 << 30, 10 << 30
_CDI_FOLDERS = ("etc/cdi", "var/run/cdi")
_NVIDIA = "0x10de"
_DISPLAYS = ("0x0300", "0x0302")
_ENTRYPOINT = "/opt/fairlead/runtime/bin/fairlead-entrypoint"
TUNNEL = {
    "allowstreamlocalforwarding": ("local", "yes"),
    "allowtcpforwarding": ("local",),
    "permitlisten": ("none",),
    "permittty": ("no",),
    "forcecommand": ("/usr/sbin/nologin",),
    "allowagentforwarding": ("no",),
    "x11forwarding": ("no",),
    "permittunnel": ("no",),
}
_INSTALL = "run /opt/fairlead/current/install"


class Answer(msgspec.Struct, frozen=True):
    status: int
    output: str


Asked = Callable[[Sequence[str]], Answer]


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """Where the shim has its things; `root` is `/` but in tests."""

    data: Path = Path("/var/lib/fairlead")
    socket: Path = Path("/run/fairlead/shim.sock")
    runtime: Path = RUNTIME
    engine: EngineKind = EngineKind.DOCKER
    root: Path = Path("/")


def ask(argv: Sequence[str]) -> Answer:
    """Blocking. A program that is missing answers 127."""
    program = shutil.which(argv[0], path=_PATH)
    if program is None:
        return Answer(127, f"{argv[0]} is missing")
    try:
        done = subprocess.run(
            [program, *argv[1:]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env={"PATH": _PATH, "LC_ALL": "C.UTF-8"},
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Answer(124, f"no answer within {_SECONDS:.0f} s")
    return Answer(done.returncode, done.stdout)


def examine(node: Node, asked: Asked = ask) -> list[Finding]:
    """Blocking, for up to a minute. Every check ends in at least one finding."""
    found: list[Finding] = []
    for name, check in _CHECKS:
        try:
            found += [msgspec.structs.replace(each, check=name) for each in check(node, asked)]
        except OSError as error:
            found.append(_bad(f"cannot be looked at: {error}", "run the doctor as root", name))
    return found


def _ok(message: str) -> Finding:
    return Finding(check="", level=FindingLevel.OK, message=message)


def _warn(message: str, fix: str) -> Finding:
    return Finding(check="", level=FindingLevel.WARNING, message=message, fix=fix)


def _bad(message: str, fix: str, check: str = "") -> Finding:
    return Finding(check=check, level=FindingLevel.ERROR, message=message, fix=fix)


def shim(node: Node, asked: Asked) -> Iterator[Finding]:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(5)
        try:
            probe.connect(str(node.socket))
        except OSError as error:
            why = error.strerror or str(error)
            fix = "systemctl restart fairlead-shim; journalctl -u fairlead-shim says why it ended"
            yield _bad(f"the shim does not answer at {node.socket}: {why}", fix)
            return
    yield _ok(f"the shim listens on {node.socket}")


def runtime(node: Node, asked: Asked) -> Iterator[Finding]:
    try:
        check_runtime(node.runtime)
    except StartError as error:
        yield _bad(str(error), f"{_INSTALL} of a whole bundle")
        return
    yield _ok(f"the runtime is {node.runtime.resolve()}")


def sshd(node: Node, asked: Asked) -> Iterator[Finding]:
    answer = asked(("sshd", "-T", "-C", "user=fairlead,host=fairlead,addr=127.0.0.1"))
    if answer.status:
        first = (answer.output.strip().splitlines() or ["no output"])[0]
        yield _bad(f"sshd has no valid settings: {first}", "correct what `sshd -t` names")
        return
    lines = (line.partition(" ") for line in answer.output.lower().splitlines())
    settings = {name: value for name, _, value in lines}
    wrong = [name for name, values in TUNNEL.items() if settings.get(name) not in values]
    if wrong:
        fix = f"{_INSTALL}, and let sshd_config include /etc/ssh/sshd_config.d/*.conf"
        yield _bad(f"sshd does not confine the tunnel user: {', '.join(wrong)}", fix)
    else:
        yield _ok("sshd confines the tunnel user to unix sockets")
    keys = node.root / settings.get("authorizedkeysfile", "").split(" ")[0].lstrip("/")
    if not (keys.is_file() and keys.read_text().strip()):
        fix = f"{_INSTALL} --tunnel-key KEY, with the line that `fairlead node key` prints"
        yield _bad(f"no controller can log in: {keys} holds no key", fix)
    shadow = asked(("getent", "shadow", "fairlead")).output.split(":")
    if len(shadow) > 1 and shadow[1].startswith("!"):
        yield _bad("the user fairlead is locked, which sshd refuses", "usermod -p '*' fairlead")


def firewall(node: Node, asked: Asked) -> Iterator[Finding]:
    answer = asked(("nft", "list", "table", "inet", "fairlead"))
    if answer.status == 0 and "reject" in answer.output:
        yield _ok("the firewall refuses the tunnel user's network connections")
    elif "not permitted" in answer.output.lower():  # the shim itself may not look
        state = asked(("systemctl", "is-active", "fairlead-firewall.service"))
        if state.status == 0:
            yield _ok("the firewall's service is active")
        else:
            yield _bad("fairlead-firewall is not active", "systemctl restart fairlead-firewall")
    else:
        yield _bad(
            "no firewall rule stops the controller's key from opening network connections",
            "systemctl restart fairlead-firewall; it needs the package nftables",
        )


def cgroups(node: Node, asked: Asked) -> Iterator[Finding]:
    folder = node.root / "sys/fs/cgroup"
    unified = folder / "cgroup.controllers"
    known = unified.read_text().split() if unified.exists() else []
    if not unified.exists() and folder.is_dir():
        known = [path.name for path in folder.iterdir()]
    missing = [name for name in ("cpu", "memory", "pids") if name not in known]
    if missing:
        fix = "boot with `cgroup_enable=memory`, and without a `cgroup_disable=`"
        yield _bad(f"the kernel limits no {', '.join(missing)} of jobs", fix)
    else:
        yield _ok("cgroups limit CPU, memory and processes")


def disk(node: Node, asked: Asked) -> Iterator[Finding]:
    places = [(node.data, _LEAST_DATA, "records and logs")]
    if node.engine is EngineKind.DOCKER:
        images = node.root / "var/lib/docker"
        places.append((images if images.exists() else node.root, _LEAST_IMAGES, "images"))
    for path, least, what in places:
        there = next(each for each in (path, *path.parents) if each.exists())
        free = shutil.disk_usage(there).free
        said = f"{free / (1 << 30):.1f} GiB are free at {path} for {what}"
        if free >= least:
            yield _ok(said)
        else:
            yield _bad(f"{said}; {least >> 30} are needed", "docker system prune, or a larger disk")


def clock(node: Node, asked: Asked) -> Iterator[Finding]:
    answer = asked(("timedatectl", "show", "--property=NTPSynchronized", "--value"))
    if answer.output.strip() == "yes":
        yield _ok("the clock is synchronized")
    else:
        fix = "install chrony, or systemctl enable --now systemd-timesyncd"
        yield _warn("nothing keeps the clock right; 60 s off, the node gets no work", fix)


def gpus(node: Node, asked: Asked) -> Iterator[Finding]:
    cards = _cards(node.root)
    if not cards:
        yield _ok("there is no NVIDIA GPU")
        return
    if not (node.root / "proc/driver/nvidia/version").exists():
        fix = "install NVIDIA's driver for this kernel, and reboot"
        yield _bad(f"{cards} NVIDIA GPUs, but no driver is loaded", fix)
        return
    answer = asked(("nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"))
    seen = len(answer.output.split()) if answer.status == 0 else 0
    if answer.status:
        yield _bad(f"the driver does not answer: {answer.output.strip()[:200]}", "reboot the node")
    elif seen < cards:
        yield _bad(f"the driver shows {seen} of {cards} GPUs", "see `dmesg | grep -i xid`")
    else:
        yield _ok(f"the driver shows {seen} GPUs")
    yield _toolkit(node.root, asked)


def _cards(root: Path) -> int:
    found = 0
    for device in (root / "sys/bus/pci/devices").glob("*"):
        vendor, kind = (device / "vendor").read_text(), (device / "class").read_text()
        found += vendor.strip() == _NVIDIA and kind.startswith(_DISPLAYS)
    return found


def _toolkit(root: Path, asked: Asked) -> Finding:
    specs = [path for folder in _CDI_FOLDERS for path in (root / folder).glob("*")]
    if any("nvidia.com/gpu" in path.read_text() for path in specs):
        return _ok("a CDI specification names the GPUs")
    if asked(("nvidia-container-runtime-hook", "--version")).status != 127:
        return _warn(
            "GPUs are given by the toolkit's hook: `systemctl daemon-reload` may take them away",
            "nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml",
        )
    return _bad(
        "containers get GPUs without their driver: there is no NVIDIA container toolkit",
        "install nvidia-container-toolkit, then nvidia-ctk cdi generate "
        "--output=/etc/cdi/nvidia.yaml",
    )


def engine(node: Node, asked: Asked) -> Iterator[Finding]:
    if node.engine is EngineKind.PROCESS:
        yield _warn(
            "jobs are plain processes of this node: nothing isolates them",
            "install Docker, then /opt/fairlead/current/install --docker use",
        )
        return
    import docker
    import docker.errors
    import requests.exceptions

    failures = (docker.errors.DockerException, requests.exceptions.RequestException)
    url = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
    try:
        api = docker.APIClient(base_url=url, version="auto", timeout=_CONTAINER_SECONDS)
    except failures as error:
        yield _bad(f"the Docker engine does not answer: {error}", "systemctl restart docker")
        return
    try:
        yield from judge_engine(api.info())
        yield _try_container(api, node.runtime)
    except failures as error:
        fix = "journalctl -u docker says more"
        yield _bad(f"a container does not start: {error}", fix)
    finally:
        api.close()


def judge_engine(info: dict[str, Any]) -> Iterator[Finding]:
    """What the engine says of itself."""
    yield _ok(f"Docker {info.get('ServerVersion')} answers")
    lost = [name for name in ("MemoryLimit", "CpuCfsQuota", "PidsLimit") if not info.get(name)]
    if lost:
        yield _bad(f"Docker cannot keep {', '.join(lost)}", "enable these cgroups, restart Docker")
    if not info.get("LiveRestoreEnabled"):
        fix = f"{_INSTALL}: it sets live-restore in /etc/docker/daemon.json"
        yield _warn("jobs end when the Docker engine is restarted", fix)


def _try_container(api: Any, runtime: Path) -> Finding:
    """Its image is empty: all that runs in it is the runtime, as in every job."""
    empty = io.BytesIO()
    tarfile.open(fileobj=empty, mode="w").close()
    name = f"fairlead-doctor:{uuid.uuid4().hex[:12]}"
    api.import_image_from_data(empty.getvalue(), repository=name.split(":")[0], tag=name[16:])
    container = None
    try:
        mount = [f"{runtime.resolve()}:/opt/fairlead/runtime:ro"]
        host = api.create_host_config(binds=mount, network_mode="none")
        command = ["--help"]
        container = api.create_container(
            name, command, entrypoint=[_ENTRYPOINT], host_config=host, environment={}
        )["Id"]
        api.start(container)
        status = api.wait(container, timeout=_CONTAINER_SECONDS)["StatusCode"]
        output = api.logs(container).decode(errors="replace").strip()
    finally:
        if container is not None:
            api.remove_container(container, force=True)
        api.remove_image(name, force=True)
    if status == 0:
        return _ok("a container with the runtime starts")
    return _bad(f"a container with the runtime ends with {status}: {output[-300:]}", _INSTALL)


_CHECKS: tuple[tuple[str, Callable[[Node, Asked], Iterator[Finding]]], ...] = (
    ("shim", shim),
    ("runtime", runtime),
    ("engine", engine),
    ("sshd", sshd),
    ("firewall", firewall),
    ("cgroups", cgroups),
    ("gpus", gpus),
    ("disk", disk),
    ("clock", clock),
)


def main(argv: Sequence[str]) -> int:
    """1 when jobs would suffer; warnings are told only."""
    parser = argparse.ArgumentParser(
        prog="fairlead-shim doctor", description="Looks at all that a job needs of this node."
    )
    known = Node()
    parser.add_argument("--data", type=Path, default=known.data, metavar="DIR")
    parser.add_argument("--socket", type=Path, default=known.socket, metavar="PATH")
    parser.add_argument("--runtime", type=Path, default=known.runtime, metavar="DIR")
    parser.add_argument(
        "--engine", choices=[kind.value for kind in EngineKind], help="default: the node's own"
    )
    parser.add_argument("--json", action="store_true", help="print the findings as a list")
    options = parser.parse_args(argv)
    kind = EngineKind(options.engine) if options.engine else _installed_engine()
    node = Node(data=options.data, socket=options.socket, runtime=options.runtime, engine=kind)
    findings = examine(node)
    if options.json:
        print(msgspec.json.encode(findings).decode())  # noqa: T201
    else:
        for each in findings:
            print(sentence(each))  # noqa: T201
    return int(any(each.level is FindingLevel.ERROR for each in findings))


def _installed_engine() -> EngineKind:
    """As the unit starts the shim."""
    for name in ("shim.env", "node.env"):
        file = Path("/etc/fairlead") / name
        if file.exists() and "--engine process" in file.read_text():
            return EngineKind.PROCESS
    return EngineKind.DOCKER


def sentence(finding: Finding) -> str:
    fix = f"\n{'':19}fix: {finding.fix}" if finding.fix else ""
    return f"{finding.level.value:8} {finding.check:9} {finding.message}{fix}"
