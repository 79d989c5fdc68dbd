#!/bin/sh
# First process of a test host: prepares the container so that systemd's directives are enforced
# rather than silently ignored, then becomes systemd.

# Mounts made by systemd must propagate, else a service never sees its credentials.
mount --make-rshared /

# On cgroup v1 a container sees its own subtree at the hierarchy's root while /proc names the path
# from the machine's root, so systemd would never set a limit. Whole hierarchies make both agree.
# On cgroup v2 the private cgroup namespace does that already, and nothing is to be done.
if [ "$(stat -f -c %T /sys/fs/cgroup)" != cgroup2fs ]; then
    for controller in memory cpu cpuacct pids devices; do
        umount "/sys/fs/cgroup/$controller" &&
            mount -t cgroup -o "$controller" cgroup "/sys/fs/cgroup/$controller"
    done
fi

exec /sbin/init
