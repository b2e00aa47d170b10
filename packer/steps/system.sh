#!/bin/sh
# The packages that `install` asks for, and the time.
set -eu
export DEBIAN_FRONTEND=noninteractive
# Until it has ended, cloud-init may hold the lock of apt and write its sources.
cloud-init status --wait >/dev/null 2>&1 || true
apt-get update -q
apt-get install -q -y --no-install-recommends \
    openssh-server openssh-client nftables iptables iproute2 chrony ca-certificates
install -D -m 644 /tmp/files/journald.conf /etc/systemd/journald.conf.d/fairlead.conf
