"""Planning turns a user's configuration into the policy of its run and the specs of its jobs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeVar

import msgspec

from common.engine_abilities import EngineAbility
from controller.configuration import dev_environments, services
from controller.configuration.convert import ConfigurationError
from controller.configuration.dstack import DIALECT
from controller.configuration.groups import GroupPlan, asks_for_gang, plan_groups
from controller.configuration.images import DEFAULT_IMAGE, image_for
from controller.configuration.schema import (
    ALLOWED,
    BucketFields,
    DevEnvironmentConfiguration,
    DisconnectFields,
    FileFields,
    GroupedFields,
    RegistryAuthFields,
    RepoFields,
    RetryFields,
    RunFields,
    ServiceConfiguration,
    TaskConfiguration,
    UploadedRepo,
)
from controller.configuration.secrecy import may_be_secret
from controller.lifecycle.model import (
    Amount,
    Band,
    GpuNeed,
    JobRepo,
    JobSpec,
    Limits,
    Resources,
    RetryEvent,
    RetryPolicy,
    RunPolicy,
    RunType,
)
from controller.lifecycle.pending_reasons import size_words
from controller.lifecycle.services.policy import ServicePolicy
from controller.lifecycle.submission import PlannedGroup
from runner.schemas import BucketFolder, Files
from shim.schemas import ContainerOptions, PullPolicy, RegistryAuth, Ulimit

_T = TypeVar("_T")

HIDDEN = "***"
_SECRET_OF_REPO = frozenset({"token", "private_key"})
_QUERY = re.compile(r"(?<=\?).+", re.DOTALL)
_QUERY_BEFORE_PATH = re.compile(r"(://[^?]*\?)[^:]+")


class Defaults(msgspec.Struct, frozen=True, kw_only=True):
    """The values for fields that the user leaves out; the operator may change them."""

    image: str = DEFAULT_IMAGE
    nvcc_image: str | None = None
    """The image of jobs with `nvcc`; None: there is none."""
    resources: Resources = Resources(memory=2 << 30)
    """For a job that neither holds its whole node nor asks for GPUs; the least for the others."""
    stop_duration: float = 300.0
    stop_signal: str = "SIGTERM"
    max_duration: float | None = None
    scheduling_timeout: float | None = None
    priority: int = 50
    band: Band = Band.INTERACTIVE
    pull_policy: PullPolicy = PullPolicy.IF_NOT_PRESENT
    ssh: str = "auto"
    ssh_keys: tuple[str, ...] = ()
    """The project's public keys: they are added to every run besides its user's own."""
    retry_true_duration: float = 3600.0
    """Seconds for which `retry: true` tries again."""
    gang_max_failures: int = 10
    """The number of retried failures of an explicit `gang` if the user sets none."""
    outputs_limit: int = 1 << 30
    """Bytes of outputs that are kept of one attempt."""
    limits: Limits = Limits()


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The planned run. `name` None: the run gets a generated one."""

    type: RunType
    name: str | None
    policy: RunPolicy
    groups: tuple[PlannedGroup, ...]
    service: ServicePolicy | None = None
    """None: no service."""
    gateway: bool | str | None = None
    """The gateway that the service asks for; True: the default one; None: nothing is said."""
    configuration: dict[str, object]
    """As written, without secrets: only this form may be shown."""

    @property
    def specs(self) -> tuple[JobSpec, ...]:
        """One spec for each group: the same for all its jobs."""
        return tuple(planned.spec for planned in self.groups)


