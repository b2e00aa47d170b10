"""What a node is made of."""

from __future__ import annotations

from pathlib import Path

from installer.options import Docker, Options
from installer.plan import steps
from installer.steps import File

ROOT = Path(__file__).parents[3]


def written(tmp_path: Path) -> dict[str, str]:
    """The files of a node, from a bundle with the system's files alone."""
    (tmp_path / "manifest.json").write_text(
        '{"version": "1", "architecture": "amd64", "machine": "x86_64", "runtime": "r"}'
    )
    system = tmp_path / "system"
    system.mkdir()
    for source in (
        *("packer/firewall.nft", "packer/firewall-jobs.nft", "packer/sysctl.conf"),
        *("cloud-init/sshd_fairlead.conf", "packer/systemd/fairlead-shim.service"),
        "packer/systemd/fairlead-firewall.service",
    ):
        (system / Path(source).name).write_text((ROOT / source).read_text())
    made = steps(tmp_path, Options(docker=Docker.USE))
    return {step.name: step.content for step in made if isinstance(step, File)}


def test_a_login_at_a_node_carries_more_requests_than_sshds_own_limit(tmp_path: Path) -> None:
    """At 1,024 open files sshd refuses the 1,020th channel of a connection."""
    lines = written(tmp_path)["/etc/security/limits.d/60-fairlead.conf"].splitlines()
    limits = [line.split() for line in lines if not line.startswith("#")]
    assert limits == [[user, "-", "nofile", "65536"] for user in ("fairlead", "fairlead-gateway")]
