#!/bin/sh
# InfiniBand and RoCE, or Amazon's EFA, for jobs with `resources.infiniband: true`.
set -eu
export DEBIAN_FRONTEND=noninteractive
if [ "$INFINIBAND" = true ]; then
    apt-get install -q -y --no-install-recommends rdma-core ibverbs-providers ibverbs-utils infiniband-diags
    printf '%s\n' ib_umad ib_uverbs rdma_ucm >/etc/modules-load.d/fairlead-rdma.conf
fi
[ -n "$EFA_INSTALLER" ] || exit 0
[ -n "$EFA_INSTALLER_SHA256" ] || {
    echo "efa_installer needs efa_installer_sha256: it is run as root, so say which file you mean" >&2
    exit 1
}
apt-get install -q -y --no-install-recommends curl "linux-headers-$(uname -r)"
mkdir -p /tmp/efa
curl -fsSL --retry 5 -o /tmp/efa.tar.gz "$EFA_INSTALLER"
echo "$EFA_INSTALLER_SHA256  /tmp/efa.tar.gz" | sha256sum -c -
tar -xzf /tmp/efa.tar.gz -C /tmp/efa --strip-components=1
# The driver and rdma-core: an image brings its own libfabric and MPI.
(cd /tmp/efa && ./efa_installer.sh -y --minimal --skip-limit-conf)
rm -rf /tmp/efa /tmp/efa.tar.gz
