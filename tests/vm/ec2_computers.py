"""What boots for the machines of the front of EC2: virtual machines whose firmware says that they
are of Amazon, and that reach a metadata service at 169.254.169.254. So cloud-init starts them by
its Ec2 data source, as on EC2.

The machine's network is 160.0.0.0/4, which has EC2's private addresses and that of the metadata
service: QEMU lends no address of another network than its own (slirp's guestfwd). The public
address that the front tells is one of this machine's loopback, and leads to the sshd.
"""

from __future__ import annotations

import base64
import json
import shutil
import sys
import uuid
from collections.abc import Mapping
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path

from tests.doubles.metadata import MetadataService, metadata_at
from tests.support.daemons import Daemon, run
from tests.vm.machine import hardware

_METADATA = "/latest/meta-data/"
_USER_DATA = "/latest/user-data"
SPOT_ACTION = f"{_METADATA}spot/instance-action"
_RELAY = Path(__file__).with_name("metadata_relay.py")
_NETWORK = "net=160.0.0.0/4,host=172.31.0.1,dns=172.31.0.2,dhcpstart=172.31.0.15"
_ADDRESS = "172.31.0.15"
_MEMORY = 4096
"""MiB, as a t3.medium has it."""
_REGION, _ZONE = "eu-central-1", "eu-central-1a"


class _Computer:
    """One machine that was turned on."""

    def __init__(self, folder: Path, daemon: Daemon, service: MetadataService) -> None:
        self.folder = folder
        self.daemon = daemon
        self.service = service
        self.serving = ExitStack()


class VirtualComputers:
    """They boot `image`; `accel`: `kvm` or `tcg`."""

    def __init__(self, folder: Path, image: Path, accel: str) -> None:
        self.booted: list[str] = []
        """The ids of all machines that were ever turned on."""
        self._folder = folder
        self._image = image
        self._accel = accel
        self._running: dict[str, _Computer] = {}
        self._services: dict[str, MetadataService] = {}

    def boot(self, instance: str, address: str, wish: Mapping[str, str]) -> None:
        folder = self._folder / instance
        folder.mkdir(parents=True)
        disk, socket = folder / "disk.qcow2", folder / "metadata"
        run(
            [
                "qemu-img",
                "create",
                "-q",
                "-f",
                "qcow2",
                "-F",
                "qcow2",
                "-b",
                self._image,
                disk,
                "16G",
            ]
        )
        service = MetadataService()
        service.answers = _answers(instance, address, wish)
        relay = f"{sys.executable} -S -E {_RELAY} {socket}"
        network = f"user,id=outside,restrict=on,{_NETWORK},hostfwd=tcp:{address}:22-:22"
        argv = hardware(self._accel, disk, folder / "console.log", memory=_MEMORY)
        argv += [
            "-smbios",
            f"type=1,manufacturer=Amazon EC2,product={wish['InstanceType']},{_ids()}",
        ]
        argv += ["-netdev", f"{network},guestfwd=tcp:169.254.169.254:80-cmd:{relay}"]
        argv += ["-device", f"virtio-net,netdev=outside,mac={_mac(instance)}"]
        made = _Computer(folder, Daemon(argv, folder / "qemu.log", outlasts_tests=True), service)
        made.serving.enter_context(metadata_at(socket, service))
        made.daemon.spawn()
        self._running[instance] = made
        self._services[instance] = service
        self.booted.append(instance)

    def end(self, instance: str) -> None:
        if (found := self._running.pop(instance, None)) is not None:
            found.daemon.kill9()
            found.serving.close()
            shutil.rmtree(found.folder)

    def powered_off(self) -> frozenset[str]:
        return frozenset(
            name for name, one in list(self._running.items()) if not one.daemon.is_alive()
        )

    def close(self) -> None:
        for name in list(self._running):
            self.end(name)

    @property
    def running(self) -> frozenset[str]:
        """Return those that have power."""
        return frozenset(self._running) - self.powered_off()

    def service_of(self, instance: str) -> MetadataService:
        """Return the machine's metadata service, also once it has ended."""
        return self._services[instance]

    def recall(self, instance: str, seconds: float) -> None:
        """Announce that EC2 takes the spot machine back then."""
        at = datetime.now(UTC) + timedelta(seconds=seconds)
        action = {"action": "terminate", "time": at.isoformat(timespec="seconds")}
        self.service_of(instance).answers[SPOT_ACTION] = json.dumps(action)

    def tail(self) -> str:
        """Return the last lines of each machine's console."""
        found = []
        for name, one in self._running.items():
            console = (one.folder / "console.log").read_text(errors="replace")
            found.append("\n".join((name, *console.splitlines()[-40:])))
        return "\n".join(found)


def _answers(instance: str, address: str, wish: Mapping[str, str]) -> dict[str, str]:
    """Return what the metadata service tells of a machine with these parameters."""
    mac = _mac(instance)
    card = f"network/interfaces/macs/{mac}/"
    of_machine = {
        "ami-id": wish["ImageId"],
        "hostname": "ip-172-31-0-15.eu-central-1.compute.internal",
        "instance-id": instance,
        "instance-type": wish["InstanceType"],
        "local-hostname": "ip-172-31-0-15.eu-central-1.compute.internal",
        "local-ipv4": _ADDRESS,
        "mac": mac,
        "placement/availability-zone": _ZONE,
        "placement/region": _REGION,
        "public-ipv4": address,
        f"{card}device-number": "0",
        f"{card}local-ipv4s": _ADDRESS,
        f"{card}mac": mac,
        f"{card}subnet-ipv4-cidr-block": "172.31.0.0/20",
    }
    document = {"instanceId": instance, "region": _REGION, "availabilityZone": _ZONE}
    return {
        _USER_DATA: base64.b64decode(wish["UserData"]).decode(),
        "/latest/dynamic/instance-identity/document": json.dumps(document),
        **{f"{_METADATA}{name}": value for name, value in of_machine.items()},
    }


def _ids() -> str:
    """Return the ids of the firmware by which cloud-init knows a machine of EC2."""
    name = f"ec2{uuid.uuid4().hex[3:]}"
    return f"serial={uuid.UUID(name)},uuid={uuid.UUID(name)}"


def _mac(instance: str) -> str:
    """Return an address of its own for the machine's card."""
    tail = instance[-6:]
    return f"02:00:00:{tail[:2]}:{tail[2:4]}:{tail[4:]}"
