"""The parts of a gateway's machine: Debian's Caddy and HAProxy, the agent, and the controller's way
in."""

from __future__ import annotations

from collections.abc import Sequence

from installer.options import KEY_OPTIONS
from installer.plan import GATEWAY_UNIT as _AGENT
from installer.plan import OPTIONS as OF_A_NODE
from installer.plan import reload_sshd_unit
from installer.steps import Command, File, Folder, Group, Step, Unit, User, at
from installer.system import InstallError, System, must

_UNITS = "/etc/systemd/system"
_FIREWALL = "fairlead-firewall.service"
_RULES = "/etc/fairlead/firewall.nft"
_SNIPPET = "/etc/ssh/sshd_config.d/fairlead.conf"
_KEYS = "/etc/ssh/fairlead_authorized_keys"
_CADDY = f"{_UNITS}/caddy.service.d/fairlead.conf"
_FIRST_CONFIGURATION = "/etc/fairlead/caddy.json"
CADDY_ADMIN = "/run/caddy/admin.sock"
_HAPROXY = "fairlead-haproxy.service"
_HAPROXY_FILE = "/etc/fairlead/haproxy.cfg"
HAPROXY_FOLDER = "/run/fairlead-haproxy"
TRAFFIC_SOCKET = "/run/fairlead-traffic/agent.sock"
"""Not in the agent's folder, whose files systemd would give to the agent's group."""
_TRAFFIC = "fairlead-gateway.socket"
_PROGRAMS = {
    "caddy": "caddy",
    "haproxy": "haproxy",
    "ssh": "openssh-client",
    "sshd": "openssh-server",
    "nft": "nftables",
    "useradd": "passwd",
    "systemctl": "systemd",
}
_SSHD = f"""\
# The controller's way in: the socket of the gateway's agent, and nothing else. AllowTcpForwarding
# cannot be "no", which would refuse unix sockets too: the firewall by owner refuses TCP.
Match User fairlead
    AuthorizedKeysFile {_KEYS}
    AllowStreamLocalForwarding local
    AllowTcpForwarding local
    PermitListen none
    PermitTTY no
    ForceCommand /usr/sbin/nologin
    AllowAgentForwarding no
    X11Forwarding no
    PermitTunnel no
"""
_NFT = """\
#!/usr/sbin/nft -f
# The controller's way in ends at the agent's unix socket.
table inet fairlead
delete table inet fairlead
table inet fairlead {
    chain output {
        type filter hook output priority filter; policy accept;
        meta skuid "fairlead" meta skgid "fairlead" meta l4proto tcp reject with tcp reset
        meta skuid "fairlead" meta skgid "fairlead" reject
    }
}
"""
_FIREWALL_UNIT = f"""\
[Unit]
Description=Fairlead firewall: the tunnel user opens no network connections
DefaultDependencies=no
After=local-fs.target nftables.service
Wants=network-pre.target
Before=network-pre.target shutdown.target
Conflicts=shutdown.target
PartOf=nftables.service
ReloadPropagatedFrom=nftables.service

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/sbin/nft -f {_RULES}
ExecReload=/usr/sbin/nft -f {_RULES}
ExecStop=/usr/sbin/nft delete table inet fairlead

[Install]
WantedBy=multi-user.target nftables.service
"""
_AGENT_UNIT = """\
# The gateway's agent. It needs no rights on its machine: a user of its own, one folder, and the
# network. Caddy has the ports; the two talk through unix sockets of Caddy's group.
[Unit]
Description=Fairlead gateway: carries requests to replicas of services
Wants=network-online.target caddy.service fairlead-haproxy.service
After=network-online.target caddy.service fairlead-haproxy.service
Requires=fairlead-gateway.socket
StartLimitIntervalSec=0

[Service]
Type=exec
ExecStart={program} gateway run --data /var/lib/fairlead-gateway --haproxy {haproxy} \\
    --socket-group fairlead --traffic {traffic} --traffic-group caddy --caddy-admin {admin}
# Connections to nodes outlive an agent that is killed; the next one ends them.
KillMode=process
Restart=always
RestartSec=1
RestartPreventExitStatus=2
TimeoutStopSec=30

User=fairlead-gateway
Group=fairlead-gateway
SupplementaryGroups=fairlead caddy
UMask=0027
StateDirectory=fairlead-gateway
StateDirectoryMode=0700
RuntimeDirectory=fairlead-gateway
RuntimeDirectoryMode=0755
RuntimeDirectoryPreserve=yes
LimitNOFILE=524288
LimitCORE=0

NoNewPrivileges=yes
CapabilityBoundingSet=
ProtectSystem=strict
ProtectHome=yes
PrivateTmp=yes
PrivateDevices=yes
ProtectControlGroups=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallErrorNumber=EPERM

[Install]
WantedBy=multi-user.target
"""
_TRAFFIC_UNIT = f"""\
# systemd holds the agent's traffic socket, so that requests wait while the agent is started again.
[Unit]
Description=Fairlead gateway: the way of requests to its agent

[Socket]
ListenStream={TRAFFIC_SOCKET}
SocketUser=fairlead-gateway
SocketGroup=caddy
SocketMode=0660
DirectoryMode=0755
Backlog=4096

[Install]
WantedBy=sockets.target
"""
_HAPROXY_UNIT = """\
# HAProxy between Caddy and the agent. Its configuration never changes: the agent tells it at run
# time where requests go, and all of them go to the agent until then.
[Unit]
Description=Fairlead gateway: HAProxy, which carries requests past the agent
StartLimitIntervalSec=0

[Service]
Type=notify
ExecStartPre=/usr/bin/touch {folder}/slots.map {folder}/limits.map
ExecStart=/usr/sbin/haproxy -Ws -f {file}
SuccessExitStatus=143
Restart=always
RestartSec=1
KillMode=mixed
TimeoutStopSec=10

User=fairlead-gateway
Group=fairlead-gateway
SupplementaryGroups=caddy
UMask=0027
RuntimeDirectory=fairlead-haproxy
RuntimeDirectoryMode=0755
LimitNOFILE=524288
LimitCORE=0

NoNewPrivileges=yes
CapabilityBoundingSet=
ProtectSystem=strict
ProtectHome=yes
PrivateTmp=yes
PrivateDevices=yes
ProtectControlGroups=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
# It opens a socket for each name server, although it asks none.
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallErrorNumber=EPERM

[Install]
WantedBy=multi-user.target
"""
_CADDY_UNIT = f"""\
# Caddy is configured by the gateway's agent, over this socket; it begins with what it had last.
[Service]
ExecStart=
ExecStart=/usr/bin/caddy run --environ --resume --config {_FIRST_CONFIGURATION}
ExecReload=
UMask=0007
RuntimeDirectory=caddy
RuntimeDirectoryMode=0750
"""
_FIRST = f'{{"admin": {{"listen": "unix/{CADDY_ADMIN}", "origins": ["localhost"]}}}}\n'


