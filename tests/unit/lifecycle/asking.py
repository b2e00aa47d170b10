"""The requests of one user of a run on the stage."""

from __future__ import annotations

from dataclasses import dataclass

from controller.lifecycle.reports import (
    CompleteRequested,
    JobAbandonRequested,
    JobAbortRequested,
    JobInterruptRequested,
    ResumeRequested,
    ScaleRequested,
    SuspendRequested,
)
from tests.unit.lifecycle.play import Play


@dataclass
class Ask:
    play: Play

    def complete(self) -> CompleteRequested:
        return CompleteRequested(run_id=self.play.run_id, by="ada")

    def suspend(self, *, abort_running: bool = False) -> SuspendRequested:
        return SuspendRequested(run_id=self.play.run_id, abort_running=abort_running, by="ada")

    def resume(self) -> ResumeRequested:
        return ResumeRequested(run_id=self.play.run_id, by="ada")

    def scale(self, nodes: int, group: str = "main") -> ScaleRequested:
        return ScaleRequested(run_id=self.play.run_id, group=group, nodes=nodes, by="ada")

    def abort(self, n: int = 0) -> JobAbortRequested:
        return JobAbortRequested(run_id=self.play.run_id, job_id=self.play.job(n).id, by="ada")

    def abandon(self, n: int = 0) -> JobAbandonRequested:
        return JobAbandonRequested(run_id=self.play.run_id, job_id=self.play.job(n).id, by="ada")

    def interrupt(self, n: int = 0) -> JobInterruptRequested:
        return JobInterruptRequested(run_id=self.play.run_id, job_id=self.play.job(n).id, by="ada")
