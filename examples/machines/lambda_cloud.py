#!/usr/bin/env python3
"""A provider of machines for `type: exec`: the instances of Lambda Cloud.

It needs only Python 3.11, and nothing next to this file. The API key is in the environment
(LAMBDA_API_KEY) or in a file.

    lambda_cloud.py --ssh-key NAME [--key-file FILE] [--prepare FILE] [--region NAME]...
"""

import argparse
import http.client
import json
import os
import re
import sys
import time
import urllib.error
import urllib.request
from email.mime.multipart import MIMEMultipart
from email.mime.text import MIMEText
from pathlib import Path
from typing import Any

Wish = dict[str, Any]
Wishes = list[Wish]
ENDPOINT = "https://cloud.lambda.ai/api/v1"
INSTALLATION, MACHINE, FLEET = "fairlead-installation", "fairlead-machine", "fairlead-fleet"
CREATED = "fairlead-created"
"""The API does not tell when an instance was launched."""
MAX_ANSWER = 16 << 20
TIMEOUT_SECONDS = 60
LAUNCH_SECONDS = 12
"""The API takes one launch in so many seconds."""
IMAGE_GIB = 40
"""The disk that Lambda's image and the bundle take."""
NO_MACHINE = ("global/invalid-parameters", "global/object-does-not-exist", "global/duplicate")
KINDS = {
    "global/quota-exceeded": "quota",
    "global/invalid-api-key": "unauthorized",
    "global/account-inactive": "unauthorized",
    "instance-operations/launch/insufficient-capacity": "no_capacity",
}


class Refusal(Exception):
    """`kind`: no_capacity, quota, refused, throttled or unauthorized. Anything else leaves open
    whether the call did its work. `code`: the API's. `reach`: which offers would be refused for the
    same cause."""

    def __init__(self, kind: str, message: str, code: str = "", after: float = 5.0) -> None:
        super().__init__(message)
        self.kind = kind
        self.code = code
        self.after = after
        self.reach = "offer"


class Instances:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.api = Api(options.endpoint, api_key(options.key_file))

    def offers(self, wish: Wish) -> Wish:
        found = []
        for entry in self.api.call("GET", "/instance-types").values():
            offer = offer_of(entry["instance_type"])
            regions = [one["name"] for one in entry["regions_with_capacity_available"]]
            if offer is not None:
                found += [{**offer, "region": one} for one in regions if self._is_allowed(one)]
        return {"offers": found}

    def _is_allowed(self, region: str) -> bool:
        return not self.options.region or region in self.options.region

    def create(self, wish: Wish) -> Wish:
        if wish["spot"] or wish["reservation"] or wish["zone"]:
            raise Refusal("refused", "Lambda Cloud has no spot machines, reservations or zones")
        # Lambda's names are not unique: only a look at the list finds what an earlier try made.
        # Fairlead gives all tries of an order one token.
        name = f"{wish['name'][:51]}-{wish['token'][:12]}"
        for one in self._instances():
            if one.get("name") == name and tags(one).get(INSTALLATION) == wish["installation"]:
                return shown(one)
        marks = {
            INSTALLATION: wish["installation"],
            MACHINE: wish["machine"],
            FLEET: wish["fleet"],
            CREATED: str(int(time.time())),
        }
        launch = {
            "name": name,
            "region_name": wish["region"],
            "instance_type_name": wish["instance_type"],
            "ssh_key_names": [self.options.ssh_key],
            "user_data": self._user_data(wish["user_data"]),
            "tags": [{"key": key, "value": value} for key, value in marks.items()],
        }
        try:
            launched = self.api.call("POST", "/instance-operations/launch", launch)
        except Refusal as refusal:
            refusal.reach = reach_of(str(refusal))
            raise
        return {"id": launched["instance_ids"][0]}

    def _user_data(self, node: str) -> str:
        """Return Fairlead's user-data, after the script that installs the bundle."""
        if self.options.prepare is None:
            return node
        script = read_file("--prepare", self.options.prepare)
        # The boundary is fixed: user-data is the same at each try.
        whole = MIMEMultipart(boundary="fairlead-user-data-part")
        # A boothook runs before the files and commands of a cloud-config.
        whole.attach(MIMEText(script, "cloud-boothook", "utf-8"))
        whole.attach(MIMEText(node, "cloud-config", "utf-8"))
        return whole.as_string()

    def describe(self, wish: Wish) -> Wish:
        wanted = set(wish["ids"])
        return {"machines": [shown(one) for one in self._instances() if one["id"] in wanted]}

    def list(self, wish: Wish) -> Wish:
        mine = [
            one for one in self._instances() if tags(one).get(INSTALLATION) == wish["installation"]
        ]
        return {"machines": [shown(one) for one in mine]}

    def _instances(self) -> Wishes:
        """Return those that exist. One that ends still costs, so it is among them."""
        every = self.api.call("GET", "/instances")
        return [one for one in every if one["status"] != "terminated"]

    def terminate(self, wish: Wish) -> Wish:
        try:
            status = self.api.call("GET", f"/instances/{wish['id']}")["status"]
            if status not in ("terminated", "terminating"):
                ids = {"instance_ids": [wish["id"]]}
                self.api.call("POST", "/instance-operations/terminate", ids)
        except Refusal as refusal:
            # The code, not the status 404: a wrong endpoint also answers 404.
            if refusal.code != "global/object-does-not-exist":
                raise
            return {"gone": True}
        return {"gone": status == "terminated"}

    def console(self, wish: Wish) -> Wish:
        return {"text": None}  # The API has none.


