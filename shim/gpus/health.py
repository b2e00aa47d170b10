"""What a GPU's signs mean: whose fault, and whether the next job may still have it. Pure.

XIDs of the application only concern the job that caused them. For everything else the driver's own
verdict counts where it has one; without one, the GPU is taken for broken, since a job on a broken
GPU costs more than a GPU that waits for its operator.
"""

from __future__ import annotations

import msgspec

from shim.gpus.base import Recovery, Vitals
from shim.schemas import GpuInfo

APPLICATION_XIDS = frozenset({13, 31, 43, 45, 68, 109})
_FALLEN_OFF_THE_BUS = 79

HELD_BYTES = 512 << 20
"""What drivers keep for themselves on an idle GPU stays below."""

_XID_WORDS = {
    13: "graphics engine exception",
    31: "memory page fault",
    43: "the application's channel was stopped",
    45: "preemptive cleanup after an earlier error",
    48: "double bit ECC error",
    61: "internal micro-controller breakpoint",
    62: "internal micro-controller halt",
    63: "memory rows are to be remapped",
    64: "remapping of memory rows failed",
    68: "video processor exception",
    74: "NVLink error",
    79: "the GPU has fallen off the bus",
    92: "high rate of single bit ECC errors",
    94: "contained ECC error",
    95: "uncontained ECC error",
    109: "context switch timeout",
    119: "the GPU's system processor does not answer",
    120: "error of the GPU's system processor",
    140: "unrecovered ECC error",
    154: "the driver's recovery action changed",
}

_DAMAGED = "the record of its fault was damaged; have it looked at, then `fairlead node clear-gpu`"
_RECOVERY_WORDS = {
    Recovery.GPU_RESET: "a reset of the GPU",
    Recovery.NODE_REBOOT: "a reboot of the node",
    Recovery.DRAIN_P2P: "the end of all peer-to-peer work",
    Recovery.DRAIN_AND_RESET: "a drain and a reset of the GPU",
    Recovery.RECOVER_IMEX_DOMAIN: "a recovery of the IMEX domain",
    Recovery.BUS_RESET: "a reset of the bus",
    Recovery.SYSTEM_REBOOT: "a reboot of the system",
    Recovery.UNKNOWN: "an action that this version does not know",
}


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """Something to be told. `cordon`: no new job may have the GPU until its operator says so.
    Findings of one `key` on one GPU are the same."""

    key: str
    words: str
    cordon: bool


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """A cordoned GPU, as it is remembered across restarts. `at` is Unix time."""

    gpu: GpuInfo
    finding: Finding
    at: float


def judge_xid(number: int, recovery: Recovery | None) -> Finding:
    """`recovery` is the driver's verdict right after the event; None when it gives none."""
    words = f"XID {number}"
    if number in _XID_WORDS:
        words += f" ({_XID_WORDS[number]})"
    key = f"xid-{number}"
    if number in APPLICATION_XIDS:
        return Finding(key=key, words=f"{words}, caused by the application", cordon=False)
    if number == _FALLEN_OFF_THE_BUS or recovery is None:
        return Finding(key=key, words=words, cordon=True)
    if recovery is Recovery.NONE:
        return Finding(key=key, words=f"{words}; the driver asks for no action", cordon=False)
    return Finding(key=key, words=f"{words}; {_asks(recovery)}", cordon=True)


def judge_vitals(before: Vitals | None, now: Vitals) -> Finding | None:
    """The worst that this reading says. `before` is the last one since the shim was started."""
    if now.recovery not in (None, Recovery.NONE):
        return Finding(key="recovery", words=_asks(now.recovery), cordon=True)
    if now.remap_failed:
        return Finding(key="remap-failed", words="memory rows cannot be remapped", cordon=True)
    if now.remap_pending and now.recovery is None:
        words = "memory rows wait for a reset to be remapped"
        return Finding(key="remap-pending", words=words, cordon=True)
    more = now.ecc_uncorrected - (before.ecc_uncorrected if before else 0)
    if more > 0 and (before is not None or now.recovery is None):
        words = f"{more} new uncorrected ECC error(s)"
        return Finding(key="ecc", words=words, cordon=now.recovery is None)
    return None


def lost() -> Finding:
    return Finding(key="lost", words="the GPU is lost", cordon=True)


def gone() -> Finding:
    words = "the GPU is lost: the driver does not have it any more"
    return Finding(key="lost", words=words, cordon=True)


def record_damaged() -> Finding:
    return Finding(key="record", words=_DAMAGED, cordon=True)


def silent() -> Finding:
    """Not cordoned: a driver that answers again is as good as before."""
    return Finding(key="silent", words="the driver does not answer for this GPU", cordon=False)


def who_holds(vitals: Vitals) -> str | None:
    """What keeps a GPU from its next job though no allocation has it; None when nothing does."""
    if vitals.processes:
        pids = ", ".join(str(pid) for pid in vitals.processes[:5])
        return f"its memory is still held by process {pids}"
    if vitals.memory_used > HELD_BYTES:
        return f"{vitals.memory_used >> 20} MiB of its memory are still held"
    return None


def line(gpu: GpuInfo, finding: Finding) -> str:
    """As the job's log shows it."""
    what = f"[gpu-health] GPU {gpu.index} ({gpu.name}, {gpu.uuid}): {finding.words}"
    return f"{what}; no new job gets this GPU" if finding.cordon else what


def _asks(recovery: Recovery) -> str:
    return f"the driver asks for {_RECOVERY_WORDS[recovery]}"
