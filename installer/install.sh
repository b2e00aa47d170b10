#!/bin/sh
# Installs this folder's node: the interpreter beside it does the work, whatever the machine has.
set -eu
here=$(CDPATH='' cd -- "$(dirname -- "$(readlink -f -- "$0")")" && pwd -P)
loader=$here/python/lib/@LOADER@
if [ ! -x "$loader" ] || ! "$loader" --version >/dev/null 2>&1; then
    echo "fairlead-node install: this bundle is for another processor than $(uname -m), or it is incomplete" >&2
    exit 1
fi
# The interpreter names its loader by the path of the installed version, which is not there yet.
exec "$loader" --inhibit-cache --library-path "$here/python/lib" --argv0 "$here/python/bin/@PYTHON@" \
    "$here/python/bin/@PYTHON@" -I -S -B -X utf8=1 -m installer.main --bundle "$here" "$@"
