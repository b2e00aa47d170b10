"""A job's variables: in our names always, in others' when it asks (docs/rules.md 5)."""

from __future__ import annotations

from typing import Any

import msgspec

from fairlead.wire.job import ClusterInfo, GangInfo
from runner.processes import variables
from runner.processes.variables import Paths
from tests.unit.runner.harness import a_job

CLUSTER = ClusterInfo(
    ips=("10.0.0.1", "10.0.0.2"), master_ip="10.0.0.1", rank=1, gpus_per_node=4, ssh_port=2222
)
GANG = GangInfo(incarnation="f00d", incarnation_number=3, size=5, group_size=2, rank=1)


def told(
    cluster: ClusterInfo | None = None, paths: Paths | None = None, **fields: Any
) -> dict[str, str]:
    request = msgspec.structs.replace(a_job("true", **fields), cluster=cluster)
    return variables.variables(request, "/w", paths or Paths())


def names(env: dict[str, str], prefix: str) -> dict[str, str]:
    return {k.removeprefix(prefix): v for k, v in env.items() if k.startswith(prefix)}


def test_a_job_of_one_node_is_told_nothing_of_a_cluster() -> None:
    alone = {"RUN_ID", "RUN_NAME", "JOB_ID", "ATTEMPT_ID", "GROUP_NAME", "JOB_COOKIE"}
    alone |= {"JOB_INDEX", "JOB_COUNT", "GROUP_JOB_COUNT", "WORKING_DIR", "REPO_DIR"}
    assert {f"FAIRLEAD_{name}" for name in alone} == told().keys()


def test_folders_and_files_are_told_if_they_were_made() -> None:
    paths = Paths(repo_dir="/r", output_dir="/o", secrets_dir="/s", hostfile="/h")
    env = names(told(paths=paths), "FAIRLEAD_")
    made = {"REPO_DIR": "/r", "OUTPUT_DIR": "/o", "SECRETS_DIR": "/s", "MPI_HOSTFILE": "/h"}
    assert made.items() <= env.items()


def test_several_nodes_know_all_of_each_other() -> None:
    env = names(told(CLUSTER, job_count=2), "FAIRLEAD_")
    assert {
        "NODES_IPS": "10.0.0.1\n10.0.0.2",
        "MASTER_NODE_IP": "10.0.0.1",
        "NODE_RANK": "1",
        "NODES_NUM": "2",
        "GPUS_PER_NODE": "4",
        "GPUS_NUM": "8",
    }.items() <= env.items()


def test_gpus_are_counted_where_nodes_have_unequal_numbers() -> None:
    cluster = msgspec.structs.replace(CLUSTER, gpus=(8, 4))
    assert told(cluster, job_count=2)["FAIRLEAD_GPUS_NUM"] == "12"
    assert variables.hostfile(cluster) == "10.0.0.1 slots=8\n10.0.0.2 slots=4\n"


def test_a_plain_group_beside_a_gang_has_ranks_of_its_own_and_no_size_in_the_gang() -> None:
    plain = GangInfo(incarnation="f00d", incarnation_number=3, size=5, rank=0)
    env = names(told(CLUSTER, job_count=6, gang=msgspec.to_builtins(plain)), "FAIRLEAD_")
    assert (env["INCARNATION_NUMBER"], env["GANG_SIZE"], env["NODE_RANK"]) == ("3", "5", "1")
    assert env["GANG_RANK"] == "0"
    assert "GROUP_GANG_SIZE" not in env


def test_a_gang_knows_its_incarnation() -> None:
    env = names(told(CLUSTER, job_count=2, gang=msgspec.to_builtins(GANG)), "FAIRLEAD_")
    assert {
        "INCARNATION": "f00d",
        "INCARNATION_NUMBER": "3",
        "GANG_SIZE": "5",
        "GROUP_GANG_SIZE": "2",
        "GANG_RANK": "1",
    }.items() <= env.items()


