"""A host that its operator reaches by SSH as root, with no Fairlead on it yet.

It is this machine with an /etc, /opt, /run and /var/tmp of its own (a mount namespace), so that
what is installed there changes nothing here. Its bundle is played: a script that keeps the promises
of the real one's `install`. Its /run/fairlead is that of a shim of the test's, and its systemd says
that this shim runs, unless the version has `broken` in its name.
"""

from __future__ import annotations

import hashlib
import io
import platform
import shutil
import socket
import tarfile
from contextlib import suppress
from pathlib import Path

from tests.support.daemons import Daemon, run
from tests.support.processes import ShimProcess
from tests.support.ssh_daemon import CHECKOUT, free_port

_CONFIG = """\
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host_key
PidFile {folder}/sshd.pid
AuthorizedKeysFile {folder}/authorized_keys
PermitRootLogin prohibit-password
StrictModes no
UsePAM no
UseDNS no
PasswordAuthentication no
KbdInteractiveAuthentication no
LogLevel VERBOSE
"""
_BEGIN = """
mount -t overlay overlay -o lowerdir=/etc,upperdir="$0/etc",workdir="$0/work" /etc
for folder in /opt /run /var/tmp /usr/local/bin; do mount -t tmpfs tmpfs $folder; done
chmod 1777 /var/tmp
mkdir -p /run/systemd/system /run/sshd /run/fairlead
printf '%s\\n' '#!/bin/sh' 'case $1 in is-active) cat /run/shim-state ;; show) echo 0 ;; esac' \\
    > /usr/local/bin/systemctl
chmod 755 /usr/local/bin/systemctl
echo active > /run/shim-state
mount --bind "$1" /run/fairlead
shift
exec "$@"
"""
_INSTALL = r"""#!/bin/sh
# Keeps the promises of the real `install`: it changes what differs and says what that was.
set -eu
version=@VERSION@ key= purge= uninstall= check= docker=
while [ $# -gt 0 ]; do
    case $1 in
        --tunnel-key) key=$2; shift ;;
        --docker) docker=$2; shift ;;
        --volume-prefix | --registry-mirror) shift ;;
        --check) check=yes ;;
        --uninstall) uninstall=yes ;;
        --purge) purge=yes ;;
    esac
    shift
done
said=
changed() { said="$said${said:+,}{\"name\": \"$1\", \"change\": \"made\"}"; }
if [ -n "$uninstall" ]; then
    rm -rf /opt/fairlead /etc/fairlead /etc/ssh/fairlead_authorized_keys
    changed "/opt/fairlead"
    echo "[$said]"
    exit
fi
[ ! -e /opt/broken ] || { echo "the disk is on fire" >&2; exit 1; }
line="restrict,port-forwarding $key"
keys=$(grep -xF "$line" /etc/ssh/fairlead_authorized_keys 2>/dev/null || true)
wishes="{\"docker\": \"$docker\"}"
[ -n "$docker" ] || wishes=$(cat /etc/fairlead/install.json 2>/dev/null || true)
if [ -n "$check" ]; then
    [ "$(readlink /opt/fairlead/current)" = "/opt/fairlead/$version" ] || changed "version $version"
    [ "$keys" = "$line" ] || changed "let the controller in"
    [ "$(cat /etc/fairlead/install.json)" = "$wishes" ] || changed "wishes"
    echo "[$said]"
    [ -z "$said" ] || exit 3
    exit 0
fi
if [ ! -e "/opt/fairlead/$version" ]; then
    mkdir -p "/opt/fairlead/$version"
    cp "$0" "/opt/fairlead/$version/install"
    changed "installed $version"
fi
if [ "$(readlink /opt/fairlead/current)" != "/opt/fairlead/$version" ]; then
    ln -sfn "/opt/fairlead/$version" /opt/fairlead/current
    changed "chose $version"
    case $version in *broken*) echo failed ;; *) echo active ;; esac > /run/shim-state
fi
id fairlead >/dev/null 2>&1 || {
    useradd --system --gid fairlead --no-create-home --home-dir /nonexistent \
        --shell /usr/sbin/nologin --password '*' fairlead
    changed "made the user fairlead"
}
[ "$keys" = "$line" ] || {
    echo "$line" >> /etc/ssh/fairlead_authorized_keys
    changed "let the controller in"
}
[ "$(cat /etc/fairlead/install.json 2>/dev/null)" = "$wishes" ] || {
    mkdir -p /etc/fairlead
    echo "$wishes" > /etc/fairlead/install.json
    changed "wishes"
}
echo "[$said]"
"""


