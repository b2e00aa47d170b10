"""The direct way of a node: Debian's HAProxy, where gateways come in by TLS (--gateway-port)."""

from __future__ import annotations

from installer.hardening import HARDENED
from installer.steps import File, Group, NoFile, NoFolder, NoUnit, Step, Unit, User

FOLDER = "/run/fairlead-direct"
"""The shim writes HAProxy's files there."""
USER = "fairlead-direct"
RULES = "/etc/fairlead/firewall.d/direct.nft"
_NAME = "fairlead-direct.service"
_FILE = f"/etc/systemd/system/{_NAME}"
# Containers are behind devices whose names begin with fl-; jobs without isolation are on the
# loopback. `ct direction reply` is what goes back to gateways.
_RULES = """\
# --gateway-port {port}: gateways come in there, and jobs do not. HAProxy connects to jobs alone.
add rule inet fairlead sshd tcp dport {port} reject with tcp reset
add rule inet fairlead output meta skuid "{user}" ct direction reply return
add rule inet fairlead output meta skuid "{user}" oifname "fl-*" return
add rule inet fairlead output meta skuid "{user}" oifname "lo" return
add rule inet fairlead output meta skuid "{user}" reject
"""
_UNIT = f"""\
# HAProxy lets gateways in by TLS, and leads them to ports of jobs. The shim writes its files and
# tells it what changes. It becomes {USER} once it has read them and has its port.
[Unit]
Description=Fairlead node: HAProxy, where gateways come in without SSH
Wants=network-online.target
After=network-online.target fairlead-shim.service
StartLimitIntervalSec=0

[Service]
Type=exec
ExecStart=/usr/sbin/haproxy -db -f {FOLDER}/haproxy.cfg
# The shim may not have written its files yet.
Restart=always
RestartSec=1
TimeoutStopSec=10

LimitNOFILE=65536
LimitCORE=0
MemoryMax=1G
CapabilityBoundingSet=CAP_NET_BIND_SERVICE CAP_SETGID CAP_SETUID
ReadWritePaths={FOLDER}
{HARDENED}
[Install]
WantedBy=multi-user.target
"""


def files(port: int | None) -> list[Step]:
    """Return the user and the files; without a port, what takes them away."""
    if port is None:
        return [NoUnit(_NAME), NoFile(_FILE), NoFile(RULES)]
    return [
        Group(USER),
        User(USER, USER, "/nonexistent"),
        File(RULES, _RULES.format(port=port, user=USER)),
        File(_FILE, _UNIT),
    ]


def units(port: int | None, *restarts_for: str) -> list[Step]:
    """Return the service, after the shim's; it is restarted with its options. Without a port,
    return what takes away whom the node let in: the shim of before would write it again."""
    if port is None:
        return [NoFolder(FOLDER)]
    return [Unit(_NAME, frozenset({_FILE, *restarts_for}))]


def options(port: int | None) -> list[str]:
    """Return the shim's options."""
    if port is None:
        return []
    return ["--gateway-port", str(port), "--direct-folder", FOLDER, "--direct-user", USER]