def to_run(
    configuration: TaskConfiguration | ServiceConfiguration | DevEnvironmentConfiguration,
    written: Mapping[str, object],
    defaults: Defaults,
    ssh_keys: tuple[str, ...] = (),
) -> Plan:
    """Plan the run. `written` is the data from which `configuration` was parsed."""
    service = serves = gateway = None
    if configuration.dialect == DIALECT:
        defaults = msgspec.structs.replace(defaults, resources=least_of_dstack(defaults.resources))
    if isinstance(configuration, ServiceConfiguration):
        service, serves = services.policy(configuration), services.serves(configuration)
        gateway = services.wanted_gateway(configuration)
        policy = _policy_of_service(configuration, defaults)
        plans = services.plan_replicas(configuration)
    elif isinstance(configuration, DevEnvironmentConfiguration):
        serves = dev_environments.serves(configuration)
        policy = _policy_of_dev_environment(configuration, defaults)
        plans = dev_environments.plan_job(configuration)
    else:
        policy, plans = _policy_of_task(configuration, defaults), plan_groups(configuration)
    specs = [_job(configuration, planned, defaults, ssh_keys) for planned in plans]
    if serves is not None:
        specs = [msgspec.structs.replace(spec, serves=serves) for spec in specs]
    return Plan(
        type=RunType(configuration.type),
        name=str(configuration.name) if configuration.name is not None else None,
        policy=policy,
        groups=tuple(
            PlannedGroup(group=planned.group, spec=spec)
            for planned, spec in zip(plans, specs, strict=True)
        ),
        service=service,
        gateway=gateway,
        configuration=public(written),
    )


def least_of_dstack(least: Resources) -> Resources:
    """Return what a job of dstack's needs at least where its file says nothing. `unset`: what
    follows the node also above a lower end, as in `memory: 8GB..`."""
    return msgspec.structs.replace(
        least,
        cpu=max(least.cpu, 2.0),
        memory=max(least.memory, 8 * 10**9),
        disk=max(least.disk, 100 * 10**9),
        unset=(Amount.CPU, Amount.MEMORY),
    )


def public(written: Mapping[str, object]) -> dict[str, object]:
    """Return a copy without secrets.

    Passwords are hidden, and the values of environment variables that may be secret.
    """
    shown = dict(written)
    for name in ("groups", "replicas"):
        if isinstance(groups := shown.get(name), list | tuple):
            shown[name] = [
                public(group) if isinstance(group, Mapping) else group for group in groups
            ]
    if "headers" in shown:
        shown["headers"] = _hidden_headers(shown["headers"])
    if isinstance(probes := shown.get("probes"), list | tuple):
        shown["probes"] = [
            {**probe, "headers": _hidden_headers(probe["headers"])}
            if isinstance(probe, Mapping) and "headers" in probe
            else probe
            for probe in probes
        ]
    if "env" in shown:
        shown["env"] = _shown_values(shown["env"])
    if isinstance(secrets := shown.get("secrets"), Mapping):
        shown["secrets"] = dict.fromkeys(secrets, HIDDEN)
    if isinstance(repos := shown.get("repos"), list | tuple):
        shown["repos"] = [_public_repo(repo) for repo in repos]
    if "registry_auth" in shown:
        auth = shown["registry_auth"]
        names = auth if isinstance(auth, Mapping) else {}
        shown["registry_auth"] = {
            name: content if name == "username" else HIDDEN for name, content in names.items()
        }
    return shown


def without_uploads(configuration: Mapping[str, object]) -> dict[str, object]:
    """Return what the user wrote, without what `fairlead apply` filled in."""
    return {
        name: [
            {key: value for key, value in one.items() if key != "uploaded"}
            if isinstance(one, Mapping)
            else one
            for one in content
        ]
        if name in ("repos", "files") and isinstance(content, list | tuple)
        else content
        for name, content in configuration.items()
    }


def _public_repo(repo: object) -> object:
    if isinstance(repo, str):
        return _QUERY_BEFORE_PATH.sub(rf"\1{HIDDEN}", repo)
    if not isinstance(repo, Mapping):
        return repo
    shown = {
        name: _public_url(content) if name == "url" else content for name, content in repo.items()
    }
    if isinstance(uploaded := repo.get("uploaded"), Mapping):
        shown["uploaded"] = {
            name: HIDDEN
            if name in _SECRET_OF_REPO and content is not None
            else (_public_url(content) if name == "url" else content)
            for name, content in uploaded.items()
        }
    return shown


def _public_url(url: object) -> object:
    """Hide the query of a URL: some hosts take tokens there."""
    return _QUERY.sub(HIDDEN, url) if isinstance(url, str) else url


