import os

import msgspec

from fairlead.wire.job import ClusterInfo
from runner.processes import environment
from runner.processes.identity import Identity
from tests.unit.runner.harness import a_job

ME = Identity(uid=os.getuid(), gid=0, name="me", home="/home/me")
OTHER = Identity(uid=os.getuid() + 1, gid=0, name="other", home="/home/other")


def inherited(*entries: str) -> dict[str, str]:
    return environment.inherited("\0".join(entries).encode() + b"\0")


def test_hidden_variables_get_their_names_back_and_ours_do_not_pass() -> None:
    found = inherited(
        "PATH=/bin",
        "FAIRLEAD_ORIG_LD_PRELOAD=/lib/libjemalloc.so",
        "FAIRLEAD_ORIG_LANG=de_DE",
        "LANG=C",
        "FAIRLEAD_TOKEN=secret",
        "MALLOC_ARENA_MAX=1",
        "EMPTY=",
        "not a variable",
    )
    assert found == {
        "PATH": "/bin",
        "LD_PRELOAD": "/lib/libjemalloc.so",
        "LANG": "de_DE",
        "EMPTY": "",
    }


def test_the_mark_of_the_process_engine_passes_and_cannot_be_replaced() -> None:
    base = inherited("FAIRLEAD_PROCESS_MARK=install/t1", "FAIRLEAD_PROCESS_REAPER=install/t1")
    job = a_job("true", env={"FAIRLEAD_PROCESS_MARK": "another"})
    assert base == {"FAIRLEAD_PROCESS_MARK": "install/t1"}
    assert environment.for_job(base, job, ME, "/w")["FAIRLEAD_PROCESS_MARK"] == "install/t1"


def test_an_arena_limit_of_the_image_is_kept() -> None:
    found = inherited("FAIRLEAD_ORIG_MALLOC_ARENA_MAX=4", "MALLOC_ARENA_MAX=1")
    assert found == {"MALLOC_ARENA_MAX": "4"}


def test_bytes_that_are_no_text_survive() -> None:
    found = environment.inherited(b"RAW=\xff\xfe\0")
    assert os.fsencode(found["RAW"]) == b"\xff\xfe"


def test_the_users_variables_win() -> None:
    job = a_job("true", env={"PATH": "/mine", "HOME": "/h"})
    env = environment.for_job({"PATH": "/bin"}, job, ME, "/w")
    assert (env["PATH"], env["HOME"]) == ("/mine", "/h")


def test_the_users_variables_win_over_those_of_a_style() -> None:
    job = a_job("true", env_style=["torch"], env={"MASTER_PORT": "1234"})
    assert environment.for_job({}, job, ME, "/w")["MASTER_PORT"] == "1234"


def test_our_variables_about_a_job_cannot_be_replaced() -> None:
    own = {"FAIRLEAD_RUN_ID": "fake", "FAIRLEAD_MINE": "kept"}
    job = a_job("true", env=own, secrets={"FAIRLEAD_JOB_ID": "fake"})
    env = environment.for_job({}, job, ME, "/w")
    assert (env["FAIRLEAD_RUN_ID"], env["FAIRLEAD_JOB_ID"]) == ("r1", "j1")
    assert env["FAIRLEAD_MINE"] == "kept"


def test_a_job_learns_who_it_is() -> None:
    env = environment.for_job({}, a_job("true"), ME, "/w")
    assert {k: v for k, v in env.items() if k.startswith("FAIRLEAD_")} == {
        "FAIRLEAD_RUN_ID": "r1",
        "FAIRLEAD_RUN_NAME": "hello",
        "FAIRLEAD_JOB_ID": "j1",
        "FAIRLEAD_ATTEMPT_ID": "a1",
        "FAIRLEAD_GROUP_NAME": "main",
        "FAIRLEAD_JOB_COOKIE": "0",
        "FAIRLEAD_JOB_INDEX": "0",
        "FAIRLEAD_JOB_COUNT": "1",
        "FAIRLEAD_GROUP_JOB_COUNT": "1",
        "FAIRLEAD_WORKING_DIR": "/w",
        "FAIRLEAD_REPO_DIR": "/w",
    }


def test_the_images_home_stays_for_the_same_user_only() -> None:
    job, base = a_job("true"), {"HOME": "/custom", "USER": "root"}
    mine = environment.for_job(base, job, ME, "/w")
    others = environment.for_job(base, job, OTHER, "/w")
    assert (mine["HOME"], mine["USER"], mine["LOGNAME"]) == ("/custom", "root", "me")
    assert [others[n] for n in ("HOME", "USER", "LOGNAME")] == ["/home/other", "other", "other"]


def test_a_path_is_there_even_if_the_image_has_none() -> None:
    env = environment.for_job({}, a_job("true"), ME, "/w")
    assert env["PATH"] == environment.DEFAULT_PATH


def test_several_nodes_know_of_each_other() -> None:
    cluster = ClusterInfo(ips=("10.0.0.1", "10.0.0.2"), master_ip="10.0.0.1", rank=1)
    request = msgspec.structs.replace(a_job("true", job_count=2), cluster=cluster)
    env = environment.for_job({}, request, ME, "/w")
    assert (env["FAIRLEAD_NODES_NUM"], env["FAIRLEAD_NODE_RANK"]) == ("2", "1")
    assert env["FAIRLEAD_NODES_IPS"] == "10.0.0.1\n10.0.0.2"
