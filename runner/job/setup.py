"""Everything between "run" and the job's first instruction: code, secrets, folders, launch.

`Groundwork` is what a job finds when it begins: identity, folders, secrets, hostfile, environment.
"""

from __future__ import annotations

import asyncio
import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from common.files.task_folder import OUTPUT_FOLDER_NAME, ImageConfig
from fairlead.wire.job import BucketFolder, SubmitRequest, code_changes
from runner.code.store import CodeStore
from runner.errors import CannotStart
from runner.job import cluster_ssh
from runner.job.end_signal import SIGNAL_NAME
from runner.processes import environment, session_environment, variables
from runner.processes.launch import (
    Launch,
    LaunchSettings,
    find,
    make_folder,
    place_of,
    prepare,
    read_image_config,
    settle,
)
from runner.processes.scratch import Scratch
from runner.processes.spawn import Children, Ending
from runner.processes.variables import Paths

if TYPE_CHECKING:
    from runner.code import prepare as code_prepare
    from runner.code.helper import Helpers

SECRETS_FOLDER_NAME = "secrets"
SETUP_MARK_NAME = "setup-done"
PARAMETERS_NAME = "params.json"
_HOSTFILE_NAME = "hostfile"
_log = logging.getLogger(__name__)


class Groundwork:
    """The preparations for one job. Call `clean` when the job has ended, or was not started. All of
    it blocks: call it in a thread."""

    def __init__(self, task: Path, request: SubmitRequest, image: Path | None = None) -> None:
        """Read the image's configuration, from the folder `image` if it is not in the job's own.
        Raises CannotStart."""
        self._task = task
        self._request = request
        self._image: ImageConfig = read_image_config(image or task)
        self.inherited = environment.inherited()
        self.place: LaunchSettings = settle(request, self._image)
        self.scratch = Scratch(request.job.attempt_id, self.place.identity)
        self._in_cluster = False
        self.venv: str | None = None
        """The folder of the job's venv, if it asks for a version of Python."""
        self.troubles: list[str] = []
        """Missing parts that are not essential to the job, for the runner's own log."""

    def launch(self) -> Launch:
        """Return what to execute, once the code is in its place. Raises CannotStart."""
        paths = self._make_paths()
        self._tell_sessions(paths)
        return prepare(
            self._request,
            self._image,
            inherited=self.inherited,
            settings=self.place,
            paths=paths,
            setup_mark=self._make_setup_mark(),
        )

    @property
    def code(self) -> tuple[str, ...]:
        job = self._request.job
        paths = (
            *(one.path for one in job.repos),
            *(one.path for one in job.files),
            *(one.path for one in job.buckets),
        )
        return tuple(place_of(path, self.place.working_dir) for path in paths)

    def clean(self) -> None:
        """Remove everything of the job's secrets and environment."""
        session_environment.remove(self._task)
        if self._in_cluster:
            with suppress(OSError):
                cluster_ssh.take_back(self.scratch, self.place.effective)
        self.scratch.remove()

    def _tell_sessions(self, paths: Paths) -> None:
        env = session_environment.for_session(
            self._request, self.place.working_dir, paths, self.inherited.get("PATH")
        )
        try:
            session_environment.write(self._task, env)
        except OSError as error:
            self.troubles.append(f"visitors do not get the job's environment: {error}")

    def _make_paths(self) -> Paths:
        repos = self._request.job.repos
        output = self._output_folder()
        return Paths(
            repo_dir=place_of(repos[0].path, self.place.working_dir) if repos else None,
            output_dir=str(output),
            parameters=self._write_parameters(output),
            signal_file=None if self._request.job.signal is None else str(self._task / SIGNAL_NAME),
            secrets_dir=_write_secrets(self._request, self.scratch),
            hostfile=self._set_up_cluster(),
            venv=self.venv,
        )

    def _output_folder(self) -> Path:
        """Make the output folder in the task's folder, so that it stays on the node as long as the
        task.

        A user who is not in the node's group may pass through that folder, but not list it.
        """
        folder = self._task / OUTPUT_FOLDER_NAME
        identity = self.place.identity
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            if identity is not None:
                self._task.chmod(self._task.stat().st_mode | 0o001)
                os.chown(folder, identity.uid, identity.gid)
        except OSError as error:
            raise CannotStart(f"the output folder cannot be made: {error.strerror}") from error
        return folder

    def _write_parameters(self, folder: Path) -> str | None:
        """Write the job's parameter set among its outputs, so that whoever reads these knows what
        made them."""
        parameters, identity = self._request.job.parameters, self.place.identity
        if parameters is None:
            return None
        file = folder / PARAMETERS_NAME
        try:
            # The folder is the job's own, which may have left a link there: never follow it.
            file.unlink(missing_ok=True)
            with open(file, "xb") as opened:
                opened.write(msgspec.json.format(msgspec.json.encode(parameters), indent=2) + b"\n")
                if identity is not None:
                    os.fchown(opened.fileno(), identity.uid, identity.gid)
        except OSError as error:
            raise CannotStart(f"{PARAMETERS_NAME} cannot be written: {error.strerror}") from error
        return str(file)

    def _make_setup_mark(self) -> str | None:
        """Make the empty file to which the job writes when its `setup` has succeeded."""
        if not self._request.job.setup:
            return None
        mark, identity = self._task / SETUP_MARK_NAME, self.place.identity
        try:
            mark.write_bytes(b"")
            if identity is not None:
                os.chown(mark, identity.uid, identity.gid)
        except OSError as error:
            raise CannotStart(f"the setup cannot begin: {error.strerror}") from error
        return str(mark)

    def _set_up_cluster(self) -> str | None:
        cluster, key = self._request.cluster, self._request.cluster_key
        if cluster is None or self._request.job.job_count < 2:
            return None
        if key is not None:
            try:
                cluster_ssh.set_up(cluster, key, self.scratch, self.place.effective)
                self._in_cluster = True
            except OSError as error:
                self.troubles.append(f"no SSH between the nodes: {error}")
        return str(self.scratch.file(_HOSTFILE_NAME, variables.hostfile(cluster), 0o644))


