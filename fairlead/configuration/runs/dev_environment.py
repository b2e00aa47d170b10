"""A dev environment: one job on one node, in which a person works.

The job runs the commands of `init`, then the IDE, or nothing for an IDE that comes by SSH. A
command that fails ends the job.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, NoReturn, Self

import msgspec

from fairlead.configuration.convert import ConfigurationError
from fairlead.configuration.field import Field
from fairlead.configuration.runs.common import COMMANDS_ALLOWED, TYPES_ALLOWED, RunFields
from fairlead.configuration.runs.definition import RunDefinition
from fairlead.configuration.runs.groups import MAIN, GroupPlan
from fairlead.configuration.runs.job import Defaults, common_policy, retry_policy
from fairlead.configuration.runs.other_systems import HINTS, OF_TASKS
from fairlead.configuration.values.commands import FolderName
from fairlead.configuration.values.container import Volume
from fairlead.configuration.values.placement import Schedule
from fairlead.configuration.values.units import OFF_ALLOWED, DurationOrOff, shown
from fairlead.model.dev_environment import BROWSER_PORTS, DevEnvironment, Ide
from fairlead.model.service import Probe, Serves
from fairlead.model.spec import Group, RunPolicy, RunType

FOLDER = "/workflow"
"""Where it works, and where a repository is, unless it says otherwise."""
HOME_OF_ROOT = "/root"
CODE_SERVER_BUNDLE = "/opt/code-server/bin/code-server"
"""Where an operator's code-server may be mounted."""
_VERSION = re.compile(r"[0-9A-Za-z][0-9A-Za-z.+@-]{0,99}", re.ASCII)
_IS_ROOT = (None, "root", "0", "root:root", "0:0")
_FOR_EVER = "exec tail -f /dev/null"
_OF_TASKS_AND_SERVICES = "is for tasks and services; write what shall run first as init"
_HINTS: Mapping[str, str] = {
    **{name: hint for name, hint in HINTS.items() if name not in ("inactivity_duration", "home")},
    "commands": _OF_TASKS_AND_SERVICES,
    "run": _OF_TASKS_AND_SERVICES,
    "script": _OF_TASKS_AND_SERVICES,
    "groups": f"{OF_TASKS}; a dev environment is one job on one node",
    "nodes": f"{OF_TASKS}; a dev environment is one job on one node",
    "stop_criteria": OF_TASKS,
    "startup_order": OF_TASKS,
    "max_failed_jobs": OF_TASKS,
    "max_failed_attempts": f"{OF_TASKS}; write retry",
    "sweep": f"{OF_TASKS}; a dev environment is one job on one node",
}


class IdeVersion(str):
    __slots__ = ()
    ALLOWED = "letters, digits, '.', '+', '-' and '@', such as 4.4.2"
    SCHEMA: ClassVar[dict[str, Any]] = {"type": ["string", "number"]}

    @classmethod
    def read(cls, value: object) -> Self:
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise ValueError(f"{shown(value)} is not a version")
        if not _VERSION.fullmatch(str(value)):
            raise ValueError(f"{shown(value)} is not a version")
        return cls(value)


class Home:
    """The volume that keeps the home of a dev environment. `source` None: its name names the
    volume; `target` None: the home of root."""

    __slots__ = ("source", "target")
    ALLOWED = (
        "true, the name of a volume, or a folder on the node; then :/PATH for a home elsewhere"
    )
    SCHEMA: ClassVar[dict[str, Any]] = {
        "anyOf": [{"const": True}, {"type": "string", "minLength": 1}]
    }

    def __init__(self, source: str | None, target: str | None) -> None:
        self.source = source
        self.target = target

    @classmethod
    def read(cls, value: object) -> Self:
        if value is True:
            return cls(None, None)
        if not isinstance(value, str) or not value:
            raise ValueError(f"{shown(value)} is neither true nor a volume")
        source, colon, target = value.partition(":")
        Volume.of_text(f"{source}:{target if colon else HOME_OF_ROOT}")
        return cls(source, target if colon else None)


