"""The parts of a gateway's machine: Debian's HAProxy and Caddy, the agent, and the controller's way
in."""

from __future__ import annotations

from collections.abc import Sequence

from installer import keys
from installer.hardening import HARDENED
from installer.plan import GATEWAY_UNIT as _AGENT
from installer.plan import OPTIONS as OF_A_NODE
from installer.plan import reload_sshd_unit
from installer.steps import Command, File, Folder, Group, NoFile, Step, Unit, User, at
from installer.system import InstallError, System, must

_UNITS = "/etc/systemd/system"
_FIREWALL = "fairlead-firewall.service"
_RULES = "/etc/fairlead/firewall.nft"
_SNIPPET = "/etc/ssh/sshd_config.d/fairlead.conf"
_KEYS = "/etc/ssh/fairlead_authorized_keys"
_CADDY = "fairlead-caddy.service"
_FIRST_CONFIGURATION = "/etc/fairlead/caddy.json"
CADDY_ADMIN = "/run/fairlead-caddy/admin.sock"
_DEBIANS = ("caddy.service", "haproxy.service")
"""They would have the ports."""
DATA = "/var/lib/fairlead-gateway"
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
_HARDENING = f"""\
User=fairlead-gateway
Group=fairlead-gateway
UMask=0027
StateDirectory=fairlead-gateway
StateDirectoryMode=0700
LimitNOFILE=524288
LimitCORE=0

{HARDENED}"""
_AGENT_UNIT = f"""\
# The gateway's agent. It needs no rights on its machine: a user of its own, one folder, and the
# network. HAProxy has the ports; the two talk through unix sockets.
[Unit]
Description=Fairlead gateway: carries requests to replicas of services
Wants=network-online.target {_CADDY} {_HAPROXY}
After=network-online.target {_CADDY} {_HAPROXY}
Requires={_TRAFFIC}
StartLimitIntervalSec=0

[Service]
Type=exec
ExecStart={{program}} gateway run --data {DATA} --socket-group fairlead \\
    --traffic {TRAFFIC_SOCKET} --haproxy {HAPROXY_FOLDER} --caddy-admin {CADDY_ADMIN}
# Connections to nodes outlive an agent that is killed; the next one ends them.
KillMode=process
Restart=always
RestartSec=1
RestartPreventExitStatus=2
TimeoutStopSec=30

SupplementaryGroups=fairlead
RuntimeDirectory=fairlead-gateway
RuntimeDirectoryMode=0755
RuntimeDirectoryPreserve=yes
CapabilityBoundingSet=
{_HARDENING}
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
SocketGroup=fairlead-gateway
SocketMode=0660
DirectoryMode=0755
Backlog=4096

[Install]
WantedBy=sockets.target
"""
_HAPROXY_UNIT = f"""\
# HAProxy has the ports. Its configuration never changes: the agent tells it at run time where
# requests go and which certificates it shows, and all requests go to the agent until then. It needs
# the program only for files that are not there yet: it starts whatever state that is in.
[Unit]
Description=Fairlead gateway: HAProxy, which has its ports
Wants=network-online.target
After=network-online.target
StartLimitIntervalSec=0

[Service]
Type=notify
ExecStartPre=/usr/bin/mkdir -p -m 700 {DATA}/certificates
ExecStartPre=/usr/bin/touch {HAPROXY_FOLDER}/slots.map {HAPROXY_FOLDER}/guarded.map \\
    {HAPROXY_FOLDER}/names.map {HAPROXY_FOLDER}/limits.map {DATA}/certificates/shown.list
ExecStartPre=/bin/sh -c 'test -s {DATA}/direct.pem && test -s {DATA}/nodes.pem || \
    exec "{{program}}" gateway run --data {DATA} --prepare'
ExecStart=/usr/sbin/haproxy -Ws -f {_HAPROXY_FILE}
SuccessExitStatus=143
Restart=always
RestartSec=1
KillMode=mixed
TimeoutStopSec=10

RuntimeDirectory=fairlead-haproxy
RuntimeDirectoryMode=0755
AmbientCapabilities=CAP_NET_BIND_SERVICE
CapabilityBoundingSet=CAP_NET_BIND_SERVICE
{_HARDENING}
[Install]
WantedBy=multi-user.target
"""
_CADDY_UNIT = f"""\
# Caddy gets the certificates. It is configured by the gateway's agent, over its socket, and begins
# with what it had last.
[Unit]
Description=Fairlead gateway: Caddy, which gets its certificates
Wants=network-online.target
After=network-online.target
StartLimitIntervalSec=0

[Service]
Type=notify
ExecStart=/usr/bin/caddy run --resume --config {_FIRST_CONFIGURATION}
Environment=HOME={DATA} XDG_DATA_HOME={DATA} XDG_CONFIG_HOME={DATA}
Restart=always
RestartSec=1
TimeoutStopSec=10

RuntimeDirectory=fairlead-caddy
RuntimeDirectoryMode=0700
CapabilityBoundingSet=
{_HARDENING}
[Install]
WantedBy=multi-user.target
"""
_FIRST = f'{{"admin": {{"listen": "unix/{CADDY_ADMIN}", "origins": ["localhost"]}}}}\n'
_OF_BEFORE = f"{_UNITS}/caddy.service.d/fairlead.conf"


