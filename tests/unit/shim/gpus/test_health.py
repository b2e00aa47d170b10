"""An error has an owner, and a broken GPU gets no next job."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from shim.gpus import health
from shim.gpus.base import NO_ACTION, Recovery, Vitals
from shim.gpus.nvidia.xids import APPLICATION, event_of
from tests.unit.shim.gpus.parts import gpu

RESET = Recovery("a reset of the GPU")


@pytest.mark.parametrize("number", [13, 31, 43, 45, 68, 109])
@pytest.mark.parametrize("recovery", [None, NO_ACTION, RESET])
def test_an_xid_of_the_application_never_cordons(number: int, recovery: Recovery | None) -> None:
    assert not health.judge_event(event_of("GPU-0", number), recovery).cordon


@pytest.mark.parametrize("recovery", [NO_ACTION, RESET])
def test_any_other_xid_is_what_the_driver_says_it_is(recovery: Recovery) -> None:
    assert health.judge_event(event_of("GPU-0", 94), recovery).cordon is (recovery is RESET)


def test_without_the_drivers_verdict_an_unknown_xid_cordons() -> None:
    assert health.judge_event(event_of("GPU-0", 48), None).cordon
    assert health.judge_event(event_of("GPU-0", 99999), None).cordon


def test_the_page_names_the_xids_of_the_application() -> None:
    page = (Path(__file__).parents[4] / "docs/gpus.md").read_text()
    (row,) = [line for line in page.splitlines() if line.startswith("| XIDs of the application:")]
    named = {int(number) for number in re.findall(r"\d+", row)}
    assert named == APPLICATION


def test_a_gpu_that_fell_off_the_bus_is_cordoned_whatever_the_driver_says() -> None:
    assert health.judge_event(event_of("GPU-0", 79), NO_ACTION).cordon


@pytest.mark.parametrize(
    ("now", "key"),
    [
        (Vitals(recovery=RESET), "recovery"),
        (Vitals(recovery=NO_ACTION, remap_failed=True), "remap-failed"),
        (Vitals(remap_pending=True), "remap-pending"),
        (Vitals(ecc_uncorrected=1), "ecc"),
    ],
)
def test_a_reading_of_broken_hardware_cordons(now: Vitals, key: str) -> None:
    finding = health.judge_vitals(None, now)
    assert finding is not None
    assert (finding.key, finding.cordon) == (key, True)


def test_new_ecc_errors_that_the_driver_has_contained_are_only_told() -> None:
    before = Vitals(recovery=NO_ACTION, ecc_uncorrected=1)
    finding = health.judge_vitals(before, Vitals(recovery=NO_ACTION, ecc_uncorrected=3))
    assert finding is not None
    assert (finding.words, finding.cordon) == ("2 new uncorrected ECC error(s)", False)


@pytest.mark.parametrize(
    "now",
    [
        Vitals(),
        Vitals(recovery=NO_ACTION, remap_pending=True),
        Vitals(recovery=NO_ACTION, ecc_uncorrected=7),
    ],
)
def test_unchanged_vitals_that_ask_for_nothing_are_not_told(now: Vitals) -> None:
    assert health.judge_vitals(None, now) is None
    assert health.judge_vitals(now, now) is None


def test_memory_is_held_by_processes_or_by_what_they_left() -> None:
    assert health.who_holds(Vitals(processes=(7, 8))) == "its memory is still held by process 7, 8"
    assert health.who_holds(Vitals(memory_used=2 << 30)) == "2048 MiB of its memory are still held"
    assert health.who_holds(Vitals(memory_used=300 << 20)) is None


def test_the_line_names_gpu_and_cause_and_what_follows() -> None:
    line = health.line(gpu(3), health.judge_event(event_of("GPU-0", 79), None))
    assert line == (
        "[gpu-health] GPU 3 (NVIDIA H100, GPU-3): XID 79 (the GPU has fallen off the bus); "
        "no new job gets this GPU"
    )
