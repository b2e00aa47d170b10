#!/bin/sh
# The node has these images before its first job.
set -eu
for image in $PULL_IMAGES; do
    docker pull -q "$image"
done
