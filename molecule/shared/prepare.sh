#!/usr/bin/env bash
# Check that this machine can carry test hosts and keep their addresses from ever leaving it.
# Prints what it changed. Needs root.
set -euo pipefail

# shellcheck source=molecule/shared/lib.sh
. "$(cd "$(dirname "$0")" && pwd)/lib.sh"

[ "$(id -u)" = 0 ] || die "Test hosts are containers of root: run as root, or give this user passwordless sudo."

missing=()
for command in podman crun mmdebstrap iptables ip:iproute2 flock:util-linux ssh-keygen:openssh-client; do
    command -v "${command%%:*}" >/dev/null || missing+=("${command##*:}")
done
[ ${#missing[@]} = 0 ] || die "Missing here: ${missing[*]}. Install with: apt-get install ${missing[*]}"

# A stray packet to a test host that isn't up must fail here, not travel along the default route.
# This comes before any other change to the network, and it stays when the hosts are gone.
foreign=$(ip -4 -oneline address show | awk '$4 ~ /^10[.]89[.]/ && $2 !~ /podman/ { print $2, $4 }'
    ip -4 route show "$bed_range" | grep -v '^unreachable' || true)
[ -z "$foreign" ] || die "This machine is itself in $bed_range, the range of the test hosts ($foreign)." \
    "Test hosts can't run beside that network."
if ! ip -4 route show type unreachable "$bed_range" | grep -q .; then
    ip route add unreachable "$bed_range"
    echo "Guard route added: unreachable $bed_range"
fi

# Kernel features: each is tried out in a network namespace of its own, which leaves nothing behind.
try() { # try FEATURE COMMAND...
    feature=$1
    shift
    unshare --net "$@" >/dev/null 2>&1 ||
        die "This kernel lacks $feature (or it may not be used here): test hosts need it. Try: modprobe $feature"
}
try bridge ip link add probe type bridge
try veth ip link add probe type veth
try nf_tables iptables-nft -L -n

# crun refuses a cgroup v2 mount beside v1 controllers. Nothing but systemd uses it in that layout,
# and a machine that systemd runs is not touched.
if mountpoint -q /sys/fs/cgroup/unified && mountpoint -q /sys/fs/cgroup/memory; then
    [ ! -d /run/systemd/system ] ||
        die "This machine runs the hybrid cgroup layout, which crun refuses." \
            "Boot it with systemd.unified_cgroup_hierarchy=1."
    umount -l /sys/fs/cgroup/unified
    echo "Unmounted /sys/fs/cgroup/unified: the container runtime refuses it beside cgroup v1 controllers"
fi
