"""Translate what a node reports into reports of the core; a list limits what a node may claim."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable
from ipaddress import ip_address
from typing import overload

import msgspec

from controller.lifecycle import reports
from controller.lifecycle.inventory import NodeAllows, NodeImage
from controller.lifecycle.model import NodeCapacity, NodeGpu
from fairlead.model.reasons import Reason
from fairlead.wire import node as node_schemas
from fairlead.wire.amounts import amounts_of
from fairlead.wire.decoders import decoder_of
from fairlead.wire.engine_abilities import KNOWN_TO_ALL, EngineAbility
from fairlead.wire.node import NEARNESS, GpuInfo, GpuLink, HostNetwork, NodeInfo
from fairlead.wire.runner import ExitRecord, StartEnd
from fairlead.wire.shim import TaskInfo, TaskStatus

MAX_MESSAGE = 2000
_MAX_IMAGES = 64
_EXIT_CODES = range(256)
# As ssh-keygen prints one: the 32 bytes of a SHA-256 in base64, without padding.
_FINGERPRINT = re.compile(r"SHA256:[A-Za-z0-9+/]{43}")
# A job can forge its exit record: nested too deeply, it makes msgspec raise RecursionError.
_NOT_JSON = (msgspec.DecodeError, UnicodeError, RecursionError)


def known_reason(text: str | None) -> Reason | None:
    """Return the reason, or None for one of a newer runner that this controller does not know; its
    message is still used."""
    try:
        return None if text is None else Reason(text)
    except ValueError:
        return None


def task_reports(info: TaskInfo) -> list[reports.Report]:
    """Return the reports of a task, the exit record first: it outranks the shim's conclusion from
    the container."""
    found: list[reports.Report] = [
        reports.TaskAccepted(run_id=info.run_id, attempt_id=info.id),
    ]
    terminated = info.status is TaskStatus.TERMINATED
    if terminated and info.exit_record is not None:
        exited = exit_report(info.run_id, info.id, info.exit_record)
        if exited is not None:
            found.append(exited)
    found.append(
        reports.TaskSeen(
            run_id=info.run_id,
            attempt_id=info.id,
            creating=info.times.creating_at is not None,
            needs_credentials=info.needs_credentials,
            progress=0 if info.pull is None else info.pull.downloaded + info.pull.extracted,
            version=info.version,
            gpu_fault=readable(info.gpu_fault),
            container_started=info.times.running_at is not None,
            terminated=terminated,
            has_outputs=terminated and info.has_outputs,
            runner_socket=info.runner_socket,
            reason=readable(info.reason),
            message=readable(info.message),
            exit_code=_possible(info.exit_code),
            gpus=info.gpus,
            ports=info.ports,
            ssh_host_key=info.ssh_host_key,
            ssh_host=info.ssh_host if _is_address(info.ssh_host) else None,
            address=info.address if _is_address(info.address or "") else None,
            image_digest=info.image_digest,
        )
    )
    return found


def exit_report(run_id: str, attempt_id: str, text: str) -> reports.RunnerExited | None:
    """Return the report of an exit record; None for a damaged record, in which case only the shim's
    report counts."""
    try:
        record = decoder_of(ExitRecord).decode(text)
    # A job that is root in its container can write its exit record itself.
    except _NOT_JSON:
        return None
    return runner_exited(run_id, attempt_id, record)


def runner_exited(run_id: str, attempt_id: str, record: ExitRecord) -> reports.RunnerExited:
    """Return the report of a record that the job may have forged.

    An exit code outside of 0 to 255 is refused: no process ends with it, and the database could not
    store it.
    """
    reason, message = known_reason(record.reason), readable(record.message)
    exit_code = _possible(record.exit_code)
    if exit_code != record.exit_code:
        reason, message = None, "the exit record gives an impossible exit code"
    return reports.RunnerExited(
        run_id=run_id,
        attempt_id=attempt_id,
        reason=reason or Reason.EXECUTOR_ERROR,
        message=message,
        exit_code=exit_code,
    )


@overload
def readable(text: str) -> str: ...


@overload
def readable(text: None) -> None: ...


@overload
def readable(text: str | None) -> str | None: ...


def readable(text: str | None) -> str | None:
    """Return the text, cut to MAX_MESSAGE characters."""
    if text is None or len(text) <= MAX_MESSAGE:
        return text
    mark = f"… (cut: {len(text)} characters)"
    return text[: MAX_MESSAGE - len(mark)] + mark


def start_ended(run_id: str, attempt_id: str, end: StartEnd) -> reports.StartEnded:
    """Return the report of a start's end; what is impossible in it is an error of the job."""
    record = ExitRecord(
        reason=end.reason,
        message=end.message,
        exit_code=end.exit_code,
        finished_at=end.at,
        log_end=0,
    )
    exited = runner_exited(run_id, attempt_id, record)
    return reports.StartEnded(
        run_id=run_id,
        attempt_id=attempt_id,
        number=end.number,
        at=end.at,
        reason=exited.reason,
        message=exited.message,
        exit_code=exited.exit_code,
    )


