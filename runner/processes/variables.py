"""The variables that Fairlead gives to a job, also under the names of other systems
(docs/rules.md 5.14 to 5.17)."""

from __future__ import annotations

import hashlib

import msgspec

from fairlead.wire.job import ClusterInfo, EnvStyle, GangInfo, JobSpec, SubmitRequest

PREFIX = "FAIRLEAD_"
_ALSO_DSTACK = (
    "RUN_ID",
    "RUN_NAME",
    "JOB_ID",
    "REPO_DIR",
    "WORKING_DIR",
    "NODES_IPS",
    "MASTER_NODE_IP",
    "NODE_RANK",
    "NODES_NUM",
    "GPUS_PER_NODE",
    "GPUS_NUM",
    "MPI_HOSTFILE",
)
ARRAY_PARAMETER = "array_task_id"
"""The parameter of a sweep that is an array of Slurm (`fairlead sbatch`)."""
_ALONE = ClusterInfo(ips=("127.0.0.1",), master_ip="127.0.0.1", rank=0)


class Paths(msgspec.Struct, frozen=True, kw_only=True):
    """Folders and files that were made for this job."""

    repo_dir: str | None = None
    output_dir: str | None = None
    secrets_dir: str | None = None
    hostfile: str | None = None
    venv: str | None = None
    parameters: str | None = None
    signal_file: str | None = None


def variables(request: SubmitRequest, working_dir: str, paths: Paths) -> dict[str, str]:
    """Return the variables with all prefixes. Variables that do not apply to this job are
    missing."""
    job, cluster = request.job, request.cluster
    folders = {"WORKING_DIR": working_dir, "REPO_DIR": working_dir}
    ours = _about_the_job(job) | folders | _about_paths(paths)
    if cluster is not None and job.job_count > 1:
        ours |= _about_the_cluster(cluster)
    if job.gang is not None:
        ours |= _about_the_gang(job.gang)
    env = {f"{PREFIX}{name}": value for name, value in ours.items()}
    for style in job.env_style:
        env |= _STYLES[style](request, ours)
    return env


def hostfile(cluster: ClusterInfo) -> str:
    """Return the hostfile for MPI: Open MPI and MPICH read the same lines."""
    return "".join(
        f"{ip} slots={max(1, gpus)}\n"
        for ip, gpus in zip(cluster.ips, cluster.gpus_of_each, strict=True)
    )


def _about_the_job(job: JobSpec) -> dict[str, str]:
    return {
        "RUN_ID": job.run_id,
        "RUN_NAME": job.run_name,
        "JOB_ID": job.job_id,
        "ATTEMPT_ID": job.attempt_id,
        "GROUP_NAME": job.group,
        "JOB_COOKIE": str(job.cookie),
        "JOB_INDEX": str(job.index),
        "JOB_COUNT": str(job.job_count),
        "GROUP_JOB_COUNT": str(job.group_job_count),
        **_about_the_node(job),
        **({} if job.parameter_set is None else {"PARAM_SET": str(job.parameter_set)}),
    }


def _about_the_node(job: JobSpec) -> dict[str, str]:
    descriptor = job.monitoring_descriptor
    return {} if descriptor is None else {"MONITORING_DESCRIPTOR": descriptor}


def _about_paths(paths: Paths) -> dict[str, str]:
    named = {
        "REPO_DIR": paths.repo_dir,
        "OUTPUT_DIR": paths.output_dir,
        "SECRETS_DIR": paths.secrets_dir,
        "MPI_HOSTFILE": paths.hostfile,
        "PARAMS": paths.parameters,
        "SIGNAL_FILE": paths.signal_file,
    }
    return {name: path for name, path in named.items() if path is not None}


def _about_the_cluster(cluster: ClusterInfo) -> dict[str, str]:
    found = {
        "NODES_IPS": "\n".join(cluster.ips),
        "MASTER_NODE_IP": cluster.master_ip,
        "NODES_NUM": str(len(cluster.ips)),
        "GPUS_PER_NODE": str(cluster.gpus_per_node),
        "GPUS_NUM": str(sum(cluster.gpus_of_each)),
    }
    if cluster.rank is not None:
        found["NODE_RANK"] = str(cluster.rank)
    return found


def _about_the_gang(gang: GangInfo) -> dict[str, str]:
    found = {
        "INCARNATION": gang.incarnation,
        "INCARNATION_NUMBER": str(gang.incarnation_number),
        "GANG_SIZE": str(gang.size),
    }
    if gang.group_size is not None:
        found["GROUP_GANG_SIZE"] = str(gang.group_size)
    if gang.rank is not None:
        found["GANG_RANK"] = str(gang.rank)
    return found


def _cluster_of(request: SubmitRequest) -> ClusterInfo:
    """Return the job's cluster; scripts of other systems expect one on a single node too."""
    if request.cluster is not None:
        return request.cluster
    return msgspec.structs.replace(_ALONE, gpus_per_node=request.job.gpus)


