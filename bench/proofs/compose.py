"""The compose file as its page starts it: docs/containers.md's own lines build the image and start
three controllers, PostgreSQL and an object storage, on a dockerd in a network of its own.

Then a node joins, runs go through each controller, the leader's container is killed, its process
is killed, it is stopped, all are upgraded one after the other, and everything is taken down and up
again. No run and no line of a log is lost, and what the file promises of the containers is true.

It needs Docker, Debian's mirror and the index of Python packages. PostgreSQL is Debian's, and the
object storage moto, in images with the names of the file (`tests.support.compose_images`).
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from bench.proofs._table import conclude
from tests.support import compose_images
from tests.support.daemons import DaemonFailed, run
from tests.support.docker_daemon import DockerDaemon
from tests.support.docker_packages import plugins
from tests.support.machines import Host, Switch
from tests.support.ssh_daemon import CHECKOUT
from tests.support.waiting import wait_until

_PORTS = {"c1": 8701, "c2": 8702, "c3": 8703}
_TAKEOVER_SECONDS = 15.0
_HAND_OVER_SECONDS = 5.0
_STOP_SECONDS = 30.0
"""`stop_grace_period` of the file; after it, Docker kills."""
_NEXT_VERSION = "0.2.0"
_LINES = 300
_COUNTING = f"for i in $(seq {_LINES}); do echo line $i; sleep 0.2; done"
_LIST = (
    "import os, obstore; from obstore.store import S3Store;"
    "s = S3Store('fairlead', endpoint='http://bucket:9000', virtual_hosted_style_request=False,"
    " client_options={'allow_http': True});"
    "print(*(m['path'] for page in obstore.list(s) for m in page), sep='\\n')"
)


class Bed:
    """A machine with Docker for the page's commands, and one that becomes a node."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        switch = Switch()
        switch.build()
        stack.callback(switch.remove)
        self.node = Host(switch, 1, folder / "node")
        stack.callback(self.node.close)
        self._namespace, _ = switch.connect(2)
        stack.callback(run, ["ip", "netns", "delete", self._namespace])
        (folder / "docker").mkdir()
        # A build without other words wants the default network.
        self.docker = DockerDaemon(folder / "docker", netns=self._namespace, bridge="")
        stack.callback(self.docker.stop)
        self.checkout = folder / "checkout"
        self.where = self.checkout / "packer/container"
        self._env = self._environment()

    def _environment(self) -> dict[str, str]:
        home, programs = self.folder / "home", self.folder / "programs"
        (home / ".docker/cli-plugins").mkdir(parents=True)
        for plugin in plugins().glob("docker-*"):
            (home / ".docker/cli-plugins" / plugin.name).symlink_to(plugin)
        programs.mkdir()
        (programs / "fairlead").symlink_to(Path(sys.executable).with_name("fairlead"))
        path = f"{programs}:{os.environ['PATH']}"
        return {**self.docker.env, "HOME": str(home), "PATH": path}

    def start(self) -> None:
        self.node.start()
        self.docker.start()
        compose_images.load(self.docker, self.folder)
        listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        for name in filter(None, run(listed, cwd=CHECKOUT).split("\0")):
            if (CHECKOUT / name).is_file():
                (self.checkout / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(CHECKOUT / name, self.checkout / name)
        # What `./dev setup` has fetched, which made this environment too.
        scripts = "controller/web/static/vendor"
        shutil.copytree(CHECKOUT / scripts, self.checkout / scripts, dirs_exist_ok=True)
        lock = self.checkout / "requirements.lock"
        compose_images.fetch_wheels(self.checkout / "wheels", "--require-hashes", "-r", str(lock))

    def shell(self, script: str, folder: Path) -> str:
        """Run it as a person there does; return what it prints."""
        inside = ["nsenter", f"--net=/run/netns/{self._namespace}", "bash", "-euo", "pipefail"]
        return run([*inside, "-c", script], env=self._env, cwd=folder, timeout=1800)

    def compose(self, words: str) -> str:
        return self.shell(f"docker compose {words}", self.where)

    def fairlead(self, words: str, at: str | None = None) -> str:
        """`at`: the one controller that the command is told; None: those of the login."""
        url = f"FAIRLEAD_URL=http://127.0.0.1:{_PORTS[at]} " if at else ""
        token = f"FAIRLEAD_TOKEN=$(cat {self.where}/admin-token) " if at else ""
        return self.shell(f"{url}{token}fairlead {words}", self.where)

    def container(self, name: str) -> str:
        """Return the id of a service's container."""
        return self.compose(f"ps -aq {name}").strip()

    def inspected(self, name: str, template: str) -> str:
        return self.docker.docker("inspect", "-f", template, self.container(name))

    def controllers(self) -> dict[str, tuple[str, str]]:
        """Return status and version of each, by its name in the file."""
        listed = json.loads(self.fairlead("controllers --json 2>/dev/null"))["controllers"]
        names = (re.sub(r"http://(\w+):8700", r"\1", one["url"]) for one in listed)
        return {
            name: (one["status"], one["version"]) for name, one in zip(names, listed, strict=True)
        }

    def leader(self) -> str:
        return next(name for name, (status, _) in self.controllers().items() if status == "leads")

    def wait_for_others(self, gone: str) -> str:
        """Return who leads in place of this one."""

        def other() -> str:
            with contextlib.suppress(DaemonFailed, StopIteration):
                found = self.leader()
                return found if found != gone else ""
            return ""

        return wait_until(other, what=f"another one than {gone} to lead")

    def status(self, at: str) -> int:
        """Return the status of the health that this one tells."""
        ask = f"curl -s -o /dev/null -w '%{{http_code}}' http://127.0.0.1:{_PORTS[at]}/v1/health"
        with contextlib.suppress(DaemonFailed):
            return int(self.shell(ask, self.where))
        return 0


def page_steps() -> tuple[str, str]:
    """Return the page's first block behind `./dev setup`, which needs a network: what starts
    everything, and the kill at its end."""
    page = (CHECKOUT / "docs/containers.md").read_text()
    found = re.search(r"```sh\n\./dev setup [^\n]*\n(.*?)```", page, re.DOTALL)
    assert found is not None
    begin, kill, rest = found[1].partition("docker compose kill")
    return begin, f"{kill}{rest}"


def upgrade_check() -> str:
    """Return the page's command that asks the next version. It fails if that would not start."""
    page = (CHECKOUT / "docs/containers.md").read_text()
    found = re.search(r"^docker compose run (?:.*\\\n)*.*", page, re.MULTILINE)
    assert found is not None
    return found[0]


class Proof:
    def __init__(self, bed: Bed) -> None:
        self._bed = bed
        self.figures: list[tuple[str, object]] = []
        self.broken: list[str] = []
        self._usual = 0.0
        """Seconds of a submission while nothing happens, on this machine."""

    def play(self) -> None:
        begin, kill = page_steps()
        self._timed(
            "seconds of the page's steps", partial(self._bed.shell, begin, self._bed.checkout)
        )
        for name in _PORTS:
            self._is_confined(name)
            self._expect(self._bed.status(name) == 200, f"{name} is not healthy")
        self._secrets_are_told_nobody()
        self._join()
        self._bed.fairlead(f"apply -f {self._task('echo hello')} -n first", at="c2")
        self._bed.fairlead(f"apply -d -f {self._task(_COUNTING)} -n counting", at="c2")
        began = time.monotonic()
        self._submitted("usual", at="c3")
        self._usual = time.monotonic() - began
        self.figures.append(("seconds of a submission otherwise", round(self._usual, 1)))
        self._kill(kill)
        self._kill_process()
        self._stop()
        self._has_all_lines("counting")
        self._upgrade()
        self._down_and_up()

    def _expect(self, is_true: bool, otherwise: str) -> None:
        if not is_true:
            self.broken.append(otherwise)

    def _timed(self, what: str, act: Callable[[], object], most: float | None = None) -> None:
        began = time.monotonic()
        act()
        seconds = time.monotonic() - began
        self.figures.append((what, round(seconds, 1)))
        is_soon = most is None or seconds <= most + self._usual
        self._expect(is_soon, f"{what}: {seconds:.1f}, more than {most} beyond the usual")

    def _is_confined(self, name: str) -> None:
        bed = self._bed
        inside = "id -u; grep -E '^(CapEff|NoNewPrivs):' /proc/1/status; touch /opt/x || echo no"
        told = bed.compose(f"exec -T {name} sh -c {_quoted(inside)}")
        promised = ("10001", "CapEff:\t0000000000000000", "NoNewPrivs:\t1", "no")
        for one in promised:
            self._expect(one in told.splitlines(), f"{name} does not say {one!r}: {told!r}")
        reaches = bed.docker.docker("port", bed.container(name), "8700")
        self._expect(reaches == f"127.0.0.1:{_PORTS[name]}", f"{name} is published at {reaches}")

    def _secrets_are_told_nobody(self) -> None:
        where = self._bed.where
        password = (where / "database-password").read_text()
        for name in _PORTS:
            told = self._bed.inspected(name, "{{json .Config}}{{json .Args}}")
            said = self._bed.compose(f"logs {name}")
            for secret in (password, (where / "admin-token").read_text().strip()):
                self._expect(secret not in told + said, f"a secret is told by {name}")

    def _join(self) -> None:
        node = self._bed.node
        node.sshd.authorize(self._bed.fairlead("node key"))
        where = f"--host {node.address} --port {node.sshd.port} --user {node.sshd.user}"
        key = f"--host-key {_quoted(node.sshd.host_key)} --socket {node.shim.socket}"
        self._bed.fairlead(f"node add n1 {where} {key}")

    def _task(self, command: str) -> Path:
        file = self._bed.folder / "task.yaml"
        resources = {"cpu": 0.1, "memory": "64MiB"}
        file.write_text(json.dumps({"type": "task", "commands": [command], "resources": resources}))
        return file

    def _submitted(self, name: str, at: str) -> None:
        self._bed.fairlead(f"apply -d -f {self._task('echo hello')} -n {name}", at=at)

    def _kill(self, last_step: str) -> None:
        """The page's own line; the first one to start leads, as a rule."""
        leader = self._bed.leader()
        kill = last_step.replace("kill c1", f"kill {leader}")
        self._bed.shell(kill, self._bed.where)
        through = next(name for name in ("c3", "c2") if name != leader)
        submit = partial(self._submitted, "after-the-kill", through)
        self._timed("seconds of a submission after the kill", submit, _TAKEOVER_SECONDS)
        self._bed.wait_for_others(leader)
        self._bed.compose(f"up -d --no-deps --wait {leader}")

    def _kill_process(self) -> None:
        """As the kernel does when memory is short; Docker starts it again by itself."""
        leader = self._bed.leader()
        os.kill(int(self._bed.inspected(leader, "{{.State.Pid}}")), signal.SIGKILL)
        through = next(name for name in _PORTS if name != leader)
        submit = partial(self._submitted, "after-the-crash", through)
        self._timed("seconds of a submission after the crash", submit, _TAKEOVER_SECONDS)
        self._bed.wait_for_others(leader)
        wait_until(lambda: self._bed.status(leader) == 200, what=f"{leader} to be back")

    def _stop(self) -> None:
        leader = self._bed.leader()
        through = next(name for name in _PORTS if name != leader)
        stopping = subprocess.Popen(
            ["docker", "stop", self._bed.container(leader)],
            env={**os.environ, **self._bed.docker.env},
            stdout=subprocess.DEVNULL,
        )
        began = time.monotonic()
        submit = partial(self._submitted, "during-the-stop", through)
        self._timed("seconds of a submission during the stop", submit, _HAND_OVER_SECONDS)
        stopping.wait()
        seconds = time.monotonic() - began
        self.figures.append(("seconds of docker stop", round(seconds, 1)))
        self._expect(seconds < _STOP_SECONDS, f"docker stop took {seconds:.0f} s")
        status = self._bed.inspected(leader, "{{.State.ExitCode}}")
        self._expect(status == "0", f"a stopped leader ended with {status}")
        self._bed.wait_for_others(leader)
        self._bed.compose(f"up -d --no-deps --wait {leader}")

    def _has_all_lines(self, name: str) -> None:
        """At each controller, and as a whole object in the bucket."""
        self._bed.fairlead(f"wait {name}")
        wanted = [f"line {number}" for number in range(1, _LINES + 1)]
        for at in _PORTS:
            found = self._bed.fairlead(f"logs {name} 2>/dev/null", at=at).split("\n")
            self._expect([line for line in found if line] == wanted, f"a log is not whole at {at}")

    def _upgrade(self) -> None:
        """One after the other, the leader last, as the page says."""
        for name in ("fairlead/version.py", "pyproject.toml", "daemons/pyproject.toml"):
            file = self._bed.checkout / name
            file.write_text(file.read_text().replace('"0.1.0"', f'"{_NEXT_VERSION}"', 1))
        self._timed("seconds to build the next version", partial(self._bed.compose, "build c1"))
        told = self._bed.shell(upgrade_check(), self._bed.where)
        self._expect(f"{_NEXT_VERSION} can wait next to" in told, f"upgrade-check says {told!r}")
        leader = self._bed.leader()
        for name in sorted(_PORTS, key=lambda name: name == leader):
            self._bed.compose(f"up -d --no-deps --wait {name}")
            self._submitted(f"with-{name}-upgraded", at=name)
        wait_until(
            lambda: {version for _, version in self._bed.controllers().values()} == {_NEXT_VERSION},
            what="all to have the next version",
        )

    def _down_and_up(self) -> None:
        """Volumes and bucket stay; so do runs and logs, also without the copies of the disk."""
        bed = self._bed
        listed = bed.compose(f"exec -T c1 python3 -c {_quoted(_LIST)}").split()
        self._expect(any("logs" in key for key in listed), f"no log is in the bucket: {listed}")
        bed.compose("exec -T c1 sh -c 'rm -rf /data/logs /data/followed-logs'")
        self._timed("seconds of down", partial(bed.compose, "down"), 2 * _STOP_SECONDS)
        self._timed("seconds of up again", partial(bed.compose, "up -d --wait"))
        self._has_all_lines("counting")
        for name in ("first", "after-the-kill", "after-the-crash", "during-the-stop"):
            bed.fairlead(f"wait {name}")
        bed.fairlead(f"apply -f {self._task('echo hello')} -n last", at="c3")


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def main() -> None:
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="fl-compose-", dir="/tmp"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        # sshd and the shim's users come through it.
        folder.chmod(0o755)
        bed = Bed(folder, stack)
        bed.start()
        proof = Proof(bed)
        proof.play()
    conclude("the compose file", proof.figures, proof.broken)


if __name__ == "__main__":
    main()
