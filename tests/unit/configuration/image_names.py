"""Names of images that Docker takes, that only newer engines take, and that all refuse."""

from __future__ import annotations

DIGEST = "sha256:" + "0" * 64
RIGHT = [
    "busybox",
    "ubuntu:24.04",
    "team/app",
    "a__b/c---d/e.f_g:V1",
    "localhost/app",
    "localhost:5000/app:1",
    "127.0.0.1:1/nothing:1",
    "registry.example.com:5000/team/image",
    "Registry.Example.com/app",
    "nvcr.io/nvidia/pytorch:25.01-py3",
    f"registry.example.com:5000/team/image@{DIGEST}",
    f"ubuntu:24.04@{DIGEST}",
    "x.example.com/" + "a" * 241,
    "a" * 237,
]
NEWER = ["[::1]:5000/app", "x.example.com/" + "a" * 255, "a" * 247]
"""The engine of a node has the last word on these: since 28, the registry's part is not counted."""
WRONG = [
    ("", "is not the name of an image"),
    ("Ubuntu:24.04", "has capital letters"),
    ("ghcr.io/Team/app", "has capital letters"),
    ("Not An Image", "contains a blank"),
    (" busybox", "contains a blank"),
    ("busybox\n", "contains a blank"),
    ("https://ghcr.io/team/app", "is a URL"),
    ("docker://busybox", "is a URL"),
    ("ubuntu:", "has nothing after its colon"),
    ("ubuntu:24:04", "has an invalid tag"),
    (f"ubuntu:{'1' * 129}", "has an invalid tag"),
    ("ubuntu@24.04", "has an invalid digest"),
    (f"ubuntu@{DIGEST[:-1]}", "has an invalid digest"),
    ("ubuntu@", "has an invalid digest"),
    ("/ubuntu", "is not the name of an image"),
    ("ubuntu/", "is not the name of an image"),
    ("a//b", "is not the name of an image"),
    ("a..b", "is not the name of an image"),
    ("-a", "is not the name of an image"),
    ("bücher", "is not the name of an image"),
    ("${IMAGE}", "holds a variable"),
    ("host..example/app", "names an invalid registry"),
    ("host:port/app", "names an invalid registry"),
    ("a" * 248, "is longer than the 255"),
    ("x.example.com/" + "a" * 256, "is longer than the 255"),
    ("0" * 64, "is an image's id"),
]
