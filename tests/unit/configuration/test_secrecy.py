"""Which values of `env` are shown with a configuration, and which may be secret."""

from __future__ import annotations

import time

import pytest

from fairlead.configuration.runs.masking import public
from fairlead.configuration.secrecy import may_be_secret


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NCCL_DEBUG", "INFO"),
        ("MODEL", "meta-llama/Llama-3.1-8B-Instruct"),
        ("HF_HUB_ENABLE_HF_TRANSFER", "1"),
        ("TOKENIZERS_PARALLELISM", "false"),
        ("MAX_TOKENS", "2048"),
        ("KEYBOARD", "us"),
        ("MONKEY", "yes"),
        ("DATA", "s3://bucket/imagenet/train-2024"),
        ("DATABASE", "postgres://db.internal:5432/runs"),
        ("PYTHONPATH", "/workflow/src:/opt/lib/python3.12/site-packages"),
        ("CUDA_VISIBLE_DEVICES", "0,1,2,3"),
        ("LONG", "a-sentence-of-many-words-without-any-number-in-it"),
        ("FROM_THE_VAULT_OR_NOT", ""),
        ("HF_TOKEN", "${{ secrets.HF }}"),
    ],
)
def test_what_is_no_secret_is_shown(name: str, value: str) -> None:
    assert not may_be_secret(name, value)
    assert public({"env": {name: value}})["env"] == {name: value}
    assert public({"env": [f"{name}={value}"]})["env"] == [f"{name}={value}"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HF_TOKEN", "x"),
        ("WANDB_API_KEY", "x"),
        ("wandb_api_key", "x"),
        ("AWS_SECRET_ACCESS_KEY", "x"),
        ("AWS_ACCESS_KEY_ID", "x"),
        ("GITHUBTOKEN", "x"),
        ("DBPASSWORD", "x"),
        ("PASS", "x"),
        ("SESSION_COOKIE", "x"),
        ("SLACK_WEBHOOK", "https://hooks/1"),
        ("HF_TOKEN", "Bearer ${{ secrets.HF }}"),
        ("URL", "postgres://me:hunter2@db/runs"),
        ("URL", "https://me@host/"),
        ("URL", "https://host/file?X-Amz-Signature=1"),
        ("URL", "https://host/file?a=b&access_token=1"),
        ("A", "hf_abc"),
        ("A", "ghp_abc"),
        ("A", "sk-proj-1"),
        ("A", "AKIAX"),
        ("A", "eyJhbGciOi"),
        ("A", "-----BEGIN OPENSSH PRIVATE KEY-----"),
        ("A", "Bearer abc"),
        ("A", "d41d8cd98f00b204e9800998ecf8427e"),
        ("A", "abcdefghij0123456789ABCDEF"),
    ],
)
def test_what_may_be_a_secret_is_hidden(name: str, value: str) -> None:
    assert may_be_secret(name, value)
    assert public({"env": {name: value}})["env"] == {name: "***"}
    assert public({"env": [f"{name}={value}"]})["env"] == [f"{name}=***"]


@pytest.mark.parametrize("value", ["x" * 131_070, "https://a/?" + "key" * 40_000])
def test_the_longest_value_is_judged_at_once(value: str) -> None:
    """Trying each of its letters took more than a minute of the processor's time."""
    began = time.thread_time()
    assert not may_be_secret("A", value)
    assert time.thread_time() - began < 2


def test_numbers_are_shown_unless_their_name_is_that_of_a_secret() -> None:
    assert public({"env": {"EPOCHS": 3, "PASSWORD": 1234}})["env"] == {
        "EPOCHS": 3,
        "PASSWORD": "***",
    }
