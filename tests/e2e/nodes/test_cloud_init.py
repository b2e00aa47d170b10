"""User-data, judged by the cloud-init of this release: its schema, its keys, how it joins parts."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from controller.service.machines.user_data import render
from fairlead.cli.commands.nodes.user_data import multipart
from tests.support.daemons import DaemonFailed, run
from tests.unit.test_user_data import DATA, JOINING

pytestmark = pytest.mark.e2e

SCHEMAS = Path("/usr/lib/python3/dist-packages/cloudinit/config/schemas")
WORDS = msgspec.structs.replace(DATA, volume_prefixes=("/a:b #c", "'\"", "{x}"))
JOIN = """
import sys, json
from pathlib import Path
from cloudinit import handlers, helpers, user_data, util
from cloudinit.handlers.cloud_config import CloudConfigPartHandler
folder = Path(sys.argv[1])
paths = helpers.Paths({"cloud_dir": str(folder), "run_dir": str(folder)})
message = user_data.UserDataProcessor(paths).process(sys.stdin.read())
handler = CloudConfigPartHandler(paths)
handler.cloud_fn = str(folder / "joined")
handler.handle_part(None, "__begin__", None, None, None, None)
for part in message.walk():
    if part.get_content_type() == "text/cloud-config":
        headers = dict(part.items())
        headers["Content-Type"] = part.get_content_type()
        text = util.fully_decoded_payload(part)
        kind, name = part.get_content_type(), part.get_filename()
        handler.handle_part(None, kind, name, text, None, headers)
handler.handle_part(None, "__end__", None, None, None, None)
print(Path(handler.cloud_fn).read_text())
"""


def known_keys() -> set[str]:
    """Top-level keys of all modules that this cloud-init has."""
    schema = json.loads((SCHEMAS / "schema-cloud-config-v1.json").read_text())
    return {
        key
        for module in schema["$defs"].values()
        for part in (module, *module.get("allOf", ()), *module.get("anyOf", ()))
        for key in part.get("properties", {})
    }


def joined(folder: Path, text: str) -> dict[str, Any]:
    """All parts of it, as cloud-init merges them."""
    done = subprocess.run(
        ["/usr/bin/python3", "-c", JOIN, folder], input=text, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = yaml.safe_load(done.stdout)
    return document


@pytest.mark.parametrize("data", [DATA, WORDS, JOINING])
def test_user_data_is_valid_by_the_schema_and_has_no_unknown_key(tmp_path: Path, data: Any) -> None:
    file = tmp_path / "user-data"
    file.write_text(render(data))
    assert "Valid" in run(["cloud-init", "schema", "--config-file", file])
    assert yaml.safe_load(file.read_text()).keys() <= known_keys()


def test_the_schema_refuses_what_is_wrong(tmp_path: Path) -> None:
    file = tmp_path / "user-data"
    file.write_text(render(DATA).replace("ssh_deletekeys: true", "ssh_deletekeys: 17"))
    with pytest.raises(DaemonFailed, match="ssh_deletekeys"):
        run(["cloud-init", "schema", "--config-file", file])
    assert "ssh_deletekey" not in known_keys()


def test_own_user_data_adds_files_and_commands_and_overrides_no_key(tmp_path: Path) -> None:
    own = """#cloud-config
hostname: other
ssh_keys: {ed25519_private: theirs}
packages: [htop]
write_files: [{path: /etc/motd, content: hello}]
runcmd: [[touch, /done]]
"""
    ours = yaml.safe_load(render(DATA))
    document = joined(tmp_path, multipart(render(DATA), own))
    assert document["hostname"] == ours["hostname"]
    assert document["ssh_keys"] == ours["ssh_keys"]
    assert document["packages"] == ["htop"]
    assert [file["path"] for file in document["write_files"]] == [
        "/etc/fairlead/node.yaml",
        "/etc/motd",
    ]
    assert document["runcmd"] == [*ours["runcmd"], ["touch", "/done"]]