def _dstack(request: SubmitRequest, ours: dict[str, str]) -> dict[str, str]:
    """Return dstack's variables."""
    found = _about_the_cluster(_cluster_of(request)) | ours
    return {f"DSTACK_{name}": found[name] for name in _ALSO_DSTACK if name in found}


def _ytsaurus(request: SubmitRequest, ours: dict[str, str]) -> dict[str, str]:
    """Return YTsaurus's variables: its job is an attempt here, and its task is a group."""
    names = {
        "YT_OPERATION_ID": "RUN_ID",
        "YT_OPERATION_INCARNATION": "INCARNATION",
        "YT_GANG_SIZE": "GANG_SIZE",
        "YT_TASK_GANG_SIZE": "GROUP_GANG_SIZE",
        "YT_GANG_RANK": "GANG_RANK",
        "YT_TASK_NAME": "GROUP_NAME",
        "YT_TASK_JOB_COUNT": "GROUP_JOB_COUNT",
        "YT_TASK_JOB_INDEX": "JOB_COOKIE",
        "YT_JOB_ID": "ATTEMPT_ID",
        "YT_JOB_COUNT": "JOB_COUNT",
        "YT_JOB_INDEX": "JOB_INDEX",
        "YT_JOB_COOKIE": "JOB_COOKIE",
    }
    return {theirs: ours[name] for theirs, name in names.items() if name in ours}


def _torch(request: SubmitRequest, ours: dict[str, str]) -> dict[str, str]:
    cluster = _cluster_of(request)
    found = {
        "MASTER_ADDR": cluster.master_ip or _ALONE.master_ip,
        "MASTER_PORT": str(cluster.master_port),
        "NNODES": str(max(1, len(cluster.ips))),
        "NPROC_PER_NODE": str(max(1, cluster.gpus_per_node)),
    }
    if cluster.rank is not None:
        found["NODE_RANK"] = str(cluster.rank)
    return found


def _slurm(request: SubmitRequest, ours: dict[str, str]) -> dict[str, str]:
    """Return Slurm's variables. A task of Slurm is a job here, so each node has one task."""
    cluster, job = _cluster_of(request), request.job
    nodes = str(len(cluster.ips))
    number = _job_number(job.run_id)
    named = {
        "JOB_ID JOBID": str(number + (job.parameter_set or 0)),
        "JOB_NAME": job.run_name,
        "SUBMIT_DIR": ours["REPO_DIR"],
        "NNODES JOB_NUM_NODES NTASKS NPROCS": nodes,
        "LOCALID": "0",
        "NTASKS_PER_NODE": "1",
        "TASKS_PER_NODE": "1" if nodes == "1" else f"1(x{nodes})",
        "NODELIST JOB_NODELIST": ",".join(cluster.ips),
        "LAUNCH_NODE_IPADDR": cluster.master_ip,
        "GPUS_ON_NODE": str(cluster.gpus_per_node),
    }
    if cluster.rank is not None:
        named |= {"NODEID PROCID": str(cluster.rank), "SLURMD_NODENAME": cluster.ips[cluster.rank]}
    if job.restarts:
        # Slurm sets it from the first restart on, and scripts ask whether it is there.
        named["RESTART_COUNT"] = str(job.restarts)
    if job.parameter_set is not None:
        index = (job.parameters or {}).get(ARRAY_PARAMETER, job.parameter_set)
        named |= {"ARRAY_JOB_ID": str(number), "ARRAY_TASK_ID": str(index)}
    return {
        name if name.startswith("SLURM") else f"SLURM_{name}": value
        for names, value in named.items()
        for name in names.split()
    }


def _job_number(run_id: str) -> int:
    """Return the run's number: scripts calculate with Slurm's job ids, so those are numbers."""
    return 10**8 + int.from_bytes(hashlib.sha256(run_id.encode()).digest()[:4], "big") % 10**9


def _skypilot(request: SubmitRequest, ours: dict[str, str]) -> dict[str, str]:
    cluster, job = _cluster_of(request), request.job
    is_one_of = job.parameter_set is not None
    rank = {} if cluster.rank is None else {"SKYPILOT_NODE_RANK": str(cluster.rank)}
    return {
        **rank,
        "SKYPILOT_NODE_IPS": "\n".join(cluster.ips),
        "SKYPILOT_NUM_NODES": str(len(cluster.ips)),
        "SKYPILOT_NUM_GPUS_PER_NODE": str(cluster.gpus_per_node),
        "SKYPILOT_TASK_ID": f"{job.run_id}-{job.parameter_set}" if is_one_of else job.run_id,
    }


_STYLES = {
    EnvStyle.DSTACK: _dstack,
    EnvStyle.YTSAURUS: _ytsaurus,
    EnvStyle.TORCH: _torch,
    EnvStyle.SLURM: _slurm,
    EnvStyle.SKYPILOT: _skypilot,
}
