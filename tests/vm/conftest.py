"""One image and the machines that boot from it, for all tests of a session."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from installer.bundle.build import Bundle, BundleBuilder
from installer.bundle.packing import write_tar
from tests.support.daemons import run
from tests.support.images import busybox_root
from tests.support.processes import ControllerProcess
from tests.support.ssh_daemon import CHECKOUT, free_port
from tests.support.waiting import wait_until
from tests.vm.base_image import FIRST_PARTITION, base_image
from tests.vm.jobs import IMAGE, Jobs
from tests.vm.machine import BOOT_SECONDS, CLUSTER, VirtualMachine, accelerator, node_data

KEPT = CHECKOUT / ".build/vm"
_BUILD_SECONDS = 2400.0
_LOAD = f"""\
[Unit]
After=docker.service
Requires=docker.service
Before=fairlead-shim.service
[Service]
Type=oneshot
ExecStart=/usr/bin/docker import /srv/busybox.tar {IMAGE}
[Install]
WantedBy=multi-user.target
"""

# On an emulated processor each module of cloud-init takes seconds, and so does each unit: those
# that neither user-data nor jobs need are left out.
_TRIMMED = """\
cloud_init_modules: [write-files, growpart, resizefs, set_hostname, users-groups, ssh]
cloud_config_modules: [runcmd]
cloud_final_modules: [scripts-user]
"""
_NEEDLESS = (
    *("apt-daily.timer", "apt-daily-upgrade.timer", "dpkg-db-backup.timer", "fstrim.timer"),
    *("e2scrub_all.timer", "e2scrub_reap.service", "unattended-upgrades.service"),
    *("getty@tty1.service", "logrotate.timer"),
)


class Figures:
    """Seconds and bytes, kept for the reader: the latest of each."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def note(self, name: str, value: float | str) -> None:
        known = json.loads(self._file.read_text()) if self._file.exists() else {}
        known[name] = round(value, 1) if isinstance(value, float) else value
        self._file.write_text(json.dumps(known, indent=2) + "\n")

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        begun = time.monotonic()
        yield
        self.note(name, time.monotonic() - begun)


@pytest.fixture(scope="session")
def figures() -> Figures:
    KEPT.mkdir(parents=True, exist_ok=True)
    return Figures(KEPT / "figures.json")


@pytest.fixture(scope="session")
def vm_folder() -> Iterator[Path]:
    """Where there is room for disks; its path is short, for sockets."""
    with tempfile.TemporaryDirectory(prefix="fl-vm-", dir="/var/tmp") as folder:
        yield Path(folder)


@pytest.fixture(scope="session")
def base() -> Path:
    """Debian with cloud-init, without Fairlead."""
    return base_image(KEPT)


@pytest.fixture(scope="session")
def accel(base: Path, figures: Figures) -> str:
    found = accelerator(base.parent)
    figures.note("accelerator", found)
    return found


@pytest.fixture(scope="session")
def bundle() -> Bundle:
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
        return BundleBuilder(CHECKOUT, CHECKOUT / ".build").build()


@pytest.fixture(scope="session")
def archive(bundle: Bundle, vm_folder: Path) -> Path:
    return write_tar(bundle, vm_folder)


@pytest.fixture(scope="session")
def image(base: Path, archive: Path, accel: str, figures: Figures) -> Path:
    """What Packer makes of the bundle and the base; kept for the next session with the same."""
    steps = sorted((CHECKOUT / "packer").rglob("*.*"))
    content = b"".join(path.read_bytes() for path in steps if path.is_file())
    key = f"{base.stem}-{archive.stem}-{_digest(content)}"
    kept = KEPT / f"{key}.qcow2"
    if not kept.exists():
        with figures.timed("seconds to build the image"):
            _build(base, archive, accel, KEPT / f".{key}")
        for old in KEPT.glob(f"{base.stem}-*.qcow2"):
            old.unlink()
        (KEPT / f".{key}" / "fairlead-node.qcow2").rename(kept)
        shutil.rmtree(KEPT / f".{key}")
    figures.note("bytes of the image", kept.stat().st_size)
    return kept


@pytest.fixture(scope="session")
def image_with_busybox(image: Path, vm_folder: Path) -> Path:
    """The image with what jobs run in, for rented machines: nobody logs in to one, and it reaches
    no registry."""
    made = vm_folder / "node.qcow2"
    raw, mounted = made.with_suffix(".raw"), made.with_suffix(".mounted")
    run(["qemu-img", "convert", "-O", "raw", image, raw])
    mounted.mkdir()
    run(["mount", "-o", f"loop,offset={FIRST_PARTITION}", raw, mounted])
    try:
        root = busybox_root(made.with_suffix(".root"))
        run(["tar", "-C", root, "-cf", mounted / "srv/busybox.tar", "."])
        units = mounted / "etc/systemd/system"
        (units / "busybox.service").write_text(_LOAD)
        (units / "multi-user.target.wants/busybox.service").symlink_to("../busybox.service")
        for name in _NEEDLESS:
            (units / name).unlink(missing_ok=True)
            (units / name).symlink_to("/dev/null")
        (mounted / "etc/cloud/cloud.cfg.d/99-trimmed.cfg").write_text(_TRIMMED)
    finally:
        run(["umount", mounted])
    run(["qemu-img", "convert", "-O", "qcow2", raw, made])
    raw.unlink()
    made.chmod(0o644)
    return made


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:12]


