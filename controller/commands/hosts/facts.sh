# Prints what a host is, one NAME=VALUE each; changes nothing. Values have no line breaks.
say() { printf '%s=%s\n' "$1" "$(printf '%s' "$2" | tr '\n\r' '  ')"; }
has() { command -v "$1" >/dev/null 2>&1; }
free_kib() { df -Pk "$1" 2>/dev/null | awk 'NR == 2 { print $4 }'; }
nearest() { p=$1; while [ ! -e "$p" ]; do p=$(dirname "$p"); done; printf '%s' "$p"; }

PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin"
export LC_ALL=C
say clock "$(date +%s)"
say uid "$(id -u)"
say arch "$(uname -m)"
say kernel "$(uname -r)"
if [ -r /etc/os-release ]; then
    say os_id "$(. /etc/os-release; printf '%s' "$ID")"
    say os_like "$(. /etc/os-release; printf '%s' "${ID_LIKE:-}")"
    say os_name "$(. /etc/os-release; printf '%s' "${PRETTY_NAME:-}")"
fi
[ -d /run/systemd/system ] && say systemd yes
[ -e /sys/fs/cgroup/cgroup.controllers ] && say cgroup 2
say disk_opt "$(free_kib "$(nearest /opt)")"
say disk_data "$(free_kib "$(nearest /var/lib/fairlead)")"
say disk_tmp "$(free_kib /var/tmp)"
say memory "$(awk '/^MemTotal:/ { print $2 }' /proc/meminfo)"
say cpus "$(nproc 2>/dev/null)"
has nft && say nft yes
! has podman || say podman "$(podman --version 2>/dev/null | sed 's/.* //')"
if has docker || has dockerd; then
    say docker "$(docker version --format '{{.Server.Version}}' 2>/dev/null || printf unreachable)"
elif has apt-get; then
    # Without package lists, as on some images, it is the installer that learns it.
    for list in /var/lib/apt/lists/*_Packages*; do
        [ -e "$list" ] || break
        said=$(apt-get install -q --simulate --no-install-recommends docker.io 2>&1) ||
            say docker_refused "$(printf '%s' "$said" | sed -n 's/^E: //p')"
        break
    done
fi
say gpus "$(for device in /sys/bus/pci/devices/*; do
    case $(cat "$device/vendor" "$device/class" 2>/dev/null | tr '\n' ' ') in
        '0x10de 0x03'*) echo gpu ;;
    esac
done | wc -l)"
say secure_boot "$(od -An -tu1 -j4 -N1 \
    /sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c 2>/dev/null | tr -d ' ')"
say driver "$(sed -n 's/.*Kernel Module[^0-9]*\([0-9][0-9.]*\).*/\1/p' /proc/driver/nvidia/version 2>/dev/null)"
has nvidia-ctk && say toolkit "$(nvidia-ctk --version 2>/dev/null | sed -n 's/.*version \([0-9][0-9.]*\).*/\1/p')"
if has sshd; then
    settings=$(sshd -T 2>/dev/null)
    say allow_users "$(printf '%s\n' "$settings" | awk '$1 == "allowusers" { print $2 }')"
    say allow_groups "$(printf '%s\n' "$settings" | awk '$1 == "allowgroups" { print $2 }')"
    say ssh_ports "$(printf '%s\n' "$settings" | awk '$1 == "port" { print $2 }')"
fi
grep -Eqs '^[[:space:]]*Include[[:space:]]+.*/etc/ssh/sshd_config\.d/' /etc/ssh/sshd_config &&
    say sshd_includes yes
id fairlead >/dev/null 2>&1 && say tunnel_group "$(id -gn fairlead)"
has systemctl && say shim "$(systemctl is-active fairlead-shim 2>/dev/null)"
installed=$(readlink /opt/fairlead/current) && say installed "${installed##*/}"
say chosen "$(sed -n 's/.*"docker": *"\([a-z]*\)".*/\1/p' /etc/fairlead/install.json 2>/dev/null)"
[ -s /etc/ssh/fairlead_authorized_keys ] && has ssh-keygen &&
    say controllers "$(ssh-keygen -lf /etc/ssh/fairlead_authorized_keys 2>/dev/null | awk '{ print $2 }')"
say facts complete