def test_a_reserved_job_has_no_rank() -> None:
    reserved = msgspec.structs.replace(GANG, rank=None)
    env = told(job_count=2, gang=msgspec.to_builtins(reserved), env_style=["ytsaurus"])
    assert not [name for name in env if name.endswith("GANG_RANK")]


def test_scripts_for_ytsaurus_find_their_names() -> None:
    fields: dict[str, Any] = {"job_count": 7, "group_job_count": 3, "cookie": 2, "index": 5}
    env = told(gang=msgspec.to_builtins(GANG), env_style=["ytsaurus"], **fields)
    assert names(env, "YT_") == {
        "OPERATION_INCARNATION": "f00d",
        "GANG_SIZE": "5",
        "TASK_GANG_SIZE": "2",
        "GANG_RANK": "1",
        "TASK_NAME": "main",
        "TASK_JOB_COUNT": "3",
        "TASK_JOB_INDEX": "2",
        "JOB_COUNT": "7",
        "JOB_COOKIE": "2",
        "JOB_INDEX": "5",
        "OPERATION_ID": "r1",
        "JOB_ID": "a1",
    }


def test_a_job_is_told_under_which_name_its_place_is_monitored() -> None:
    env = told(monitoring_descriptor="r1/4")
    assert env["FAIRLEAD_MONITORING_DESCRIPTOR"] == "r1/4"


def test_scripts_for_torch_find_their_names() -> None:
    theirs = {"MASTER_ADDR", "MASTER_PORT", "NNODES", "NODE_RANK", "NPROC_PER_NODE"}
    env = told(CLUSTER, job_count=2, env_style=["torch"])
    found = {name: env[name] for name in theirs}
    assert found == {
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "29500",
        "NNODES": "2",
        "NODE_RANK": "1",
        "NPROC_PER_NODE": "4",
    }


def test_torch_runs_on_one_node_too() -> None:
    env = told(env_style=["torch"])
    assert (env["MASTER_ADDR"], env["NNODES"], env["NODE_RANK"]) == ("127.0.0.1", "1", "0")


def test_scripts_for_dstack_find_their_names() -> None:
    env = told(CLUSTER, Paths(repo_dir="/r", hostfile="/h"), job_count=2, env_style=["dstack"])
    assert names(env, "DSTACK_") == {
        "RUN_ID": "r1",
        "RUN_NAME": "hello",
        "JOB_ID": "j1",
        "REPO_DIR": "/r",
        "WORKING_DIR": "/w",
        "NODES_IPS": "10.0.0.1\n10.0.0.2",
        "MASTER_NODE_IP": "10.0.0.1",
        "NODE_RANK": "1",
        "NODES_NUM": "2",
        "GPUS_PER_NODE": "4",
        "GPUS_NUM": "8",
        "MPI_HOSTFILE": "/h",
    }


def test_a_reserved_job_of_torch_knows_the_master_and_has_no_rank() -> None:
    env = told(msgspec.structs.replace(CLUSTER, rank=None), job_count=3, env_style=["torch"])
    assert (env["MASTER_ADDR"], env["NNODES"]) == ("10.0.0.1", "2")
    assert "NODE_RANK" not in env


def test_a_single_node_tells_its_own_gpus() -> None:
    env = told(env_style=["torch", "dstack", "slurm", "skypilot"], gpus=8)
    assert (env["NPROC_PER_NODE"], env["DSTACK_GPUS_PER_NODE"]) == ("8", "8")
    assert (env["SLURM_GPUS_ON_NODE"], env["SKYPILOT_NUM_GPUS_PER_NODE"]) == ("8", "8")


