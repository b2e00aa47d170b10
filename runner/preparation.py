"""All that happens between "run" and the first instruction: code, secrets, folders, launch."""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path

from runner import cluster_ssh, environment, session_environment, variables
from runner.children import Children
from runner.code.store import CodeStore
from runner.environment import Paths
from runner.errors import CannotStart
from runner.launch import Launch, Place, find, place_of, prepare, read_image_config, settle
from runner.schemas import SubmitRequest
from runner.scratch import Scratch

OUTPUT_FOLDER_NAME = "output"
SECRETS_FOLDER_NAME = "secrets"
_HOSTFILE_NAME = "hostfile"

_log = logging.getLogger(__name__)


class Preparation:
    """`launch` once, `clean` when the job has ended."""

    def __init__(self, task: Path, code: CodeStore, children: Children) -> None:
        self._task = task
        self._code = code
        self._children = children
        self._scratch: Scratch | None = None

    async def launch(self, request: SubmitRequest) -> Launch:
        """Raises CannotStart. May be cancelled while code is being fetched."""
        image = await asyncio.to_thread(read_image_config, self._task)
        inherited = await asyncio.to_thread(environment.inherited)
        place = await asyncio.to_thread(settle, request, image)
        scratch = self._scratch = Scratch(request.job.attempt_id, place.identity)
        try:
            await self._put_code(request, place, inherited, scratch)
        finally:
            await asyncio.to_thread(self._code.drop)
        paths = await asyncio.to_thread(self._make_paths, request, place, scratch)

        def prepared() -> Launch:
            self._tell_sessions(request, place, paths)
            return prepare(request, image, inherited=inherited, place=place, paths=paths)

        return await asyncio.to_thread(prepared)

    def clean(self) -> None:
        """Blocking. Nothing of the job's secrets and environment is left."""
        session_environment.remove(self._task)
        if self._scratch is not None:
            self._scratch.remove()

    async def _put_code(
        self, request: SubmitRequest, place: Place, inherited: dict[str, str], scratch: Scratch
    ) -> None:
        if not request.job.repos and not request.job.files:
            return
        # 3 MiB and 30 ms that only jobs with code pay for.
        from runner.code.git import choose
        from runner.code.helper import Helpers
        from runner.code.preparing import CodePreparer

        env = {"PATH": environment.DEFAULT_PATH, **inherited}
        helpers = Helpers(self._children, env, place.identity)
        git = choose(lambda program: find(program, env, "/"), helpers, scratch)
        preparer = CodePreparer(self._code, git, place.working_dir, place.identity)
        await preparer.prepare(request)

    def _tell_sessions(self, request: SubmitRequest, place: Place, paths: Paths) -> None:
        env = session_environment.for_session(request, place.working_dir, paths)
        try:
            session_environment.write(self._task, env)
        except OSError as error:
            _log.error("visitors do not get the job's environment: %s", error)

    def _make_paths(self, request: SubmitRequest, place: Place, scratch: Scratch) -> Paths:
        repos = request.job.repos
        return Paths(
            repo_dir=place_of(repos[0].path, place.working_dir) if repos else None,
            output_dir=str(self._output_folder(place)),
            secrets_dir=_write_secrets(request, scratch),
            hostfile=self._set_up_cluster(request, place, scratch),
        )

    def _output_folder(self, place: Place) -> Path:
        """In the task's folder, so that it stays on the node as long as the task does. Who is not
        in the node's group may pass through that folder, not look into it."""
        folder = self._task / OUTPUT_FOLDER_NAME
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            if place.identity is not None:
                self._task.chmod(self._task.stat().st_mode | 0o001)
                os.chown(folder, place.identity.uid, place.identity.gid)
        except OSError as error:
            raise CannotStart(f"the output folder cannot be made: {error.strerror}") from error
        return folder

    def _set_up_cluster(self, request: SubmitRequest, place: Place, scratch: Scratch) -> str | None:
        cluster = request.cluster
        if cluster is None or request.job.job_count < 2:
            return None
        if request.cluster_key is not None:
            try:
                cluster_ssh.set_up(cluster, request.cluster_key, scratch, place.effective)
            except OSError as error:
                _log.error("no SSH between the nodes: %s", error)
        return str(scratch.file(_HOSTFILE_NAME, variables.hostfile(cluster), 0o644))


def _write_secrets(request: SubmitRequest, scratch: Scratch) -> str | None:
    if not request.secrets:
        return None
    folder = scratch.subfolder(SECRETS_FOLDER_NAME)
    for name, value in request.secrets.items():
        scratch.secret_file(f"{SECRETS_FOLDER_NAME}/{name}", value)
    return str(folder)
