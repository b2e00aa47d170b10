#!/bin/sh
# NVIDIA's driver and container toolkit, not older than the versions that close known holes.
set -eu
[ "$GPU" = true ] || exit 0
export DEBIAN_FRONTEND=noninteractive
. /etc/os-release
case $(dpkg --print-architecture) in amd64) machine=x86_64 ;; *) machine=sbsa ;; esac
release=$ID$(echo "$VERSION_ID" | tr -d .)
apt-get install -q -y --no-install-recommends curl
site=https://developer.download.nvidia.com/compute/cuda/repos/$release/$machine
curl -fsSL --retry 5 -o /tmp/keyring.deb "$site/cuda-keyring_1.1-1_all.deb"
dpkg -i /tmp/keyring.deb
apt-get update -q
apt-get install -q -y --no-install-recommends "linux-headers-$(uname -r)"
apt-get install -q -y --no-install-recommends "nvidia-driver-pinning-$NVIDIA_DRIVER_BRANCH" || true
apt-get install -q -y --no-install-recommends nvidia-open nvidia-container-toolkit

at_least() { # PACKAGE VERSION
    found=$(dpkg-query -W -f '${Version}' "$1")
    dpkg --compare-versions "${found#*:}" ge "$2" || {
        echo "$1 is $found, older than $2, which closes known holes" >&2
        exit 1
    }
}
at_least nvidia-open "$NVIDIA_DRIVER_MINIMUM"
at_least nvidia-container-toolkit "$NVIDIA_TOOLKIT_MINIMUM"
install -m 644 /tmp/files/fairlead-cdi.service /etc/systemd/system/
systemctl enable fairlead-cdi.service
