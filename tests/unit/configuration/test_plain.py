"""The text of a file means what a client makes of it, or it is not taken."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from fairlead.configuration.text.plain import MAX_CHARACTERS, MAX_CONTENT, NotPlain, plain
from fairlead.configuration.text.source import SourceError
from fairlead.submission import filled, read_document

PLAIN = [
    "type: task\ncommands: [echo hello]\n",
    "# a comment\ntype: task\ncommands:\n- |\n  # no comment\n  echo a\n",
    "type: task\nenv: {A: 1.10, B: 007, C: yes}\ncommands: [a]\n",
    "type: task\nenv:\n- A=1\n- B=\ncommands: [a]\n",
    "{type: task, commands: ['a: b']}",
    "type: task\nsweep: {parameters: {a: [1, 2]}}\ncommands: [a]\n",
    "type: task\nsecrets: {A: '${{ secrets.B }}'}\ncommands: [a]\n",
    "type: task\nmax_price: .inf\ncommands: [a]\n",
    "type: task\ncomands: [a]\n",
    f"type: task\nnodes: {1 << 64}\ncommands: [a]\n",
    "\ufefftype: task\ncommands: [é]\n",
]
LONG = "a" * 12_000
NOT_PLAIN = [
    "type: service\nport: 80\ncommands: [a]\n",
    "type: fleet\nhosts: []\n",
    "commands: [a]\n",
    "- type: task\n",
    "",
    "type: task\nfiles: [a.py]\ncommands: [a]\n",
    "type: task\nrepos: [.]\ncommands: [a]\n",
    "type: task\nsweep: {file: sets.csv}\ncommands: [a]\n",
    "type: task\nenv: [HOME]\ncommands: [a]\n",
    "type: task\nsecrets: [HOME]\ncommands: [a]\n",
    "type: task\nregistry_auth: {username: a, password: '${HOME}'}\ncommands: [a]\n",
    "type: task\ngroups: [{name: a, env: [HOME]}]\ncommands: [a]\n",
    "type: task\ndialect: dstack\ncommands: [a]\n",
    "type: task\ncommands: [echo $DSTACK_RUN_NAME]\n",
    'type: task\ncommands: ["\\ud800"]\n',
    "type: task\ncommands: [a]\n" + "#" * MAX_CHARACTERS,
    f"type: task\nname: &a {LONG}\ncommands: [{'*a, ' * (MAX_CONTENT // len(LONG))}]\n",
]


@pytest.mark.parametrize("text", PLAIN)
def test_a_text_means_what_its_authors_command_sends(tmp_path: Path, text: str) -> None:
    file = tmp_path / "task.yml"
    file.write_text(text)
    sent = msgspec.json.encode(filled(read_document(file), {}, {}))
    assert plain(text) == json.loads(sent)


@pytest.mark.parametrize("text", NOT_PLAIN)
def test_what_needs_its_authors_machine_is_not_taken(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "of the controller")
    with pytest.raises(NotPlain):
        plain(text)


@pytest.mark.parametrize("text", ["type: [\n", "type: task\ntype: task\n", "a: !b c\n"])
def test_what_is_no_yaml_names_its_line(text: str) -> None:
    with pytest.raises(SourceError, match=r"source:\d+: "):
        plain(text)
