"""Prove each directive of the unit's sandbox: what it forbids fails, and succeeds without it.

`prove.py VARIANT` runs attempts.py as the main process of units made from the toolkit's own
template, `probe-VARIANT@.service`, and drop-ins made by the toolkit's own code. Prints JSON: a list
of proofs, the exposure score of the unit, and of a bare unit. Needs root.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

sys.path[:0] = ["/usr/local/lib/vllm-hostkit", str(Path(__file__).parent)]

import attempts  # noqa: E402 # where it is installed is known only above

from hostkit import config, sandbox  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

UNITS = Path("/run/systemd/system")
OUT = Path("/run/hostkit-probe")
ATTEMPTS = Path(attempts.__file__)
ROOT = "User=root\nGroup=root\n"
HOST = Path("/proc/self/ns/mnt").stat().st_ino
NO_CAPABILITIES = ("CapabilityBoundingSet", "SecureBits", "SystemCallFilter")
"""What takes root's rights from root: out of the way where an attempt needs them."""
FILTERS = (
    "LockPersonality", "PrivateDevices", "ProtectClock", "ProtectHostname", "ProtectKernelLogs",
    "ProtectKernelModules", "ProtectKernelTunables", "RestrictAddressFamilies",
    "RestrictNamespaces", "RestrictRealtime", "RestrictSUIDSGID", "SystemCallArchitectures",
    "SystemCallFilter",
)  # fmt: skip
"""Each filter of system calls brings NoNewPrivileges with it, see systemd.exec(5)."""
MOUNTS = (
    "InaccessiblePaths", "NoExecPaths", "PrivateDevices", "PrivateIPC", "PrivateTmp",
    "ProtectControlGroups", "ProtectHome", "ProtectHostname", "ProtectKernelLogs",
    "ProtectKernelModules", "ProtectKernelTunables", "ProtectProc", "ProtectSystem",
    "TemporaryFileSystem",
)  # fmt: skip
"""Each of these brings mounts of the unit's own with it."""


@dataclass(frozen=True)
class Proof:
    """An attempt, and what stands in its way beside the directive.

    Attributes:
        directive: What forbids it.
        attempt: Name of a function of attempts.py.
        also: Directives that forbid the same, undone in both runs.
        base: Lines for both runs.
        values: Arguments of the attempt.
        variants: Variants of the unit that have the directive.
    """

    directive: str
    attempt: str
    also: tuple[str, ...] = ()
    base: str = ""
    values: tuple[str, ...] = ()
    variants: tuple[str, ...] = field(default=("cpu", "cuda"))


def own_address() -> str:
    """Return an address of the host that is not a loopback one."""
    return subprocess.check_output(["hostname", "-I"], text=True).split()[0]


PROOFS = (
    Proof("UMask", "write_for_all"),
    Proof("NoNewPrivileges", "become_root", (*FILTERS, "NoExecPaths")),
    Proof("CapabilityBoundingSet", "give_away", ("SecureBits", "SystemCallFilter"), ROOT),
    Proof("SecureBits", "have_root_bits"),
    Proof("ProtectSystem", "write_outside"),
    Proof("ProtectHome", "read_home"),
    Proof("InaccessiblePaths", "see_hidden"),
    Proof("PrivateTmp", "see_others_tmp"),
    Proof("TemporaryFileSystem", "see_shared_memory"),
    Proof("PrivateMounts", "share_mounts", MOUNTS, "ProtectHome=no\n", (str(HOST),)),
    Proof("NoExecPaths", "execute_own", values=("/tmp",)),
    Proof("PrivateDevices", "open_device", variants=("cpu",)),
    Proof("DevicePolicy", "open_device", ("ProtectClock",), variants=("cuda",)),
    Proof("PrivateIPC", "attach_shared", variants=("cpu",)),
    Proof("RemoveIPC", "leave_shared", ("PrivateIPC",)),
    Proof("ProtectKernelTunables", "read_kernel_addresses"),
    Proof("ProtectKernelModules", "see_modules"),
    Proof("ProtectKernelLogs", "see_kernel_log"),
    Proof("ProtectControlGroups", "make_control_group", (*NO_CAPABILITIES, "ProtectSystem"), ROOT),
    Proof("ProtectClock", "set_clock", NO_CAPABILITIES, ROOT),
    Proof("ProtectHostname", "set_hostname", NO_CAPABILITIES, ROOT),
    Proof("ProtectProc", "see_others"),
    Proof("RestrictNamespaces", "make_namespace"),
    Proof("RestrictRealtime", "be_realtime", NO_CAPABILITIES, ROOT),
    Proof("RestrictSUIDSGID", "leave_setuid"),
    Proof("RestrictAddressFamilies", "open_socket"),
    Proof("LockPersonality", "change_personality"),
    Proof("SystemCallArchitectures", "call_as_32_bit"),
    Proof("SystemCallFilter", "trace"),
    Proof("KeyringMode", "ask_for_key", ("SystemCallFilter",)),
    Proof("IPAddressDeny", "leave_the_host", values=(own_address(),)),
)


