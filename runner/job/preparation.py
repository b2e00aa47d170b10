"""All that happens between "run" and the first instruction: code, secrets, folders, launch."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from runner.code.prepare import CodeStore
from runner.job import environment
from runner.job.launch import Launch, find
from runner.job.setup import Groundwork
from runner.job.spawning import Children
from runner.schemas import SubmitRequest

_log = logging.getLogger(__name__)


class Preparation:
    """`launch` once, `clean` when the job has ended. `groundwork`: of a job that was launched
    already."""

    def __init__(
        self,
        task: Path,
        code: CodeStore,
        children: Children,
        groundwork: Groundwork | None = None,
    ) -> None:
        self._task = task
        self._code = code
        self._children = children
        self._groundwork = groundwork
        if groundwork is not None:
            _tell_troubles(groundwork)

    async def launch(self, request: SubmitRequest) -> Launch:
        """Raises CannotStart. May be cancelled while code is being fetched."""
        groundwork = await asyncio.to_thread(Groundwork, self._task, request)
        self._groundwork = groundwork
        try:
            await self._put_code(request, groundwork)
        finally:
            await asyncio.to_thread(self._code.drop)
        launch = await asyncio.to_thread(groundwork.launch)
        _tell_troubles(groundwork)
        return launch

    def clean(self) -> None:
        """Blocking. Nothing of the job's secrets and environment is left."""
        if self._groundwork is not None:
            self._groundwork.clean()
        else:
            environment.remove(self._task)

    async def _put_code(self, request: SubmitRequest, groundwork: Groundwork) -> None:
        if not request.job.repos and not request.job.files:
            return
        # 3 MiB and 30 ms that only jobs with code pay for.
        from runner.code.git import choose
        from runner.code.helper import Helpers
        from runner.code.prepare import CodePreparer

        place = groundwork.place
        env = {"PATH": environment.DEFAULT_PATH, **groundwork.inherited}
        helpers = Helpers(self._children, env, place.identity)
        git = choose(lambda program: find(program, env, "/"), helpers, groundwork.scratch)
        preparer = CodePreparer(self._code, git, place.working_dir, place.identity)
        await preparer.prepare(request)


def _tell_troubles(groundwork: Groundwork) -> None:
    for trouble in groundwork.troubles:
        _log.error("%s", trouble)
