"""The sandbox of the unit: what can be undone for one instance, and what hides which path.

The directives themselves stand in the unit's template and, where they follow from the instance, in
its drop-in (`config.render_drop_in`). Here is what belongs to each of their names. What is in force
on a running server is read by `confinement`.
"""

from __future__ import annotations

import difflib
import ipaddress
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

UNDO = {
    "CapabilityBoundingSet": "CapabilityBoundingSet=~",
    "DevicePolicy": "DevicePolicy=auto\nDeviceAllow=",
    "IPAddressDeny": "IPAddressDeny=\nIPAddressAllow=",
    "InaccessiblePaths": "InaccessiblePaths=",
    "KeyringMode": "KeyringMode=shared",
    "LockPersonality": "LockPersonality=no",
    "NoExecPaths": "NoExecPaths=",
    "NoNewPrivileges": "NoNewPrivileges=no",
    "PrivateDevices": "PrivateDevices=no",
    "PrivateIPC": "PrivateIPC=no",
    "PrivateMounts": "PrivateMounts=no",
    "PrivateTmp": "PrivateTmp=no",
    "ProtectClock": "ProtectClock=no",
    "ProtectControlGroups": "ProtectControlGroups=no",
    "ProtectHome": "ProtectHome=read-only",
    "ProtectHostname": "ProtectHostname=no",
    "ProtectKernelLogs": "ProtectKernelLogs=no",
    "ProtectKernelModules": "ProtectKernelModules=no",
    "ProtectKernelTunables": "ProtectKernelTunables=no",
    "ProtectProc": "ProtectProc=default",
    "ProtectSystem": "ProtectSystem=no\nReadOnlyPaths=",
    "RemoveIPC": "RemoveIPC=no",
    "RestrictAddressFamilies": "RestrictAddressFamilies=",
    "RestrictNamespaces": "RestrictNamespaces=no",
    "RestrictRealtime": "RestrictRealtime=no",
    "RestrictSUIDSGID": "RestrictSUIDSGID=no",
    "SecureBits": "SecureBits=",
    "SystemCallArchitectures": "SystemCallArchitectures=",
    "SystemCallFilter": "SystemCallFilter=",
    "TemporaryFileSystem": "TemporaryFileSystem=",
    "UMask": "UMask=0022",
}
"""Every directive of the sandbox, with the lines that undo it in a drop-in; see systemd.exec(5).

``ProtectHome=no`` would open homes for writing, in spite of ProtectSystem=strict.
"""

COMPANIONS = {
    "DeviceAllow": "DevicePolicy",
    "IPAddressAllow": "IPAddressDeny",
    "ReadOnlyPaths": "ProtectSystem",
    "SystemCallErrorNumber": "SystemCallFilter",
}
"""Directives that only say how another one is meant, and are undone with it."""

HIDDEN = {
    "InaccessiblePaths": ("/boot", "/etc/ssh", "/run/dbus", "/var/log", "/var/spool"),
    "PrivateTmp": ("/tmp", "/var/tmp"),
    "ProtectHome": ("/home", "/root", "/run/user"),
    "TemporaryFileSystem": ("/dev/shm",),
}
"""Directories of the host that a server does not see, by the directive that hides them.

``InaccessiblePaths``: what the service user could read or connect to otherwise.
"""


def near(name: str) -> str:
    """Return the directive whose name is like this one, an empty text when none is."""
    lower = {one.lower(): one for one in UNDO}
    found = difflib.get_close_matches(name.lower(), lower, n=1)
    return COMPANIONS.get(name) or (lower[found[0]] if found else "")


def undo(names: Sequence[str]) -> str:
    """Return the lines of a drop-in that undo these directives, sorted; empty for none."""
    return "".join(f"{UNDO[name]}\n" for name in sorted(set(names)))


def hidden_by(path: str, relaxed: Sequence[str] = ()) -> str:
    """Return the directive that hides a path from a server, an empty text when none does.

    Args:
        path: An absolute path without ``..``.
        relaxed: Directives that the instance does without.
    """
    parts = PurePosixPath(path)
    for directive, places in HIDDEN.items():
        if directive not in relaxed and any(
            place == str(parts) or PurePosixPath(place) in parts.parents for place in places
        ):
            return directive
    return ""


def is_local(instance: Mapping[str, Any]) -> bool:
    """Tell whether a server and all that it talks to are on this host.

    Then it gets a packet filter (IPAddressDeny=). That filter counts for both directions, so a
    server with clients elsewhere can't have it; nor can one whose processes talk between hosts.

    Args:
        instance: A normalised instance.
    """
    inner = instance["environment"].get("VLLM_HOST_IP", "127.0.0.1")
    return _is_loopback(str(instance["host"])) and _is_loopback(str(inner))


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def lines(instance: Mapping[str, Any]) -> str:
    """Return the directives of the sandbox that follow from an instance, then what it undoes.

    ``/dev/shm`` of its own: whatever a killed engine leaves there ends with the unit. It is the one
    place beside the cache and /tmp that it writes, and code in it can't be executed.

    Args:
        instance: A normalised instance.
    """
    size = str(instance["shm_size"])
    own = f"TemporaryFileSystem=/dev/shm:mode=1777,nosuid,nodev,noexec,size={size}\n"
    if is_local(instance):
        own += "IPAddressDeny=any\nIPAddressAllow=localhost\n"
    return own + undo(instance["sandbox_relax"])
