#!/bin/sh
# The same `install` as on any other machine. The controller's key comes by user-data.
set -eu
mkdir -p /tmp/fairlead-node
tar -xf /tmp/fairlead-node.tar -C /tmp/fairlead-node --strip-components=1
set -- --docker "$DOCKER"
for prefix in $VOLUME_PREFIXES; do set -- "$@" --volume-prefix "$prefix"; done
[ -z "$REGISTRY_MIRROR" ] || set -- "$@" --registry-mirror "$REGISTRY_MIRROR"
[ "${JOB_METADATA:-closed}" = closed ] || set -- "$@" --job-metadata "$JOB_METADATA"
/tmp/fairlead-node/install "$@"
# A second run must change nothing: what it would change is missing in the image.
[ -z "$(/tmp/fairlead-node/install --check)" ]
