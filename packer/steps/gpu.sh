#!/bin/sh
# NVIDIA's driver and container toolkit, not older than the versions that close known holes, and what
# boards with NVSwitch and RDMA need besides. Each thing that was asked for and cannot be had ends the build.
set -eu
[ "$GPU" = true ] || {
    for asked in "nvswitch=$NVSWITCH" "infiniband_peermem=$PEERMEM"; do
        case $asked in *=true) echo "$asked needs gpu=true" >&2; exit 1 ;; esac
    done
    exit 0
}
export DEBIAN_FRONTEND=noninteractive
. /etc/os-release

fail() { echo "gpu.sh: $*" >&2; exit 1; }
has_package() { [ -n "$(apt-cache madison "$1")" ]; }
version_of() { # PACKAGE: without epoch and revision
    found=$(dpkg-query -W -f '${Version}' "$1")
    found=${found#*:}
    echo "${found%%-*}"
}
at_least() { # PACKAGE VERSION
    dpkg --compare-versions "$(version_of "$1")" ge "$2" ||
        fail "$1 is $(version_of "$1"), older than $2, which closes known holes"
}

# The driver's modules are built here (DKMS) and signed with a key that no firmware knows: a machine
# with Secure Boot would not load them, and its node would have no GPU.
# The kernel puts four bytes of attributes before the variable's value.
state=$(od -An -tu1 -j4 -N1 /sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c 2>/dev/null |
    tr -d ' ' || true)
[ "$state" != 1 ] || [ "$SECURE_BOOT" = enrolled ] ||
    fail "this machine has Secure Boot on, which loads no module that is built here: build and boot without" \
        "it, or give a base image whose firmware has the key of DKMS (secure_boot=enrolled)"

case $(dpkg --print-architecture) in amd64) machine=x86_64 ;; *) machine=sbsa ;; esac
release=$ID$(echo "$VERSION_ID" | tr -d .)
apt-get install -q -y --no-install-recommends curl
site=https://developer.download.nvidia.com/compute/cuda/repos/$release/$machine
curl -fsSL --retry 5 -o /tmp/keyring.deb "$site/cuda-keyring_1.1-1_all.deb"
dpkg -i /tmp/keyring.deb
apt-get update -q
apt-get install -q -y --no-install-recommends "linux-headers-$(uname -r)"

# Without the pin, the newest branch would come, and another one with each rebuild.
pin=nvidia-driver-pinning-$NVIDIA_DRIVER_BRANCH
has_package "$pin" ||
    fail "NVIDIA's archive for $release has no package $pin, so the driver's branch cannot be pinned: set" \
        "nvidia_driver_branch to one of $(apt-cache pkgnames nvidia-driver-pinning- |
            sed -n 's/^nvidia-driver-pinning-\([0-9]*\)$/\1/p' | sort -n | tr '\n' ' ')"
apt-get install -q -y --no-install-recommends "$pin"
apt-get install -q -y --no-install-recommends nvidia-open nvidia-container-toolkit
driver=$(version_of nvidia-open)
case $driver in
"$NVIDIA_DRIVER_BRANCH".*) ;;
*) fail "nvidia-open is $driver, which is not of the branch $NVIDIA_DRIVER_BRANCH" ;;
esac
at_least nvidia-open "$NVIDIA_DRIVER_MINIMUM"
at_least nvidia-container-toolkit "$NVIDIA_TOOLKIT_MINIMUM"
install -m 644 /tmp/files/fairlead-cdi.service /etc/systemd/system/
systemctl enable fairlead-cdi.service

# On HGX and DGX boards CUDA starts only (error 802) once the Fabric Manager has set NVSwitch up. It
# refuses any other version of the driver than its own.
if [ "$NVSWITCH" = true ]; then
    manager=nvidia-fabricmanager
    has_package $manager || manager=$manager-$NVIDIA_DRIVER_BRANCH
    exact=$(apt-cache madison "$manager" | awk -v version="$driver" \
        '{ bare = $3; sub(/^[0-9]+:/, "", bare); sub(/-.*/, "", bare); if (bare == version) { print $3; exit } }')
    [ -n "$exact" ] || fail "there is no $manager of the driver's version $driver, and it works with no other"
    apt-get install -q -y --no-install-recommends "$manager=$exact"
    systemctl enable nvidia-fabricmanager.service
fi

# GPUDirect RDMA where the kernel's own DMA-BUF is not used.
if [ "$PEERMEM" = true ]; then
    modinfo nvidia_peermem >/dev/null 2>&1 ||
        fail "infiniband_peermem: the driver was built without nvidia_peermem, which needs the InfiniBand" \
            "drivers of NVIDIA (DOCA-OFED) in the base image"
    echo nvidia_peermem >/etc/modules-load.d/fairlead-peermem.conf
fi
