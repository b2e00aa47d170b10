"""What an administrator copies from the guide is what the tests run sshd with."""

from __future__ import annotations

import re
from pathlib import Path

CHECKOUT = Path(__file__).parents[2]


def test_guide_and_file_have_the_same_settings_for_both_users() -> None:
    guide = (CHECKOUT / "docs/nodes.md").read_text()
    file = (CHECKOUT / "cloud-init/sshd_fairlead.conf").read_text()
    blocks = re.findall(r"^Match User .*(?:\n    .*)+", guide, re.MULTILINE)

    assert blocks == re.findall(r"^Match User .*(?:\n    .*)+", file, re.MULTILINE)
    assert [block.splitlines()[0] for block in blocks] == [
        "Match User fairlead",
        "Match User fairlead-jump",
    ]
