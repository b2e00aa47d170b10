"""The list of the `fairlead` commands: their first words, and what they do.

This module imports nothing that is slow: the list of commands is shown without the library that
parses arguments.
"""

from __future__ import annotations

from collections.abc import Sequence

ABOUT = "Runs GPU work on machines that you own or rent."
COMMANDS = {
    "apply": ("runs.apply:apply", "Submit a run and follow it."),
    "sbatch": ("runs.sbatch:sbatch", "Submit a batch script of Slurm."),
    "convert": ("runs.convert:convert", "Print a task of SkyPilot as YAML for apply."),
    "rerun": ("runs.rerun:rerun", "Submit a run again, with other values."),
    "attach": ("runs.apply:attach", "Follow a live run and forward its ports."),
    "wait": ("runs.apply:wait", "Wait until runs have ended."),
    "ps": ("runs.show:ps", "List runs."),
    "inspect": ("runs.show:inspect", "Show a run in full."),
    "offer": ("runs.scheduling:offer", "Show what is free."),
    "cost": ("nodes.machines:cost", "Show what rented machines have cost."),
    "explain": ("runs.scheduling:explain", "Show why a run waits."),
    "plan": ("runs.scheduling:plan", "Show where a run would go."),
    "schema": ("completion:schema", "Write the JSON Schema of the YAML."),
    "completion": (
        "completion:completion",
        "Print the completion script for a shell.",
    ),
    "metrics": ("runs.show:metrics", "Show what a run's jobs use."),
    "logs": ("jobs.logs:logs", "Show a run's log."),
    "outputs": ("jobs.outputs:outputs", "List or download the files that jobs left."),
    "stop": ("runs.actions:stop", "Stop runs."),
    "complete": ("runs.actions:complete", "End a run as done now."),
    "suspend": ("runs.actions:suspend", "Suspend a run: it gets no placement, retry or trigger."),
    "retry": ("runs.sweeps:retry", "Run parameter sets of a sweep again."),
    "resume": ("runs.actions:resume", "Resume a suspended run."),
    "scale": ("runs.actions:scale", "Change how many jobs a group has, or a sweep runs at once."),
    "ssh": ("jobs.ssh:ssh", "Log in to a run's job."),
    "cp": ("jobs.ssh:cp", "Copy files to or from a run's job."),
    "shell": ("jobs.shell:shell", "Start a job, and work in its container."),
    "ssh-config": ("jobs.ssh:ssh_config", "Print the entries for ~/.ssh/config."),
    "port-forward": ("jobs.ports:port_forward", "Forward local ports to ports of a run's job."),
    "events": ("runs.show:events", "Show what happened."),
    "controllers": ("nodes.controllers:controllers", "Show which of several controllers leads."),
    "login": ("account.login:login", "Log in to a controller."),
    "logout": ("account.login:logout", "Forget a controller and its token."),
    "use": ("account.login:use", "Choose among the controllers that you are logged in to."),
    "dashboard": ("account.dashboard:dashboard", "Open the dashboard in a browser, logged in."),
    "whoami": ("account.login:whoami", "Show the controller and the user."),
}
"""Commands: the module of `fairlead.cli.commands` with its function, and the help."""
GROUPS = {
    "controller": "Start a controller; examine, back up and restore it.",
    "job": "Abort, abandon or interrupt one job of a run.",
    "node": "Add, show, change, drain and remove nodes.",
    "gateway": "Add, list, show and remove gateways of services.",
    "fleet": "Add, list, change and remove fleets.",
    "machine": "List and forget rented machines; list machines without a record.",
    "provider": "Check a provider of machines.",
    "offers": "List what a provider rents, and read its prices again.",
    "user": "Add, list, change and remove users.",
    "token": "Add, list and revoke tokens.",
    "service": "Show services, roll them back, and manage their keys.",
    "secret": "Store secrets that jobs name in their YAML.",
}
"""Commands that have commands of their own."""


def asks_for_the_list(arguments: Sequence[str]) -> bool:
    """Return whether the user asks what commands there are."""
    return list(arguments) in ([], ["--help"], ["-h"])


def listed() -> str:
    """Return the list of commands as the user reads it."""
    helps = {name: text for name, (_, text) in COMMANDS.items()} | GROUPS
    width = max(map(len, helps)) + 2
    lines = "\n".join(f"  {name:<{width}}{helps[name]}" for name in sorted(helps))
    return (
        f"Usage: fairlead COMMAND\n\n{ABOUT}\n\nCommands:\n{lines}\n\n"
        "`fairlead COMMAND --help` shows what a command takes; `fairlead --version` the version.\n"
    )
