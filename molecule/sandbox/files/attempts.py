"""What the sandbox forbids, tried from inside: `attempts.py NAME [VALUE]`.

Prints one line of JSON: whether the attempt succeeded, and what was seen. Run by prove.py as the
main process of a unit; standard library only.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Callable

if TYPE_CHECKING:
    from collections.abc import Sequence

LIBC = ctypes.CDLL(None, use_errno=True)
SCRATCH = Path("/srv/hostkit-probe")
GPU = Path("/dev/hostkit-probe-gpu")
CANARY = "hostkit-probe-canary"
SHARED_KEY = 0x484B5031
LEFT_KEY = 0x484B5032
SYSTEM_CALLS = {
    "x86_64": {"add_key": 248, "keyctl": 250},
    "aarch64": {"add_key": 217, "keyctl": 219},
}


def call(function: str, *arguments: object) -> int:
    """Call a function of the C library and return its result.

    Raises:
        OSError: It failed.
    """
    result: int = getattr(LIBC, function)(*arguments)
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), function)
    return result


def reaches_kernel(function: str, *arguments: object) -> str:
    """Make a call that the kernel itself refuses as senseless; a filter refuses it before.

    Raises:
        OSError: The kernel was not asked.
    """
    try:
        return f"{function} gave {call(function, *arguments)}"
    except OSError as error:
        if error.errno != 22:  # EINVAL
            raise
        return f"{function} came to the kernel"


def must(condition: bool, said: object) -> str:
    """Return what was seen, or raise PermissionError with it."""
    if not condition:
        raise PermissionError(str(said))
    return str(said)


def write_outside() -> str:
    path = SCRATCH / "own" / f"written-{os.getpid()}"
    path.write_text("x")
    return f"wrote {path}"


def read_home() -> str:
    return Path("/home/hostkit-probe/secret").read_text()


def see_hidden() -> str:
    return f"read {len(Path('/var/log/hostkit-probe').read_text())} characters of /var/log"


def see_others_tmp() -> str:
    return Path(f"/tmp/{CANARY}").read_text()


def see_shared_memory() -> str:
    return Path(f"/dev/shm/{CANARY}").read_text()


def share_mounts(host_namespace: str) -> str:
    own = Path("/proc/self/ns/mnt").stat().st_ino
    return must(str(own) == host_namespace, f"own mounts {own}, the host's {host_namespace}")


def execute_own(directory: str) -> str:
    own = Path(directory).resolve() / f"hostkit-probe-{os.getpid()}"
    own.write_bytes(Path("/usr/bin/id").read_bytes())
    own.chmod(0o700)
    try:
        return "executed a file of its own, as uid " + subprocess.check_output(
            [own, "-u"], text=True
        )
    finally:
        own.unlink()


def open_device() -> str:
    try:
        os.close(os.open(GPU, os.O_RDWR))
    except OSError as error:
        if error.errno not in (6, 19):  # ENXIO, ENODEV: the kernel has no driver for the number
            raise
    return f"{GPU} may be opened"


def attach_shared() -> str:
    return f"segment {call('shmget', SHARED_KEY, 0, 0)} of another process"


def leave_shared() -> str:
    return f"made segment {call('shmget', LEFT_KEY, 4096, 0o1600)}"


def read_kernel_addresses() -> str:
    with Path("/proc/kallsyms").open() as symbols:
        return symbols.readline()


def see_modules() -> str:
    return str(sorted(path.name for path in Path("/usr/lib/modules").iterdir()))


def see_kernel_log() -> str:
    """Look for the kernel's own file; reading it takes a capability that no container has."""
    own = Path("/proc/self").stat().st_dev
    found = Path("/proc/kmsg").stat().st_dev
    return must(found == own, f"/proc/kmsg is of device {found}, /proc of {own}")


def make_control_group() -> str:
    top = Path("/sys/fs/cgroup")
    place = (top if (top / "cgroup.controllers").exists() else top / "memory") / "hostkit-probe"
    place.mkdir()
    place.rmdir()
    return f"made {place}"