def test_scripts_for_slurm_find_one_task_on_each_node() -> None:
    env = names(told(CLUSTER, job_count=2, env_style=["slurm"]), "SLURM_")
    number = env.pop("JOB_ID")
    assert number.isdecimal()
    assert env.pop("JOBID") == number
    assert env == {
        "JOB_NAME": "hello",
        "SUBMIT_DIR": "/w",
        "NNODES": "2",
        "JOB_NUM_NODES": "2",
        "NTASKS": "2",
        "NPROCS": "2",
        "NTASKS_PER_NODE": "1",
        "TASKS_PER_NODE": "1(x2)",
        "NODEID": "1",
        "PROCID": "1",
        "LOCALID": "0",
        "NODELIST": "10.0.0.1,10.0.0.2",
        "JOB_NODELIST": "10.0.0.1,10.0.0.2",
        "LAUNCH_NODE_IPADDR": "10.0.0.1",
        "GPUS_ON_NODE": "4",
    }
    assert told(CLUSTER, job_count=2, env_style=["slurm"])["SLURMD_NODENAME"] == "10.0.0.2"


def test_slurm_on_one_node_is_rank_0_of_1_and_no_array() -> None:
    env = told(env_style=["slurm"])
    assert (env["SLURM_PROCID"], env["SLURM_NTASKS"], env["SLURM_TASKS_PER_NODE"]) == (
        "0",
        "1",
        "1",
    )
    assert "SLURM_ARRAY_TASK_ID" not in env


def test_a_script_for_slurm_learns_that_it_came_back() -> None:
    assert "SLURM_RESTART_COUNT" not in told(env_style=["slurm"])
    assert told(env_style=["slurm"], restarts=2)["SLURM_RESTART_COUNT"] == "2"


def test_slurms_submit_dir_is_where_the_code_is() -> None:
    env = told(None, Paths(repo_dir="/workflow"), env_style=["slurm"])
    assert env["SLURM_SUBMIT_DIR"] == "/workflow"
    assert told(env_style=["slurm"])["SLURM_SUBMIT_DIR"] == "/w"


def test_each_set_of_a_sweep_is_a_task_of_an_array() -> None:
    one = told(env_style=["slurm"], parameters={"array_task_id": 12}, parameter_set=3)
    other = told(env_style=["slurm"], parameters={"lr": 0.1}, parameter_set=4)
    assert (one["SLURM_ARRAY_TASK_ID"], other["SLURM_ARRAY_TASK_ID"]) == ("12", "4")
    assert one["SLURM_ARRAY_JOB_ID"] == other["SLURM_ARRAY_JOB_ID"]
    assert int(one["SLURM_JOB_ID"]) == int(one["SLURM_ARRAY_JOB_ID"]) + 3


def test_scripts_for_skypilot_find_their_names() -> None:
    env = told(CLUSTER, job_count=2, env_style=["skypilot"])
    assert names(env, "SKYPILOT_") == {
        "NODE_RANK": "1",
        "NODE_IPS": "10.0.0.1\n10.0.0.2",
        "NUM_NODES": "2",
        "NUM_GPUS_PER_NODE": "4",
        "TASK_ID": "r1",
    }
    swept = told(env_style=["skypilot"], parameters={"a": 1}, parameter_set=7)
    assert swept["SKYPILOT_TASK_ID"] == "r1-7"


def test_a_reserved_job_has_no_rank_for_slurm_and_skypilot() -> None:
    reserved = msgspec.structs.replace(CLUSTER, rank=None)
    env = told(reserved, job_count=3, env_style=["slurm", "skypilot"])
    assert env["SLURM_NNODES"] == env["SKYPILOT_NUM_NODES"] == "2"
    assert not {"SLURM_PROCID", "SLURMD_NODENAME", "SKYPILOT_NODE_RANK"} & env.keys()


def test_styles_add_up() -> None:
    env = told(env_style=["dstack", "torch"])
    assert {"FAIRLEAD_RUN_ID", "DSTACK_RUN_ID", "MASTER_ADDR"} <= env.keys()


def test_the_hostfile_has_a_line_for_each_node_with_its_slots() -> None:
    assert variables.hostfile(CLUSTER) == "10.0.0.1 slots=4\n10.0.0.2 slots=4\n"
