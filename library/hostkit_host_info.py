#!/usr/bin/python
"""Look at what a bare host has to offer."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: hostkit_host_info
short_description: Look at a host's Pythons, free space, ports, C library and init
description:
  - Returns what has to be known about a host before anything is put on it, and needs nothing there
    but Python 3.9.
options:
  paths:
    description: Paths, there or not yet, whose filesystems are measured.
    type: list
    elements: path
    default: []
  ports:
    description: TCP ports whose holders are looked up.
    type: list
    elements: int
    default: []
  commands:
    description: Commands to look for.
    type: list
    elements: str
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
    paths: [/opt/vllm]
    ports: [8000]
    commands: [cc]
  register: host
"""

RETURN = r"""
commands:
  description: Where each command is, an empty text for one that is missing.
  returned: always
  type: dict
  sample: {cc: /usr/bin/cc}
glibc:
  description: Version of the GNU C library, empty with another one.
  returned: always
  type: str
  sample: "2.36"
ports:
  description: For each port, as text, the sockets that listen on it.
  returned: always
  type: dict
  sample:
    "8000":
      - address: 127.0.0.1
        description: 127.0.0.1:8000 is held by pid 812 (nginx, nginx, uid 33, unit nginx.service)
        units: [nginx.service]
pythons:
  description: Pythons of the system by version.
  returned: always
  type: dict
  sample: {"3.11": /usr/bin/python3.11}
space:
  description: For each path, bytes free and in all where it is or would be, and its filesystem.
  returned: always
  type: list
  elements: dict
  sample:
    - path: /opt/vllm
      anchor: /opt
      free: 53687091200
      total: 107374182400
      device: 2049
systemd:
  description: Whether systemd is the running init.
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
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.hostkit import host, ports


def holders(port: int) -> list[dict[str, Any]]:
    return [
        {
            "address": holder.listener.address,
            "description": holder.describe(),
            "units": sorted({process.unit or "" for process in holder.processes}),
        }
        for holder in ports.holders(port)
    ]


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "paths": {"type": "list", "elements": "path", "default": []},
            "ports": {"type": "list", "elements": "int", "default": []},
            "commands": {"type": "list", "elements": "str", "default": []},
        },
        supports_check_mode=True,
    )
    try:
        module.exit_json(
            changed=False,
            commands=host.commands(module.params["commands"]),
            glibc=host.glibc(),
            ports={str(port): holders(port) for port in module.params["ports"]},
            pythons=host.pythons(),
            space=[host.space(Path(path)) for path in module.params["paths"]],
            systemd=host.SYSTEMD_MARKER.is_dir(),
            uid=os.geteuid(),
        )
    except OSError as error:
        module.fail_json(msg=f"The host can't be looked at: {error}.")


if __name__ == "__main__":
    main()
