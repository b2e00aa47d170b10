"""A bundle as one file: the same folder always gives the same bytes."""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile
import tempfile
from pathlib import Path

from entrypoint.runtime.errors import run
from installer import plan
from installer.bundle.build import Bundle

_DEB_FOLDER = "usr/lib/fairlead-node"
_CONTROL = """\
Package: fairlead-node
Version: {version}
Architecture: {architecture}
Maintainer: Fairlead
Section: admin
Priority: optional
Depends: openssh-server, openssh-client, nftables, passwd, systemd
Recommends: docker.io | docker-ce, iproute2, iptables
Description: agents of a Fairlead node
 The shim, its interpreter and the runtime that containers get. The package
 installs like the bundle's install script, which lies in /{folder}.
"""
_POSTINST = """\
#!/bin/sh
set -e
[ "$1" = configure ] || exit 0
[ ! -e {options} ] || exec /{folder}/install --link
exec /{folder}/install --link --docker "$(command -v dockerd >/dev/null && echo use || echo none)"
"""
_PRERM = """\
#!/bin/sh
set -e
[ "$1" = remove ] || exit 0
exec /{folder}/install --uninstall
"""


def write_tar(bundle: Bundle, out: Path) -> Path:
    """The archive's path; its checksum lies next to it, as `sha256sum -c` reads it."""
    name = f"fairlead-node-{bundle.version}-{bundle.architecture}.tar"
    fresh = out / f".{name}"
    with tarfile.open(fresh, "w", format=tarfile.GNU_FORMAT) as archive:
        top = f"fairlead-node-{bundle.version}"
        for path in [bundle.folder, *sorted(bundle.folder.rglob("*"))]:
            inside = os.path.normpath(f"{top}/{path.relative_to(bundle.folder)}")
            entry = archive.gettarinfo(path, inside)
            entry.uid = entry.gid = 0
            entry.uname = entry.gname = "root"
            entry.mtime = 0
            if entry.isreg():
                with path.open("rb") as content:
                    archive.addfile(entry, content)
            else:
                archive.addfile(entry)
    return _publish(fresh, out / name)


def write_deb(bundle: Bundle, out: Path) -> Path:
    name = f"fairlead-node_{bundle.version}_{bundle.architecture}.deb"
    with tempfile.TemporaryDirectory(dir=out) as folder:
        tree = Path(folder)
        # TemporaryDirectory makes it 0700, which the package would have as the mode of its root.
        tree.chmod(0o755)
        _copy_linked(bundle.folder, tree / _DEB_FOLDER)
        values = {
            "version": bundle.version,
            "architecture": bundle.architecture,
            "folder": _DEB_FOLDER,
            "options": plan.OPTIONS,
        }
        (tree / "DEBIAN").mkdir()
        for file, text in (("control", _CONTROL), ("postinst", _POSTINST), ("prerm", _PRERM)):
            (tree / "DEBIAN" / file).write_text(text.format(**values))
            # dpkg-deb refuses maintainer scripts that cannot be executed.
            (tree / "DEBIAN" / file).chmod(0o644 if file == "control" else 0o755)
        for path in [tree, *tree.rglob("*")]:
            os.utime(path, (0, 0), follow_symlinks=False)
        # dpkg-deb takes its archive's times from it: one bundle makes one package (dpkg-deb(1)).
        environment = {"PATH": os.defpath, "SOURCE_DATE_EPOCH": "0"}
        fresh = out / f".{name}"
        options = ("--root-owner-group", "-Zxz", "-z1", "--build")
        run(["dpkg-deb", *options, tree, fresh], env=environment)
    return _publish(fresh, out / name)


def _copy_linked(source: Path, target: Path) -> None:
    """As links: the package is only read from here."""
    shutil.copytree(source, target, symlinks=True, copy_function=os.link)


def _publish(fresh: Path, target: Path) -> Path:
    with fresh.open("rb") as content:
        checksum = hashlib.file_digest(content, "sha256").hexdigest()
    # Before its sum: who finds a new sum next to an old archive would take it for damaged.
    fresh.replace(target)
    target.with_name(f"{target.name}.sha256").write_text(f"{checksum}  {target.name}\n")
    return target
