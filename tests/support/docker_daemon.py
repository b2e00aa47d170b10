"""A dockerd of our own: its own folder and socket, so that it meddles with no other."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from tests.support.daemons import Daemon, DaemonFailed, end_processes_that_mention, inside, run
from tests.support.engine_daemons import answers, unmount_all_below
from tests.support.waiting import wait_until

ONE_CGROUP_VERSION = (
    *("unshare", "--mount", "--propagation", "private", "sh", "-c"),
    # A machine with one version has no such mount.
    'mountpoint -q /sys/fs/cgroup/unified && umount /sys/fs/cgroup/unified; exec "$@"',
    "-",
)
"""Runs an engine that sees cgroups of one version: crun refuses those of both."""


class DockerDaemon:
    """Unless told otherwise with live-restore: containers outlive `kill9` and the next `start`.

    There is no default bridge network (it would be shared with other engines of the machine):
    name a network, `host` or `none`. `config` is added to daemon.json. `netns` names a network
    namespace to live in: engines that share one undo each other's firewall rules. `within` is a
    command that runs it, such as `unshare`.
    """

    def __init__(
        self,
        folder: Path,
        env: Mapping[str, str] | None = None,
        netns: str | None = None,
        within: Sequence[str] = (),
        **config: object,
    ) -> None:
        self._folder = folder
        self.socket = folder / "docker.sock"
        self._pid_files = (folder / "docker.pid", folder / "exec/containerd/containerd.pid")
        self._file = folder / "daemon.json"
        self._file.write_text(json.dumps({**self._config(), **config}))
        argv = [*inside(netns), *within, "dockerd", "--config-file", self._file]
        self._daemon = Daemon(argv, folder / "dockerd.log", env=env, outlasts_tests=True)

    @property
    def url(self) -> str:
        return f"unix://{self.socket}"

    @property
    def env(self) -> dict[str, str]:
        return {"DOCKER_HOST": self.url}

    @property
    def pid(self) -> int:
        return self._daemon.pid

    def is_alive(self) -> bool:
        return self._daemon.is_alive()

    def start(self) -> None:
        # dockerd does not start if a process has the pid that a killed one left in its file.
        for file in (*self._pid_files, self.socket):
            file.unlink(missing_ok=True)
        self._daemon.spawn()
        self._daemon.wait_ready(partial(answers, self.socket))
        if images_in_containerd():
            store = self.docker("info", "--format", "{{.DriverStatus}}")
            assert "io.containerd.snapshotter" in store, f"images are not in containerd: {store}"

    def kill9(self) -> None:
        """Containers live on; so does containerd, which is ended since a new one is started."""
        self._daemon.kill9()
        end_processes_that_mention(str(self._folder / "exec/containerd/containerd.toml"))

    def restart(self) -> None:
        """In order; without live-restore its containers end with it."""
        self._daemon.stop(120)
        self.start()

    def live_restore(self, *, on: bool) -> None:
        """Whether containers outlive it from now on."""
        config = {**json.loads(self._file.read_text()), "live-restore": on}
        self._file.write_text(json.dumps(config))
        # dockerd reads this setting again without a restart.
        self._daemon.signal(signal.SIGHUP)
        says = ["info", "--format", "{{.LiveRestoreEnabled}}"]
        wait_until(lambda: self.docker(*says) == str(on).lower(), what="dockerd to obey")

    def docker(self, *args: str | Path, stdin: bytes | None = None) -> str:
        """Output of the docker command against this engine."""
        return run(["docker", *args], env=self.env, stdin=stdin).strip()

    def import_image(self, name: str, root: Path, *options: str) -> str:
        """Make an image of a folder, e.g. with options `--change`, `ENTRYPOINT [...]`."""
        archive = shutil.make_archive(str(root), "tar", root)
        self.docker("import", *options, archive, name)
        return name

    def remove_containers(self) -> None:
        if containers := self._containers():
            try:
                self.docker("rm", "-f", *containers)
            except DaemonFailed as error:
                self._wait_for_removal(containers, str(error))
        for network in self._networks():
            wait_until(partial(self._remove_network, network), what=f"{network} to be removed")

    def _containers(self) -> list[str]:
        return self.docker("ps", "-aq").split()

    def _wait_for_removal(self, containers: list[str], what: str) -> None:
        """A container whose removal a shim has begun, even one killed then, goes by itself."""
        wait_until(lambda: set(containers).isdisjoint(self._containers()), what=what)

    def _networks(self) -> list[str]:
        return self.docker("network", "ls", "-q", "--filter", "label=fairlead.install").split()

    def _remove_network(self, network: str) -> bool:
        """Whether it is gone. A shim that is still there may be about to remove it, too."""
        try:
            self.docker("network", "rm", network)
        except DaemonFailed:
            return network not in self._networks()
        return True

    def stop(self) -> None:
        """Also one that was killed: only an engine can clear up after an engine."""
        if not self._daemon.is_alive():
            self.start()
        self.remove_containers()
        self._daemon.stop()
        end_processes_that_mention(f"{self._folder}/")
        unmount_all_below(self._folder)

    def _config(self) -> dict[str, object]:
        return {
            "hosts": [self.url],
            "data-root": str(self._folder / "data"),
            "exec-root": str(self._folder / "exec"),
            "pidfile": str(self._folder / "docker.pid"),
            "bridge": "none",
            "live-restore": True,
            "log-driver": "json-file",
            # Docker's own pools have room for some 30 networks.
            "default-address-pools": [{"base": "172.31.0.0/16", "size": 26}],
            **({"features": {"containerd-snapshotter": True}} if images_in_containerd() else {}),
        }


def images_in_containerd() -> bool:
    """Whether the engines of these tests keep images as Docker 29 does by default."""
    return os.environ.get("FAIRLEAD_TESTS_IMAGE_STORE") == "containerd"
