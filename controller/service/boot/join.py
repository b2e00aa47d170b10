"""Gives the controller this node's address, once, and nothing else.

It runs on a node with the bundle's Python, from the user-data with which the node booted. Exit
status 2: the controller refuses, and another try would not help.
"""

import hashlib
import http.client
import json
import os
import ssl
import sys

FILE = "/etc/fairlead/join.json"


def join(file: str) -> int:
    with open(file) as content:
        wish = json.load(content)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # the fingerprint is compared instead
    connection = http.client.HTTPSConnection(
        wish["host"], wish["port"], timeout=30, context=context
    )
    connection.connect()
    presented = connection.sock.getpeercert(True)
    if hashlib.sha256(presented or b"").hexdigest() != wish["certificate"]:
        return failed("another certificate than the controller's", 1)
    own = connection.sock.getsockname()[0]
    body = {"name": wish["name"], "token": wish["token"], "host": own}
    connection.request("POST", "/join", json.dumps(body), {"Content-Type": "application/json"})
    status = connection.getresponse().status
    connection.close()
    if status == 200:
        os.unlink(file)
        return 0
    return failed(f"the controller answered with {status}", 2 if status == 403 else 1)


def failed(why: str, status: int) -> int:
    sys.stderr.write(f"fairlead-join: {why}\n")
    return status


if __name__ == "__main__":
    try:
        sys.exit(join(sys.argv[1] if len(sys.argv) > 1 else FILE))
    except (OSError, http.client.HTTPException) as error:
        sys.exit(failed(str(error), 1))
