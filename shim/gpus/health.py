"""Decides what a GPU's signs mean: whose fault it is, and whether the next job may have it. Pure.

Errors of the application only concern the job that caused them. For everything else the driver's
own verdict counts where it has one; without one, the GPU is taken for broken, since a job on a
broken GPU costs more than a GPU that waits for its operator.
"""

from __future__ import annotations

import msgspec

from fairlead.wire.node import GpuInfo
from shim.gpus.base import Blame, GpuEvent, Recovery, Vitals

HELD_BYTES = 512 << 20
"""The memory that drivers use on an idle GPU is less than this."""

_DAMAGED = "the record of its fault was damaged; check it, then `fairlead node clear-gpu`"


class GpuFinding(msgspec.Struct, frozen=True, kw_only=True):
    """A fact about a GPU to report. `cordon`: no new job gets the GPU until its operator clears it.
    Findings with the same `key` on one GPU are equal."""

    key: str
    words: str
    cordon: bool


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """A cordoned GPU, as remembered across restarts. `at` is Unix time."""

    gpu: GpuInfo
    finding: GpuFinding
    at: float


def judge_event(event: GpuEvent, recovery: Recovery | None) -> GpuFinding:
    """`recovery` is the driver's verdict right after the event; None when it gives none."""
    key, words = event.kind, event.words
    if event.blame is Blame.APPLICATION:
        return GpuFinding(key=key, words=f"{words}, caused by the application", cordon=False)
    if event.blame is Blame.GPU or recovery is None:
        return GpuFinding(key=key, words=words, cordon=True)
    if recovery.action is None:
        return GpuFinding(key=key, words=f"{words}; the driver asks for no action", cordon=False)
    return GpuFinding(key=key, words=f"{words}; {_asks(recovery)}", cordon=True)


def judge_vitals(before: Vitals | None, now: Vitals) -> GpuFinding | None:
    """The worst that this reading says. `before` is the last one since the shim was started."""
    if now.recovery is not None and now.recovery.action is not None:
        return GpuFinding(key="recovery", words=_asks(now.recovery), cordon=True)
    if now.remap_failed:
        return GpuFinding(key="remap-failed", words="memory rows cannot be remapped", cordon=True)
    if now.remap_pending and now.recovery is None:
        words = "memory rows wait for a reset to be remapped"
        return GpuFinding(key="remap-pending", words=words, cordon=True)
    more = now.ecc_uncorrected - (before.ecc_uncorrected if before else 0)
    if more > 0 and (before is not None or now.recovery is None):
        words = f"{more} new uncorrected ECC error(s)"
        return GpuFinding(key="ecc", words=words, cordon=now.recovery is None)
    return None


def lost() -> GpuFinding:
    return GpuFinding(key="lost", words="the GPU is lost", cordon=True)


def gone() -> GpuFinding:
    words = "the GPU is lost: the driver no longer has it"
    return GpuFinding(key="lost", words=words, cordon=True)


def record_damaged() -> GpuFinding:
    return GpuFinding(key="record", words=_DAMAGED, cordon=True)


def silent() -> GpuFinding:
    """Return the finding of a silent driver. It does not cordon: a driver that answers again is as
    good as before."""
    return GpuFinding(key="silent", words="the driver does not answer for this GPU", cordon=False)


def who_holds(vitals: Vitals) -> str | None:
    """Return what keeps a GPU without allocation from its next job; None: nothing does."""
    if vitals.processes:
        pids = ", ".join(str(pid) for pid in vitals.processes[:5])
        return f"its memory is still held by process {pids}"
    if vitals.memory_used > HELD_BYTES:
        return f"{vitals.memory_used >> 20} MiB of its memory are still held"
    return None


def line(gpu: GpuInfo, finding: GpuFinding) -> str:
    """Return the line for the job's log."""
    what = f"[gpu-health] GPU {gpu.index} ({gpu.name}, {gpu.uuid}): {finding.words}"
    return f"{what}; no new job gets this GPU" if finding.cordon else what


def _asks(recovery: Recovery) -> str:
    return f"the driver asks for {recovery.action}"
