"""Jobs run in any image and can be logged in to: with little in it, with an sshd of its own, with
no rights, or meaning harm."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.runs.visitor import Visitor
from tests.support import booted, images
from tests.support.docker_daemon import DockerDaemon
from tests.support.lab import RunLab

pytestmark = pytest.mark.e2e

FOREVER = ["sleep 3600"]
TELL = "echo $DATA $FAIRLEAD_RUN_NAME"
OWN_PATH = {"DATA": "/data", "PATH": "/job/bin:/usr/bin:/bin"}
HOSTILE = {
    "LD_PRELOAD": "/usr/lib/evil.so",
    "LD_LIBRARY_PATH": "/usr/lib",
    "PYTHONHOME": "/nowhere",
    "PYTHONPATH": "/nowhere",
    "OPENSSL_CONF": "/nowhere/openssl.cnf",
    "LC_ALL": "xx_XX.EUC",
}


@pytest.fixture
def user(lab: RunLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Visitor:
    return Visitor.with_a_key(lab, tmp_path, monkeypatch)


@pytest.fixture(scope="module")
def musl_image(dockerd: DockerDaemon, testbed_folder: Path) -> str:
    return dockerd.import_image("musl:e2e", images.musl_root(testbed_folder / "musl"))


@pytest.fixture(scope="module")
def bookworm_with_sshd(dockerd: DockerDaemon) -> str:
    """The root of the machines that boot, which is made anyway."""
    archive = images.debian_archive("bookworm", *booted.PACKAGES)
    return import_archive(dockerd, "bookworm-sshd:e2e", archive)


@pytest.fixture(scope="module")
def bullseye(dockerd: DockerDaemon) -> str:
    return import_archive(dockerd, "bullseye:e2e", images.debian_archive("bullseye"))


@pytest.fixture(scope="module")
def hostile_image(dockerd: DockerDaemon, bullseye: str, testbed_folder: Path) -> str:
    """Debian 11 whose environment loads a library of its own into every process."""
    folder = testbed_folder / "hostile"
    folder.mkdir()
    library = images.preload_library(folder / "evil.so", "EVIL")
    name = dockerd.docker("create", bullseye, "true")
    dockerd.docker("cp", library, f"{name}:/usr/lib/evil.so")
    changes = [word for key in HOSTILE for word in ("--change", f"ENV {key}={HOSTILE[key]}")]
    dockerd.docker("commit", *changes, name, "hostile:e2e")
    dockerd.docker("rm", name)
    return "hostile:e2e"


def import_archive(dockerd: DockerDaemon, name: str, archive: Path) -> str:
    dockerd.docker("import", archive, name)
    return name


@pytest.fixture(scope="module", autouse=True)
def no_containers_left(dockerd: DockerDaemon) -> Iterator[None]:
    yield
    assert "hostile" not in dockerd.docker("ps", "-a", "--format", "{{.Image}}")


def in_a_shell(user: Visitor, name: str) -> bytes:
    """What an interactive shell says to a question about its PATH."""
    asked = b"echo first=${PATH%%:*}\nexit\n"
    return user.ssh(name, "-tt", name, stdin=asked).stdout


def test_a_visitor_gets_into_busybox(user: Visitor, busybox_image: str) -> None:
    with user.run("in-busybox", image=busybox_image, commands=FOREVER):
        assert said(user, "in-busybox", "echo hi from $0; id -u") == "hi from sh\n0\n"


def test_a_visitor_gets_into_an_image_with_musl(user: Visitor, musl_image: str) -> None:
    """The program is linked to the image's musl: neither job nor visitor gets our libc."""
    with user.run("in-musl", image=musl_image, commands=["/tool echo job", *FOREVER]):
        user.lab.wait_for_log("in-musl", b"job\n")
        assert said(user, "in-musl", "/tool echo visitor") == "visitor\n"
        assert copied(user, "in-musl")


def test_a_visitor_gets_into_an_image_without_a_shell(user: Visitor, noshell_image: str) -> None:
    with user.run("no-shell", image=noshell_image, commands=[], entrypoint=["/tool", "wait"]):
        assert said(user, "no-shell", "/tool echo 'a b' c") == "a b c\n"
        no_shell = user.ssh("no-shell", "no-shell")
        missing = user.ssh("no-shell", "no-shell", "missing")
        assert copied(user, "no-shell", folder="/dev/shm")
    assert (no_shell.returncode, missing.returncode) == (127, 127)
    assert b"this image has no shell" in no_shell.stderr


def test_a_visitor_gets_into_debian_12_with_an_sshd_of_its_own(
    user: Visitor, bookworm_with_sshd: str
) -> None:
    """OpenSSH answers, in a session that knows the image's variables."""
    fields = {"image": bookworm_with_sshd, "commands": FOREVER, "env": OWN_PATH}
    with user.run("in-bookworm", **fields):
        assert said(user, "in-bookworm", TELL) == "/data in-bookworm\n"
        assert server_of(user, "in-bookworm").startswith("SSH-2.0-OpenSSH_9")
        assert said(user, "in-bookworm", "cat /etc/debian_version").startswith("12")
        assert said(user, "in-bookworm", "id -un; pwd") == "root\n/root\n"
        assert b"first=/job/bin\r" in in_a_shell(user, "in-bookworm")
        assert copied(user, "in-bookworm")


