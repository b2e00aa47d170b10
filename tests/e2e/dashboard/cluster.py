"""A team's cluster for the pictures of the dashboard: real daemons and real runs, on GPUs of the
stand-in library; what began seconds ago is told as hours old."""

from __future__ import annotations

import json
import math
import random
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from controller.metric_history import MetricHistory, Sample
from controller.store.schema import metadata
from tests.support import nvml
from tests.support.processes import ControllerProcess, ShimProcess, run_cli
from tests.support.ssh_daemon import free_port
from tests.support.waiting import wait_until

HOUR, MINUTE, GIB = 3600.0, 60.0, 1 << 30
NODES = (
    ("h100-1", "training", 8, "NVIDIA_H100_80GB_HBM3", 81559),
    ("h100-2", "training", 8, "NVIDIA_H100_80GB_HBM3", 81559),
    ("h100-3", "training", 8, "NVIDIA_H100_80GB_HBM3", 81559),
    ("l4-1", "desks", 8, "NVIDIA_L4", 23034),
)
TRAIN = r"""
echo loading 412 shards of the data
for step in $(seq 18001 18400); do
  printf '\033[2mstep %5d\033[0m  loss \033[32m2.%03d\033[0m  1.31 s\n' $step $((18980 - step))
  [ $((step % 40)) = 28 ] && sleep 0.1 && echo "a slow batch: 2.1 s" >&2 && sleep 0.1
done
sleep 600
"""
SMALL = {"cpu": 0.05, "memory": "100MB"}


def gpus(count: int) -> dict[str, object]:
    return {**SMALL, "gpu": count}


RUNS: tuple[tuple[str, str, float, dict[str, object]], ...] = (
    (
        "ada",
        "train-llm",
        5.2 * HOUR,
        {
            "commands": [TRAIN],
            "groups": [{"name": "trainer", "nodes": 2, "resources": gpus(8)}],
        },
    ),
    ("ben", "finetune-7b", 42 * MINUTE, {"commands": ["sleep 600"], "resources": gpus(4)}),
    (
        "ben",
        "chat",
        76 * HOUR,
        {
            "type": "service",
            "commands": ["exec python3 -m http.server $PORT"],
            "resources": gpus(2),
        },
    ),
    (
        "chloe",
        "desk",
        1.4 * HOUR,
        {
            "type": "dev-environment",
            "ide": "vscode",
            "ssh": "embedded",
            "inactivity_duration": "2h",
            "resources": gpus(1),
        },
    ),
    ("chloe", "convert-data", 3.1 * HOUR, {"commands": ["exit 3"], "resources": SMALL}),
    ("ada", "evaluate", 26 * MINUTE, {"commands": ["echo accuracy 0.93"], "resources": SMALL}),
    (
        "ada",
        "nightly-eval",
        50 * HOUR,
        {"commands": ["sleep 600"], "schedule": "30 2 * * *", "resources": SMALL},
    ),
    (
        "chloe",
        "sweep-lr",
        19 * MINUTE,
        {"commands": ["sleep 600"], "band": "batch", "resources": gpus(8)},
    ),
    ("ben", "distill", 8 * MINUTE, {"commands": ["sleep 600"], "resources": gpus(8)}),
    ("ben", "ablation", 6 * MINUTE, {"commands": ["sleep 600"], "resources": gpus(4)}),
    ("ada", "eval-mmlu", 4 * MINUTE, {"commands": ["sleep 600"], "resources": gpus(2)}),
)
"""Each with its user, its name, the age in seconds that is shown, and what is submitted."""
SETTLED = dict.fromkeys(("train-llm", "finetune-7b", "chat", "desk", "distill"), "running")
SETTLED |= {"convert-data": "failed", "evaluate": "done"}


