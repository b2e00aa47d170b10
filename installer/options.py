"""The operator's options, checked; an option that is left out keeps its earlier value."""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

import msgspec

from installer import direct, keys
from installer.system import InstallError

_KEY = re.compile(r"(ssh|ecdsa|sk)-[a-z0-9@.-]+ [A-Za-z0-9+/]+={0,3}( [^\r\n\"]*)?")
_MAX_PORT, _SSH = 65535, 22
_UNSAFE = re.compile(r"[\s\"'\\$]")


class Docker(StrEnum):
    """The engine of the node's jobs, and whether `install` brings it."""

    INSTALL = "install"
    USE = "use"
    PODMAN = "podman"
    """Podman runs jobs, which is here already."""
    NONE = "none"
    """Jobs are plain processes."""

    @property
    def is_docker(self) -> bool:
        return self in (Docker.INSTALL, Docker.USE)


ENGINES = {"docker": Docker.USE, "podman": Docker.PODMAN, "process": Docker.NONE}
"""The wish of `--engine` in the words of `--docker`, which is not named next to it."""


class JobMetadata(StrEnum):
    """Whether jobs reach the metadata service of a cloud, and with it the node's credentials."""

    CLOSED = "closed"
    OPEN = "open"


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Kept on the node as they are; `tunnel_keys` None leaves the file of keys alone."""

    docker: Docker
    volume_prefixes: tuple[str, ...] = ()
    registry_mirror: str | None = None
    tunnel_keys: tuple[str, ...] | None = None
    job_metadata: JobMetadata = JobMetadata.CLOSED
    gateway_port: int | None = None
    """Where gateways come in by TLS; None: nowhere."""

    @property
    def opens_metadata(self) -> bool:
        return self.job_metadata is JobMetadata.OPEN

    def shim_options(self) -> str:
        """As the shim's command line has them."""
        words = ["--jump-keys", "/var/lib/fairlead-jump/authorized_keys"]
        words += ["--controller-keys", "/etc/ssh/fairlead_authorized_keys"]
        words += ["--gateway-folder", "/run/fairlead-exposed"]
        words += ["--gateway-keys", "/var/lib/fairlead-gateway/authorized_keys"]
        words += ["--gateway-group", "fairlead-gateway"]
        words += direct.options(self.gateway_port)
        if not self.docker.is_docker:
            words += ["--engine", "process" if self.docker is Docker.NONE else "podman"]
        for prefix in self.volume_prefixes:
            words += ["--volume-prefix", prefix]
        return " ".join(words)


def load(file: Path) -> Options | None:
    """The wishes of the last install. Raises InstallError when the file is damaged."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=Options)
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError as error:
        raise InstallError(f"{file}: {error}; remove it and name all options again") from None


def merge(
    before: Options | None,
    *,
    docker: str | None,
    has_docker: bool,
    tunnel_keys: Sequence[str],
    volume_prefixes: Sequence[str],
    job_metadata: str | None = None,
    gateway_port: int | None = None,
    registry_mirror: str | None,
    standing_keys: Sequence[str] | None = None,
    takeover: bool = False,
    revoke_others: bool = False,
) -> Options:
    """Raises InstallError that names the option. `standing_keys`: of the controllers that may log
    in now; None: there is no file of keys."""
    for key in tunnel_keys:
        if not _KEY.fullmatch(key):
            raise InstallError(
                f"--tunnel-key {key!r}: expected a public key as `fairlead node key` prints it: "
                "'ssh-ed25519 AAAA…'"
            )
    for prefix in volume_prefixes:
        path = PurePosixPath(prefix)
        if not path.is_absolute() or ".." in path.parts or _UNSAFE.search(prefix):
            raise InstallError(
                f"--volume-prefix {prefix!r}: expected an absolute path without '..', blanks or "
                "quotes"
            )
    if registry_mirror and (
        urlsplit(registry_mirror).scheme not in ("http", "https") or _UNSAFE.search(registry_mirror)
    ):
        raise InstallError(f"--registry-mirror {registry_mirror!r}: expected a http(s) URL")
    return Options(
        docker=_engine(before, docker, has_docker),
        volume_prefixes=tuple(volume_prefixes) or (before.volume_prefixes if before else ()),
        job_metadata=_metadata(before, job_metadata),
        gateway_port=_port(before, gateway_port),
        registry_mirror=registry_mirror or (before.registry_mirror if before else None),
        tunnel_keys=_keys(before, standing_keys, tunnel_keys, takeover, revoke_others),
    )


def _keys(
    before: Options | None,
    standing: Sequence[str] | None,
    named: Sequence[str],
    takeover: bool,
    revoke_others: bool,
) -> tuple[str, ...] | None:
    if revoke_others and not named:
        raise InstallError("--revoke-others: name with --tunnel-key who may log in")
    if standing is None and before is not None:
        standing = before.tunnel_keys
    if not named:
        return None if standing is None else tuple(standing)
    return keys.admitted(standing or (), named, takeover=takeover, revoke_others=revoke_others)


def _engine(before: Options | None, docker: str | None, has_docker: bool) -> Docker:
    if docker is not None:
        asked = Docker(docker)
        # An engine that the operator had before stays configured as theirs.
        if asked is Docker.INSTALL and has_docker and (before is None or before.docker != asked):
            return Docker.USE
        return asked
    if before is not None:
        return before.docker
    if has_docker:
        return Docker.USE
    raise InstallError(
        "no Docker engine is here: --docker install brings Debian's or Ubuntu's, --engine podman "
        "uses Podman, --engine process runs jobs as plain processes, without isolation"
    )


def _metadata(before: Options | None, asked: str | None) -> JobMetadata:
    if asked is not None:
        return JobMetadata(asked)
    return before.job_metadata if before else JobMetadata.CLOSED


def _port(before: Options | None, asked: int | None) -> int | None:
    """0 takes the port away."""
    if asked is None:
        return before.gateway_port if before else None
    if not 0 <= asked <= _MAX_PORT or asked == _SSH:
        raise InstallError(
            f"--gateway-port {asked}: expected a free TCP port such as 8443, or 0 for none"
        )
    return asked or None