def _possible(exit_code: int | None) -> int | None:
    return exit_code if exit_code in _EXIT_CODES else None


_SAME_GPU = NEARNESS[GpuLink.DIRECT] + 1


def near(gpu: GpuInfo, gpus: Iterable[GpuInfo]) -> dict[str, int]:
    """Return how near the other GPUs are. Parts of one GPU are the nearest; without a known
    link the NUMA node counts."""
    found = {uuid: NEARNESS[link] for uuid, link in gpu.links.items()}
    for other in gpus:
        if other.uuid == gpu.uuid:
            continue
        if gpu.parent is not None and gpu.parent == other.parent:
            found[other.uuid] = _SAME_GPU
        elif other.uuid not in found and gpu.numa is not None and gpu.numa == other.numa:
            found[other.uuid] = NEARNESS[GpuLink.NUMA_NODE]
    return found


def capacity(info: NodeInfo) -> NodeCapacity:
    return NodeCapacity(
        **amounts_of(info),
        gpus=tuple(
            NodeGpu(
                uuid=gpu.uuid,
                vendor=gpu.vendor,
                name=gpu.name,
                memory=gpu.memory,
                compute_capability=gpu.compute_capability,
                healthy=gpu.healthy and not gpu.held,
                message=readable(gpu.message),
                parent=gpu.parent,
                near=near(gpu, info.gpus),
            )
            for gpu in info.gpus
        ),
        blocks=info.blocks,
        engine=info.engine.value,
        engine_error=readable(info.engine_error),
        isolation=info.isolation,
        engine_lacks=_engine_lacks(info),
        allows=None if info.allows is None else _allows(info.allows),
        host_network=info.host_network is not HostNetwork.NEVER,
        networks=info.networks,
        network_kind=readable(info.network_kind),
        network_why=readable(info.network_why),
        gateways=info.gateways,
        infiniband=info.infiniband is not False,
        addresses=tuple(one for one in info.addresses if _is_address(one)),
        controllers=tuple(one for one in info.controllers if _FINGERPRINT.fullmatch(one)),
        images=_images(info),
    )


def _images(info: NodeInfo) -> tuple[NodeImage, ...] | None:
    if info.images_ahead is None:
        return None
    return tuple(
        NodeImage(
            image=readable(one.image),
            state=one.state.value,
            since=one.at,
            message=readable(one.message),
        )
        for one in info.images_ahead[:_MAX_IMAGES]
    )


def _allows(allows: node_schemas.NodeAllows) -> NodeAllows:
    return NodeAllows(
        privileged=allows.privileged,
        raw_sockets=allows.raw_sockets,
        volume_prefixes=allows.volume_prefixes,
    )


def _engine_lacks(info: NodeInfo) -> tuple[EngineAbility, ...]:
    """Return what the node cannot do; the oldest shims only say whether their engine isolates."""
    unknown = frozenset(EngineAbility) - KNOWN_TO_ALL - frozenset(info.abilities)
    if info.engine_lacks is not None:
        lacks = unknown.union(info.engine_lacks)
    else:
        lacks = unknown if info.isolation else unknown | KNOWN_TO_ALL
    return tuple(one for one in EngineAbility if one in lacks)


def _is_address(text: str) -> bool:
    """Return whether the text is an IP address: it goes into files of jobs on other nodes."""
    with contextlib.suppress(ValueError):
        # An IPv6 zone (`%eth0`) names an interface of this node and means nothing on another one.
        return str(ip_address(text)) == text and "%" not in text
    return False
