"""The jobs of a set of several nodes end together (docs/rules.md 11.4)."""

from __future__ import annotations

from controller.lifecycle.attempts import termination
from controller.lifecycle.draft import Draft
from controller.lifecycle.membership import members
from fairlead.model.reasons import Reason

CAUSE = "sweep"


def settle(draft: Draft) -> None:
    """End what lives of each set of which one job has ended other than done."""
    if draft.run.sweep is None or draft.run.sweep.nodes == 1:
        return
    for jobs in members.of_several(draft.run, draft.jobs):
        lasts = [job.attempts[-1] for job in jobs if job.attempts]
        ended = (last for last in lasts if last.reason not in (None, Reason.DONE_BY_RUNNER))
        culprit = next(ended, None)
        if culprit is None:
            continue
        job = next(job for job in jobs if job.id == culprit.job_id)
        message = f"job {job.group}/{job.cookie} of its parameter set ended"
        message += f": {culprit.message or culprit.reason}"
        for last in lasts:
            if last.reason is None:
                termination.end(draft, last, Reason.SIBLING_FAILED, CAUSE, message)