def systemctl(*arguments: str) -> None:
    subprocess.run(["systemctl", *arguments], check=False, stderr=subprocess.DEVNULL)


def write_unit(name: str, relaxed: Sequence[str], base: str, command: tuple[str, ...]) -> None:
    """Write the drop-ins of one run: the toolkit's own, and one that runs an attempt."""
    directory = UNITS / f"{name}.d"
    directory.mkdir()
    instance = {"name": "probe", "model": "/srv/models/none", "sandbox_relax": list(relaxed)}
    (directory / "50-hostkit.conf").write_text(config.render_drop_in(instance))
    reset = "".join(
        f"{key}=\n"
        for key in ("EnvironmentFile", "ExecStartPre", "ExecStart", "ExecStartPost", "ExecStop",
                    "ExecStopPost")
    )  # fmt: skip
    (directory / "90-probe.conf").write_text(
        f"[Unit]\nAssertPathExists=\n[Service]\n{reset}Type=oneshot\nRestart=no\n"
        f"ExecStart={' '.join(command)}\nStandardOutput=truncate:{OUT}/{name}\n{base}"
    )


def outcome(name: str) -> tuple[bool | None, str]:
    """Run a unit and return whether its attempt succeeded, None when it did not run, and why."""
    systemctl("start", name)
    try:
        succeeded, said = json.loads((OUT / name).read_text())
    except (OSError, ValueError):
        said = subprocess.run(
            ["journalctl", "--quiet", "--no-pager", "--output=cat", "--lines=4", f"--unit={name}"],
            capture_output=True, text=True, check=False,
        ).stdout  # fmt: skip
        return None, f"did not run: {said}"
    if "leave_shared" in (UNITS / f"{name}.d/90-probe.conf").read_text():
        time.sleep(0.5)  # systemd removes after it has told that the unit ended
        rows = Path("/proc/sysvipc/shm").read_text().splitlines()[1:]
        left = [row for row in rows if int(row.split()[0]) & 0xFFFFFFFF == attempts.LEFT_KEY]
        return succeeded and bool(left), f"{said}; left on the host: {len(left)}"
    return succeeded, said


def exposure(name: str) -> list[dict[str, object]]:
    """Return what systemd-analyze still finds open, and the whole score as the first entry."""
    shown = ["systemd-analyze", "security", "--no-pager", "--threshold=100", name]
    text = subprocess.run(shown, capture_output=True, text=True, check=False).stdout
    found = re.search(r"exposure level for .*?: ([0-9.]+)", text)
    rows = json.loads(
        subprocess.run([*shown, "--json=short"], capture_output=True, text=True, check=False).stdout
    )
    left = [
        {"name": row["name"], "exposure": row["exposure"]}
        for row in rows
        if row["exposure"] not in (None, "0.0", "")
    ]
    return [{"name": "all", "exposure": found[1] if found else "unknown"}, *left]