def test_a_user_that_useradd_made_gets_in_although_the_images_sshd_would_not_let_her(
    user: Visitor, dockerd: DockerDaemon, bookworm_with_sshd: str
) -> None:
    useradd = ("useradd", "--create-home", "--shell", "/bin/bash", "anna")
    dockerd.docker("run", "--name", "anna", "--network", "none", bookworm_with_sshd, *useradd)
    dockerd.docker("commit", "anna", "anna:e2e")
    dockerd.docker("rm", "anna")
    with user.run("annas", image="anna:e2e", user="anna", commands=FOREVER):
        assert server_of(user, "annas").startswith("SSH-2.0-AsyncSSH")
        done = user.ssh("annas", "-l", "anna", "annas", "id -un; pwd")
        assert done.stdout.decode() == "anna\n/home/anna\n", done.stderr
        assert said(user, "annas", "id -un") == "root\n"


def test_its_own_sshd_is_left_alone_when_the_embedded_one_is_asked_for(
    user: Visitor, bookworm_with_sshd: str
) -> None:
    fields = {"image": bookworm_with_sshd, "commands": FOREVER, "env": OWN_PATH}
    with user.run("embedded", **fields, ssh="embedded"):
        assert said(user, "embedded", TELL) == "/data embedded\n"
        assert server_of(user, "embedded").startswith("SSH-2.0-AsyncSSH")
        assert b"first=/job/bin\r" in in_a_shell(user, "embedded")
        assert said(user, "embedded", "cat /etc/debian_version").startswith("12")


def test_debian_11_has_an_older_libc_than_ours(user: Visitor, bullseye: str) -> None:
    with user.run("in-bullseye", image=bullseye, commands=FOREVER):
        assert said(user, "in-bullseye", "cat /etc/debian_version").startswith("11")
        assert copied(user, "in-bullseye")


def test_a_visitor_gets_in_without_root_capabilities_or_a_writable_folder(
    user: Visitor, bullseye: str
) -> None:
    fields: dict[str, Any] = {"user": "12345:54321", "cap_drop": ["ALL"], "read_only_root": True}
    with user.run("bare", image=bullseye, commands=["id -u", *FOREVER], **fields):
        user.lab.wait_for_log("bare", b"12345\n")
        assert said(user, "bare", "id -u; touch /etc/x || echo cannot") == "12345\ncannot\n"
        assert copied(user, "bare", folder="/tmp")


def test_a_hostile_environment_is_the_jobs_and_the_visitors_but_never_ours(
    user: Visitor, hostile_image: str
) -> None:
    with user.run("hostile", image=hostile_image, commands=["echo job", *FOREVER]):
        user.lab.wait_for_log("hostile", b"job\n")
        shown = user.ssh("hostile", "hostile", "echo $LD_PRELOAD $PYTHONHOME $LC_ALL")
        inside = user.lab.inside("hostile", "sh", "-c", "cat /proc/1/maps")
        server = user.lab.inside(
            "hostile", "sh", "-c", "cat $(grep -l 'entrypoint[.]ssh' /proc/*/cmdline | head -1 |"
            " sed s/cmdline/maps/)",
        )  # fmt: skip
        assert copied(user, "hostile")
    assert shown.stdout == b"/usr/lib/evil.so /nowhere xx_XX.EUC\n"
    assert b"EVIL" in shown.stderr
    assert "evil.so" not in inside + server
    assert "asyncssh" in server or "cryptography" in server


@pytest.fixture(scope="module")
def without_a_mirror(dockerd: DockerDaemon, bullseye: str) -> str:
    name = dockerd.docker("create", "--network", "none", bullseye, "true")
    sources = b"deb http://127.0.0.1:9/debian bullseye main\n"
    dockerd.docker("cp", "-", f"{name}:/etc/apt", stdin=a_tar("sources.list", sources))
    dockerd.docker("commit", name, "no-mirror:e2e")
    dockerd.docker("rm", name)
    return "no-mirror:e2e"


def a_tar(name: str, content: bytes) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        entry = tarfile.TarInfo(name)
        entry.size = len(content)
        archive.addfile(entry, io.BytesIO(content))
    return made.getvalue()


def test_an_install_without_a_mirror_fails_in_words_and_leaves_a_way_in(
    user: Visitor, without_a_mirror: str
) -> None:
    with user.run("install", image=without_a_mirror, commands=FOREVER, ssh="install"):
        done = user.ssh("install", "install", "echo in")
    assert (done.returncode, done.stdout) == (0, b"in\n")
    assert b"openssh-server could not be installed: `apt-get install" in done.stderr
    assert b"mirror" in done.stderr


def said(user: Visitor, name: str, command: str) -> str:
    done = user.ssh(name, name, command)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


def server_of(user: Visitor, name: str) -> str:
    done = user.ssh(name, "-v", name, "true")
    lines = [line for line in done.stderr.decode().splitlines() if "remote software" in line]
    return "SSH-2.0-" + lines[-1].split("remote software version ")[1]


def copied(user: Visitor, name: str, folder: str = "/tmp") -> bool:
    """There and back by sftp and by the old scp."""
    here, back = user.folder / "here", user.folder / "back"
    here.write_bytes(os.urandom(100_000))
    config = str(user.config(name))
    for options in ([], ["-O"]):
        back.unlink(missing_ok=True)
        for source, target in ((here, f"{name}:{folder}/x"), (f"{name}:{folder}/x", back)):
            done = user.openssh("scp", *options, "-F", config, str(source), str(target))
            assert done.returncode == 0, done.stderr.decode()
        if here.read_bytes() != back.read_bytes():
            return False
    return True