def set_clock() -> str:
    return reaches_kernel("clock_settime", 99, ctypes.byref((ctypes.c_long * 2)(0, 0)))


def set_hostname() -> str:
    name = socket.gethostname().encode()
    call("sethostname", name, len(name))
    return "set the same name again"


def see_others() -> str:
    return Path("/proc/1/comm").read_text()


def make_namespace() -> str:
    call("unshare", 0x10000000)  # CLONE_NEWUSER
    return "has users of its own"


def be_realtime() -> str:
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(0))
    except OSError as error:
        if error.errno != 22:  # EINVAL: the kernel refused that priority, not a filter the policy
            raise
    return "the kernel was asked"


def leave_setuid() -> str:
    path = Path.cwd() / "setuid"
    path.touch()
    path.chmod(0o4755)
    return must(bool(path.stat().st_mode & 0o4000), oct(path.stat().st_mode))


def open_socket() -> str:
    """Ask for raw packets, which the kernel refuses to a process without CAP_NET_RAW by EPERM."""
    try:
        socket.socket(socket.AF_PACKET, socket.SOCK_RAW).close()
    except PermissionError:
        return "the kernel was asked"
    return "AF_PACKET"


def change_personality() -> str:
    return f"personality was {call('personality', 0x0040000)}"  # ADDR_NO_RANDOMIZE


def call_as_32_bit() -> str:
    """Call getpid (20) through the entry of 32-bit programs: mov eax, 20; int 0x80; ret."""
    code = b"\xb8\x14\x00\x00\x00\xcd\x80\xc3"
    LIBC.mmap.restype = ctypes.c_void_p
    LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    place = LIBC.mmap(None, 4096, 7, 0x22, -1, 0)
    ctypes.memmove(place, code, len(code))
    found = ctypes.CFUNCTYPE(ctypes.c_int)(place)()
    return must(found == os.getpid(), f"{found}, own pid {os.getpid()}")


def trace() -> str:
    return f"ptrace gave {call('ptrace', 0, 0, 0, 0)}"


def ask_for_key() -> str:
    numbers = SYSTEM_CALLS[platform.machine()]
    call("syscall", numbers["add_key"], b"user", CANARY.encode(), b"x", 1, -4)
    key = call("syscall", numbers["keyctl"], 10, -3, b"user", CANARY.encode(), 0)
    return f"key {key} of the user is found in the session"


def become_root() -> str:
    found = subprocess.check_output([SCRATCH / "setuid-id", "-u"], text=True).strip()
    return must(found == "0", f"uid {found}")


def give_away() -> str:
    path = Path.cwd() / "given"
    path.touch()
    os.chown(path, 1, 1)
    path.unlink()
    return "gave a file to another user"


def have_root_bits() -> str:
    bits = call("prctl", 27, 0, 0, 0, 0)  # PR_GET_SECUREBITS
    return must(not bits & 1, f"secure bits {bits:#x}")


def write_for_all() -> str:
    path = Path.cwd() / "mask"
    path.touch()
    mode = path.stat().st_mode & 0o777
    path.unlink()
    return must(mode & 0o044 == 0o044, oct(mode))


def leave_the_host(address: str) -> str:
    with socket.create_connection((address, 22), timeout=1):
        return f"connected to {address}"


ACTS: dict[str, Callable[..., str]] = {
    name: thing
    for name, thing in list(globals().items())
    if callable(thing) and getattr(thing, "__module__", "") == __name__
}


def main(name: str, *values: str) -> None:
    """Try in a child, since a filter may kill, and say how it went."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            said: Sequence[object] = (True, ACTS[name](*values))
        except Exception as error:
            said = (False, f"{type(error).__name__}: {error}")
        os.write(writer, json.dumps(said).encode())
        os._exit(0)
    os.close(writer)
    told = os.read(reader, 65536).decode()
    _pid, status = os.waitpid(child, 0)
    if not told:
        told = json.dumps((False, f"ended by {signal.Signals(os.WTERMSIG(status)).name}"))
    sys.stdout.write(told + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
