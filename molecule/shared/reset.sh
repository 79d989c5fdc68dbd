#!/usr/bin/env bash
# Remove all molecule hosts of this checkout and what molecule remembers of them. The sandbox's host stays,
# unless asked for: reset.sh [--all]
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=molecule/shared/lib.sh
. "$here/lib.sh"
project=$(cd "$here/../.." && pwd)

sudo=()
if [ "$(id -u)" != 0 ]; then
    sudo=(sudo -n)
    sudo -n true 2>/dev/null || die "Test hosts are containers of root: run as root, or give this user passwordless sudo."
fi

hosts=()
while read -r container; do
    container=${container%.partial}
    [ "$container" = hostkit-demo ] && [ "${1:-}" != --all ] && continue
    hosts+=("${container#hostkit-}")
done < <("${sudo[@]}" podman ps --all --filter "label=hostkit.checkout=$project" --format '{{ .Names }}')
[ ${#hosts[@]} = 0 ] || "${sudo[@]}" "$here/host-down.sh" "$project" "${hosts[@]}"

# Molecule believes its state file, not the machine.
cd "$project"
molecule=$project/.venv/bin/molecule
[ ! -x "$molecule" ] || PATH=$project/.venv/bin:$PATH "$molecule" reset --all >/dev/null 2>&1 ||
    die "molecule could not forget its hosts; run: molecule reset --all"
echo "Molecule remembers no host of this checkout"
