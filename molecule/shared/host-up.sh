#!/usr/bin/env bash
# Make one test host, or repair it: host-up.sh NAME ADDRESS open|airgap IMAGE CHECKOUT CACHE
# Prints what it changed, nothing when the host was already up and right. Needs root.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=molecule/shared/lib.sh
. "$here/lib.sh"

[ $# = 6 ] || die "Usage: host-up.sh NAME ADDRESS open|airgap IMAGE CHECKOUT CACHE"
name=$1 address=$2 access=$3 image=$4 checkout=$5 cache=$6
container=hostkit-$name
key=$cache/ssh/id_ed25519.pub

[[ $address =~ ^10\.89\.[0-9]{1,3}\.[0-9]{1,3}$ ]] ||
    die "ansible_host of $name is '$address'; a test host needs an address in $bed_range."
prefix=${address%.*}
subnet=$prefix.0/24
network=hostkit-$prefix

internal=false
network_options=(--subnet "$subnet" --label hostkit.bed=true)
run_options=()
case $access in
open) ;;
airgap)
    internal=true
    network_options+=(--internal)
    run_options+=(--dns none)
    ;;
*) die "bed_network of $name is '$access'; it must be open or airgap." ;;
esac

# Service sandboxes are made of mounts (SYS_ADMIN) and device nodes (MKNOD); firewalls need NET_ADMIN;
# sshd ends a session with a terminal, which asynchronous tasks ask for, when it can't write to the audit log.
# Root sees other users' files and sockets in /proc by SYS_PTRACE, as on a real host.
# The device rule lets DeviceAllow= of a GPU be told from a refusal.
options=(
    --hostname "$name" --network "$network" --ip "$address" "${run_options[@]}"
    --shm-size 2g # two servers at once; each asks for 400 MiB
    # podman's 2048 would make systemd give a service 307 tasks (15 %); a real host gives it thousands.
    --pids-limit -1
    --systemd=always --stop-signal=SIGRTMIN+3 --http-proxy=false
    --cap-add NET_ADMIN --cap-add SYS_ADMIN --cap-add MKNOD --cap-add SYS_NICE --cap-add AUDIT_WRITE
    --cap-add SYS_PTRACE
    --security-opt seccomp=unconfined --security-opt apparmor=unconfined --security-opt label=disable
    --device-cgroup-rule 'c 195:* rwm'
    --volume "$here/host-init.sh:/usr/local/sbin/host-init:ro"
    --volume "$cache/wheels:/srv/wheels:ro" --volume "$cache/models:/srv/models:ro"
    "$image" /bin/sh /usr/local/sbin/host-init
)
apt_options=
if [ "$access" = open ]; then
    # The machine's apt proxy serves the host as well; one on loopback is reached at the gateway.
    apt_options=$(bed_apt_options | sed -E "s#//(localhost|127\.[0-9.]+|\[::1\])([:/])#//$prefix.1\2#")
fi

# All that makes this host what it is; when it differs the host is made anew.
spec=$(printf '%s\n' "$(ulimit -Hn) $(ulimit -Hu)" "${options[@]}" "$apt_options" "$(<"$here/host-init.sh")" "$(<"$key")" | sha256sum | cut -c1-16)

state() { bed_podman container inspect --format '{{ .State.Status }}' "$container" 2>/dev/null || true; }

# One at a time: a network must not be removed between its making and its first host.
exec 9>/run/lock/hostkit-hosts.lock
flock 9

owner=$(bed_other_owner "$container" "$checkout")
[ -z "$owner" ] || die "The test host $container belongs to the checkout $owner." \
    "Stop it there first, or remove it: podman rm --force $container"

remake() { # remake REASON
    bed_podman rm --force --time 0 "$container" >/dev/null
    echo "Removed $container, which $1"
}
if [ -n "$(state)" ] && [ "$(bed_label "$container" hostkit.spec)" != "$spec" ]; then
    remake "was of another description"
elif [ "$(state)" = running ] && [ ! -d "/proc/$(bed_podman container inspect --format '{{ .State.Pid }}' "$container")" ]; then
    remake "had died unseen"
fi

if [ -z "$(state)" ]; then
    # Made under a partial name and renamed when complete, so that a killed run leaves no half host.
    partial=$container.partial
    bed_podman rm --force --time 0 "$partial" >/dev/null 2>&1 || true
    bed_podman network exists "$network" || bed_podman network create "${network_options[@]}" "$network" >/dev/null
    [ "$(bed_podman network inspect --format '{{ .Internal }}' "$network")" = "$internal" ] ||
        die "bed_network of $name is '$access', but other hosts in $subnet have the opposite. Use another /24."
    bed_create "$partial" --label hostkit.bed=true --label "hostkit.checkout=$checkout" \
        --label "hostkit.spec=$spec" "${options[@]}" >/dev/null
    bed_podman cp "$key" "$partial:/home/ansible/.ssh/authorized_keys"
    scratch=$(mktemp)
    trap 'rm -f "$scratch"' EXIT
    echo "$apt_options" >"$scratch"
    chmod 0644 "$scratch"
    bed_podman cp "$scratch" "$partial:/etc/apt/apt.conf.d/90machine"
    bed_podman rename "$partial" "$container"
    echo "Made $container"
fi
flock --unlock 9

if [ "$(state)" != running ]; then
    bed_podman start "$container" >/dev/null 9>&- # else the container keeps the lock
    echo "Started $container at $address"
fi

# An internal network may leave the bridge without an address: then this machine, and ssh, have no way in.
flock 9
bridge=$(bed_podman network inspect --format '{{ .NetworkInterface }}' "$network")
if ! ip -4 -oneline address show dev "$bridge" | grep -q " $prefix\."; then
    ip address add "$prefix.1/24" dev "$bridge"
    echo "Gave $bridge the address $prefix.1"
fi
