#!/bin/sh
# Brings this machine to the point where the project's own tools run:
#   tools/setup.sh controller|bed|test
# controller: what ansible-playbook needs. bed: test hosts in containers as well. test: everything.
# Names the system packages that are missing before it installs them; needs root or sudo only then.
set -eu
cd "$(dirname "$0")/.."
level=${1:?usage: tools/setup.sh controller|bed|test}

say() { printf '%s\n' "$*"; }
fail() { say "setup: $*" >&2; exit 1; }
have() { command -v "$1" >/dev/null 2>&1; }

[ "$(uname -s)" = Linux ] || fail "this is $(uname -s); the control node must be Linux."

# A Python that can make virtual environments (Debian ships ensurepip apart, in python3-venv).
find_python() {
    for candidate in ${HOSTKIT_PYTHON:+"$HOSTKIT_PYTHON"} python3 python3.13 python3.12 python3.11 /usr/bin/python3; do
        if "$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            "$candidate" -c 'import sys; print(sys.executable)'
            return 0
        fi
    done
    return 1
}

missing=""
need() { have "$1" || missing="$missing $2"; }

python=$(find_python) || missing="$missing python3 python3-venv"
need ssh openssh-client
if [ "$level" != controller ]; then
    need podman podman
    need crun crun
    need mmdebstrap mmdebstrap
    need iptables iptables    # netavark, podman's network stack, runs it
    need ip iproute2
fi
[ "$level" != test ] || need shellcheck shellcheck
[ "$level" != test ] || need gcc "gcc libc6-dev"    # doubles of libraries

if [ -n "$missing" ]; then
    have apt-get || fail "missing:$missing (Debian's names). Install them with this system's package manager and run again."
    root=""
    if [ "$(id -u)" -ne 0 ]; then
        have sudo || fail "missing:$missing. Installing them needs root: run as root, install sudo, or have them installed."
        root="sudo --preserve-env=http_proxy,https_proxy,no_proxy,HTTP_PROXY,HTTPS_PROXY,NO_PROXY"
    fi
    say "Installing system packages:$missing"
    $root apt-get update -qq || fail "apt-get update failed: is there a network, and is the proxy (http_proxy) set?"
    # shellcheck disable=SC2086  # lists of words on purpose
    $root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null ||
        fail "apt-get could not install:$missing. Its own message is above."
    python=$(find_python) || fail "no Python 3.11 or newer with venv found (python3 is $(python3 --version 2>&1 || echo missing)). Install one and name it: HOSTKIT_PYTHON=/path/to/python3.12 make ..."
fi

exec "$python" -I tools/controller.py "$level"
