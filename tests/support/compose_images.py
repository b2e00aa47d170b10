"""Images that stand in for those of registries, under their names: what the Containerfile and the
compose file of packer/container ask for, made of Debian's packages and moto.

The Python of the base is of the version in its name. It knows no index of packages, so that a build
needs the wheels next to it, as without a network.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import yaml

from tests.support.daemons import run
from tests.support.docker_daemon import DockerDaemon
from tests.support.images import KEPT, KEPT_SECONDS, debian_archive
from tests.support.ssh_daemon import CHECKOUT

_CONTAINER = CHECKOUT / "packer/container"
_FILES = Path(__file__).with_name("stand_ins")
_SUITE, PYTHON = "trixie", "3.13"
_MOTO = ("boto3", "moto[s3]", "flask", "flask-cors")
_LOCALLY = {"DOCKER_BUILDKIT": "0"}
"""The builder that needs no plugin."""
_PYTHON_IMAGE = """\
FROM {debian}
COPY pip.conf /etc/pip.conf
CMD ["python3"]
"""
_POSTGRES_IMAGE = """\
FROM {debian}
COPY postgres-entrypoint /usr/local/bin/
ENV PATH=/usr/lib/postgresql/17/bin:/usr/local/bin:/usr/bin:/bin
VOLUME /var/lib/postgresql/data
STOPSIGNAL SIGINT
ENTRYPOINT ["postgres-entrypoint"]
"""
_S3_IMAGE = """\
FROM {python}
COPY wheels /wheels
RUN python3 -m venv /opt/moto && /opt/moto/bin/pip install --no-cache-dir -f /wheels {moto}
COPY minio /usr/local/bin/
RUN ln -s minio /usr/local/bin/mc
"""


def load(docker: DockerDaemon, folder: Path) -> None:
    """Make them all, or take those of an earlier proof that are not older than a week."""
    parts = (*sorted(_FILES.iterdir()), Path(__file__))
    made_of = hashlib.sha256(b"".join(part.read_bytes() for part in parts)).hexdigest()[:16]
    kept = KEPT / f"compose-images-{made_of}.tar"
    if kept.exists() and time.time() - kept.stat().st_mtime < KEPT_SECONDS:
        docker.docker("load", "-i", kept)
        return
    _make(docker, folder)
    for earlier in KEPT.glob("compose-images-*.tar"):
        earlier.unlink()
    fresh = kept.with_name(f".{kept.name}")
    docker.docker("save", "-o", fresh, *names())
    fresh.rename(kept)


def _make(docker: DockerDaemon, folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=folder) as work:
        context = Path(work)
        shutil.copytree(_FILES, context, dirs_exist_ok=True)
        (context / "pip.conf").write_text("[global]\nno-index = true\n")
        pinned = _pins(CHECKOUT / "requirements-dev.lock", context / "pins")
        fetch_wheels(context / "wheels", *_MOTO, "-c", str(pinned))
        python, database, bucket = names()
        imported = _imported(docker, "python", "python3-venv", "ca-certificates")
        _build(docker, context, python, _PYTHON_IMAGE.format(debian=imported))
        imported = _imported(docker, "postgresql", "postgresql-17")
        _build(docker, context, database, _POSTGRES_IMAGE.format(debian=imported))
        _build(docker, context, bucket, _S3_IMAGE.format(python=python, moto=" ".join(_MOTO)))


def names() -> tuple[str, str, str]:
    """Return the names for which the files ask: of the base, the database and the bucket."""
    base = re.search(r"^ARG BASE=(\S+)$", (_CONTAINER / "Containerfile").read_text(), re.MULTILINE)
    services = yaml.safe_load((_CONTAINER / "compose.yaml").read_text())["services"]
    assert base is not None
    assert f"python:{PYTHON}-" in base[1], f"{_SUITE} has Python {PYTHON}, which {base[1]} is not"
    return base[1], services["database"]["image"], services["bucket"]["image"]


def fetch_wheels(folder: Path, *wanted: str) -> None:
    """Fetch wheels for the Python of the base, with what `pip download` is told here."""
    folder.mkdir(exist_ok=True)
    for_it = ("--python-version", PYTHON, "--only-binary", ":all:", "-d", folder)
    run([*_pip(), "download", "-q", *for_it, *wanted], timeout=900)


def _pip() -> Sequence[str]:
    """uv's environments have none."""
    for python in (sys.executable, f"{sys.base_prefix}/bin/python3", "python3"):
        asked = [python, "-m", "pip", "--version"]
        if subprocess.run(asked, capture_output=True, check=False).returncode == 0:
            return python, "-m", "pip"
    raise SystemExit("wheels are fetched by pip, which this Python has not: install python3-pip")


def _pins(lock: Path, file: Path) -> Path:
    """Write the versions of the lock without their hashes."""
    found = re.findall(r"^([\w.-]+)(?:\[\S+\])?==(\S+)", lock.read_text(), re.MULTILINE)
    file.write_text("".join(f"{name}=={version}\n" for name, version in found))
    return file


def _imported(docker: DockerDaemon, name: str, *packages: str) -> str:
    docker.docker("import", debian_archive(_SUITE, *packages), f"debian-with-{name}")
    return f"debian-with-{name}"


def _build(docker: DockerDaemon, context: Path, name: str, text: str) -> None:
    (context / "Dockerfile").write_text(text)
    run(["docker", "build", "-t", name, context], env={**docker.env, **_LOCALLY}, timeout=900)