@contextlib.contextmanager
def prepared() -> Iterator[None]:
    """Have what the attempts look for on the host while the block runs."""
    old = os.umask(0)
    user = shutil.copy("/usr/bin/id", "/run/hostkit-probe-id")
    own = attempts.SCRATCH / "own"
    for directory in (OUT, own, Path("/home/hostkit-probe"), Path("/usr/lib/modules")):
        directory.mkdir(parents=True, exist_ok=True)
    own.chmod(0o777)
    shutil.copy(user, attempts.SCRATCH / "id")
    (attempts.SCRATCH / "setuid-id").write_bytes(Path(user).read_bytes())
    (attempts.SCRATCH / "setuid-id").chmod(0o4755)
    files = [
        Path(f"/tmp/{attempts.CANARY}"),
        Path(f"/dev/shm/{attempts.CANARY}"),
        Path("/home/hostkit-probe/secret"),
        Path("/var/log/hostkit-probe"),
    ]
    for path in files:
        path.write_text("canary")
    attempts.GPU.unlink(missing_ok=True)
    os.mknod(attempts.GPU, 0o20666, os.makedev(195, 250))
    libc = ctypes.CDLL(None)
    segment = libc.shmget(attempts.SHARED_KEY, 4096, 0o1666)
    os.umask(old)
    try:
        yield
    finally:
        for key in (attempts.SHARED_KEY, attempts.LEFT_KEY):
            segment = libc.shmget(key, 0, 0)
            if segment != -1:
                libc.shmctl(segment, 0, None)  # IPC_RMID
        for path in [*files, attempts.GPU, Path(user)]:
            path.unlink(missing_ok=True)
        for directory in (attempts.SCRATCH, OUT, Path("/home/hostkit-probe")):
            shutil.rmtree(directory)


def prove(variant: str) -> list[dict[str, object]]:
    """Run every proof of a variant of the unit."""
    python = ("/usr/bin/python3", "-IB", str(ATTEMPTS))
    runs = {}
    for number, proof in enumerate(one for one in PROOFS if variant in one.variants):
        command = (*python, proof.attempt, *proof.values)
        for kind, relaxed in (("with", proof.also), ("without", (*proof.also, proof.directive))):
            name = f"probe-{variant}@{number}-{kind}.service"
            write_unit(name, relaxed, proof.base, command)
            runs[proof.directive, kind] = name
    allowed = f"probe-{variant}@allowed.service"
    write_unit(allowed, (), "", (*python, "execute_own", "."))
    systemctl("daemon-reload")
    results = []
    for proof in (one for one in PROOFS if variant in one.variants):
        under, said_under = outcome(runs[proof.directive, "with"])
        free, said_free = outcome(runs[proof.directive, "without"])
        results.append(
            {
                "directive": proof.directive,
                "holds": under is False and free is True,
                "with": [under, said_under.strip()],
                "without": [free, said_free.strip()],
                "also": proof.also,
            }
        )
    works, said = outcome(allowed)
    # What it compiles into its cache must run, or no kernel could be loaded.
    results.append({"directive": "CacheDirectory", "holds": works is True, "with": [works, said]})
    return results


def main(variant: str) -> None:
    """Print the proofs of a variant of the unit."""
    try:
        with prepared():
            proofs = prove(variant)
            bare = UNITS / "probe-bare.service"
            bare.write_text("[Service]\nExecStart=/bin/true\n")
            systemctl("daemon-reload")
            scores = {
                "bare": exposure("probe-bare.service")[:1],
                variant: exposure(f"probe-{variant}@allowed.service"),
            }
        found = {"proofs": proofs, "exposure": scores, "unproved": unproved(proofs)}
        sys.stdout.write(json.dumps(found) + "\n")
    finally:
        for path in UNITS.glob(f"probe-{variant}@*.service.d"):
            shutil.rmtree(path)
            shutil.rmtree(
                f"/var/cache/vllm/{path.name[len(f'probe-{variant}@') : -len('.service.d')]}",
                ignore_errors=True,
            )
        (UNITS / "probe-bare.service").unlink(missing_ok=True)
        systemctl("daemon-reload")


def unproved(proofs: list[dict[str, object]]) -> list[object]:
    """Return the directives of the sandbox that have no proof in either variant of the unit."""
    proved = {proof.directive for proof in PROOFS}
    return sorted(set(sandbox.UNDO) - proved)


if __name__ == "__main__":
    main(sys.argv[1])