def problems(system: System) -> list[str]:
    """Return why this machine cannot be a gateway."""
    if at(system, OF_A_NODE).exists():
        return ["this machine is a node; a gateway needs a machine of its own"]
    missing = [package for name, package in _PROGRAMS.items() if not system.has_program(name)]
    return [f"programs are missing; install the packages: {' '.join(missing)}"] if missing else []


def steps(program: str, keys: Sequence[str], haproxy: str) -> list[Step]:
    """Return what makes the machine a gateway. `program`: the path of the `fairlead` command;
    `keys`: of the controllers that may log in; `haproxy`: the configuration of HAProxy."""
    lines = "".join(f"{KEY_OPTIONS} {key}\n" for key in keys)
    agent = _AGENT_UNIT.format(
        program=program, admin=CADDY_ADMIN, haproxy=HAPROXY_FOLDER, traffic=TRAFFIC_SOCKET
    )
    balancer = _HAPROXY_UNIT.format(folder=HAPROXY_FOLDER, file=_HAPROXY_FILE)
    return [
        Group("fairlead"),
        User("fairlead", "fairlead", "/nonexistent"),
        Group("fairlead-gateway"),
        User("fairlead-gateway", "fairlead-gateway", "/nonexistent"),
        Folder("/etc/fairlead"),
        File(_KEYS, lines),
        File(_SNIPPET, _SSHD),
        File(_RULES, _NFT),
        File(f"{_UNITS}/{_FIREWALL}", _FIREWALL_UNIT),
        File(_FIRST_CONFIGURATION, _FIRST),
        File(_CADDY, _CADDY_UNIT),
        File(_HAPROXY_FILE, haproxy),
        File(f"{_UNITS}/{_HAPROXY}", balancer),
        File(f"{_UNITS}/{_TRAFFIC}", _TRAFFIC_UNIT),
        File(f"{_UNITS}/{_AGENT}", agent),
        Command("sshd", "reloaded", frozenset({_SNIPPET}), _reload_sshd),
        Unit(_FIREWALL, frozenset({f"{_UNITS}/{_FIREWALL}", _RULES})),
        Unit("caddy.service", frozenset({_CADDY, _FIRST_CONFIGURATION})),
        Unit(_HAPROXY, frozenset({_HAPROXY_FILE, f"{_UNITS}/{_HAPROXY}"})),
        Command("fairlead-gateway", "stopped", frozenset({f"{_UNITS}/{_TRAFFIC}"}), _free_socket),
        Unit(_TRAFFIC, frozenset()),
        Unit(_AGENT, frozenset({f"{_UNITS}/{_AGENT}", f"{_UNITS}/{_TRAFFIC}"})),
    ]


def _free_socket(system: System) -> None:
    """An agent that listens for itself would keep systemd from doing so."""
    if system.is_booted():
        system.run("systemctl", "stop", _AGENT)


def _reload_sshd(system: System) -> None:
    """Only with settings that sshd understands; else they are taken away again."""
    try:
        must(system, "sshd", "-t")
    except InstallError:
        at(system, _SNIPPET).unlink(missing_ok=True)
        raise
    reload_sshd_unit(system)
