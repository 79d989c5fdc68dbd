#!/usr/bin/env python3
"""Prove on a test host that what systemd and the kernel are told is enforced, not silently ignored.

Most probes do a thing twice: without the directive it must succeed (else the probe shows nothing),
with it it must be refused. Prints a JSON list of results. Needs root; standard library only.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

PYTHON = "/usr/bin/python3"
SCRATCH = Path("/run/hostkit-probe")
GPU_MAJOR = 195  # of NVIDIA's device nodes; the minor belongs to no real GPU
RESULTS: list[dict[str, object]] = []


def record(name: str, holds: bool, seen: object) -> None:
    """Keep one result: what is claimed, whether it holds, what was seen."""
    RESULTS.append({"name": name, "holds": holds, "seen": str(seen)})


def run(*command: str) -> subprocess.CompletedProcess[str]:
    """Run a command and return its exit status and all it printed."""
    return subprocess.run(
        command,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
        timeout=99,
    )


def properties_of(unit: str, *names: str) -> dict[str, str]:
    """Return properties of a unit as systemd has them."""
    output = run("systemctl", "show", unit, *(f"--property={name}" for name in names)).stdout
    return dict(line.split("=", 1) for line in output.splitlines() if "=" in line)


def service(properties: list[str], *command: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end as a transient service with these properties."""
    options = [f"--property={item}" for item in properties]
    return run("systemd-run", "--quiet", "--wait", "--pipe", "--collect", *options, "--", *command)


@contextlib.contextmanager
def running(unit: str, properties: list[str], *command: str) -> Iterator[None]:
    """Have a transient service run while the block does."""
    options = [f"--property={item}" for item in properties]
    run(
        "systemd-run", "--quiet", f"--unit={unit}", "--property=Type=exec", *options, "--", *command
    )
    try:
        yield
    finally:
        run("systemctl", "stop", unit)
        run("systemctl", "reset-failed", unit)


def outcome(result: subprocess.CompletedProcess[str]) -> str:
    """Say how a command ended and what it printed last."""
    return f"exit status {result.returncode}, {result.stdout.strip()[-300:]!r}"


def refused(
    directive: str, *command: str, base: tuple[str, ...] = (), more: tuple[str, ...] = ()
) -> None:
    """Record whether the command succeeds without the directive and fails with it."""
    without = service([*base], *command)
    under = service([*base, directive, *more], *command)
    holds = without.returncode == 0 and under.returncode != 0
    record(directive, holds, f"without it {outcome(without)}, with it {outcome(under)}")


def answers(name: str, properties: list[str], wanted: str, *command: str) -> None:
    """Record whether a service with these properties succeeds and prints what is wanted."""
    result = service(properties, *command)
    matches = re.fullmatch(wanted, result.stdout.strip()) is not None
    record(name, result.returncode == 0 and matches, f"{outcome(result)}, wanted {wanted!r}")


def python(code: str) -> tuple[str, str, str]:
    """Return the command line that runs this Python code."""
    return PYTHON, "-c", code


def probe_filesystem() -> None:
    """What a service may see and write."""
    any_writable = (
        "for d in /usr /etc /var /opt; do"
        "  touch $d/.probe 2>/dev/null && rm $d/.probe && exit 0; done; exit 1"
    )
    refused("ProtectSystem=strict", "sh", "-c", any_writable)
    answers(
        "ReadWritePaths=",
        ["ProtectSystem=strict", "ReadWritePaths=/var/tmp"],
        "",
        *("sh", "-c", "touch /var/tmp/.probe && rm /var/tmp/.probe"),
    )
    with tempfile.NamedTemporaryFile() as seen_by_all:
        refused("PrivateTmp=yes", "test", "-e", seen_by_all.name)
    refused("ProtectHome=yes", "test", "-e", "/home/ansible/.ssh")
    refused("InaccessiblePaths=/etc/ssh", "test", "-e", "/etc/ssh/sshd_config")
    refused("ProtectProc=invisible", "test", "-d", "/proc/1", base=("User=ansible",))
    answers(
        "TemporaryFileSystem= and BindReadOnlyPaths=",
        ["TemporaryFileSystem=/srv", "BindReadOnlyPaths=/srv/wheels"],
        "wheels",
        *("ls", "/srv"),
    )
    answers(
        "DynamicUser= and StateDirectory=",
        ["DynamicUser=yes", "StateDirectory=hostkit-probe"],
        "6[0-9]{4}",
        *("sh", "-c", "touch $STATE_DIRECTORY/x && id -u"),
    )


