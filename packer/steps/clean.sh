#!/bin/sh
# What must differ from machine to machine, and what only the build needed.
set -eu
systemctl stop fairlead-shim.service
rm -rf /var/lib/fairlead/* /tmp/fairlead-node /tmp/fairlead-node.tar /tmp/files /tmp/keyring.deb
# cloud-init of the build has let passwords in there, and sshd obeys the first line that it finds.
rm -f /etc/ssh/ssh_host_* /etc/ssh/sshd_config.d/50-cloud-init.conf
apt-get clean
rm -rf /var/lib/apt/lists/*
cloud-init clean --logs
# systemd writes a new id into an empty file at the next boot (machine-id(5)).
truncate -s 0 /etc/machine-id
rm -f /root/.ssh/authorized_keys /home/*/.ssh/authorized_keys
# On Azure, also the user of the build. Elsewhere it goes with the build's key, or its last command.
if command -v waagent >/dev/null; then
    waagent -force -deprovision+user
fi
