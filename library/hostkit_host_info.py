#!/usr/bin/python
"""Look at who holds a host's ports, what paths it has, and as whom tasks run there."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: hostkit_host_info
short_description: Look at a host's ports and paths, and as whom tasks run there
description:
  - Returns what a judgement of a host needs beside Ansible's facts.
options:
  paths:
    description: Paths whose existence is looked up.
    type: list
    elements: path
    default: []
  ports:
    description: TCP ports whose holders are looked up.
    type: list
    elements: int
    default: []
author:
  - vllm-hostkit
attributes:
  check_mode:
    description: Reads only.
    support: full
"""

EXAMPLES = r"""
- name: Look at the host
  hostkit_host_info:
    paths: [/etc/systemd/system/vllm@.service]
    ports: [8000]
  register: host
"""

RETURN = r"""
paths:
  description: Whether each path is there.
  returned: always
  type: dict
  sample: {"/etc/systemd/system/vllm@.service": true}
ports:
  description: For each port, as text, the sockets that listen on it.
  returned: always
  type: dict
  sample:
    "8000":
      - address: 127.0.0.1
        description: 127.0.0.1:8000 is held by pid 812 (nginx, nginx, uid 33, unit nginx.service)
        units: [nginx.service]
systemd:
  description: Whether systemd is the running init, as sd_booted(3) tells; Ansible's fact does not.
  returned: always
  type: bool
  sample: true
uid:
  description: Effective user id that the module ran with.
  returned: always
  type: int
  sample: 0
"""

import os
import pwd
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.hostkit import ports


def seen_by_owner(holder: ports.Holder) -> ports.Holder:
    """Return who holds a socket as its owner sees it, when root may not look.

    Root of a container without CAP_SYS_PTRACE can't see what other users' processes hold; those
    users can.
    """
    if holder.processes or os.geteuid() != 0:
        return holder
    try:
        os.setegid(pwd.getpwuid(holder.listener.uid).pw_gid)  # The kernel compares groups, too.
        os.seteuid(holder.listener.uid)
        again = ports.holders(holder.listener.port)
    except KeyError:  # The user has no entry, so its group is not known.
        return holder
    finally:
        os.seteuid(0)
        os.setegid(0)
    return next((one for one in again if one.listener == holder.listener), holder)


def holders(port: int) -> list[dict[str, Any]]:
    """Return the sockets that listen on a port, with the units of the processes that hold them."""
    return [
        {
            "address": holder.listener.address,
            "description": holder.describe(),
            "units": sorted({process.unit or "" for process in holder.processes}),
        }
        for holder in map(seen_by_owner, ports.holders(port))
    ]


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "paths": {"type": "list", "elements": "path", "default": []},
            "ports": {"type": "list", "elements": "int", "default": []},
        },
        supports_check_mode=True,
    )
    try:
        module.exit_json(
            changed=False,
            paths={path: Path(path).exists() for path in module.params["paths"]},
            ports={str(port): holders(port) for port in module.params["ports"]},
            systemd=Path("/run/systemd/system").is_dir(),
            uid=os.geteuid(),
        )
    except OSError as error:
        module.fail_json(msg=f"The host can't be looked at: {error}.")


if __name__ == "__main__":
    main()