def probe_privileges() -> None:
    """What a service may ask of the kernel."""
    owned = SCRATCH / "owned"
    owned.touch()
    change_owner = python(f"import os; os.chown({str(owned)!r}, 1, 1)")
    open_socket = python("import socket; socket.socket(socket.AF_INET)")
    refused("NoNewPrivileges=yes", "sudo", "-n", "true", base=("User=ansible",))
    refused("CapabilityBoundingSet=~CAP_CHOWN", *change_owner)
    effective = ("grep", "CapEff", "/proc/self/status")
    answers("CapabilityBoundingSet=", ["CapabilityBoundingSet="], r"CapEff:\s+0+", *effective)
    refused("SystemCallFilter=~@chown", *change_owner)
    refused("SystemCallFilter=@system-service", "unshare", "--mount", "true")
    refused("RestrictNamespaces=yes", "unshare", "--mount", "true")
    refused("RestrictAddressFamilies=AF_UNIX", *open_socket)
    refused("RestrictSUIDSGID=yes", "chmod", "u+s", str(owned))
    refused("MemoryDenyWriteExecute=yes", *python("import mmap; mmap.mmap(-1, 4096, prot=7)"))
    reach_sshd = python("import socket; socket.create_connection(('127.0.0.1', 22))")
    refused("PrivateNetwork=yes", *reach_sshd)


def probe_devices() -> None:
    """A device node with no driver behind it: ENXIO is the kernel's answer, EPERM the cgroup's."""
    node = Path("/dev/hostkit-probe-gpu")
    node.unlink(missing_ok=True)
    os.mknod(node, 0o20666, os.makedev(GPU_MAJOR, 250))
    reach = python(
        "import errno, os, sys\n"
        f"try: os.open({str(node)!r}, os.O_RDWR)\n"
        "except OSError as error: sys.exit(error.errno not in (errno.ENXIO, errno.ENODEV))"
    )
    refused("DevicePolicy=closed", *reach)
    answers("DeviceAllow=", ["DevicePolicy=closed", f"DeviceAllow={node} rw"], "", *reach)
    node.unlink()


def probe_credentials() -> None:
    """A secret reaches the service that it is for, and nobody else."""
    secret = SCRATCH / "secret"
    secret.write_text("canary")
    secret.chmod(0o600)
    # Kept off the disk: systemd takes ramfs, or from version 256 tmpfs that is never swapped, where
    # an access list rather than the owner lets the user in.
    look = python(
        "import os, pathlib\n"
        "place = os.environ['CREDENTIALS_DIRECTORY']\n"
        "mounts = [line.split() for line in open('/proc/self/mounts')]\n"
        "kind, options = [(m[2], m[3].split(',')) for m in mounts if m[1] == place][-1]\n"
        "assert {'ro', 'nosuid', 'nodev', 'noexec'} <= set(options), options\n"
        "assert kind == 'ramfs' or 'noswap' in options, (kind, options)\n"
        "secret = pathlib.Path(place, 'secret')\n"
        "assert secret.stat().st_mode & 0o777 == (0o400 if kind == 'ramfs' else 0o440)\n"
        "assert secret.owner() == ('ansible' if kind == 'ramfs' else 'root')\n"
        "print(secret.read_text())"
    )
    own = ["User=ansible", f"LoadCredential=secret:{secret}"]
    answers("LoadCredential=", own, "canary", *look)

    unit = "hostkit-probe-secret.service"
    place = f"/run/credentials/{unit}/secret"
    with running(unit, own, "sleep", "60"):
        there = Path(place).exists()
        others = service(["User=nobody"], "cat", place)
    hidden = there and others.returncode != 0
    record("LoadCredential= hidden from others", hidden, f"there: {there}, {outcome(others)}")
    record("LoadCredential= gone with the service", not Path(place).exists(), place)

    sealed = SCRATCH / "sealed"
    encrypt = ("systemd-creds", "encrypt", "--with-key=host", "--name=secret")
    made = run(*encrypt, str(secret), str(sealed))
    hidden = made.returncode == 0 and "canary" not in sealed.read_text()
    record("systemd-creds encrypt --with-key=host", hidden, made.stdout.strip())
    options = ["User=ansible", f"LoadCredentialEncrypted=secret:{sealed}"]
    answers("LoadCredentialEncrypted=", options, "canary", *look)
    text = sealed.read_text()
    sealed.write_text(text[:40] + ("A" if text[40] != "A" else "B") + text[41:])
    damaged = service(options, "true")
    holds = damaged.returncode != 0
    record("LoadCredentialEncrypted= refuses a damaged file", holds, outcome(damaged))


def probe_resources() -> None:
    """How much a service may use."""
    refused("MemoryMax=64M", *python("len(b'x' * 200_000_000)"), more=("MemorySwapMax=0",))
    fork = "import os, time\nfor _ in range(20): os.fork() or (time.sleep(1), os._exit(0))"
    refused("TasksMax=8", *python(fork))

    unit = "hostkit-probe-memory.service"
    with running(unit, [], *python("import time; kept = b'x' * 50_000_000; time.sleep(60)")):
        time.sleep(1)
        used = properties_of(unit, "MemoryCurrent")["MemoryCurrent"]
    record("MemoryCurrent is counted", used.isdigit() and int(used) > 50_000_000, used)

    burn = python(
        "import time\nend = time.monotonic() + 2\nwhile time.monotonic() < end: pass\n"
        "print(time.process_time() / 2)"
    )
    free = throttled = 0.0
    for _ in range(5):  # on a busy machine the free run may be slow too, and show nothing
        free = float(service([], *burn).stdout)
        throttled = float(service(["CPUQuota=5%"], *burn).stdout)
        if free > 0.15:
            break
    holds = throttled < 0.1 and free > 0.15
    record("CPUQuota=5%", holds, f"share of a CPU: {free:.2f} without it, {throttled:.2f} with it")

    limits = ("bash", "-c", "echo $(ulimit -Sn) $(ulimit -Hn)")
    answers("LimitNOFILE= below the hard limit", ["LimitNOFILE=1000"], "1000 1000", *limits)
    answers("OOMScoreAdjust=200", ["OOMScoreAdjust=200"], "200", "cat", "/proc/self/oom_score_adj")
    answers("Nice=-5", ["Nice=-5"], "-5", "nice")


