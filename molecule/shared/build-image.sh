#!/usr/bin/env bash
# Make the image of a test host and print its name: build-image.sh bookworm|trixie
#                                                  build-image.sh --from REGISTRY/IMAGE:TAG
#
# Packages come from the Debian mirror and through the proxy that this machine's apt uses
# (HOSTKIT_DEBIAN_MIRROR=URL overrides it). The image is named by a hash of all that goes into it,
# so nothing is built twice. Needs root.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=molecule/shared/lib.sh
. "$here/lib.sh"

setup=$here/image-setup.sh
[ $# -ge 1 ] || die "Usage: build-image.sh bookworm|trixie, or build-image.sh --from IMAGE"

# URL of this machine's Debian archive, or of the security archive.
archive() { # archive [security]
    apt-get indextargets --format "\$(REPO_URI) \$(RELEASE)" 'Created-By: Packages' |
        awk -v want="${1:-}" '
            $2 ~ /^(bullseye|bookworm|trixie|forky|sid|stable|testing|unstable)(-security)?$/ {
                if (($2 ~ /-security$/) == (want == "security")) { print $1; exit }
            }'
}

sources() { # sources SUITE
    echo "deb $mirror $1 main"
    echo "deb $mirror $1-updates main"
    [ -z "$security" ] || echo "deb $security $1-security main"
}

build() { # build SUITE
    suite=$1
    mirror=${HOSTKIT_DEBIAN_MIRROR:-$(archive)}
    security=${HOSTKIT_DEBIAN_SECURITY_MIRROR:-$(archive security)}
    [ -n "$mirror" ] || die "This machine's apt sources name no Debian archive;" \
        "set HOSTKIT_DEBIAN_MIRROR to the URL of one."
    packages=$(sh "$setup" --packages | tr ' ' ,)
    lines=$(sources "$suite")
    if [ "$suite" = trixie ]; then
        # The CPU engine is built for Python 3.11, which trixie lacks: only what trixie does not have
        # comes from bookworm.
        packages=$packages,python3.11
        lines=$lines$'\n'$(sources bookworm)
    fi
    options=$(bed_apt_options)
    image=localhost/hostkit-bed:$suite-$(cat - "$0" "$setup" <<<"$lines $options" | sha256sum | cut -c1-12)

    exec 9>"/run/lock/hostkit-image-$suite.lock"
    flock 9
    if bed_podman image exists "$image"; then
        echo "$image"
        return
    fi
    say "Building the $suite image from $mirror (once, about half a minute)"
    scratch=$(mktemp -d)
    trap 'rm -rf "$scratch"' EXIT
    aptopts=(--aptopt='Apt::Install-Recommends "false"')
    while IFS= read -r option; do
        [ -z "$option" ] || aptopts+=("--aptopt=$option")
    done <<<"$options"
    pin='true'
    if [ "$suite" = trixie ]; then
        printf 'Package: *\nPin: release n=bookworm*\nPin-Priority: 100\n' >"$scratch/pin"
        pin="mkdir -p \"\$1/etc/apt/preferences.d\"; cp $scratch/pin \"\$1/etc/apt/preferences.d/bookworm\""
    fi
    # The package lists stay, as on an installed host: without them a dry run could not know a package.
    if ! mmdebstrap --mode=root --variant=minbase --include="$packages" "${aptopts[@]}" \
        --skip=cleanup/apt/lists \
        --setup-hook="$pin" \
        --customize-hook="copy-in $setup /root" \
        --customize-hook="chroot \"\$1\" sh /root/image-setup.sh" \
        --customize-hook="rm \"\$1/root/image-setup.sh\" \"\$1/etc/apt/apt.conf.d/99mmdebstrap\"" \
        --customize-hook=": >\"\$1/etc/resolv.conf\"; echo localhost >\"\$1/etc/hostname\"" \
        "$suite" "$scratch/image.tar" - <<<"$lines" >"$scratch/log" 2>&1; then
        grep '^E: ' "$scratch/log" | head -n 3 >&2
        die "The $suite image could not be built from $mirror (reasons above)." \
            "Check with apt-get update that this machine reaches its archive; HOSTKIT_DEBIAN_MIRROR names another."
    fi
    bed_podman import --quiet "$scratch/image.tar" "$image" >/dev/null
    # Images of older recipes; one that a host still uses stays.
    bed_podman image ls --quiet --filter "reference=localhost/hostkit-bed:$suite-*" --filter "before=$image" |
        xargs -r -n1 podman image rm >/dev/null 2>&1 || true
    echo "$image"
}

derive() { # derive IMAGE
    image=localhost/hostkit-bed:derived-$(cat - "$0" "$setup" <<<"$1" | sha256sum | cut -c1-12)
    exec 9>"/run/lock/hostkit-image-derived.lock"
    flock 9
    if bed_podman image exists "$image"; then
        echo "$image"
        return
    fi
    if ! bed_podman image exists "$1"; then
        say "Pulling $1"
        bed_podman pull --quiet "$1" >/dev/null ||
            die "The image $1 can be neither found here nor pulled." \
                "Correct bed_image, or drop it to have the image built from Debian's packages."
    fi
    say "Turning $1 into a test host (once)"
    worker=hostkit-derive-$$
    trap 'podman rm --force --time 0 "$worker" >/dev/null 2>&1 || true' EXIT
    log=$(mktemp)
    if ! { bed_create "$worker" --entrypoint '["/bin/sh"]' "$1" \
        /root/image-setup.sh --install &&
        bed_podman cp "$setup" "$worker:/root/image-setup.sh" &&
        bed_podman start --attach "$worker"; } >"$log" 2>&1; then
        tail -n 20 "$log" >&2
        rm -f "$log"
        die "The image $1 could not be turned into a test host (log above); it must be Debian or Ubuntu."
    fi
    rm -f "$log"
    bed_podman commit --quiet --change 'ENTRYPOINT []' --change 'CMD ["/sbin/init"]' --change 'USER root' \
        "$worker" "$image" >/dev/null
    echo "$image"
}

case $1 in
--from) derive "${2:?--from needs an image}" ;;
bookworm | trixie) build "$1" ;;
*) die "bed_suite is '$1'; it must be bookworm or trixie. For another system name its image in bed_image." ;;
esac
