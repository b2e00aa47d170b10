#!/bin/sh
set -eu
export DEBIAN_FRONTEND=noninteractive
case $SECURITY_UPDATES in
security)
    apt-get install -q -y --no-install-recommends unattended-upgrades
    install -m 644 /tmp/files/20-fairlead-upgrades /etc/apt/apt.conf.d/
    ;;
none)
    systemctl disable --now apt-daily.timer apt-daily-upgrade.timer
    ;;
*)
    echo "security_updates: expected security or none, not $SECURITY_UPDATES" >&2
    exit 1
    ;;
esac