def probe_lifecycle() -> None:
    """How a service starts, is seen, and ends."""
    told = SCRATCH / "told"
    child = f"trap 'echo told >>{told}' TERM; while :; do sleep 0.1; done"
    unit = "hostkit-probe-stop.service"
    stubborn = f"trap '' TERM; sh -c \"{child}\" & while :; do sleep 0.1; done"
    with running(unit, ["KillMode=mixed", "TimeoutStopSec=2"], "sh", "-c", stubborn):
        time.sleep(0.5)
        main, group = properties_of(unit, "MainPID", "ControlGroup").values()
        members = processes_of(group)
        began = time.monotonic()
        run("systemctl", "stop", unit)
        took = time.monotonic() - began
    record("KillMode=mixed spares the children the TERM", not told.exists(), told.exists())
    record("TimeoutStopSec=2 ends a stubborn service", 1.5 < took < 5, f"after {took:.2f} s")
    left = [pid for pid in members if Path(f"/proc/{pid}").exists()]
    both = int(main) in members and len(members) > 1
    record("The cgroup lists main process and child", both, f"{main} in {members}")
    record("A stop leaves no process of the service", not left, left)

    began = time.monotonic()
    unit = "hostkit-probe-ready.service"
    slow = ("sh", "-c", "sleep 1; systemd-notify --ready; sleep 60")
    with running(unit, ["Type=notify", "NotifyAccess=all"], *slow):
        took = time.monotonic() - began
        state = properties_of(unit, "ActiveState")["ActiveState"]
    holds = took > 1 and state == "active"
    record("Type=notify waits for readiness", holds, f"{state} after {took:.2f} s")

    word = f"probe-{os.getpid()}-{time.monotonic_ns()}"
    unit = "hostkit-probe-log.service"
    with running(unit, ["RemainAfterExit=yes"], "echo", word):
        time.sleep(0.5)
        log = run("journalctl", "--no-pager", "--output=cat", f"--unit={unit}").stdout
    record("The journal has what a unit printed", word in log.splitlines(), log[-200:])


def processes_of(control_group: str) -> list[int]:
    """Process ids in a unit's cgroup, in the layout of v1 or of v2."""
    for root in (Path("/sys/fs/cgroup/systemd"), Path("/sys/fs/cgroup")):
        members = root / control_group.lstrip("/") / "cgroup.procs"
        if members.exists():
            return [int(pid) for pid in members.read_text().split()]
    return []


def probe_host() -> None:
    """What kind of host this is."""
    state = run("systemctl", "is-system-running", "--wait").stdout.strip()
    failed = run("systemctl", "list-units", "--failed", "--plain", "--no-legend").stdout.strip()
    holds = state == "running" and not failed
    record("The system is running and no unit failed", holds, f"{state} {failed}")

    kernel = Path("/proc/sys/vm/max_map_count")
    before = kernel.read_text()
    try:
        kernel.write_text(before)
        writable = True
    except OSError:
        writable = False
    holds = before.strip().isdigit() and not writable
    record("The machine's kernel settings are readable, not writable", holds, before.strip())

    for place in ("/srv/wheels", "/srv/models"):
        touched = run("touch", f"{place}/.probe")
        record(f"{place} is there, read-only", "Read-only" in touched.stdout, outcome(touched))

    found = [name for name in ("cc", "gcc", "g++", "pip", "pip3", "uv") if shutil.which(name)]
    found += [line for line in run("ldconfig", "-p").stdout.splitlines() if "libnuma" in line]
    record("The host is bare: no compiler, pip or libnuma", not found, found)
    libraries = "bz2, ctypes, hashlib, lzma, readline, sqlite3, ssl, uuid, zlib"
    loaded = run("/usr/bin/env", "python3.11", "-c", f"import {libraries}")
    record("Python 3.11 is there, with its libraries", loaded.returncode == 0, outcome(loaded))


def main() -> None:
    """Run all probes and print what they saw."""
    SCRATCH.mkdir(mode=0o755, exist_ok=True)
    probes = (
        probe_host,
        probe_filesystem,
        probe_privileges,
        probe_devices,
        probe_credentials,
        probe_resources,
        probe_lifecycle,
    )
    for probe in probes:
        try:
            probe()
        except Exception as error:
            record(f"{probe.__name__} runs to its end", holds=False, seen=repr(error))
    shutil.rmtree(SCRATCH)
    print(json.dumps(RESULTS))


if __name__ == "__main__":
    main()
