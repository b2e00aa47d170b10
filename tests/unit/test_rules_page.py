"""docs/rules.md decides, so what cites it must find the number, and it must name every reason."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from fairlead.model.reasons import Reason, RunReason

CHECKOUT = Path(__file__).parents[2]
RULES = (CHECKOUT / "docs/rules.md").read_text()
NUMBER = r"\d+(?:\.\d+)?"
CITATION = re.compile(rf"docs/rules\.md,? ({NUMBER}(?:(?:, | and | to ){NUMBER})*)")
NUMBERED = {
    *re.findall(r"^## (\d+)\. ", RULES, re.MULTILINE),
    *re.findall(r"^- \*\*(\d+\.\d+)\*\* ", RULES, re.MULTILINE),
}


def sources() -> dict[str, str]:
    listed = subprocess.run(
        ["git", "ls-files", "*.py", "*.md"],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=True,
    )
    return {name: (CHECKOUT / name).read_text() for name in listed.stdout.split()}


def cited() -> list[tuple[str, str]]:
    return [
        (name, number)
        for name, text in sources().items()
        for numbers in CITATION.findall(text)
        for number in re.findall(NUMBER, numbers)
    ]


def test_each_number_that_is_cited_is_a_rule() -> None:
    citations = cited()
    assert len(citations) > 40
    assert [each for each in citations if each[1] not in NUMBERED] == []


def test_no_two_rules_have_one_number() -> None:
    numbers = re.findall(r"^- \*\*(\d+\.\d+)\*\* ", RULES, re.MULTILINE)
    assert sorted(set(numbers)) == sorted(numbers)


def test_no_section_leaves_out_a_number() -> None:
    numbers: dict[int, list[int]] = {}
    for section, rule in re.findall(r"^- \*\*(\d+)\.(\d+)\*\* ", RULES, re.MULTILINE):
        numbers.setdefault(int(section), []).append(int(rule))
    for section, found in numbers.items():
        assert (section, sorted(found)) == (section, list(range(1, len(found) + 1)))


@pytest.mark.parametrize("reason", [*Reason, *RunReason], ids=lambda reason: str(reason.value))
def test_each_reason_is_in_the_rules(reason: Reason | RunReason) -> None:
    assert re.search(rf"\b{reason.value}\b", RULES)
