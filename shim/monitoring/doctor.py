"""Examines everything that a job needs of its node, and gives a fix where something fails.

`fairlead-shim doctor` looks as root, whether a shim runs or not; the shim answers the same to its
controller. The engine and the GPUs' vendor examine themselves.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import socket
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from common.core_pattern import FIX, why_not_files
from fairlead.wire.node import EngineKind, Finding, FindingLevel
from shim import adapters
from shim.access.controller_keys import fingerprints
from shim.errors import StartError
from shim.examination import INSTALL, Asked, NodeSetup, ask, bad, ok, warn
from shim.node.cgroups import CgroupTree, KernelTree
from shim.settings import check_runtime

_MIN_DATA, _MIN_IMAGES = 1 << 30, 10 << 30
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


def examine(node: NodeSetup, asked: Asked = ask) -> list[Finding]:
    """Blocking, for up to a minute. Every check ends in at least one finding."""
    found: list[Finding] = []
    for name, check in _CHECKS:
        try:
            found += [msgspec.structs.replace(each, check=name) for each in check(node, asked)]
        except OSError as error:
            found.append(bad(f"cannot be looked at: {error}", "run the doctor as root", name))
    return found


def shim(node: NodeSetup, asked: Asked) -> Iterator[Finding]:
    with socket.socket(socket.AF_UNIX) as probe:
        # connect(2) waits while the backlog of a shim that hangs is full (unix(7)).
        probe.settimeout(5)
        try:
            probe.connect(str(node.socket))
        except OSError as error:
            why = error.strerror or str(error)
            fix = "systemctl restart fairlead-shim; journalctl -u fairlead-shim says why it ended"
            yield bad(f"the shim does not answer at {node.socket}: {why}", fix)
            return
    yield ok(f"the shim listens on {node.socket}")


def runtime(node: NodeSetup, asked: Asked) -> Iterator[Finding]:
    try:
        check_runtime(node.runtime)
    except StartError as error:
        yield bad(str(error), f"{INSTALL} of a whole bundle")
        return
    yield ok(f"the runtime is {node.runtime.resolve()}")


def sshd(node: NodeSetup, asked: Asked) -> Iterator[Finding]:
    # Without -C, what a Match block says of the tunnel user is left out (sshd(8)).
    answer = asked(("sshd", "-T", "-C", "user=fairlead,host=fairlead,addr=127.0.0.1"))
    if answer.status:
        first = (answer.output.strip().splitlines() or ["no output"])[0]
        yield bad(f"sshd has no valid settings: {first}", "correct what `sshd -t` names")
        return
    lines = (line.partition(" ") for line in answer.output.lower().splitlines())
    settings = {name: value for name, _, value in lines}
    wrong = [name for name, values in TUNNEL.items() if settings.get(name) not in values]
    if wrong:
        fix = f"{INSTALL}, and let sshd_config include /etc/ssh/sshd_config.d/*.conf"
        yield bad(f"sshd does not confine the tunnel user: {', '.join(wrong)}", fix)
    else:
        yield ok("sshd confines the tunnel user to unix sockets")
    keys = node.root / settings.get("authorizedkeysfile", "").split(" ")[0].lstrip("/")
    if not (keys.is_file() and keys.read_text().strip()):
        fix = f"{INSTALL} --tunnel-key KEY, with the line that `fairlead node key` prints"
        yield bad(f"no controller can log in: {keys} holds no key", fix)
    elif len(known := fingerprints(keys)) > 1:
        fix = f"{INSTALL} --revoke-others --tunnel-key KEY, if that is not meant so"
        yield warn(
            f"{len(known)} controllers may log in ({', '.join(known)}), and each places jobs as if "
            "it were alone",
            fix,
        )
    # sshd lets nobody in whose password begins so, not by key either (sshd(8), AUTHENTICATION).
    shadow = asked(("getent", "shadow", "fairlead")).output.split(":")
    if len(shadow) > 1 and shadow[1].startswith("!"):
        yield bad("the user fairlead is locked, which sshd refuses", "usermod -p '*' fairlead")


def firewall(node: NodeSetup, asked: Asked) -> Iterator[Finding]:
    answer = asked(("nft", "list", "table", "inet", "fairlead"))
    if answer.status == 0 and "skuid" in answer.output:
        yield ok("the firewall refuses the tunnel user's network connections")
        if adapters.engine(node.engine).has_networks:
            yield from _closed_to_jobs(answer.output, asked)
    elif "not permitted" in answer.output.lower():  # the shim itself may not look
        state = asked(("systemctl", "is-active", "fairlead-firewall.service"))
        if state.status == 0:
            yield ok("the firewall's service is active")
        else:
            yield bad("fairlead-firewall is not active", "systemctl restart fairlead-firewall")
    else:
        yield bad(
            "no firewall rule stops the controller's key from opening network connections",
            "systemctl restart fairlead-firewall; it needs the package nftables",
        )


def _closed_to_jobs(rules: str, asked: Asked) -> Iterator[Finding]:
    """Yield what jobs do not reach, by the rules of the table as nft lists them."""
    metadata, sshd = _chain(rules, "metadata"), _chain(rules, "sshd")
    if metadata is None or sshd is None:
        yield warn("jobs reach the metadata service of a cloud", f"{INSTALL} of this version")
        return
    if "reject" not in metadata:
        yield ok("the operator has opened the metadata service of a cloud to jobs")
    elif "socket cgroupv2" not in rules:
        yield warn(
            "jobs in the node's network reach the metadata service of a cloud",
            "boot with cgroup v2, or start the shim with --host-network never",
        )
    else:
        yield ok("jobs reach no metadata service of a cloud")
    if _chain(rules, "runs") is None:
        yield warn(
            "only the engine's own rules keep jobs of different runs apart, and other software may "
            "flush them",
            f"{INSTALL} of this version",
        )
    lines = asked(("sshd", "-T")).output.lower().split("\n")
    ports = [line.removeprefix("port ").strip() for line in lines if line.startswith("port ")]
    open_ports = [port for port in ports if port not in re.findall(r"\d+", sshd)]
    if "reject" in sshd and open_ports:
        fix = "name its ports in /etc/fairlead/firewall.d: docs/nodes.md has the line"
        yield warn(f"jobs reach the node's sshd at port {', '.join(open_ports)}", fix)


def _chain(rules: str, name: str) -> str | None:
    found = re.search(rf"chain {name} \{{(.*?)\n\t\}}", rules, re.DOTALL)
    return None if found is None else found[1]


def cgroups(node: NodeSetup, asked: Asked) -> Iterator[Finding]:
    folder = node.root / "sys/fs/cgroup"
    unified = folder / "cgroup.controllers"  # of version 2 alone (cgroups(7))
    known = unified.read_text().split() if unified.exists() else []
    if not unified.exists() and folder.is_dir():
        known = [path.name for path in folder.iterdir()]
    missing = [name for name in ("cpu", "memory", "pids") if name not in known]
    if missing:
        fix = "boot with `cgroup_enable=memory`, and without a `cgroup_disable=`"
        yield bad(f"the kernel limits no {', '.join(missing)} of jobs", fix)
    else:
        yield ok("cgroups limit CPU, memory and processes")
    yield _leaves(KernelTree())


def _leaves(tree: CgroupTree) -> Finding:
    why = tree.why_none(tree.places(os.getpid()))
    if why is None:
        return ok("jobs that run one after another in a container have a cgroup each")
    return warn(
        f"jobs that run one after another in a container share its cgroup: {why}",
        "run the shim as root, where /sys/fs/cgroup can be written",
    )


def disk(node: NodeSetup, asked: Asked) -> Iterator[Finding]:
    folders = [(node.data, _MIN_DATA, "records and logs")]
    folder = adapters.engine(node.engine).images
    if folder is not None:
        images = node.root / folder
        folders.append((images if images.exists() else node.root, _MIN_IMAGES, "images"))
    for path, least, what in folders:
        there = next(each for each in (path, *path.parents) if each.exists())
        free = shutil.disk_usage(there).free
        text = f"{free / (1 << 30):.1f} GiB are free at {path} for {what}"
        if free >= least:
            yield ok(text)
        else:
            yield bad(f"{text}; {least >> 30} are needed", "docker system prune, or a larger disk")


def clock(node: NodeSetup, asked: Asked) -> Iterator[Finding]:
    answer = asked(("timedatectl", "show", "--property=NTPSynchronized", "--value"))
    if answer.output.strip() == "yes":
        yield ok("the clock is synchronized")
    else:
        fix = "install chrony, or systemctl enable --now systemd-timesyncd"
        yield warn("nothing keeps the clock right; 60 s off, the node gets no work", fix)


def core_dumps(node: NodeSetup, asked: Asked) -> Iterator[Finding]:
    pattern = (node.root / "proc/sys/kernel/core_pattern").read_text().strip()
    if (why := why_not_files(pattern)) is not None:
        yield warn(f"{why}: jobs with `core_dumps` keep none", FIX)
    else:
        yield ok("jobs may keep their core dumps")


def engine(node: NodeSetup, asked: Asked) -> Iterator[Finding]:
    return adapters.engine(node.engine).examine(node, asked)


_CHECKS: tuple[tuple[str, Callable[[NodeSetup, Asked], Iterator[Finding]]], ...] = (
    ("shim", shim),
    ("runtime", runtime),
    ("engine", engine),
    ("sshd", sshd),
    ("firewall", firewall),
    ("cgroups", cgroups),
    ("gpus", adapters.examine_gpus),
    ("disk", disk),
    ("clock", clock),
    ("core dumps", core_dumps),
)


def main(argv: Sequence[str]) -> int:
    """1 when jobs would suffer; warnings are told only."""
    parser = argparse.ArgumentParser(
        prog="fairlead-shim doctor", description="Looks at all that a job needs of this node."
    )
    known = NodeSetup(engine=adapters.USUAL)
    parser.add_argument("--data", type=Path, default=known.data, metavar="DIR")
    parser.add_argument("--socket", type=Path, default=known.socket, metavar="PATH")
    parser.add_argument("--runtime", type=Path, default=known.runtime, metavar="DIR")
    parser.add_argument(
        "--engine", choices=[kind.value for kind in EngineKind], help="default: the node's own"
    )
    parser.add_argument("--json", action="store_true", help="print the findings as a list")
    options = parser.parse_args(argv)
    kind = EngineKind(options.engine) if options.engine else _installed_engine()
    node = NodeSetup(data=options.data, socket=options.socket, runtime=options.runtime, engine=kind)
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
        options = file.read_text() if file.exists() else ""
        for kind in EngineKind:
            if f"--engine {kind.value}" in options:
                return kind
    return adapters.USUAL


def sentence(finding: Finding) -> str:
    fix = f"\n{'':19}fix: {finding.fix}" if finding.fix else ""
    return f"{finding.level.value:8} {finding.check:9} {finding.message}{fix}"