@contextmanager
def busy_cluster(folder: Path) -> Iterator[ControllerProcess]:
    """Give a controller whose nodes run what RUNS says."""
    with ExitStack() as stack:
        controller = ControllerProcess(folder / "controller")
        stack.callback(controller.close)
        controller.start()
        library = nvml.build(folder)
        for number, (name, fleet, count, model, memory) in enumerate(NODES):
            machine = nvml.StandIn(folder / f"gpus-{number}", count)
            for index, gpu in machine.gpus.items():
                gpu |= {"name": model, "memory": memory, "uuid": nvml.uuid(10 * number + index)}
            machine.tell()
            env = {"LD_LIBRARY_PATH": str(library.parent), nvml.STATE: str(machine.state)}
            shim = ShimProcess(folder / name, "process", env=env)
            stack.callback(shim.close)
            shim.start()
            if number in (0, 3):
                controller.cli("fleet", "add", fleet).succeeded()
            at = ("--local", shim.socket, "--fleet", fleet, "--attribute", f"rack=r{number // 2}")
            controller.cli("node", "add", name, *at).succeeded()
        submit_all(controller, folder)
        machine.raise_xid(7, 79)  # the last machine's last GPU has fallen off its bus
        grow_old(controller)
        yield controller
        for _, name, _, _ in RUNS:
            controller.cli("stop", name, "--abort")


def submit_all(controller: ControllerProcess, folder: Path) -> None:
    users = {user for user, *_ in RUNS}
    tokens = {one: controller.cli("user", "add", one).succeeded().output.strip() for one in users}
    for user, name, _, fields in RUNS:
        port = {"port": free_port()} if fields.get("type") == "service" else {}
        if port:
            fields = {**fields, "env": {"PORT": str(port["port"])}}
        file = folder / f"{name}.json"
        file.write_text(json.dumps({"type": "task", **fields, **port}))
        env = {**controller.env, "FAIRLEAD_TOKEN": tokens[user]}
        run_cli("apply", "-d", "-f", file, "-n", name, env=env).succeeded()
        if name in SETTLED:
            settle(controller, name, SETTLED[name])


def settle(controller: ControllerProcess, name: str, status: str) -> None:
    wait_until(lambda: run_of(controller, name)["status"] == status, what=f"{name} to be {status}")


def run_of(controller: ControllerProcess, name: str) -> dict[str, Any]:
    found: dict[str, Any] = controller.cli("inspect", name, "--json").succeeded().json
    return found


def grow_old(controller: ControllerProcess) -> None:
    """Restart the controller with older times in its database, and with a history of use."""
    ages = {run_of(controller, name)["id"]: age for _, name, age, _ in RUNS}
    trainers = [job["attempts"][0]["id"] for job in run_of(controller, "train-llm")["jobs"]]
    controller.stop()
    shift_times(controller.data / "controller.db", ages)
    histories = [controller.data / "metrics" / one[:2] / one for one in trainers]
    for history in histories:
        history.unlink(missing_ok=True)
    controller.start()
    for trainer, history in zip(trainers, histories, strict=True):
        wait_until(history.exists, what="the sample that is taken at the start")
        history.unlink()
        write_use(MetricHistory(controller.data / "metrics"), trainer)


def shift_times(database: Path, ages: Mapping[str, float]) -> None:
    """Let each run, with all that it has, be older by its age in seconds."""
    engine = sa.create_engine(sa.URL.create("sqlite", database=str(database)))
    with engine.begin() as connection:
        for table in metadata.sorted_tables:
            times = [one for one in table.columns if isinstance(one.type, sa.Double)]
            run = table.columns.get("id" if table.name == "runs" else "run_id")
            if run is None or not times:
                continue
            for run_id, age in ages.items():
                older = {one.name: one - age for one in times if one.name != "next_triggered_at"}
                connection.execute(table.update().where(run == run_id).values(older))
    engine.dispose()


def write_use(history: MetricHistory, attempt_id: str) -> None:
    """Write the last hour of a training: a checkpoint every 20 minutes lets the GPUs wait."""
    chance, cpu_seconds, now = random.Random(attempt_id), 0.0, time.time()
    for minute in range(60):
        saves = minute % 20 == 14
        cores = (22.0 if saves else 7.0) + chance.random()
        cpu_seconds += cores * MINUTE
        sample = Sample(
            at=now - (59 - minute) * MINUTE,
            cpu_seconds=cpu_seconds,
            memory=int((180 + 8 * math.sin(minute / 6) + (60 if saves else 0)) * GIB),
            gpu_utilization=41.0 if saves else 93.0 + 4 * chance.random(),
            gpu_memory=int(8 * 71.5 * GIB),
        )
        history.append(attempt_id, sample)
