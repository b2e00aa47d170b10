"""The `install` of a bundle tells each thing that it changes, and nothing when nothing differs."""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from installer import docker, keys, plan
from installer import options as wishes
from installer.steps import Step, at
from installer.system import InstallError, RealSystem, System

_WOULD_CHANGE = 3
Tell = Callable[[str, str], None]


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    changes: list[dict[str, str]] = []

    def tell(name: str, change: str) -> None:
        changes.append({"name": name, "change": change})
        if not arguments.json:
            print(f"{name}: {change}", flush=True)  # noqa: T201

    try:
        if os.geteuid():
            raise InstallError("only root can change the node: use sudo")
        with _only_one_at_a_time():
            _act(arguments, RealSystem(), tell)
    except (InstallError, OSError) as error:
        print(f"fairlead-node install: {error}", file=sys.stderr)  # noqa: T201
        return 1
    finally:
        if arguments.json:
            print(json.dumps(changes))  # noqa: T201
    return _WOULD_CHANGE if arguments.check and changes else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="install",
        description="Makes this machine a Fairlead node. What is not named stays as it was named "
        "the last time.",
    )
    add = parser.add_argument
    add("--bundle", type=Path, required=True, help=argparse.SUPPRESS)
    add("--link", action="store_true", help=argparse.SUPPRESS)
    _add_options_of_engines(add)
    _add_options_of_controllers(add)
    _add_options_of_jobs(add)
    add("--check", action="store_true", help="change nothing; 3 is the exit status if it would")
    add("--uninstall", action="store_true", help="take all away but the data of jobs")
    add("--purge", action="store_true", help="with --uninstall: the data, too")
    add("--json", action="store_true", help="print the changes as a list")
    return parser


def _add_options_of_engines(add: Callable[..., object]) -> None:
    add(
        "--docker",
        choices=[each.value for each in wishes.Docker],
        help="install the release's engine; use the one that is here; none: jobs are plain "
        "processes (default: use, where there is one)",
    )
    add(
        "--engine",
        choices=[*wishes.ENGINES],
        help="what runs jobs: docker (the default), podman, which must be installed, or process, "
        "without isolation",
    )
    add("--registry-mirror", metavar="URL", help="the engine asks it first for images")


def _add_options_of_controllers(add: Callable[..., object]) -> None:
    add(
        "--tunnel-key",
        action="append",
        default=[],
        metavar="KEY",
        help="a controller's public key, as `fairlead node key` prints it; may be repeated",
    )
    add(
        "--gateway-port",
        type=int,
        metavar="PORT",
        help="gateways come in there by TLS, past SSH, which is faster; needs HAProxy; 0: nowhere "
        "(the default)",
    )
    add(
        "--takeover",
        action="store_true",
        help="let the controller of --tunnel-key in also where another one has this node",
    )
    add(
        "--revoke-others",
        action="store_true",
        help="controllers that no --tunnel-key names may not log in any more",
    )


def _add_options_of_jobs(add: Callable[..., object]) -> None:
    add(
        "--volume-prefix",
        action="append",
        default=[],
        metavar="PATH",
        help="jobs may mount what lies below it; may be repeated",
    )
    add(
        "--job-metadata",
        choices=[each.value for each in wishes.JobMetadata],
        help="whether jobs reach the metadata service of a cloud (default: closed)",
    )


def _act(arguments: argparse.Namespace, system: System, tell: Tell) -> None:
    if arguments.purge and not arguments.uninstall:
        raise InstallError("--purge goes with --uninstall only")
    bundle = arguments.bundle
    before = wishes.load(at(system, plan.OPTIONS))
    if arguments.uninstall:
        uninstall(
            system,
            plan.steps_to_undo(
                bundle, before or wishes.Options(docker=wishes.Docker.NONE), purge=arguments.purge
            ),
            tell,
            check=arguments.check,
        )
        return
    wanted = wishes.merge(
        before,
        docker=_docker(arguments),
        has_docker=system.has_program("dockerd"),
        tunnel_keys=arguments.tunnel_key,
        volume_prefixes=arguments.volume_prefix,
        job_metadata=arguments.job_metadata,
        gateway_port=arguments.gateway_port,
        registry_mirror=arguments.registry_mirror,
        standing_keys=keys.standing_keys(system, plan.KEYS),
        takeover=arguments.takeover,
        revoke_others=arguments.revoke_others,
    )
    if found := plan.problems(system, wanted):
        raise InstallError("\n".join(found))
    if wanted.docker is wishes.Docker.INSTALL and not arguments.check:
        docker.require_package(system)
    install(system, plan.steps(bundle, wanted, linked=arguments.link), tell, check=arguments.check)


def _docker(arguments: argparse.Namespace) -> str | None:
    """Return the wish of --docker and --engine, which may not contradict each other."""
    named: str | None = arguments.docker
    if arguments.engine is None:
        return named
    engine = wishes.ENGINES[arguments.engine]
    if named is None:
        return engine.value
    if wishes.Docker(named) is not engine and not (
        engine.is_docker and wishes.Docker(named).is_docker
    ):
        raise InstallError(f"--engine {arguments.engine} and --docker {named}: give one of them")
    return named


def install(system: System, steps: Sequence[Step], tell: Tell, *, check: bool) -> None:
    """Raises InstallError or OSError; the next try goes on where this one stopped."""
    changed: set[str] = set()
    for step in steps:
        difference = step.difference(system, changed)
        if difference is None:
            continue
        if not check:
            step.apply(system)
        changed.add(step.name)
        tell(step.name, difference)


def uninstall(system: System, steps: Sequence[Step], tell: Tell, *, check: bool) -> None:
    """Raises InstallError or OSError, also while jobs run: they would lose their runtime."""
    if users := plan.users_of_any(system):
        raise InstallError(
            f"jobs run here (process {users[0]} has their runtime): drain the node first, with "
            "`fairlead node drain NAME --deadline 0s`"
        )
    is_changed = False
    for step in steps:
        leftover = step.leftover(system)
        # A service is told once, and only when there was something to take away.
        if leftover is None or (not is_changed and leftover == "reloaded"):
            continue
        if not check:
            step.undo(system)
        is_changed = True
        tell(step.name, leftover)


@contextmanager
def _only_one_at_a_time() -> Iterator[None]:
    with open("/run/fairlead-install.lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InstallError("another install is running on this machine") from None
        # The file stays: a lock belongs to the inode, and another one could be locked beside it.
        yield


if __name__ == "__main__":
    sys.exit(main())
