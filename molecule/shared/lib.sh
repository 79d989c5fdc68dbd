# shellcheck shell=bash
# What the scripts of the test hosts share.

export LC_ALL=C.UTF-8
export bed_range=10.89.0.0/16

say() { echo "$*" >&2; }

die() {
    say "ERROR: $*"
    exit 1
}

# Without systemd on this machine podman can neither ask it for cgroups nor log to its journal.
bed_podman() {
    if [ -d /run/systemd/system ]; then
        podman "$@"
    else
        podman --cgroup-manager=cgroupfs --events-backend=file "$@"
    fi
}

# A container can't have more than this machine allows; asking for it makes the start fail.
bed_limit() { # bed_limit WANTED HARD_LIMIT
    if [ "$2" = unlimited ] || [ "$2" -gt "$1" ]; then echo "$1"; else echo "$2"; fi
}
bed_create() { # bed_create NAME OPTION...
    local name=$1 nofile nproc
    shift
    nofile=$(bed_limit 1048576 "$(ulimit -Hn)")
    nproc=$(bed_limit 32768 "$(ulimit -Hu)") # podman 4 lowers its own to this before it starts the runtime
    bed_podman create --name "$name" --ulimit "nofile=$nofile:$nofile" --ulimit "nproc=$nproc:$nproc" "$@"
}

# What this machine's apt was told about proxies, certificates and dates, in apt.conf form.
bed_apt_options() {
    apt-config dump | grep -E '^Acquire::((https?|ftp)::|Check-|Retries|ForceIPv)' | grep -v ' "";$' || true
    for scheme in http https; do
        variable=${scheme}_proxy
        [ -z "${!variable:-}" ] || echo "Acquire::$scheme::Proxy \"${!variable}\";"
    done
}

bed_label() { # bed_label CONTAINER LABEL
    bed_podman container inspect --format "{{ index .Config.Labels \"$2\" }}" "$1" 2>/dev/null || true
}

# The other checkout that a host belongs to, if there is one that still exists.
bed_other_owner() { # bed_other_owner CONTAINER CHECKOUT
    local owner
    owner=$(bed_label "$1" hostkit.checkout)
    if [ "$owner" != "$2" ] && [ -d "$owner" ]; then echo "$owner"; fi
}