class DevEnvironmentConfiguration(RunFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The configuration of a dev environment."""

    type: Annotated[Literal["dev-environment"], Field(TYPES_ALLOWED)]
    ide: Ide | None = None
    version: IdeVersion | None = None
    init: Annotated[tuple[str, ...], Field(COMMANDS_ALLOWED)] = ()
    inactivity_duration: Annotated[DurationOrOff | None, Field(f"{OFF_ALLOWED}; more than 0")] = (
        None
    )
    home: Home | None = None
    schedule: Annotated[Schedule | None, Field(called=("cron",))] = None


class _DevEnvironment(RunDefinition[DevEnvironmentConfiguration]):
    run_type = RunType.DEV_ENVIRONMENT
    fields = DevEnvironmentConfiguration
    hints = _HINTS
    withheld = frozenset({"commands", "entrypoint", "gang", "nodes", "share_nodes"})

    def check(self, written: DevEnvironmentConfiguration) -> None:
        _check(written)

    def groups(self, written: DevEnvironmentConfiguration) -> tuple[GroupPlan, ...]:
        return _groups(written)

    def policy(self, written: DevEnvironmentConfiguration, defaults: Defaults) -> RunPolicy:
        retry = retry_policy(written.retry, defaults, gang=False)
        return msgspec.structs.replace(
            common_policy(written, defaults, retry),
            schedule=tuple(written.schedule or ()),
            dev_environment=_dev_environment(written),
        )

    def serves(self, written: DevEnvironmentConfiguration) -> Serves | None:
        """Return what an IDE in the browser offers to the proxy."""
        port = None if written.ide is None else BROWSER_PORTS.get(written.ide)
        return None if port is None else Serves(port=port, probes=(Probe(),))


DEV_ENVIRONMENT = _DevEnvironment()


# -- what is refused ------------------------------------------------------------------------------


def _check(written: DevEnvironmentConfiguration) -> None:
    """Refuse combinations that cannot be meant. Raises ConfigurationError."""
    if written.nodes not in (None, 1) or written.gang or written.share_nodes is False:
        name = "gang" if written.gang else "nodes" if written.nodes else "share_nodes"
        _refuse(name, "is for tasks: a dev environment is one job on one node")
    for name in ("commands", "entrypoint"):
        if getattr(written, name):
            _refuse(name, "is for tasks and services: write what shall run first as init")
    duration = written.inactivity_duration
    if duration is not None and duration.seconds == 0:
        _refuse("inactivity_duration", "would stop it at once")
    in_browser = written.ide in BROWSER_PORTS
    if written.ssh == "off" and not in_browser:
        _refuse("ssh", "is off, and nothing else leads to it", "auto, embedded, install")
    if in_browser and written.name is not None and written.name.endswith("-"):
        _refuse("name", "ends with a hyphen, so it cannot be a part of its URL")
    if written.version is not None and written.ide is None:
        _refuse("version", "needs ide", "ide and version")
    if written.version is not None and written.ide is Ide.CODE_SERVER:
        _refuse("version", "is that of the image's code-server", "no version")
    _check_home(written)


def _check_home(written: DevEnvironmentConfiguration) -> None:
    if written.home is None:
        return
    if written.home.source is None and written.name is None:
        _refuse("home", "is true, and there is no name to name the volume", "name, or home: VOLUME")
    if written.home.target is None and written.user not in _IS_ROOT:
        _refuse(
            "home",
            f"does not tell where the home of {written.user} is",
            f"VOLUME:/PATH, such as {written.home.source or written.name}:/home/{written.user}",
        )
    mount = _home_volume(written).mount
    if any(one.mount.target == mount.target for one in written.volumes or ()):
        _refuse("home", f"is at {mount.target}, where one of volumes is mounted, too")


def _refuse(field: str, message: str, allowed: str | None = None) -> NoReturn:
    raise ConfigurationError(field, message, allowed or DEV_ENVIRONMENT.guide().allowed.get(field))


# -- what is planned ------------------------------------------------------------------------------


def _groups(written: DevEnvironmentConfiguration) -> tuple[GroupPlan, ...]:
    """Return its one job, as a group."""
    volumes = tuple(written.volumes or ())
    if written.home is not None:
        volumes = (*volumes, _home_volume(written))
    own = msgspec.structs.replace(
        written,
        commands=(*written.init, *_starting(written)),
        volumes=volumes,
        working_dir=FolderName(_folder(written)),
    )
    group = Group(name=MAIN, share_nodes=True)
    return (GroupPlan(field="", written=own, whole_node=False, group=group),)


def _dev_environment(written: DevEnvironmentConfiguration) -> DevEnvironment:
    duration = written.inactivity_duration
    return DevEnvironment(
        ide=written.ide,
        folder=_folder(written),
        inactivity_duration=None if duration is None else duration.seconds,
    )


def _folder(written: DevEnvironmentConfiguration) -> str:
    if written.working_dir is not None:
        return str(written.working_dir)
    if written.home is not None and not written.repos:
        return _home_volume(written).mount.target
    return FOLDER


def _home_volume(written: DevEnvironmentConfiguration) -> Volume:
    assert written.home is not None
    source = written.home.source or f"{written.name}-home"
    return Volume.of_text(f"{source}:{written.home.target or HOME_OF_ROOT}")


def _starting(written: DevEnvironmentConfiguration) -> tuple[str, ...]:
    """Return the commands that become the IDE. They run in any shell of an image."""
    match written.ide:
        case Ide.JUPYTER:
            return _jupyter(None if written.version is None else str(written.version))
        case Ide.CODE_SERVER:
            return (_code_server(),)
        case _:
            return (_FOR_EVER,)


def _jupyter(version: str | None) -> tuple[str, ...]:
    """Bring JupyterLab if it is missing, into the Python that notebooks use, and become it."""
    package = "jupyterlab" if version is None else f"jupyterlab=={version}"
    present = "command -v jupyter-lab >/dev/null 2>&1"
    if version is not None:
        present = f'[ "$(jupyter-lab --version 2>/dev/null)" = "{version}" ]'
    bring = f"""\
fairlead_lab=jupyter-lab
if {present}; then :
elif [ -n "${{VIRTUAL_ENV-}}" ] && uv pip install --quiet '{package}' 2>/dev/null; then :
elif uv pip install --quiet --system '{package}' 2>/dev/null; then :
elif python3 -m pip install --quiet --disable-pip-version-check '{package}' 2>/dev/null; then :
elif python3 -m venv --system-site-packages "$HOME/.fairlead-jupyter" 2>/dev/null &&
    "$HOME/.fairlead-jupyter/bin/pip" install --quiet '{package}'; then
    fairlead_lab="$HOME/.fairlead-jupyter/bin/jupyter-lab"
else
    echo "{package} is not in the image, and neither uv nor pip could bring it:" \\
        "use an image with it, or one with uv or Python" >&2
    exit 1
fi
scripts='import sysconfig; print(sysconfig.get_path("scripts"))'
for fairlead_place in "$(python3 -c "$scripts" 2>/dev/null)" "$HOME/.local/bin"; do
    command -v "$fairlead_lab" >/dev/null 2>&1 && break
    [ -x "$fairlead_place/jupyter-lab" ] && fairlead_lab="$fairlead_place/jupyter-lab"
done
command -v "$fairlead_lab" >/dev/null 2>&1 || {{
    echo "{package} was installed, and its program jupyter-lab is not in PATH" >&2
    exit 1
}}"""
    options = (
        f"--no-browser --allow-root --ip=127.0.0.1 --port={BROWSER_PORTS[Ide.JUPYTER]}",
        "--ServerApp.port_retries=0 --ServerApp.allow_remote_access=True",
        "--IdentityProvider.token= --ServerApp.password=",
        '--ServerApp.base_url="/services/$FAIRLEAD_RUN_NAME/"',
    )
    return bring, 'exec "$fairlead_lab" ' + " \\\n    ".join(options)


def _code_server() -> str:
    listens = f"127.0.0.1:{BROWSER_PORTS[Ide.CODE_SERVER]}"
    options = f"--bind-addr {listens} --auth none --disable-telemetry --disable-update-check ."
    return f"""\
if command -v code-server >/dev/null 2>&1; then exec code-server {options}
elif [ -x {CODE_SERVER_BUNDLE} ]; then exec {CODE_SERVER_BUNDLE} {options}
else
    echo "code-server is neither in the image nor at {CODE_SERVER_BUNDLE}:" \\
        "use an image with it, or mount a node's copy, such as" \\
        "volumes: [/opt/code-server:/opt/code-server:ro]" >&2
    exit 1
fi"""
