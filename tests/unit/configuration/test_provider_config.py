"""What the controller's file says about providers, and what is wrong with it."""

from __future__ import annotations

from typing import Any

import pytest

from controller.provider_config.aws import AwsProvider, AwsRegion
from controller.provider_config.gcp import GcpProvider, GcpRegion
from controller.provider_config.hetzner import HetznerProvider
from controller.provider_config.reading import read_provider
from controller.server_config import parse
from fairlead.configuration.convert import ConfigurationError

REGION = "regions.eu-central-1"


def aws(**more: Any) -> dict[str, Any]:
    return {"type": "aws", "regions": {"eu-central-1": region()}} | more


def region(**more: Any) -> dict[str, Any]:
    whole = {
        "image": "ami-0123456789abcdef0",
        "subnets": {"eu-central-1a": "subnet-0123abcd"},
        "security_groups": ["sg-0123abcd"],
    }
    return whole | more


def hetzner(**more: Any) -> dict[str, Any]:
    # Any file of one line.
    token_file = "/proc/sys/kernel/ostype"
    plain = {"type": "hetzner", "token_file": token_file, "locations": ["fsn1"], "image": 4711}
    return plain | more


def test_a_provider_of_aws_has_a_place_for_each_region() -> None:
    found = read_provider("eu", aws(disk="200GB", address="private", prices={"g6.xlarge": 0.9}))
    assert found == AwsProvider(
        regions={
            "eu-central-1": AwsRegion(
                image="ami-0123456789abcdef0",
                subnets={"eu-central-1a": "subnet-0123abcd"},
                security_groups=("sg-0123abcd",),
            )
        },
        disk=200 * 10**9,
        is_public=False,
        prices={"g6.xlarge": 0.9},
    )


