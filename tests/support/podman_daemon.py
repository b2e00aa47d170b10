"""A `podman system service` of our own: its own folders and socket, so it meddles with no other."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from functools import partial
from pathlib import Path

from tests.support.daemons import Daemon, end_processes_that_mention, inside, run
from tests.support.engine_daemons import answers, unmount_all_below
from tests.support.images import KEPT
from tests.support.waiting import wait_until

# Limits: podman as root raises them, and fails where it has no CAP_SYS_RESOURCE, as in a container.
_CONFIGURATION = """
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
lock_type = "file"
num_locks = 512
tmp_dir = "{folder}/tmp"
[containers]
default_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]
[network]
network_backend = "netavark"
network_config_dir = "{folder}/networks"
"""
_STORAGE = """
[storage]
driver = "overlay"
graphroot = "{folder}/data"
runroot = "{folder}/run"
"""


class PodmanDaemon:
    """`netns` names a network namespace to live in: engines that share one undo each other's
    firewall rules. Containers outlive the service, as everything is in files and each has a
    monitor of its own. `plain_http` is the address of a registry without TLS."""

    def __init__(self, folder: Path, netns: str, plain_http: str) -> None:
        self._folder = folder
        self._netns = netns
        self.socket = folder / "podman.sock"
        for name, text in (("containers", _CONFIGURATION), ("storage", _STORAGE)):
            (folder / f"{name}.conf").write_text(text.format(folder=folder))
        registries = f'[[registry]]\nlocation = "{plain_http}"\ninsecure = true\n'
        (folder / "registries.conf").write_text(registries)
        self._daemon = Daemon(
            # `--time 0`: by default the service ends a few seconds after its last request.
            [*inside(netns), *self._podman("system", "service", "--time", "0", self.url)],
            folder / "podman.log",
            env=self._own_env,
            outlasts_tests=True,
        )

    @property
    def url(self) -> str:
        return f"unix://{self.socket}"

    @property
    def env(self) -> dict[str, str]:
        return {"CONTAINER_HOST": self.url}

    @property
    def _own_env(self) -> dict[str, str]:
        """Without CONTAINER_HOST, with which the command would be a client."""
        # Not the programs of `--docker`: Podman prefers a crun, which refuses cgroups of both
        # versions.
        own = (one for one in os.get_exec_path() if not Path(one).is_relative_to(KEPT))
        return {
            "PATH": os.pathsep.join(own),
            "CONTAINERS_CONF": str(self._folder / "containers.conf"),
            "CONTAINERS_REGISTRIES_CONF": str(self._folder / "registries.conf"),
            "CONTAINERS_STORAGE_CONF": str(self._folder / "storage.conf"),
        }

    @property
    def pid(self) -> int:
        return self._daemon.pid

    def start(self) -> None:
        self.socket.unlink(missing_ok=True)
        self._daemon.spawn()
        self._daemon.wait_ready(partial(answers, self.socket))

    def kill9(self) -> None:
        self._daemon.kill9()

    def podman(self, *args: str | Path) -> str:
        """Output of the podman command on the same store."""
        return run([*inside(self._netns), *self._podman(*args)], env=self._own_env).strip()

    def import_image(self, name: str, root: Path) -> str:
        """Make an image of a folder."""
        self.podman("import", shutil.make_archive(str(root), "tar", root), name)
        return name

    def remove_containers(self) -> None:
        self.podman("rm", "--all", "--force", "--time", "0")
        for network in self.networks():
            wait_until(partial(self._remove_network, network), what=f"{network} to be removed")

    def networks(self) -> list[str]:
        """The networks of shims."""
        return self.podman("network", "ls", "-q", "--filter", "label=fairlead.install").split()

    def stop(self) -> None:
        if not self._daemon.is_alive():
            self.start()
        self.remove_containers()
        self._daemon.stop()
        end_processes_that_mention(f"{self._folder}/")
        unmount_all_below(self._folder)

    def _podman(self, *args: str | Path) -> list[str | Path]:
        return ["podman", *args]

    def _remove_network(self, network: str) -> bool:
        """Whether it is gone. A shim that is still there may be about to remove it, too."""
        if network in self.networks():
            with suppress(AssertionError):
                self.podman("network", "rm", network)
        return network not in self.networks()