def _build(base: Path, archive: Path, accel: str, output: Path) -> None:
    shutil.rmtree(output, ignore_errors=True)
    values = {
        "bundle": archive,
        "qemu_base_image": base,
        "qemu_base_checksum": "none",
        "qemu_accelerator": accel,
        "qemu_network": ",restrict=on",
        "qemu_disk_size": "6G",
        "qemu_output": output,
    }
    words = [word for name, value in values.items() for word in ("-var", f"{name}={value}")]
    command = ["packer", "build", "-color=false", "-only=qemu.node", *words]
    env = {"CHECKPOINT_DISABLE": "1", "PACKER_CACHE_DIR": str(KEPT / "packer")}
    run([*command, CHECKOUT / "packer"], env=env, timeout=_BUILD_SECONDS)


@pytest.fixture(scope="session")
def identity(vm_folder: Path) -> Path:
    """The private key of the machines' admin."""
    file = vm_folder / "identity"
    run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", file])
    return file


@pytest.fixture(scope="session")
def own_data(identity: Path, vm_folder: Path) -> Path:
    """The operator's own user-data."""
    file = vm_folder / "own.yaml"
    file.write_text(node_data(identity.with_suffix(".pub").read_text()))
    return file


@pytest.fixture(scope="session")
def controller(vm_folder: Path) -> Iterator[ControllerProcess]:
    """It knows the network by which the machines reach each other."""
    settings = vm_folder / "controller.yaml"
    settings.write_text(f"cluster_networks: [{CLUSTER}]\n")
    words = ("--config", settings)
    started = ControllerProcess(vm_folder / "controller", *words, outlasts_tests=True)
    started.start()
    yield started
    started.close()


MachineFactory = Callable[[Path, int], VirtualMachine]


@pytest.fixture(scope="session")
def new_machine(accel: str, identity: Path, vm_folder: Path) -> Iterator[MachineFactory]:
    """Call it with an image and a number; the machine is off."""
    made: list[VirtualMachine] = []
    cluster = free_port()

    def make(image: Path, number: int) -> VirtualMachine:
        folder = vm_folder / f"vm{number}"
        made.append(
            VirtualMachine(folder, image, accel, number=number, cluster=cluster, identity=identity)
        )
        return made[-1]

    yield make
    for machine in made:
        machine.close()


def node_status(controller: ControllerProcess, name: str) -> dict[str, object]:
    shown: dict[str, object] = controller.cli("node", "show", name, "--json").json
    return shown


def wait_until_ready(controller: ControllerProcess, name: str) -> None:
    def is_ready() -> bool:
        node = node_status(controller, name)
        return node["status"] == "connected" and node["unfit"] is None

    wait_until(is_ready, BOOT_SECONDS, f"{name} to be ready")


def import_busybox(machine: VirtualMachine, folder: Path) -> None:
    """What jobs run in; the machine reaches no registry."""
    root = folder / f"busybox-{machine.name}"
    archive = root.with_suffix(".tar")
    run(["tar", "-C", busybox_root(root), "-cf", archive, "."])
    machine.run("docker", "import", "-", IMAGE, stdin=archive.read_bytes())


@pytest.fixture(scope="session")
def node(
    image: Path,
    controller: ControllerProcess,
    new_machine: MachineFactory,
    own_data: Path,
    vm_folder: Path,
    figures: Figures,
) -> VirtualMachine:
    """Booted from the image, and ready."""
    machine = new_machine(image, 1)
    begun = time.monotonic()
    boot_node(machine, controller, own_data)
    figures.note("seconds from qemu's start to a ready node", time.monotonic() - begun)
    machine.wait_for_boot()
    figures.note("seconds from qemu's start to cloud-init's end", time.monotonic() - begun)
    import_busybox(machine, vm_folder)
    return machine


def boot_node(machine: VirtualMachine, controller: ControllerProcess, own_data: Path) -> None:
    """As docs/node-images.md says: user-data, boot, register."""
    words = ("--provider", "qemu", "--user-data", own_data)
    announced = controller.cli("node", "user-data", machine.name, *words).succeeded()
    machine.boot(announced.output)
    address = f"127.0.0.1:{machine.port}"
    controller.cli("node", "register", machine.name, "--address", address).succeeded()
    wait_until_ready(controller, machine.name)


@pytest.fixture
def jobs(controller: ControllerProcess, tmp_path: Path) -> Jobs:
    return Jobs(controller, tmp_path)
