from __future__ import annotations

import pytest

from fairlead.configuration.values.units import (
    parse_cpu,
    parse_duration,
    parse_duration_or_off,
    parse_size,
)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1B", 1),
        ("512MB", 512_000_000),
        ("8GB", 8_000_000_000),
        ("1.5TB", 1_500_000_000_000),
        ("16GiB", 16 << 30),
        ("8 gb", 8_000_000_000),
        ("1PiB", 1 << 50),
    ],
)
def test_sizes_have_decimal_or_binary_units(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("value", ["8", 8, "GB", "-1GB", "1XB", "9999999PB", "0B", None, "1e3GB"])
def test_other_sizes_are_refused(value: object) -> None:
    with pytest.raises(ValueError, match="is not"):
        parse_size(value)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("30s", 30.0),
        ("90m", 5400.0),
        ("2h", 7200.0),
        ("1d", 86400.0),
        ("1w", 604800.0),
        ("1h30m", 5400.0),
        ("1.5h", 5400.0),
        (45, 45.0),
        ("45", 45.0),
        (0, 0.0),
    ],
)
def test_durations_are_numbers_with_units_or_seconds(value: object, seconds: float) -> None:
    assert parse_duration(value) == seconds


@pytest.mark.parametrize("value", ["off", False, "never", "OFF"])
def test_a_limit_can_be_switched_off(value: object) -> None:
    assert parse_duration_or_off(value) is None


@pytest.mark.parametrize(
    "value", ["", True, "2x", "h", "-1h", "11y", "9999999w", [], float("nan"), "1h" * 99]
)
def test_other_durations_are_refused(value: object) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        parse_duration(value)


@pytest.mark.parametrize(
    ("value", "cores"), [(4, 4.0), (0.5, 0.5), ("2", 2.0), ("2..", 2.0), ("2..8", 2.0)]
)
def test_the_lower_end_of_a_range_of_cores_is_taken(value: object, cores: float) -> None:
    assert parse_cpu(value) == cores


@pytest.mark.parametrize("value", [0, 100_000])
def test_a_number_of_cores_out_of_range_is_told_the_range(value: int) -> None:
    with pytest.raises(ValueError, match=f"'{value}' is not more than 0 and at most 65536"):
        parse_cpu(value)
