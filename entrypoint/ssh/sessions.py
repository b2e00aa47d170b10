"""Runs a visitor's program: a command with pipes, or a terminal with a shell in it.

Output is pumped to its end, with the channel's flow control, before the exit status is sent,
because a client takes the status as the end. A terminal is opened by hand: its process must be the
leader of a session that owns it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import asyncssh

from entrypoint.ssh.logins import Login, NothingToRun, kept_path
from entrypoint.ssh.terminal import Terminal
from runner.processes import environment, session_environment
from runner.processes.spawn import Child, Children, Ending, start

Process = asyncssh.SSHServerProcess[bytes]

_CHUNK = 1 << 17
# As a shell ends that finds no program (POSIX, 2.8.2).
_NOT_RUN = 127


class Sessions:
    def __init__(self, task: Path) -> None:
        self._task = task
        self._children = Children()
        self._inherited = environment.inherited()

    async def run(self, process: Process) -> None:
        """Handle one session for asyncssh: shell, exec, or an unknown subsystem."""
        login = process.get_extra_info("login")
        assert isinstance(login, Login)
        try:
            if process.subsystem is not None:
                raise NothingToRun(f"there is no subsystem {process.subsystem!r} here")
            env = self._environment(login, process)
            if process.term_type is None:
                await self._with_pipes(login, env, process)
            else:
                await self._in_terminal(login, env, process)
        except (NothingToRun, OSError, subprocess.SubprocessError) as error:
            # The client may have left meanwhile.
            with contextlib.suppress(OSError, asyncssh.Error):
                process.stderr.write(f"fairlead: {error}\n".encode())
                process.exit(_NOT_RUN)

    async def _with_pipes(self, login: Login, env: dict[str, str], process: Process) -> None:
        stdin, stdout, stderr = os.pipe(), os.pipe(), os.pipe()
        theirs = (stdin[0], stdout[1], stderr[1])
        try:
            child = self._start(login, env, process.command, *theirs)
        except BaseException:
            for end in (stdin[1], stdout[0], stderr[0]):
                os.close(end)
            raise
        finally:
            # A pipe ends when nobody has its other end open any more (pipe(7)): not we either.
            for end in theirs:
                os.close(end)
        feeding = asyncio.create_task(_feed(process, child, stdin[1]))
        try:
            await asyncio.gather(_pump(stdout[0], process.stdout), _pump(stderr[0], process.stderr))
            _say_end(process, await child.wait())
        finally:
            feeding.cancel()
            await asyncio.wait({feeding})

    async def _in_terminal(self, login: Login, env: dict[str, str], process: Process) -> None:
        terminal = Terminal(process.term_size)
        try:
            if login.change:
                os.chown(terminal.name, login.identity.uid, -1)
            env |= {"TERM": process.term_type or "dumb", "SSH_TTY": terminal.name}
            slave = terminal.slave
            child = self._start(
                login, env, process.command, slave, slave, slave, preexec_fn=terminal.take
            )
            terminal.close_slave()
            if await terminal.carry(process, child):
                terminal.close()
                _say_end(process, await child.wait())
        finally:
            terminal.close()

    def _start(
        self,
        login: Login,
        env: dict[str, str],
        command: str | None,
        stdin: int,
        stdout: int,
        stderr: int,
        **options: Any,
    ) -> Child:
        program, argv = login.argv(command, env)
        if command is None:
            env |= kept_path(env)
        identity = login.identity
        if login.change:
            options |= {"user": identity.uid, "group": identity.gid}
            options["extra_groups"] = identity.groups
        return start(
            argv,
            self._children,
            executable=program,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            env=env,
            cwd=login.home,
            start_new_session=True,
            **options,
        )

    def _environment(self, login: Login, process: Process) -> dict[str, str]:
        job = session_environment.read(self._task)
        env = login.environment(self._inherited | job)
        env |= {_text(name): _text(value) for name, value in process.env.items()}
        peer, own = process.get_extra_info("peername"), process.get_extra_info("sockname")
        if peer and own:
            env["SSH_CLIENT"] = f"{peer[0]} {peer[1]} {own[1]}"
            env["SSH_CONNECTION"] = f"{peer[0]} {peer[1]} {own[0]} {own[1]}"
        agent = process.channel.get_agent_path()
        if agent is not None:
            env["SSH_AUTH_SOCK"] = agent
            if login.change:
                # asyncssh makes the socket as this process's user; the visitor has no right to it.
                for path in (agent, os.path.dirname(agent)):
                    os.chown(path, login.identity.uid, login.identity.gid)
        return env


async def _feed(process: Process, child: Child, pipe: int) -> None:
    """Give the program all input of the visitor, however late it reads it."""
    loop = asyncio.get_running_loop()
    # asyncio has no stream for a pipe to write to: a StreamWriter needs the protocol of a reader,
    # which gets nothing.
    reader = asyncio.StreamReader(loop=loop)
    transport, protocol = await loop.connect_write_pipe(
        lambda: asyncio.StreamReaderProtocol(reader, loop=loop), os.fdopen(pipe, "wb", 0)
    )
    writer = asyncio.StreamWriter(transport, protocol, None, loop)
    # A program need not read all its input: EPIPE is no failure of `yes | ssh JOB head`.
    with contextlib.suppress(OSError, asyncssh.Error):
        try:
            while data := await _read(process, child):
                writer.write(data)
                await writer.drain()
            writer.close()
            await writer.wait_closed()
        finally:
            # `close` would wait until the program has read the rest, which it may never do.
            if transport.get_write_buffer_size() or not transport.is_closing():
                transport.abort()


async def _read(process: Process, child: Child) -> bytes:
    while True:
        try:
            return await process.stdin.read(_CHUNK)
        except asyncssh.SignalReceived as received:
            number = getattr(signal, f"SIG{received.signal}", None)
            if number is not None:
                child.signal_group(number)
        # asyncssh raises within `read` what comes between the data.
        except (asyncssh.BreakReceived, asyncssh.TerminalSizeChanged):
            continue


async def _pump(pipe: int, writer: asyncssh.SSHWriter[bytes]) -> None:
    """Read to the end of the pipe. If the visitor has left, the pipe is closed, as a program in a
    pipeline expects."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=_CHUNK, loop=loop)
    with os.fdopen(pipe, "rb", 0) as file:
        transport, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader, loop=loop), file
        )
        try:
            while data := await reader.read(_CHUNK):
                writer.write(data)
                await writer.drain()
        # The visitor has left. The program learns of it when it writes on: its pipe is closed
        # (pipe(7)).
        except (OSError, asyncssh.Error):
            return
        finally:
            transport.close()


def _say_end(process: Process, ending: Ending) -> None:
    with contextlib.suppress(OSError, asyncssh.Error):
        if ending.signal is not None:
            # SSH's names of signals have no SIG (RFC 4254, 6.10).
            process.exit_with_signal(ending.signal.removeprefix("SIG"))
        else:
            process.exit(ending.code)


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else os.fsdecode(value)