def offer_of(instance_type: Wish) -> Wish | None:
    """Return what jobs get of an instance of this type; None: Fairlead's bundle does not run there,
    or the size of its GPUs is not told."""
    specs = instance_type["specs"]
    # The kernel, the image and the shim keep a part.
    offer = {
        "instance_type": instance_type["name"],
        "price": instance_type["price_cents_per_hour"] / 100,
        "cpu": specs["vcpus"],
        "memory_gib": max(0.0, specs["memory_gib"] * 0.975 - 0.5),
        "disk_gib": max(0.0, specs["storage_gib"] * 0.94 - IMAGE_GIB),
    }
    if not specs["gpus"]:
        return offer
    # As in "H100 (80 GB SXM5)".
    gpu = re.match(r"([^(]+?) *\((\d+) GB", instance_type["gpu_description"])
    # The CPU of these is Arm.
    if gpu is None or gpu[1].startswith(("GH", "GB")):
        return None
    name = f"NVIDIA {gpu[1]}"
    return {**offer, "gpus": [{"name": name, "count": specs["gpus"], "memory_gib": int(gpu[2])}]}


def reach_of(refusal: str) -> str:
    """Return which offers share what a refused launch names: each launch has the SSH key and the
    script of this program's arguments."""
    words = refusal.lower().replace("_", " ")
    if "ssh key" in words or "user data" in words:
        return "provider"
    return "region" if "region" in words else "offer"


def tags(instance: Wish) -> dict[str, str]:
    return {one["key"]: one["value"] for one in instance.get("tags") or ()}


def shown(instance: Wish) -> Wish:
    marks = tags(instance)
    created = marks.get(CREATED, "")
    return {
        "id": instance["id"],
        "machine": marks.get(MACHINE),
        "fleet": marks.get(FLEET),
        "created_at": int(created) if created.isdecimal() else 0,
        "instance_type": instance["instance_type"]["name"],
        "region": instance["region"]["name"],
        "host": instance.get("ip"),
    }


def api_key(file: str | None) -> str:
    key = os.environ.get("LAMBDA_API_KEY", "") if file is None else read_file("--key-file", file)
    # `isascii`: the header's encoding would show the key in a traceback.
    if not key.strip() or not key.isascii() or len(key.split()) > 1:
        raise Refusal("unauthorized", f"{file or 'LAMBDA_API_KEY'} has no API key: one line")
    return key.strip()


def read_file(option: str, path: str) -> str:
    try:
        return Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is no text"
        raise Refusal("unreadable", f"{option} {path}: {why}") from None


class NoRedirect(urllib.request.HTTPRedirectHandler):
    """urllib would send the key to whatever host a redirect names."""

    def redirect_request(self, *_: Any) -> None:
        return None


class Api:
    def __init__(self, endpoint: str, key: str) -> None:
        self.endpoint = endpoint.rstrip("/")
        self.key = key
        self.opener = urllib.request.build_opener(NoRedirect)

    def call(self, method: str, path: str, content: Wish | None = None) -> Any:
        """Return the `data` of the answer. Raises Refusal."""
        request = urllib.request.Request(
            self.endpoint + path,
            method=method,
            data=None if content is None else json.dumps(content).encode(),
            headers={"Authorization": f"Bearer {self.key}", "Content-Type": "application/json"},
        )
        try:
            with self.opener.open(request, timeout=TIMEOUT_SECONDS) as answer:
                return json.loads(answer.read(MAX_ANSWER))["data"]
        except urllib.error.HTTPError as error:
            raise refusal_of(f"{method} {path}", error) from None
        # A cut answer is no JSON, so a list is whole or an error.
        except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError) as error:
            raise Refusal("away", f"{method} {path}: {type(error).__name__}: {error}") from None


def refusal_of(what: str, error: urllib.error.HTTPError) -> Refusal:
    try:
        told = json.loads(error.read(MAX_ANSWER))["error"]
        code, message = str(told["code"]), str(told["message"])
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
        code, message = "", "no error of Lambda Cloud"
    text = f"{what}: {message} ({error.code} {code})"
    if error.code == 429:
        after = error.headers.get("Retry-After") or ""
        return Refusal(
            "throttled", text, code, min(3600, int(after)) if after.isdecimal() else LAUNCH_SECONDS
        )
    kind = KINDS.get(code)
    if kind is None and error.code in (401, 403):
        kind = "unauthorized"
    # An error whose code begins with provider/ may come after the launch.
    if kind is None and error.code < 500:
        is_definite = code in NO_MACHINE or code.startswith("instance-operations/launch/")
        kind = "refused" if is_definite else None
    return Refusal(kind or "away", text, code)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--ssh-key", required=True, help="a key of the account: each launch needs it"
    )
    parser.add_argument("--key-file", help="a file with the API key, instead of LAMBDA_API_KEY")
    parser.add_argument("--prepare", help="a script that installs the bundle on Lambda's image")
    parser.add_argument("--region", action="append", help="only these regions")
    parser.add_argument("--endpoint", default=ENDPOINT)
    options = parser.parse_args()
    wish = json.load(sys.stdin)
    try:
        answer = getattr(Instances(options), wish["call"])(wish)
    except Refusal as refusal:
        answer = {"error": refusal.kind, "message": str(refusal), "after": refusal.after}
        answer["reach"] = refusal.reach
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()