def _hidden_headers(headers: object) -> object:
    if isinstance(headers, Mapping):
        return dict.fromkeys(headers, HIDDEN)
    if isinstance(headers, list | tuple):
        return [
            {"name": one.get("name"), "value": HIDDEN} if isinstance(one, Mapping) else HIDDEN
            for one in headers
        ]
    return HIDDEN


def _shown_values(env: object) -> object:
    if isinstance(env, Mapping):
        return {name: _shown_value(name, value) for name, value in env.items()}
    if isinstance(env, list | tuple):
        entries = [str(entry).partition("=") for entry in env]
        return [f"{name}={_shown_value(name, value)}" for name, _, value in entries]
    return HIDDEN


def _shown_value(name: object, value: object) -> object:
    if isinstance(value, int | float):
        return HIDDEN if may_be_secret(str(name), "") else value
    if not isinstance(value, str) or may_be_secret(str(name), value):
        return HIDDEN
    return value


def _policy(configuration: RunFields, defaults: Defaults, retry: RetryPolicy) -> RunPolicy:
    max_duration, timeout = configuration.max_duration, configuration.scheduling_timeout
    stop = configuration.stop_duration
    return RunPolicy(
        retry=retry,
        stop_duration=defaults.stop_duration if stop is None else float(stop),
        max_duration=defaults.max_duration if max_duration is None else max_duration.seconds,
        scheduling_timeout=defaults.scheduling_timeout if timeout is None else timeout.seconds,
        on_parent_end=configuration.on_parent_end,
        priority=_or(configuration.priority, defaults.priority),
        band=_or(configuration.band, defaults.band),
        limits=defaults.limits,
    )


def _policy_of_task(configuration: TaskConfiguration, defaults: Defaults) -> RunPolicy:
    retry = _retry(configuration.retry, defaults, gang=asks_for_gang(configuration))
    return msgspec.structs.replace(
        _policy(configuration, defaults, retry),
        stop_criteria=configuration.stop_criteria,
        max_failed_jobs=configuration.max_failed_jobs,
        max_failed_attempts=configuration.max_failed_attempts,
        fail_on_job_restart=configuration.fail_on_job_restart,
        restart_completed_jobs=configuration.restart_completed_jobs,
        schedule=tuple(configuration.schedule or ()),
        startup_order=configuration.startup_order,
        same_placement=configuration.placement == "cluster",
        limits=_limits(configuration, defaults.limits),
    )


_ALWAYS = 1_000_000_000


def _policy_of_service(configuration: ServiceConfiguration, defaults: Defaults) -> RunPolicy:
    """Without `retry` a replica is tried again as long as the service lives."""
    retry = _retry(configuration.retry, defaults, gang=False)
    if configuration.retry is None:
        events = frozenset({RetryEvent.ERROR, RetryEvent.INTERRUPTION})
        retry = RetryPolicy(on_events=events, max_preemptions=_ALWAYS)
    return _policy(configuration, defaults, retry)


def _policy_of_dev_environment(
    configuration: DevEnvironmentConfiguration, defaults: Defaults
) -> RunPolicy:
    retry = _retry(configuration.retry, defaults, gang=False)
    return msgspec.structs.replace(
        _policy(configuration, defaults, retry),
        schedule=tuple(configuration.schedule or ()),
        dev_environment=dev_environments.policy(configuration),
    )


def _limits(configuration: TaskConfiguration, defaults: Limits) -> Limits:
    timeout = configuration.reincarnation_timeout
    if timeout is None:
        return defaults
    return msgspec.structs.replace(defaults, reincarnation_timeout=float(timeout))


def _retry(written: bool | RetryFields | None, defaults: Defaults, *, gang: bool) -> RetryPolicy:
    """Return the retry policy (docs/rules.md 3). A mapping without `on_events` means all of them.

    `gang`: the user wrote `gang` explicitly.
    """
    if written is None and gang:
        events = frozenset({RetryEvent.ERROR, RetryEvent.INTERRUPTION})
        return RetryPolicy(on_events=events, max_failures=defaults.gang_max_failures)
    if written is None:
        return RetryPolicy()
    if written is False:
        return RetryPolicy(on_events=frozenset())
    everything = frozenset(RetryEvent)
    if written is True:
        return RetryPolicy(on_events=everything, duration=defaults.retry_true_duration)
    events = everything if written.on_events is None else frozenset(written.on_events)
    return RetryPolicy(
        on_events=events,
        duration=None if written.duration is None else written.duration.seconds,
        max_failures=written.max_failures,
        max_preemptions=_or(written.max_preemptions, RetryPolicy().max_preemptions),
    )


