"""A sweep's parameter sets, from a matrix or a file to what a job executes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fairlead.configuration.convert import ConfigurationError
from fairlead.configuration.parse import parse
from fairlead.configuration.runs.masking import public, without_uploads
from fairlead.configuration.runs.plan import Defaults, Plan, to_run
from fairlead.configuration.values.sweep import FailureLimit, filled
from fairlead.files.set_files import with_sets
from fairlead.model.spec import JobSpec
from fairlead.model.sweep import ParameterSets


def planned(**sweep: object) -> Plan:
    data = {"type": "task", "commands": ["true"], "sweep": sweep}
    return to_run(parse(data), data, Defaults())


def sets(**sweep: object) -> list[dict[str, Any]]:
    plan = planned(**sweep).sweep
    assert plan is not None
    return [plan.sets.at(number) for number in range(len(plan.sets))]


def test_a_matrix_makes_all_combinations_of_which_the_last_name_changes_fastest() -> None:
    assert sets(matrix={"lr": ["1e-3", 0.5], "seed": "0..1"}) == [
        {"lr": 0.001, "seed": 0},
        {"lr": 0.001, "seed": 1},
        {"lr": 0.5, "seed": 0},
        {"lr": 0.5, "seed": 1},
    ]


def test_excluded_sets_are_left_out_and_included_ones_come_last() -> None:
    found = sets(
        matrix={"lr": [1, 2], "model": ["a", "b"]},
        exclude=[{"lr": 1, "model": "b"}, {"lr": 2, "model": "a"}],
        include=[{"lr": 3, "model": "c"}],
    )
    assert [tuple(one.values()) for one in found] == [(1, "a"), (2, "b"), (3, "c")]


def test_numbers_truth_and_strings_that_look_alike_are_different_parameters() -> None:
    assert [one["x"] for one in sets(matrix={"x": [1, 1.0, True, "1"]})] == [1, 1.0, True, "1"]


@pytest.mark.parametrize(
    ("written", "total", "number"),
    [
        (3, 1000, 3),
        ("10%", 1000, 100),
        ("10%", 30, 3),
        ("1%", 5, 1),
        ("10%", 3, 1),
        ("33.3%", 10, 4),
    ],
)
def test_a_share_of_failures_is_rounded_up(written: object, total: int, number: int) -> None:
    assert FailureLimit.read(written).of(total) == number


def test_a_sweep_asks_for_containers_that_are_used_again() -> None:
    plan = planned(matrix={"x": [1]}, reuse_container=True).sweep
    assert plan is not None
    assert plan.reuse_container


def test_jobs_that_share_a_container_may_get_a_signal() -> None:
    signal = {"name": "SIGUSR1", "before": "10s"}
    sweep = {"matrix": {"x": [1]}, "reuse_container": True}
    data = {"type": "task", "commands": ["true"], "sweep": sweep, "signal": signal}
    (group,) = to_run(parse(data), data, Defaults()).groups
    assert group.spec.signal is not None
    assert group.spec.signal.name == "SIGUSR1"


def test_what_only_a_first_job_would_have_is_refused_with_its_field() -> None:
    sweep = {"matrix": {"x": [1]}, "reuse_container": True}
    with pytest.raises(ConfigurationError) as refused:
        parse({"type": "task", "commands": ["true"], "sweep": sweep, "ssh": "install"})
    assert refused.value.field == "ssh"


def test_jobs_that_share_a_container_may_have_ports() -> None:
    sweep = {"matrix": {"x": [1]}, "reuse_container": True}
    data = {"type": "task", "commands": ["true"], "sweep": sweep, "ports": [8000]}
    assert to_run(parse(data), data, Defaults()).configuration["ports"] == [8000]


def test_a_bucket_that_jobs_write_to_is_not_shared_by_those_of_one_container() -> None:
    sweep = {"matrix": {"x": [1]}, "reuse_container": True}
    bucket = {"url": "s3://data/x", "path": "/data"}
    task = {"type": "task", "commands": ["true"], "sweep": sweep}
    parse({**task, "buckets": [bucket]})
    with pytest.raises(ConfigurationError, match="write-back") as refused:
        parse({**task, "buckets": [{**bucket, "mode": "write-back"}]})
    assert refused.value.field == "buckets[0].mode"


def test_sets_of_several_nodes_share_no_container() -> None:
    sweep = {"matrix": {"x": [1]}, "reuse_container": True}
    with pytest.raises(ConfigurationError, match="sets of one node") as refused:
        parse({"type": "task", "commands": ["true"], "nodes": 2, "sweep": sweep})
    assert refused.value.field == "sweep.reuse_container"


def test_sets_survive_their_stored_form() -> None:
    made = ParameterSets.of(["lr", "name"], [[0.1, "ä\u2028"], [2, ""]])
    assert ParameterSets.read(made.text()) == made


def test_a_waiting_set_takes_less_than_two_hundred_bytes() -> None:
    made = planned(matrix={"lr": ["1e-3", "3e-4"], "seed": "0..2499", "model": ["a", "b"]}).sweep
    assert made is not None
    size = sum(row.__sizeof__() + 8 for row in made.sets.rows) / len(made.sets)
    assert (len(made.sets), size < 200) == (10_000, True)


def test_what_is_shown_of_a_sweep_has_a_digest_of_sent_sets_and_no_sets() -> None:
    sent = {"names": ["x"], "rows": [[1], [2]]}
    shown = public({"sweep": {"file": "p.csv", "sets": sent}})
    other = public({"sweep": {"file": "p.csv", "sets": {**sent, "rows": [[1], [3]]}}})
    assert shown != other
    assert without_uploads(shown) == {"sweep": {"file": "p.csv"}}


# -- what a job executes ------------------------------------------------------------------


def test_values_stand_in_commands_and_variables() -> None:
    spec = JobSpec(
        image="busybox",
        commands=("train --lr ${{ params.lr }} --name '${{params.name}}'",),
        setup=("fetch ${{ params.name }}",),
        env={"NAME": "is ${{ params.name }}"},
    )
    made = filled(spec, {"lr": 0.001, "name": "small"})
    assert made.commands == ("train --lr 0.001 --name 'small'",)
    assert made.setup == ("fetch small",)
    assert made.env == {
        "NAME": "is small",
        "FAIRLEAD_PARAM_LR": "0.001",
        "FAIRLEAD_PARAM_NAME": "small",
    }


@pytest.mark.parametrize("value", ["a b", "$(reboot)", "`reboot`", "a;b", 'a"b', "a'b", "", "*"])
def test_no_shell_reads_a_value_as_a_command(value: str) -> None:
    made = filled(JobSpec(image="x", commands=('echo "${{ params.x }}"',)), {"x": value})
    assert made.commands == ('echo "${FAIRLEAD_PARAM_X}"',)
    assert made.env["FAIRLEAD_PARAM_X"] == value


def test_an_entrypoint_has_no_shell_and_gets_the_value_itself() -> None:
    made = filled(JobSpec(image="x", entrypoint=("run", "--x=${{ params.x }}")), {"x": "a b"})
    assert made.entrypoint == ("run", "--x=a b")


# -- files --------------------------------------------------------------------------------


def rows_of(folder: Path, name: str, text: str) -> list[list[object]]:
    (folder / name).write_bytes(text.encode())
    found: list[list[object]] = with_sets({"file": name}, folder)["sets"]["rows"]
    return found


def test_an_integer_that_python_does_not_write_is_refused() -> None:
    for written in ({"lr": [int("f" * 5000, 16)]}, {"lr": [1, -(10**300)]}):
        with pytest.raises(ConfigurationError, match=r"lr\[\d\]: has more than 300 digits"):
            sets(matrix=written)
    assert sets(matrix={"lr": [2**64]}) == [{"lr": 2**64}]


def test_csv_of_a_spreadsheet_has_a_mark_other_ends_of_lines_and_empty_cells(
    tmp_path: Path,
) -> None:
    text = "\ufefflr,x\r\n=1+1,\r\n,-3\r\n"
    assert rows_of(tmp_path, "p.csv", text) == [["=1+1", ""], ["", -3]]


def test_csv_has_numbers_and_strings(tmp_path: Path) -> None:
    text = 'lr,name,on\r\n1e-3,"a, b",true\r\n007,,x\r\n'
    assert rows_of(tmp_path, "p.csv", text) == [[0.001, "a, b", True], ["007", "", "x"]]


def test_jsonl_takes_names_in_any_order(tmp_path: Path) -> None:
    text = '{"lr": 1, "name": "a\u2028b"}\n\n{"name": "c", "lr": 2}\n'
    with pytest.raises(ConfigurationError, match=r"p\.jsonl:1\.name: holds a line break"):
        rows_of(tmp_path, "p.jsonl", text)
    assert rows_of(tmp_path, "p.jsonl", text.replace("\u2028", "")) == [[1, "ab"], [2, "c"]]


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("p.csv", "", "p.csv has no parameter set"),
        ("p.csv", "lr\n", "p.csv has no parameter set"),
        ("p.csv", "lr,lr\n1,2\n", "p.csv:1 has one name twice"),
        ("p.csv", "lr,x\n1,2\n3\n", "p.csv:3 has 1 values for 2 names"),
        ("p.csv", "lr,LR\n1,2\n", "p.csv:1.LR: gives the same variable as lr"),
        ("p.csv", "lr,a b\n1,2\n", "p.csv:1.a b: is not the name of a parameter"),
        ("p.csv", "\nlr\n1\n", "p.csv:1 is empty: the first line has the names"),
        ("p.jsonl", '\n{"a b": 1}\n', "p.jsonl:2.a b: is not the name of a parameter"),
        ("p.csv", "lr\n1\n1\n", "p.csv:3: is a set that there is already"),
        ("p.csv", 'lr\n"1\n', "p.csv:2 is not CSV"),
        ("p.csv", "lr\n" + "9" * 5000, "p.csv:2.lr: is too long"),
        ("p.csv", "lr\na\0b\n", "p.csv:2.lr: holds a NUL character"),
        ("p.csv", 'lr,x\n"a\r\nb",1\n', "p.csv:3.lr: holds a line break"),
        ("p.csv", "a-b,a_b\n1,2\n", "gives the same variable as a-b"),
        ("p.csv", "lr\n" + "\n".join(map(str, range(10_001))), "has more than 10,000 sets"),
        ("p.jsonl", '{"lr": ' + "9" * 400 + "}", "p.jsonl:1.lr: has more than 300 digits"),
        ("p.jsonl", "[1]\n", "p.jsonl:1 is not a JSON object"),
        ("p.jsonl", '{"a": 1}\n{"b": 1}\n', "p.jsonl:2 has b, not a"),
        ("p.jsonl", '{"a": [1]}\n', "p.jsonl:1 is not a JSON object"),
        ("p.txt", "a\n", "p.txt is no .jsonl or .csv file"),
    ],
)
def test_a_wrong_file_of_sets_is_told_with_its_line(
    tmp_path: Path, name: str, text: str, sentence: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        rows_of(tmp_path, name, text)
    assert sentence in str(caught.value)


def test_a_missing_file_of_sets_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"p\.csv can't be read: No such file"):
        with_sets({"file": "p.csv"}, tmp_path)


def test_ten_thousand_and_one_sets_are_refused(tmp_path: Path) -> None:
    lines = "".join(f"{json.dumps({'seed': number})}\n" for number in range(10_001))
    with pytest.raises(ConfigurationError, match="more than 10,000 sets"):
        rows_of(tmp_path, "p.jsonl", lines)
    rows = [[number] for number in range(10_001)]
    with pytest.raises(ConfigurationError, match="more than 10,000 sets"):
        planned(sets={"names": ["seed"], "rows": rows})
    kept = planned(sets={"names": ["seed"], "rows": rows[:-1]}).sweep
    assert kept is not None
    assert len(kept.sets) == 10_000
