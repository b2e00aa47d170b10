"""A disk like a cloud's Debian image, made of Debian's packages: no cloud image is downloaded.

The packages that an image's build installs later lie in it as a repository of its own: the machines
have no network but what is forwarded to them.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.daemons import run

_MIRROR = "http://deb.debian.org/debian"
_SYSTEM = (
    *("linux-image-cloud-amd64", "systemd", "systemd-sysv", "systemd-resolved", "dbus", "udev"),
    *("cloud-init", "cloud-guest-utils", "e2fsprogs", "openssh-server", "sudo", "iproute2"),
    *("netbase", "netplan.io", "ca-certificates", "nftables"),
)
_LATER = (
    *("docker.io", "iptables", "apparmor", "openssh-client", "chrony"),
    "unattended-upgrades",
)
_DOWNLOAD = (
    'mkdir -p "$1/srv/packages/partial" && APT_CONFIG="$MMDEBSTRAP_APT_CONFIG" apt-get -q --yes '
    '--no-install-recommends --download-only -o Dir::Cache::archives="$1/srv/packages" install '
)
_CLOUD = """\
# A locale takes minutes to make on an emulated processor, and so do keys of RSA.
locale: false
ssh_genkeytypes: [ed25519]
datasource_list: [Ec2, NoCloud]
apt: {preserve_sources_list: true}
"""
_BOOT = """\
DEFAULT linux
LABEL linux
  LINUX /vmlinuz
  INITRD /initrd.img
  APPEND root=LABEL=system ro console=ttyS0,115200 systemd.show_status=false
"""
_ROOT_SECONDS = 1800.0
FIRST_PARTITION = 1 << 20
"""Bytes before the one partition."""
_SIZE = 2 << 30
_OLD_LOADER = "^64bit,^metadata_csum,^metadata_csum_seed,^orphan_file"
"""extlinux reads no file system that has these."""


def base_image(folder: Path) -> Path:
    """The disk as a qcow2 file, kept in `folder`; `vmlinuz` and `initrd.img` lie next to it."""
    recipe = Path(__file__).read_bytes()
    image = folder / f"debian-{hashlib.sha256(recipe).hexdigest()[:12]}.qcow2"
    if image.exists():
        return image
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        root = Path(scratch) / "root"
        _make_root(root)
        for name in ("vmlinuz", "initrd.img"):
            shutil.copyfile((root / name).resolve(), folder / name)
        raw = Path(scratch) / "disk.raw"
        _make_disk(root, raw)
        run(["qemu-img", "convert", "-O", "qcow2", "-c", raw, Path(scratch) / "disk.qcow2"])
        (Path(scratch) / "disk.qcow2").rename(image)
    return image


def _make_root(root: Path) -> None:
    options = ["--quiet", "--mode=root", "--variant=minbase", "--format=directory"]
    options += ['--aptopt=Acquire::Retries "5"', f"--include={','.join(_SYSTEM)}"]
    options.append(f"--customize-hook={_DOWNLOAD}{' '.join(_LATER)}")
    # In mounts of its own: what a run that was killed leaves mounted is of this host, and the
    # removal of the folder would go on into it.
    alone = ["unshare", "--mount", "mmdebstrap", *options, "bookworm", str(root), _MIRROR]
    run(alone, timeout=_ROOT_SECONDS)
    packages = root / "srv/packages"
    shutil.rmtree(packages / "partial")
    (packages / "lock").unlink(missing_ok=True)
    index = run(["sh", "-c", 'cd "$0" && apt-ftparchive packages .', packages])
    (packages / "Packages").write_text(index)
    _write(root, "etc/apt/sources.list", "deb [trusted=yes] file:/srv/packages ./\n")
    _write(root, "etc/cloud/cloud.cfg.d/90-machine.cfg", _CLOUD)
    _write(root, "etc/fstab", "LABEL=system / ext4 defaults 0 1\n")
    _write(root, "boot/extlinux/extlinux.conf", _BOOT)
    for key in (root / "etc/ssh").glob("ssh_host_*"):
        key.unlink()


def _write(root: Path, name: str, content: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)


def _make_disk(root: Path, raw: Path) -> None:
    with raw.open("wb") as disk:
        disk.truncate(_SIZE)
    run(["sfdisk", "--quiet", raw], stdin=b"label: dos\n2048,,L,*\n")
    loader = Path("/usr/lib/EXTLINUX/mbr.bin").read_bytes()
    with raw.open("r+b") as disk:
        disk.write(loader[:440])
    filesystem: list[str | Path] = [
        "mkfs.ext4",
        "-q",
        "-L",
        "system",
        "-O",
        _OLD_LOADER,
        "-d",
        root,
    ]
    run(
        [*filesystem, "-E", f"offset={FIRST_PARTITION}", raw, f"{(_SIZE - FIRST_PARTITION) >> 10}k"]
    )
    with _mounted(raw) as folder:
        run(["extlinux", "--install", folder / "boot/extlinux"])


@contextmanager
def _mounted(raw: Path) -> Iterator[Path]:
    folder = raw.with_name("mounted")
    folder.mkdir()
    run(["mount", "-o", f"loop,offset={FIRST_PARTITION}", raw, folder])
    try:
        yield folder
    finally:
        run(["umount", folder])