def _job(
    configuration: RunFields,
    planned: GroupPlan,
    defaults: Defaults,
    ssh_keys: tuple[str, ...],
) -> JobSpec:
    own = planned.written
    entrypoint = own.entrypoint
    return JobSpec(
        image=_image(planned, defaults),
        python=_plain(own.python),
        setup=own.setup,
        commands=own.commands,
        entrypoint=None if entrypoint is None else tuple(entrypoint),
        shell=own.shell,
        env=_env(own),
        working_dir=_plain(own.working_dir),
        user=_plain(own.user),
        stop_signal=_plain(configuration.stop_signal) or defaults.stop_signal,
        pull_policy=_or(configuration.pull_policy, defaults.pull_policy),
        registry_auth=_credentials(configuration.registry_auth),
        repos=tuple(_repo(n, repo) for n, repo in enumerate(configuration.repos or ())),
        files=tuple(_files(n, file) for n, file in enumerate(configuration.files or ())),
        secrets=dict(configuration.secrets or {}),
        tty=configuration.tty,
        env_style=configuration.env_style,
        outputs=tuple(map(str, configuration.outputs)),
        buckets=tuple(_bucket(one) for one in configuration.buckets),
        core_dumps=int(configuration.core_dumps),
        outputs_limit=(
            defaults.outputs_limit if configuration.outputs or configuration.core_dumps else None
        ),
        restart_exit_code=configuration.restart_exit_code,
        log_quota=None if configuration.log_quota is None else int(configuration.log_quota),
        fail_on_log_quota=configuration.fail_on_log_quota,
        ssh=_plain(configuration.ssh) or defaults.ssh,
        ssh_keys=tuple(dict.fromkeys((*ssh_keys, *defaults.ssh_keys))),
        resources=msgspec.structs.replace(
            _resources(planned, defaults.resources), engine=_of_engine(configuration, own)
        ),
        volumes=tuple(volume.mount for volume in own.volumes or ()),
        container=_container(configuration),
        constraints=tuple(one.constraint for one in own.constraints or ()),
        fleets=tuple(own.fleets or ()),
        stop_when_unheard=_stop_when_unheard(configuration, defaults),
    )


def _image(planned: GroupPlan, defaults: Defaults) -> str:
    own = planned.written
    if own.image is not None:
        return str(own.image)
    if not own.nvcc:
        return image_for(defaults.image, own.python)
    if defaults.nvcc_image is None:
        raise ConfigurationError(
            planned.named("nvcc"),
            "needs an image with the CUDA compiler, and this controller's operator has named none:"
            " name one as image, or ask for defaults.nvcc_image in the controller's file",
            "image, with the name of a -devel image of CUDA",
        )
    return defaults.nvcc_image


def _env(own: GroupedFields) -> dict[str, str]:
    """Return the variables. The default image has one Python for all, into which uv installs."""
    shared = own.image is None and own.python is None and not own.nvcc
    return {**({"UV_SYSTEM_PYTHON": "1"} if shared else {}), **(own.env or {})}


def _stop_when_unheard(configuration: RunFields, defaults: Defaults) -> float | None:
    """Return the seconds of `on_disconnect`. A plain `stop` waits as long as the controller waits
    before it gives the node up."""
    written = configuration.on_disconnect
    if not isinstance(written, DisconnectFields):
        return defaults.limits.node_lost_after if written == "stop" else None
    return float(written.stop_after)


