"""What NVIDIA GPUs this host has, asked of the driver through nvidia-ml-py (``pynvml``).

That the host can't be asked is a state with a reason, never an exception. ``pynvml`` is one file
without dependencies; it is imported when it is needed, from wherever Python finds it.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any

STATES = (
    "ok", "no_library", "not_loaded", "mismatch", "no_permission", "no_device", "unknown",
)  # fmt: skip
"""Every `Gpus.state`; all but ``ok`` mean that no GPU can be used, or that none could be asked."""

_REASONS = {
    4: ("no_permission", "The NVIDIA driver may not be asked by this user."),
    9: ("not_loaded", "The NVIDIA driver's kernel module is not loaded."),
    12: ("no_library", "libnvidia-ml.so.1 is not there, so no NVIDIA driver is installed."),
    18: ("mismatch", "The loaded NVIDIA kernel module is of another version than the libraries."),
}
"""State and reason by nvmlReturn_t, see nvml.h. The real library without a driver says 999."""

_MEMORY_V2 = 0x02000028
"""nvmlMemory_v2: tells apart what the driver reserves, which no program can have."""


@dataclass(frozen=True)
class Gpu:
    """One GPU.

    Attributes:
        index: Its number in nvidia-smi, by PCI address; may change when hardware changes.
        uuid: Its name for good, ``GPU-...``.
        name: Its model.
        minor: N of its node /dev/nvidiaN; may differ from the index.
        memory_total: Bytes that programs can have.
        memory_used: Bytes that they have.
        processes: Process id and bytes (None when not told) of each that uses it.
        mig: UUIDs of its MIG devices, ``MIG-...``, empty when it is not divided.
    """

    index: int
    uuid: str
    name: str
    minor: int
    memory_total: int
    memory_used: int
    processes: tuple[tuple[int, int | None], ...] = ()
    mig: tuple[str, ...] = ()


@dataclass(frozen=True)
class Gpus:
    """What the driver said.

    Attributes:
        state: One of `STATES`.
        reason: One sentence; empty when every GPU was read.
        driver: Version of the driver, empty when unknown.
        gpus: Those that could be read, by index.
    """

    state: str
    reason: str = ""
    driver: str = ""
    gpus: tuple[Gpu, ...] = ()


def probe() -> Gpus:
    """Ask the driver; each call asks anew."""
    try:
        pynvml = import_module("pynvml")
    except ImportError:
        return Gpus("unknown", "pynvml.py (nvidia-ml-py) is missing, so no GPU can be asked about.")
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return _refused(error)
    try:
        return _ask(pynvml)
    except pynvml.NVMLError as error:
        return _refused(error)
    finally:
        _or_none(pynvml, "nvmlShutdown")


def _ask(pynvml: Any) -> Gpus:
    driver = str(pynvml.nvmlSystemGetDriverVersion())
    found, unread, denied = [], [], 0
    count = int(pynvml.nvmlDeviceGetCount())
    for index in range(count):
        # The count holds GPUs that this process may not open, as in a unit with a device filter.
        try:
            found.append(_read(pynvml, index))
        except pynvml.NVMLError as error:
            denied += int(error.value) == pynvml.NVML_ERROR_NO_PERMISSION
            unread.append(f"GPU {index} can't be read: {_sentence(error)}")
    reason = " ".join(unread)
    if found:
        return Gpus("ok", reason, driver, tuple(found))
    if not count:
        return Gpus("no_device", "The NVIDIA driver found no GPU.", driver)
    return Gpus("no_permission" if denied == count else "unknown", reason, driver)


def _read(pynvml: Any, index: int) -> Gpu:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    total, used = _memory(pynvml, handle)
    return Gpu(
        index=index,
        uuid=str(pynvml.nvmlDeviceGetUUID(handle)),
        name=str(pynvml.nvmlDeviceGetName(handle)),
        minor=int(pynvml.nvmlDeviceGetMinorNumber(handle)),
        memory_total=total,
        memory_used=used,
        processes=_processes(pynvml, handle),
        mig=_mig(pynvml, handle),
    )


def _memory(pynvml: Any, handle: Any) -> tuple[int, int]:
    """Return total and used bytes as CUDA counts them, without what the driver reserves."""
    told = _or_none(pynvml, "nvmlDeviceGetMemoryInfo", handle, _MEMORY_V2)
    if told is not None:
        return int(told.total) - int(told.reserved), int(told.used)
    told = pynvml.nvmlDeviceGetMemoryInfo(handle)  # a driver before 510
    return int(told.total), int(told.used)


def _processes(pynvml: Any, handle: Any) -> tuple[tuple[int, int | None], ...]:
    """Return who uses a GPU; one that computes and draws is in both of the driver's lists."""
    found: dict[int, int | None] = {}
    for kind in ("Compute", "Graphics"):
        for one in _or_none(pynvml, f"nvmlDeviceGet{kind}RunningProcesses", handle) or []:
            found.setdefault(int(one.pid), one.usedGpuMemory)
    return tuple(sorted(found.items()))


def _mig(pynvml: Any, handle: Any) -> tuple[str, ...]:
    mode = _or_none(pynvml, "nvmlDeviceGetMigMode", handle)
    if not mode or mode[0] != 1:
        return ()
    found = []
    for number in range(_or_none(pynvml, "nvmlDeviceGetMaxMigDeviceCount", handle) or 0):
        part = _or_none(pynvml, "nvmlDeviceGetMigDeviceHandleByIndex", handle, number)
        uuid = _or_none(pynvml, "nvmlDeviceGetUUID", part) if part is not None else None
        if uuid:
            found.append(str(uuid))
    return tuple(found)


def _or_none(pynvml: Any, function: str, *arguments: Any) -> Any:
    """Call what not every GPU or driver can answer."""
    try:
        return getattr(pynvml, function)(*arguments)
    except pynvml.NVMLError:
        return None


def _refused(error: Any) -> Gpus:
    state, reason = _REASONS.get(
        int(error.value), ("unknown", f"The NVIDIA driver can't be asked: {_sentence(error)}")
    )
    return Gpus(state, reason)


def _sentence(error: Any) -> str:
    return f"{str(error).strip().rstrip('.')} ({int(error.value)})."