def make_bundle(folder: Path, version: str) -> Path:
    file = folder / f"fairlead-node-{version}-{platform.machine()}.tar"
    script = _INSTALL.replace("@VERSION@", version).encode()
    with tarfile.open(file, "w") as tar:
        entry = tarfile.TarInfo(f"fairlead-node-{version}/install")
        entry.size, entry.mode = len(script), 0o755
        tar.addfile(entry, io.BytesIO(script))
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    file.with_name(f"{file.name}.sha256").write_text(f"{digest}  {file.name}\n")
    return file


class BareHost:
    """`identity` is the operator's private key, `fingerprint` that of the host's key."""

    def __init__(self, folder: Path, shim: ShimProcess) -> None:
        folder.mkdir(parents=True)
        folder.chmod(0o755)
        self._folder = folder
        self.port = free_port()
        self.identity = folder / "identity"
        for name in ("host_key", "identity"):
            run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", folder / name])
        self.host_key = (folder / "host_key.pub").read_text().strip()
        self.fingerprint = run(["ssh-keygen", "-l", "-f", folder / "host_key"]).split()[1]
        shutil.copy(folder / "identity.pub", folder / "authorized_keys")
        for part in ("etc", "work"):
            (folder / part).mkdir()
        config = folder / "sshd_config"
        hardening = (CHECKOUT / "cloud-init/sshd_fairlead.conf").read_text()
        config.write_text(_CONFIG.format(port=self.port, folder=folder) + hardening)
        program = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin") or "/usr/sbin/sshd"
        begin: list[str | Path] = ["unshare", "--mount", "sh", "-ec", _BEGIN]
        begin += [folder, shim.socket.parent]
        self._daemon = Daemon([*begin, program, "-D", "-e", "-f", config], folder / "sshd.log")

    @property
    def target(self) -> str:
        return f"root@127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        return self._daemon.tail(200)

    def start(self) -> None:
        self._daemon.spawn()
        self._daemon.wait_ready(self._greets)

    def stop(self) -> None:
        """The listener; connections end with their clients."""
        self._daemon.kill9()

    def let_in(self, other: BareHost) -> None:
        """The operator of another host, too."""
        with (self._folder / "authorized_keys").open("a") as keys:
            keys.write(other.identity.with_suffix(".pub").read_text())

    def has(self, path: str) -> bool:
        return (
            run([*self._inside(), "sh", "-c", f"test -e {path} && echo yes || echo no"]) == "yes\n"
        )

    def does(self, command: str) -> str:
        return run([*self._inside(), "sh", "-ec", command])

    def files(self) -> dict[str, str]:
        """What an installation can change: kind, owner and mode, and the time, size and target of
        files."""
        # Other tests make folders for ip-netns(8) meanwhile, in the /etc that lies below this one;
        # each entry also changes the time of the folder that it is in.
        listed = self.does(
            "find /etc /opt /var/tmp -xdev -path /etc/netns -prune"
            " -o -type d -printf '%p\\t%y %u:%g %m\\n'"
            " -o -printf '%p\\t%y %u:%g %m %T@ %s %l\\n' 2>/dev/null"
        )
        return dict(line.split("\t", 1) for line in listed.splitlines())

    def _inside(self) -> list[str]:
        return ["nsenter", f"--mount=/proc/{self._daemon.pid}/ns/mnt"]

    def _greets(self) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 2) as client:
            return client.recv(4) == b"SSH-"
        return False
