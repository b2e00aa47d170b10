"""The list of the `fairlead` commands: their first words, and what they do.

This module imports nothing that is slow: the list of commands is shown without the library that
parses arguments.
"""

from __future__ import annotations

from collections.abc import Sequence

ABOUT = "Runs GPU work on machines that you own or rent."
COMMANDS = {
    "apply": ("apply:apply", "Submit a run and follow it."),
    "attach": ("apply:attach", "Follow a live run, and its ports."),
    "ps": ("runs:ps", "List runs."),
    "inspect": ("runs:inspect", "Show a run in full."),
    "offer": ("scheduling:offer", "Show what is free."),
    "explain": ("scheduling:explain", "Show why a run waits."),
    "plan": ("scheduling:plan", "Show where a run would go."),
    "schema": ("completion:schema", "Write the JSON Schema of the YAML."),
    "completion": (
        "completion:completion",
        "Write the completion of this command for a shell.",
    ),
    "metrics": ("runs:metrics", "Show what a run's jobs use."),
    "logs": ("logs:logs", "Show a run's log."),
    "outputs": ("outputs:outputs", "Show or download what jobs left."),
    "stop": ("actions:stop", "Stop runs."),
    "complete": ("actions:complete", "End a run as done now."),
    "suspend": ("actions:suspend", "Suspend a run: no placements, retries or triggers."),
    "resume": ("actions:resume", "Resume a suspended run."),
    "scale": ("actions:scale", "Change the number of jobs of a group that is no gang."),
    "ssh": ("ssh:ssh", "Log in to a run's job."),
    "cp": ("ssh:cp", "Copy files to or from a run's job."),
    "shell": ("shell:shell", "Start a job, and work in its container."),
    "ssh-config": ("ssh:ssh_config", "Print the entries for ~/.ssh/config."),
    "port-forward": ("ports:port_forward", "Forward local ports to ports of a run's job."),
    "events": ("runs:events", "Show what happened."),
    "login": ("login:login", "Log in to a controller."),
    "logout": ("login:logout", "Forget a controller and its token."),
    "use": ("login:use", "Choose among the controllers that you are logged in to."),
    "dashboard": ("dashboard:dashboard", "Open the dashboard in a browser, logged in."),
    "whoami": ("login:whoami", "Show the controller and the user."),
}
"""Commands: the module of `controller.cli.commands` with its function, and the help."""
GROUPS = {
    "controller": "Start a controller; back it up and restore it.",
    "job": "Abort, abandon or interrupt one job of a run.",
    "node": "Add, show, change, drain and remove nodes.",
    "gateway": "Add, list, show and remove gateways of services.",
    "fleet": "Add, list, change and remove fleets.",
    "user": "Add, list, change and remove users.",
    "token": "Add, list and revoke tokens.",
    "service": "Make and revoke keys of services.",
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
