"""The proof of machines takes only what holds for a violation, also while machines come and go."""

from __future__ import annotations

from bench.proofs.machines import without_machine


def _record(
    name: str, status: str = "provisioning", instance: str | None = "i"
) -> dict[str, object]:
    return {"id": name, "status": status, "instance_id": instance}


def test_a_record_whose_machine_is_gone_is_found() -> None:
    records = [_record("a"), _record("b")]
    assert without_machine(records, {"a"}, records) == ["record b has no machine"]


def test_what_begins_or_ends_between_the_reads_is_no_violation() -> None:
    before = [_record("ends"), _record("asked", instance=None)]
    after = [_record("ends", "terminating"), _record("asked"), _record("new")]
    assert without_machine(before, set(), after) == []