@pytest.mark.parametrize(
    ("written", "complaint"),
    [
        ({"type": "aws"}, "regions: is missing"),
        (aws(regions={}), "regions: is empty"),
        (aws(regions={"Frankfurt": region()}), "regions.Frankfurt: is no region of AWS"),
        (aws(regions={"eu-central-1": region(image="debian")}), f"{REGION}.image: 'debian' is no"),
        (aws(regions={"eu-central-1": region(subnets={})}), f"{REGION}.subnets: is empty"),
        (
            aws(regions={"eu-central-1": region(subnets={"eu-west-1a": "subnet-0123abcd"})}),
            f"{REGION}.subnets.eu-west-1a: is no zone of eu-central-1",
        ),
        (
            aws(regions={"eu-central-1": region(subnets={"eu-central-1a": "main"})}),
            f"{REGION}.subnets.eu-central-1a: 'main' is no subnet",
        ),
        (
            aws(regions={"eu-central-1": region(security_groups=[])}),
            f"{REGION}.security_groups: has 0 ids",
        ),
        (
            aws(regions={"eu-central-1": region(security_groups=["default"])}),
            f"{REGION}.security_groups: 'default' is no security group",
        ),
        (aws(prices={"g6.xlarge": 0}), "prices.g6.xlarge: is 0"),
        (aws(disk="1GB"), "disk: is 1000000000 bytes"),
        (aws(endpoint="ec2.local"), "endpoint: is no URL"),
        (aws(endpoint="https://"), "endpoint: is no URL"),
        (aws(endpoint="http://a b"), "endpoint: is no URL"),
        (aws(endpoint="http://[::1"), "endpoint: is no URL"),
        (aws(endpoint="https://me:canary@a"), "endpoint: is more than a host and a path (allowed"),
        (aws(regions={"eu-central-1": {}}), f"{REGION}.image: is missing"),
        (hetzner(token_file="token"), "token_file: token is not an absolute path"),
        (hetzner(token_file="/none"), "token_file: /none: No such file or directory"),
        (hetzner(token_file="/dev/null"), "token_file: /dev/null has no token: one line"),
        (hetzner(token_file="/proc/self/environ"), "token_file: /proc/self/environ has no token"),
        (hetzner(token_file="/\0"), "token_file: embedded null byte"),
        (hetzner(endpoint="hetzner"), "endpoint: is no URL"),
        ({"type": "exec", "command": ["/tmp"]}, "command: /tmp is no program"),
        ({"type": "exec", "command": ["/bin/true", "\0"]}, "command: has a zero byte"),
        ({"type": "exec", "command": ["/bin/true"], "timeout": 0}, "timeout: leaves no time"),
        (hetzner(locations=[]), "locations: is empty"),
        (hetzner(address="private"), "networks: is needed with address: private"),
        (aws(adress="private"), "adress: is not a field; did you mean address?"),
    ],
)
def test_a_wrong_value_is_named_with_its_field(written: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        read_provider("eu", written)
    assert str(refused.value).startswith(f"providers.eu.{complaint}")


def gcp(**more: Any) -> dict[str, Any]:
    plain = {
        "type": "gcp",
        "project": "my-project",
        "image": "family/fairlead-node",
        "regions": {"europe-west4": {"zones": ["europe-west4-a"]}},
    }
    return plain | more


def gcp_region(**more: Any) -> dict[str, Any]:
    return gcp(regions={"europe-west4": {"zones": ["europe-west4-a"]} | more})


def test_a_provider_of_gcp_has_whole_paths() -> None:
    shared = "projects/network-host/regions/europe-west4/subnetworks/jobs"
    found = read_provider("eu", gcp_region(subnetwork=shared) | {"endpoint": "https://x.test/"})
    assert found == GcpProvider(
        project="my-project",
        image="projects/my-project/global/images/family/fairlead-node",
        regions={"europe-west4": GcpRegion(zones=("europe-west4-a",), subnetwork=shared)},
        endpoint="https://x.test",
    )
    assert isinstance(plain := read_provider("eu", gcp(image="node-7")), GcpProvider)
    assert plain.image == "projects/my-project/global/images/node-7"
    whole = "projects/other/global/images/family/node"
    assert isinstance(of_another := read_provider("eu", gcp(image=whole)), GcpProvider)
    assert of_another.image == whole
    path = "projects/my-project/regions/europe-west4/subnetworks/default"
    assert plain.regions["europe-west4"].subnetwork == path


@pytest.mark.parametrize(
    ("written", "complaint"),
    [
        ({"type": "gcp"}, "project: is missing"),
        (gcp(project="My Project"), "project: 'My Project' is no project's id"),
        (gcp(image="images/x"), "image: 'images/x' is no image"),
        (gcp(regions={}), "regions: is empty"),
        (gcp(regions={"Europe": {"zones": []}}), "regions.Europe: is no region of Google Cloud"),
        (gcp_region(zones=[]), "regions.europe-west4.zones: is empty"),
        (gcp_region(zones=["europe-west1-a"]), "'europe-west1-a' is no zone of europe-west4"),
        (gcp_region(subnetwork="A/B"), "subnetwork: 'A/B' is no subnetwork of europe-west4"),
        (
            gcp_region(subnetwork="projects/p/regions/us-west1/subnetworks/default"),
            "is no subnetwork of europe-west4",
        ),
        (gcp(credentials_file="key.json"), "credentials_file: key.json is not an absolute path"),
        (gcp(credentials_file="/none/key.json"), "credentials_file: /none/key.json cannot be read"),
        (gcp(network_tags=["A"]), "network_tags: 'A' is no tag of a network"),
        (gcp(service_account="me@example.com"), "service_account: 'me@example.com' is no service"),
        (gcp(prices={"g2-standard-4": 0}), "prices.g2-standard-4: is 0"),
        (gcp(disk="1GB"), "disk: is 1000000000 bytes"),
        (gcp(endpoint="compute"), "endpoint: is no URL"),
    ],
)
def test_what_is_wrong_with_a_provider_of_gcp_is_named(
    written: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        read_provider("eu", written)
    assert complaint in str(caught.value)


def both(**more: Any) -> dict[str, Any]:
    return {"providers": {"a": aws(), "h": hetzner()}} | more


def test_prices_of_two_currencies_are_never_added_up_by_chance() -> None:
    def wrong(data: dict[str, Any]) -> tuple[str, str]:
        with pytest.raises(ConfigurationError) as caught:
            parse(data)
        return caught.value.field, str(caught.value)

    field, text = wrong(both())
    assert field == "currency"
    assert "a in USD, h in EUR" in text
    assert wrong(both(currency="EUR"))[0] == "providers.a.rate"
    assert wrong({"currency": "EUR", "providers": {"h": hetzner(currency="USD")}})[0] == (
        "providers.h.rate"
    )
    assert wrong({"providers": {"h": hetzner(rate=1.1)}})[0] == "providers.h.rate"
    assert wrong(both(currency="euros"))[0] == "currency"
    assert wrong({"providers": {"h": hetzner(currency="€")}})[0] == "providers.h.currency"
    for rate in (0, -1, "1", True, float("nan"), float("inf")):
        data = {"currency": "USD", "providers": {"h": hetzner(rate=rate)}}
        assert wrong(data)[0] == "providers.h.rate"


def test_a_rate_converts_the_prices_of_its_provider() -> None:
    read = parse({"currency": "USD", "providers": {"a": aws(), "h": hetzner(rate=1.08)}})
    assert {name: one.rate for name, one in read.providers.items()} == {"a": 1.0, "h": 1.08}
    assert parse({"providers": {"h": hetzner()}}).providers["h"].rate == 1.0
    # Who pays Hetzner in dollars says so.
    same = parse({"providers": {"a": aws(), "h": hetzner(currency="USD")}})
    assert same.providers["h"].rate == 1.0


@pytest.mark.parametrize(
    ("written", "image"), [(4711, 4711), ("4711", 4711), ("debian-13", "debian-13")]
)
def test_an_image_of_hetzner_is_an_id_also_in_quotes(written: object, image: int | str) -> None:
    found = read_provider("h", hetzner(image=written))
    assert isinstance(found, HetznerProvider)
    assert found.image == image