def problems(system: System) -> list[str]:
    """Return why this machine cannot be a gateway."""
    if at(system, OF_A_NODE).exists():
        return ["this machine is a node; a gateway needs a machine of its own"]
    missing = [package for name, package in _PROGRAMS.items() if not system.has_program(name)]
    return [f"programs are missing; install the packages: {' '.join(missing)}"] if missing else []


def require_own(system: System, named: Sequence[str]) -> None:
    """Raise InstallError if a controller that is not named would lose its gateway: an agent obeys
    one controller."""
    standing = keys.standing_keys(system, _KEYS) or ()
    if others := keys.others(standing, named):
        raise InstallError(
            f"another controller has this gateway: {keys.shown(others)} may log in. --takeover "
            "gives it to the named one, and takes it from that one"
        )


def steps(program: str, controllers: Sequence[str], haproxy: str) -> list[Step]:
    """Return what makes the machine a gateway. `program`: the path of the `fairlead` command;
    `controllers`: the keys of those that may log in; `haproxy`: the configuration of HAProxy."""
    agent = _AGENT_UNIT.format(program=program)
    return [
        Group("fairlead"),
        User("fairlead", "fairlead", "/nonexistent"),
        Group("fairlead-gateway"),
        User("fairlead-gateway", "fairlead-gateway", "/nonexistent"),
        Folder("/etc/fairlead"),
        keys.Keys(_KEYS, tuple(controllers)),
        File(_SNIPPET, _SSHD),
        File(_RULES, _NFT),
        File(f"{_UNITS}/{_FIREWALL}", _FIREWALL_UNIT),
        NoFile(_OF_BEFORE),
        File(_FIRST_CONFIGURATION, _FIRST),
        File(f"{_UNITS}/{_CADDY}", _CADDY_UNIT),
        File(_HAPROXY_FILE, haproxy),
        File(f"{_UNITS}/{_HAPROXY}", _HAPROXY_UNIT.format(program=program)),
        File(f"{_UNITS}/{_TRAFFIC}", _TRAFFIC_UNIT),
        File(f"{_UNITS}/{_AGENT}", agent),
        Command("sshd", "reloaded", frozenset({_SNIPPET}), _reload_sshd),
        Unit(_FIREWALL, frozenset({f"{_UNITS}/{_FIREWALL}", _RULES})),
        Command("ports", "freed", frozenset({f"{_UNITS}/{_HAPROXY}"}), _free_ports),
        Unit(_CADDY, frozenset({f"{_UNITS}/{_CADDY}", _FIRST_CONFIGURATION})),
        Unit(_HAPROXY, frozenset({_HAPROXY_FILE, f"{_UNITS}/{_HAPROXY}"})),
        Command("fairlead-gateway", "stopped", frozenset({f"{_UNITS}/{_TRAFFIC}"}), _free_socket),
        Unit(_TRAFFIC, frozenset()),
        Unit(_AGENT, frozenset({f"{_UNITS}/{_AGENT}", f"{_UNITS}/{_TRAFFIC}"})),
    ]


def _free_ports(system: System) -> None:
    """Debian starts both programs as services of their own. Raises InstallError: another program
    has a port."""
    if not system.is_booted():
        return
    for unit in _DEBIANS:
        system.run("systemctl", "disable", "--now", unit)
    listening = system.run("ss", "-Hltnp", "sport = :80 or sport = :443")
    others = [line for line in listening.output.splitlines() if '"haproxy"' not in line]
    if listening.status == 0 and others:
        raise InstallError(
            f"another program has port 80 or 443; stop it: {' '.join(others[0].split())}"
        )


def _free_socket(system: System) -> None:
    """An agent that listens for itself would keep systemd from doing so."""
    if system.is_booted():
        system.run("systemctl", "stop", _AGENT)


def _reload_sshd(system: System) -> None:
    """Only with settings that sshd understands; else they are taken away again."""
    try:
        # sshd reads its files at a reload, and ends if it does not understand them (sshd(8), -t).
        must(system, "sshd", "-t")
    except InstallError:
        at(system, _SNIPPET).unlink(missing_ok=True)
        raise
    reload_sshd_unit(system)
