#!/bin/sh
# Runs inside an image while it is made: turns a Debian-like system into a test host.
# Missing packages are installed only where the image came from a registry (`--install`).
set -eu

action=${1:-}
set -- ca-certificates dbus iproute2 openssh-server procps python3 python3-apt sudo systemd systemd-sysv

case $action in
--packages)
    echo "$*"
    exit
    ;;
--install)
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -q
    apt-get install -q -y --no-install-recommends "$@"
    apt-get clean
    ;;
esac

# The account that Ansible logs in with; its key is put there when the host is made.
id ansible >/dev/null 2>&1 || useradd --create-home --shell /bin/bash ansible
install -d -m 0700 -o ansible -g ansible /home/ansible/.ssh
echo 'ansible ALL=(ALL) NOPASSWD: ALL' >/etc/sudoers.d/ansible
chmod 0440 /etc/sudoers.d/ansible

# Each host makes its own host key and machine id at its first start.
rm -f /etc/ssh/ssh_host_*
mkdir -p /etc/ssh/sshd_config.d /etc/systemd/system/ssh.service.d
printf 'UseDNS no\nPasswordAuthentication no\nHostKey /etc/ssh/ssh_host_ed25519_key\n' \
    >/etc/ssh/sshd_config.d/10-hostkit.conf
cat >/etc/systemd/system/ssh.service.d/10-host-key.conf <<'UNIT'
[Service]
ExecStartPre=
ExecStartPre=/bin/sh -c 'test -s /etc/ssh/ssh_host_ed25519_key || ssh-keygen -q -t ed25519 -N "" -f /etc/ssh/ssh_host_ed25519_key'
ExecStartPre=/usr/sbin/sshd -t
UNIT
systemctl enable ssh.service >/dev/null 2>&1
: >/etc/machine-id

# No consoles and no device manager in a container; background apt runs would hold the package lock.
systemctl mask console-getty.service getty.target systemd-udevd.service systemd-udev-trigger.service \
    systemd-udevd-control.socket systemd-udevd-kernel.socket apt-daily.timer apt-daily-upgrade.timer \
    >/dev/null 2>&1
systemctl set-default multi-user.target >/dev/null 2>&1