def _write_secrets(request: SubmitRequest, scratch: Scratch) -> str | None:
    if not request.secrets:
        return None
    folder = scratch.subfolder(SECRETS_FOLDER_NAME)
    for name, value in request.secrets.items():
        scratch.secret_file(f"{SECRETS_FOLDER_NAME}/{name}", value)
    return str(folder)


def _variables(request: SubmitRequest) -> dict[str, str]:
    """Return what the user gives the job, secrets included."""
    return {**request.job.env, **request.secrets}


class Preparation:
    """Prepares one job. Call `launch` once, and `clean` when the job has ended."""

    def __init__(
        self,
        task: Path,
        code: CodeStore,
        children: Children,
        image: Path | None = None,
        *,
        brings: bool = True,
    ) -> None:
        """`image`: the folder with the image's configuration, if it is not `task`. `brings`: code
        and buckets are brought; another job of this container has done so otherwise."""
        self.keeps = False
        """The job may start again with other code."""
        self._code_brought: code_prepare.Brought | None = None
        self._task = task
        self._brings = brings
        self._image = image
        self._code = code
        self._children = children
        self._groundwork: Groundwork | None = None
        self._request: SubmitRequest | None = None
        self._brought: list[tuple[BucketFolder, int]] = []

    async def launch(self, request: SubmitRequest) -> Launch:
        """Prepare and return what to execute. Raises CannotStart. It may be cancelled while code is
        being fetched."""
        groundwork = await asyncio.to_thread(Groundwork, self._task, request, self._image)
        self._groundwork, self._request = groundwork, request
        try:
            if self._brings:
                await self._put_code(request, groundwork)
            await self._bring_python(request, groundwork)
            if self._brings:
                await self._bring_buckets(request, groundwork)
        finally:
            if self._code.is_used:
                await asyncio.to_thread(self._code.drop)
        return await self._launched(groundwork)

    async def launch_again(self, request: SubmitRequest, code: CodeStore) -> Launch:
        """Put the changed code of `code` in its place, and return what to execute. What the job has
        made, its venv and its buckets are as it left them. Raises CannotStart."""
        assert self._groundwork is not None
        assert self._request is not None
        await asyncio.to_thread(self._groundwork.clean)
        groundwork = await asyncio.to_thread(Groundwork, self._task, request, self._image)
        groundwork.venv = self._groundwork.venv
        before, self._groundwork, self._request = self._request, groundwork, request
        try:
            preparer = self._preparer(code, groundwork)
            await preparer.renew(request, before)
        finally:
            if code.is_used:
                await asyncio.to_thread(code.drop)
        return await self._launched(groundwork)

    def why_not_again(self, request: SubmitRequest) -> str | None:
        """Return why the changed code cannot be put in its place, as far as that is known before
        the job is stopped; None: nothing is known."""
        groundwork, before = self._groundwork, self._request
        if groundwork is None or before is None:
            return None
        old, new = before.job, request.job
        left_alone = frozenset() if self._code_brought is None else self._code_brought.left_alone
        taken_back = [
            was
            for was, _ in code_changes((old.repos, old.files), (new.repos, new.files)).repos
            if was.diff is not None
            and place_of(was.path, groundwork.place.working_dir) not in left_alone
        ]
        if not taken_back or find("git", self._helpers(groundwork).env, "/") is not None:
            return None
        path = taken_back[0].path
        return (
            f"the earlier changes of the repository in {path!r} cannot be taken back: the image has"
            " no git"
        )

    async def _launched(self, groundwork: Groundwork) -> Launch:
        launch = await asyncio.to_thread(groundwork.launch)
        for trouble in groundwork.troubles:
            _log.error("%s", trouble)
        return launch

    async def keep_outputs(
        self, request: SubmitRequest, ending: Ending, started_at: float
    ) -> list[str]:
        """Copy what the job's `outputs` name, and its core dumps, to its output folder; write its
        `buckets` back. Return the lines for the log."""
        groundwork, job = self._groundwork, request.job
        if groundwork is None or not job.leaves_something:
            return []
        from runner.job import buckets, cores, outputs

        helpers = self._helpers(groundwork)
        working_dir, lines = groundwork.place.working_dir, []
        target = str(self._task / OUTPUT_FOLDER_NAME)
        if job.core_dumps:
            of_cores = cores.Order(
                working_dir=working_dir,
                target=target,
                since=started_at,
                most=job.core_dumps,
                limit=job.outputs_limit,
            )
            lines += await cores.keep(helpers, of_cores, ending, cores.this_kernel())
        if job.outputs:
            order = outputs.Order(
                working_dir=working_dir, target=target, paths=job.outputs, limit=job.outputs_limit
            )
            lines += await outputs.copy(helpers, order)
        lines += await buckets.write_back(self._brought, helpers, _variables(request))
        return lines

    @property
    def code(self) -> tuple[str, ...]:
        """The folders of the code and the inputs of the prepared job."""
        return () if self._groundwork is None else self._groundwork.code

    @property
    def working_dir(self) -> str | None:
        """The job's folder, once it is prepared."""
        return None if self._groundwork is None else self._groundwork.place.working_dir

    def clean(self) -> None:
        """Remove everything of the job's secrets and environment. Blocking."""
        if self._groundwork is not None:
            self._groundwork.clean()
        else:
            session_environment.remove(self._task)

    def _helpers(self, groundwork: Groundwork) -> Helpers:
        from runner.code.helper import Helpers

        env = {"PATH": environment.DEFAULT_PATH, **groundwork.inherited}
        return Helpers(self._children, env, groundwork.place.identity)

    async def _bring_python(self, request: SubmitRequest, groundwork: Groundwork) -> None:
        if request.job.python is None:
            return
        from runner.job.python import make_venv

        place, helpers = groundwork.place, self._helpers(groundwork)
        helpers.env["HOME"] = place.effective.home
        groundwork.venv = await make_venv(self._task, request.job.python, helpers, place.identity)

    async def _bring_buckets(self, request: SubmitRequest, groundwork: Groundwork) -> None:
        """Copy the objects of the job's `buckets`. Raises CannotStart."""
        if not request.job.buckets:
            return
        from runner.job.buckets import bring

        helpers, owner = self._helpers(groundwork), groundwork.place.identity
        for folder in request.job.buckets:
            await asyncio.to_thread(make_folder, folder.path, owner, "buckets.path")
            at = await bring(folder, helpers, _variables(request))
            self._brought.append((folder, at))

    async def _put_code(self, request: SubmitRequest, groundwork: Groundwork) -> None:
        if not request.job.repos and not request.job.files:
            return
        await self._preparer(self._code, groundwork).prepare(request)

    def _preparer(self, code: CodeStore, groundwork: Groundwork) -> code_prepare.CodePreparer:
        # 3 MiB and 30 ms that only jobs with code pay for.
        from runner.code.git import choose
        from runner.code.prepare import Brought, CodePreparer

        if self.keeps and self._code_brought is None:
            self._code_brought = Brought()
        place, helpers = groundwork.place, self._helpers(groundwork)
        git = choose(lambda program: find(program, helpers.env, "/"), helpers, groundwork.scratch)
        return CodePreparer(
            code, git, place.working_dir, place.identity, brought=self._code_brought
        )
