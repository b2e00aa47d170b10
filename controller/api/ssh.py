"""How a user's ssh reaches a job: the node to go through, the port, the host keys to expect."""

from __future__ import annotations

from collections.abc import Mapping

from controller.api.documents import SshTarget
from controller.lifecycle.model import Attempt, Job, Node, RunState
from controller.lifecycle.statuses import FINAL_ATTEMPT_STATUSES, AttemptStatus
from controller.service.errors import Conflict
from controller.service.job_access import find_job

PORT_NAME = "ssh"


def ssh_target(state: RunState, job_key: str | None, nodes: Mapping[str, Node]) -> SshTarget:
    """Return the target of the job's present attempt. Raises NotFound, and Conflict (`no_ssh`) with
    the reason why there is none."""
    job = find_job(state, job_key)
    attempt = job.attempts[-1] if job.attempts else None
    node = nodes.get(attempt.node_id or "") if attempt else None
    if (
        attempt is None
        or node is None
        or not attempt.ssh_host_key
        or PORT_NAME not in attempt.ports
    ):
        raise Conflict(_why_not(state, job, attempt), code="no_ssh", field="run")
    if attempt.status in FINAL_ATTEMPT_STATUSES:
        raise Conflict(f"{state.run.name} has ended: {attempt.status}", code="no_ssh", field="run")
    address = node.address
    return SshTarget(
        run_name=state.run.name,
        attempt_id=attempt.id,
        port=attempt.ports[PORT_NAME],
        host_key=attempt.ssh_host_key,
        node_host=None if address.local_socket else address.host,
        node_port=address.port,
        node_host_key=address.host_key,
        jump_user=address.jump_user,
    )


def _why_not(state: RunState, job: Job, attempt: Attempt | None) -> str:
    name = state.run.name
    if job.spec.ssh == "off":
        return f"{name} was submitted with `ssh: off`"
    if not job.spec.ssh_keys:
        return (
            f"{name} was submitted without a public key: make one (ssh-keygen), or name one with "
            f"FAIRLEAD_SSH_KEY, and submit it again"
        )
    if attempt is not None and attempt.status is AttemptStatus.RUNNING:
        return f"the node of {name} gives it no SSH: its shim's log says why"
    if attempt is None or attempt.status not in FINAL_ATTEMPT_STATUSES:
        return f"{name} has no container yet ({state.run.status}): try again when it runs"
    return f"{name} has ended: {attempt.status}"
