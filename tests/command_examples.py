"""An example for each `fairlead` command, and what its help has no room for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Command:
    name: str
    example: str
    note: str = ""


INTRODUCTION = """\
# Every `fairlead` command

To run something, submit a file and watch its log; `fairlead ps` shows what runs:
```sh
fairlead apply -f train.yaml
fairlead ps
```
`fairlead COMMAND --help` shows the same. [The command line](command-line.md) explains what all
commands share: streams, exit status, `--json`, environment and SSH. [The API](api.md) has the
routes.

Written by `./dev pages`; change the commands' help or `tests/command_examples.py`, not this page.
"""

SECTIONS = {
    "Run something": [
        Command(
            "apply",
            "fairlead apply -f train.yaml -e EPOCHS=3",
            "The exit status is the job's exit code. A scheduled run is not followed. "
            "`--if-exists keep` follows the live run, whatever its configuration, and says so. "
            "A file with `type: fleet` makes [its hosts nodes](nodes.md#many-hosts-at-once); "
            "one with `type: gateway` adds a [gateway](gateways.md).",
        ),
        Command(
            "rerun",
            "fairlead rerun train --override env.LR=0.1 -n train-2",
            "It has the code that the run had, as long as the controller keeps it.",
        ),
        Command(
            "sbatch",
            "fairlead sbatch --code . job.sh",
            "[Coming from Slurm](coming-from-slurm.md) says what each line becomes.",
        ),
        Command(
            "convert",
            "fairlead convert sky.yaml > train.yaml",
            "[Coming from SkyPilot](coming-from-skypilot.md) says what each field becomes.",
        ),
        Command(
            "attach",
            "fairlead attach train --tail 100",
            "Ctrl-C detaches, and the run goes on.",
        ),
        Command(
            "wait",
            "fairlead wait train sweep-1",
            "At the end of a sweep it says which parameter sets failed.",
        ),
        Command(
            "shell",
            "fairlead shell -f train.yaml -- python3 train.py --smoke-test",
            "The job ends when you leave or the connection breaks.",
        ),
        Command(
            "plan",
            "fairlead plan -f train.yaml",
            "Nothing is submitted.",
        ),
        Command(
            "offer",
            "fairlead offer -f train.yaml",
            "Without a file it counts what is free on the nodes that take work.",
        ),
        Command(
            "schema",
            "fairlead schema > ~/.fairlead-schema.json",
            "[Editors](configuration.md#in-your-editor) complete and check the YAML with it.",
        ),
    ],
    "See what happens": [
        Command(
            "ps",
            'fairlead ps "train-*" --status running --watch',
            "`--watch --json` prints one line of JSON for each change.",
        ),
        Command(
            "inspect",
            "fairlead inspect train",
            "It shows recent attempts, ranks, occurrences and children. For a gang it also shows "
            "the incarnations and why the gang switched.",
        ),
        Command(
            "explain",
            "fairlead explain train",
            "It goes [node by node](scheduling.md). For a job that has an allocation it says what "
            "comes next, and by when.",
        ),
        Command("events", "fairlead events train --follow"),
        Command("logs", "fairlead logs train worker/3 --tail 100 --follow"),
        Command("metrics", "fairlead metrics train --last 1h"),
        Command(
            "outputs",
            "fairlead outputs train --pull results",
            "Jobs leave files in [`$FAIRLEAD_OUTPUT_DIR`](code-and-data.md#outputs). If the "
            "download is interrupted, run the command again: it continues.",
        ),
    ],
    "Work inside a job": [
        Command("ssh", "fairlead ssh train -- nvidia-smi", "It uses your own `ssh`."),
        Command(
            "ssh-config",
            "fairlead ssh-config train --install",
            "Editors, `scp`, `sftp` and `rsync` then reach the job.",
        ),
        Command("cp", "fairlead cp train:/workflow/model.pt .", "It uses your own `scp`."),
        Command(
            "port-forward",
            "fairlead port-forward train 6006 8888:9999",
            "It also reaches ports that listen only on the job's loopback.",
        ),
    ],
    "Change a run": [
        Command("stop", "fairlead stop train sweep-1 sweep-2"),
        Command("complete", "fairlead complete train"),
        Command(
            "suspend",
            "fairlead suspend train",
            "Its limits stand still meanwhile. Running jobs go on; a job that only waits keeps no "
            "allocation.",
        ),
        Command("resume", "fairlead resume train"),
        Command(
            "retry",
            "fairlead retry sweep --failed",
            "After the sweep's end they become a new run of the same name, from what was stored.",
        ),
        Command("scale", "fairlead scale sweep --parallel 16"),
        Command(
            "job abort",
            "fairlead job abort train main/2",
            "The default retry starts the job again and charges nothing.",
        ),
        Command("job abandon", "fairlead job abandon train main/2"),
        Command(
            "job interrupt",
            "fairlead job interrupt train main/2",
            "If the job exits with its `restart_exit_code`, it comes back.",
        ),
    ],
    "Services": [
        Command(
            "service show", "fairlead service show chat", "It also shows the load of each replica."
        ),
        Command("service history", "fairlead service history chat"),
        Command("service rollback", "fairlead service rollback chat --to 3"),
        Command(
            "service key add",
            'fairlead service key add chat --label "web shop"',
            "A key opens this service alone. It is shown once.",
        ),
        Command("service key list", "fairlead service key list chat"),
        Command("service key revoke", "fairlead service key revoke 3f9a2c"),
    ],
    "Your login": [
        Command(
            "login",
            "fairlead login https://fairlead.example.com",
            "It checks the token and saves it with the address in "
            "`~/.config/fairlead/controllers.json`, which only you can read.",
        ),
        Command("logout", "fairlead logout"),
        Command("use", "fairlead use fairlead.example.com"),
        Command("whoami", "fairlead whoami", "It also says when your token expires."),
        Command(
            "dashboard",
            "fairlead dashboard",
            "The link that it opens works once, within two minutes.",
        ),
        Command(
            "secret set",
            "fairlead secret set HF_TOKEN",
            "It asks for the value, or reads it from standard input. Jobs name it as "
            "[`${{ secrets.HF_TOKEN }}`](code-and-data.md#stored-secrets).",
        ),
        Command("secret list", "fairlead secret list"),
        Command("secret delete", "fairlead secret delete HF_TOKEN"),
        Command(
            "completion",
            "fairlead completion bash > ~/.local/share/bash-completion/completions/fairlead",
        ),
    ],
    "Nodes and fleets": [
        Command(
            "node install",
            "fairlead node install root@10.0.0.5 --name gpu-1 --bundle fairlead-node.tar",
            "It runs on your machine, where your keys stay. If you run it again, it changes "
            "only what differs. [More](nodes.md#machines-that-exist-one-command-for-each).",
        ),
        Command(
            "node add",
            "fairlead node add gpu-1 --host 10.0.0.5 --accept-host-key "
            "SHA256:ZUfz7NlnaNUBl7mg4fRDJHmYJYcKVHaUsmFvXsGJqzg",
            "Its shim must already run. The controller accepts only the host key that you name.",
        ),
        Command(
            "node user-data",
            "fairlead node user-data gpu-1 --fleet training > gpu-1.yaml",
            "The output holds the machine's private host key and is shown once. "
            "[More](node-images.md).",
        ),
        Command(
            "node register",
            "fairlead node register gpu-1 --address 10.0.0.5",
            "Its host key is pinned already.",
        ),
        Command("node list", "fairlead node list", "`fairlead node ls` is the same."),
        Command("node show", "fairlead node show gpu-1", "It ends with the node's latest events."),
        Command(
            "node set",
            "fairlead node set gpu-1 --attribute rack=r2 --fleet training",
            "`--attribute NAME=` takes an attribute away. With a new host key it shows both "
            "fingerprints.",
        ),
        Command("node cordon", 'fairlead node cordon gpu-1 --reason "noisy fan"'),
        Command("node uncordon", "fairlead node uncordon gpu-1"),
        Command(
            "node drain",
            'fairlead node drain gpu-1 --reason "new driver" --deadline 30m',
            "Without a deadline, its jobs run until they end by themselves.",
        ),
        Command("node resume", "fairlead node resume gpu-1"),
        Command(
            "node doctor",
            "fairlead node doctor gpu-1",
            "Each finding is a sentence and a fix. The exit status is 1 when jobs would suffer.",
        ),
        Command(
            "node clear-gpu",
            "fairlead node clear-gpu gpu-1 GPU-5c89a6ad-1d1b-4e0e-8c2e-3f7a0b6d9e11",
            "Use it after a repair, or after you took the GPU out.",
        ),
        Command(
            "node tasks",
            "fairlead node tasks gpu-1",
            "These are tasks for which the controller has no run, for example after a restore.",
        ),
        Command(
            "node stop-task",
            "fairlead node stop-task gpu-1 7bd3e16370a76035",
        ),
        Command("node remove", "fairlead node remove gpu-1"),
        Command(
            "node upgrade",
            "fairlead node upgrade --fleet training --batch 2 --bundle fairlead-node.tar",
            "It stops at the first node that does not come back healthy, and gives that node its "
            "former version. [More](nodes.md#upgrades).",
        ),
        Command("node key", "fairlead node key"),
        Command(
            "fleet add",
            "fairlead fleet add training --placement rack --attribute site=berlin",
        ),
        Command("fleet list", "fairlead fleet list", "The fleet `default` is always there."),
        Command("fleet set", "fairlead fleet set training --placement rack"),
        Command("fleet remove", "fairlead fleet remove training"),
        Command(
            "machine list",
            "fairlead machine list --all",
            "Fleets that [rent machines](machines.md) make them.",
        ),
        Command("machine orphans", "fairlead machine orphans"),
        Command(
            "machine end-orphans",
            "fairlead machine end-orphans aws-eu eu-central-1/i-0123456789abcdef0",
            "[What is not lost](machines.md#what-is-not-lost) explains which machines these are.",
        ),
        Command(
            "machine forget",
            "fairlead machine forget burst-912f4cf9",
            "[Another account](machines.md#another-account-under-the-same-name) explains when.",
        ),
        Command(
            "provider check",
            "fairlead provider check aws-eu --boot",
            "[Providers](machines.md) are named in the controller's file.",
        ),
        Command("offers list", "fairlead offers list gcp-us"),
        Command(
            "offers refresh",
            "fairlead offers refresh gcp-us",
            "[What it reads](machines.md#are-the-prices-right) differs between providers.",
        ),
        Command(
            "cost",
            "fairlead cost --by user,run --since 7d --per day",
            "Users who are not admins see only the costs of their own runs.",
        ),
    ],
    "Gateways": [
        Command(
            "gateway add",
            "fairlead gateway add edge --domain apps.example.com --host 203.0.113.7 "
            "--accept-host-key SHA256:ZUfz7NlnaNUBl7mg4fRDJHmYJYcKVHaUsmFvXsGJqzg",
            "[Gateways](gateways.md) are machines for public traffic to services.",
        ),
        Command("gateway list", "fairlead gateway list"),
        Command("gateway show", "fairlead gateway show edge"),
        Command("gateway remove", "fairlead gateway remove edge"),
        Command(
            "gateway setup",
            "fairlead gateway setup --check --tunnel-key "
            "'ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIC2hPzVQ controller'",
            "Run it on the gateway's machine, as root.",
        ),
        Command(
            "gateway run",
            "fairlead gateway run --data /var/lib/fairlead-gateway",
            "`gateway setup` makes a systemd unit that runs it.",
        ),
    ],
    "Users and tokens": [
        Command(
            "user add",
            "fairlead user add ada",
            "[Users and tokens](state.md#users-and-tokens) has the roles.",
        ),
        Command("user list", "fairlead user list"),
        Command("user show", "fairlead user show ada"),
        Command("user set", "fairlead user set ada --role admin"),
        Command("user grant", "fairlead user grant ada --band production"),
        Command("user remove", "fairlead user remove ada"),
        Command("token add", "fairlead token add --label laptop --expires 30d"),
        Command("token list", "fairlead token list"),
        Command("token revoke", "fairlead token revoke 3f9a2c"),
        Command(
            "secret rotate-key",
            "fairlead secret rotate-key",
            "If it is interrupted, run it again: it continues.",
        ),
    ],
    "The controller": [
        Command(
            "controllers",
            "fairlead controllers",
            "Only a controller that was started with `--url` has others.",
        ),
        Command(
            "controller",
            "fairlead controller --data /var/lib/fairlead-controller --listen 127.0.0.1:8700",
            "Its first start writes the admin's token to `admin-token` in the folder of `--data`. "
            "[The controller](controller.md) explains the options.",
        ),
        Command(
            "controller backup",
            "fairlead controller backup /backup/fairlead.tar --data /var/lib/fairlead-controller",
            "[Backup and restore](state.md#backup-and-restore) has the steps.",
        ),
        Command(
            "controller restore",
            "fairlead controller restore /backup/fairlead.tar --data /var/lib/fairlead-controller",
        ),
        Command(
            "controller mark-restored",
            "fairlead controller mark-restored --data /var/lib/fairlead-controller",
        ),
        Command(
            "controller doctor",
            "fairlead controller doctor --data /var/lib/fairlead-controller --url https://c2:8700 "
            "--database-file /etc/fairlead/database",
            "The controller may be running. Run this as its user, with its options. "
            "[What it looks at](state.md#is-everything-right).",
        ),
        Command(
            "controller upgrade-check",
            "fairlead controller upgrade-check --data /var/lib/fairlead-controller "
            "--database-file /etc/fairlead/database",
            "Run the new version's command before you start its controller. "
            "[A rolling upgrade](state.md#a-rolling-upgrade) has the steps.",
        ),
    ],
}
"""The page's sections, in the order of a reader's first weeks."""