def _container(configuration: RunFields) -> ContainerOptions:
    limits = () if configuration.ulimits is None else configuration.ulimits.limits
    if configuration.core_dumps and all(limit.name != "core" for limit in limits):
        limits = (*limits, Ulimit(name="core", soft=0, hard=-1))
    return ContainerOptions(
        privileged=configuration.privileged,
        cap_add=tuple(map(str, configuration.cap_add)),
        cap_drop=tuple(map(str, configuration.cap_drop)),
        ulimits=limits,
        pids_limit=configuration.pids_limit,
        read_only_root=configuration.read_only_root,
        init=isinstance(configuration, TaskConfiguration | ServiceConfiguration)
        and configuration.init,
    )


def _of_engine(configuration: RunFields, own: GroupedFields) -> tuple[EngineAbility, ...]:
    """Return what the user asks for that not every engine can do.

    Nobody has asked for the default image. `init` is none: every engine ends what a job leaves.
    """
    options = (
        configuration.privileged,
        configuration.cap_add,
        configuration.cap_drop,
        configuration.ulimits,
        configuration.pids_limit,
        configuration.read_only_root,
        configuration.ssh == "install",
    )
    asked = {
        EngineAbility.IMAGES: own.image is not None or own.nvcc,
        EngineAbility.VOLUMES: bool(own.volumes),
        EngineAbility.OPTIONS: any(options),
    }
    return tuple(ability for ability, is_asked in asked.items() if is_asked)


def _repo(number: int, written: RepoFields) -> JobRepo:
    uploaded = written.uploaded or UploadedRepo()
    if written.local_path is not None and uploaded.url is None and uploaded.archive is None:
        raise _not_uploaded(f"repos[{number}]")
    return JobRepo(
        path=written.path,
        url=uploaded.url or written.url,
        branch=written.branch,
        commit=uploaded.hash or written.hash,
        diff=uploaded.diff,
        archive=uploaded.archive,
        if_exists=written.if_exists,
        token=written.token or uploaded.token,
        private_key=written.private_key or uploaded.private_key,
        known_hosts=uploaded.known_hosts,
    )


def _files(number: int, written: FileFields) -> Files:
    if written.uploaded is None:
        raise _not_uploaded(f"files[{number}]")
    archive, path = written.uploaded
    return Files(path=path, archive=archive)


def _bucket(written: BucketFields) -> BucketFolder:
    return BucketFolder(
        url=str(written.url),
        path=str(written.path),
        mode=written.mode,
        endpoint=_plain(written.endpoint),
    )


def _not_uploaded(field: str) -> ConfigurationError:
    return ConfigurationError(
        field, "was not uploaded: only `fairlead apply` can send files of your machine"
    )


def _credentials(written: RegistryAuthFields | None) -> RegistryAuth | None:
    if written is None:
        return None
    return RegistryAuth(username=written.username, password=written.password)


def _resources(planned: GroupPlan, defaults: Resources) -> Resources:
    written = planned.written.resources
    gpu: GpuNeed = written.gpu.need if written.gpu is not None else defaults.gpu
    follows = defaults.unset if planned.whole_node or gpu.count > 0 else ()
    shm_size = written.shm_size
    beside = defaults.memory + int(shm_size or 0)
    memory = beside if written.memory is None else int(written.memory)
    if shm_size is not None and shm_size > memory:
        field = "resources.shm_size"
        message = (
            f"is more than resources.memory ({size_words(memory)}), as which it counts:"
            " ask for more memory, or leave memory out"
        )
        raise ConfigurationError(planned.named(field), message, ALLOWED[field])
    return Resources(
        cpu=defaults.cpu if written.cpu is None else float(written.cpu),
        memory=memory,
        disk=defaults.disk if written.disk is None else int(written.disk),
        infiniband=bool(written.infiniband),
        shm_size=defaults.shm_size if shm_size is None else int(shm_size),
        gpu=gpu,
        whole_node=planned.whole_node,
        unset=tuple(
            amount
            for amount in Amount
            if (one := getattr(written, amount)) is None
            or (amount in follows and getattr(one, "is_least", False))
        ),
    )


def _plain(text: str | None) -> str | None:
    """Return a plain `str`, which the wire types need."""
    return None if text is None else str(text)


def _or(written: _T | None, default: _T) -> _T:
    return default if written is None else written
