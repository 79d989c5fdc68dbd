#!/usr/bin/env bash
# Remove test hosts by name, and each network of theirs that no other host uses any more:
# host-down.sh CHECKOUT NAME... Prints what it removed. Needs root. The guard route stays.
set -euo pipefail

# shellcheck source=molecule/shared/lib.sh
. "$(cd "$(dirname "$0")" && pwd)/lib.sh"

checkout=${1:?Usage: host-down.sh CHECKOUT NAME...}
shift
command -v podman >/dev/null || exit 0 # then no host was ever made here

exec 9>/run/lock/hostkit-hosts.lock
flock 9
for name in "$@"; do
    for container in "hostkit-$name" "hostkit-$name.partial"; do
        owner=$(bed_other_owner "$container" "$checkout")
        if [ -n "$owner" ]; then
            say "Left $container alone: it belongs to the checkout $owner"
        elif bed_podman container exists "$container"; then
            bed_podman rm --force --time 0 "$container" >/dev/null
            echo "Removed $container"
        fi
    done
done
for network in $(bed_podman network ls --quiet --filter label=hostkit.bed=true); do
    # Refused while a host is attached to it, be it another scenario's or the demo's.
    if bed_podman network rm "$network" >/dev/null 2>&1; then echo "Removed the network $network"; fi
done
