"""`${{ secrets.NAME }}`: which secrets a job names, and what it gets."""

from __future__ import annotations

from controller.lifecycle.model import JobRepo, JobSpec
from fairlead.configuration.text.stored_secrets import names_of, resolved
from fairlead.wire.shim import RegistryAuth

VALUES = {"HF": "canary", "KEY": "line\nline", "PULL": "password", "OTHER": "unused"}


def test_a_job_without_expressions_stays_the_same_object() -> None:
    spec = JobSpec(image="a", env={"A": "${HF}", "B": "{{ secrets.HF }}"})
    assert resolved(spec, VALUES.__getitem__) == (spec, ())
    assert resolved(spec, VALUES.__getitem__)[0] is spec


def test_a_variable_with_a_secret_becomes_a_secret_of_the_job() -> None:
    spec = JobSpec(image="a", env={"PLAIN": "1", "AUTH": "Bearer ${{secrets.HF}}!"})
    filled, values = resolved(spec, VALUES.__getitem__)
    assert (filled.env, filled.secrets) == ({"PLAIN": "1"}, {"AUTH": "Bearer canary!"})
    assert values == ("canary",)


def test_only_the_secrets_that_a_job_names_are_looked_up() -> None:
    asked: list[str] = []

    def value_of(name: str) -> str:
        asked.append(name)
        return VALUES[name]

    spec = JobSpec(image="a", env={"A": "${{ secrets.HF }}", "B": "${{ secrets.HF }}"})
    resolved(spec, value_of)
    assert asked == ["HF"]
    assert names_of(spec) == {"HF": "env.A"}


def test_credentials_are_filled_in_and_a_key_ends_with_its_line() -> None:
    spec = JobSpec(
        image="a",
        registry_auth=RegistryAuth(username="ada", password="${{ secrets.PULL }}"),
        repos=(
            JobRepo(path="a", url="https://x", token="${{ secrets.HF }}"),
            JobRepo(path="b", url="git@x:y", private_key="${{ secrets.KEY }}"),
        ),
        secrets={"S": "${{ secrets.HF }}"},
    )
    filled, _ = resolved(spec, VALUES.__getitem__)
    assert filled.registry_auth == RegistryAuth(username="ada", password="password")
    assert (filled.repos[0].token, filled.repos[1].private_key) == ("canary", "line\nline\n")
    assert filled.secrets == {"S": "canary"}
    assert set(names_of(spec)) == {"PULL", "HF", "KEY"}


def test_an_expression_within_a_value_is_not_resolved_again() -> None:
    spec = JobSpec(image="a", env={"A": "${{ secrets.OUTER }}"})
    values = {"OUTER": "${{ secrets.HF }}", "HF": "canary"}
    filled, _ = resolved(spec, values.__getitem__)
    assert filled.secrets == {"A": "${{ secrets.HF }}"}
