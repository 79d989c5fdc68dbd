#!/usr/bin/python
# Copyright vllm-hostkit contributors
# Apache-2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)

from __future__ import annotations

DOCUMENTATION = r"""
module: vllm_sandbox_info
short_description: Read what confines running vLLM servers
description:
  - Reads from the kernel, for each process of a server's unit, which directives of the unit's
    sandbox are in force on it, and the limits of the unit's control group.
  - A unit that does not run is a state, an empty RV(units[].processes), not an error.
options:
  names:
    description: Names of the instances.
    type: list
    elements: str
    required: true
  cache_root:
    description: Directory of the servers' caches, which each may write its own part of.
    type: path
    default: /var/cache/vllm
notes:
  - Run it as root.
attributes:
  check_mode:
    support: full
author:
  - vllm-hostkit
"""

EXAMPLES = r"""
- name: Read what confines the servers
  vllm_sandbox_info:
    names: [chat]
  register: sandbox

- name: No process of it may gain rights
  ansible.builtin.assert:
    that: item.in_force.NoNewPrivileges
  loop: "{{ sandbox.units[0].processes }}"
"""

RETURN = r"""
units:
  description: One entry for each name, in the order given.
  returned: always
  type: list
  elements: dict
  contains:
    name:
      description: Name of the instance.
      type: str
      sample: chat
    exposure:
      description: The score of C(systemd-analyze security), 0.0 to 10.0; empty when it gave none.
      type: str
      sample: "1.3"
    tasks_max:
      description: Tasks that the control group may have, V(-1) for no limit, null if unreadable.
      type: int
      sample: 32768
    memory_max:
      description: Bytes that it may use, V(-1) for no limit, null if unreadable.
      type: int
      sample: -1
    processes:
      description: Its processes by ascending pid.
      type: list
      elements: dict
      sample:
        - {pid: 4211, name: vllm, writable: [], shm_bytes: 1073741824,
           in_force: {NoNewPrivileges: true, ProtectSystem: true}}
can_filter_addresses:
  description: Whether systemd can filter the packets of a unit on this host.
  returned: always
  type: bool
  sample: true
memory_total:
  description: The host's memory in bytes.
  returned: always
  type: int
  sample: 540000000000
"""

import re

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.hostkit import confinement, unit


def exposure(module: AnsibleModule, name: str) -> str:
    """Return systemd's own score of a unit's sandbox, an empty text when it gives none."""
    analyze = module.get_bin_path("systemd-analyze", required=True)
    _rc, out, _err = module.run_command(
        [analyze, "security", "--no-pager", unit.unit_name(name)],
        environ_update={"LC_ALL": "C"},
    )
    found = re.search(r"exposure level for \S+: ([0-9.]+)", out)
    return found[1] if found else ""


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "names": {"type": "list", "elements": "str", "required": True},
            "cache_root": {"type": "path", "default": "/var/cache/vllm"},
        },
        supports_check_mode=True,
    )
    units = []
    for name in module.params["names"]:
        cache = f"{module.params['cache_root']}/{name}"
        seen = confinement.report(unit.unit_name(name), cache)
        score = exposure(module, name) if seen["processes"] else ""
        units.append({"name": name, "exposure": score, **seen})
    module.exit_json(
        changed=False,
        units=units,
        can_filter_addresses=confinement.can_filter_addresses(),
        memory_total=confinement.memory_total(),
    )


if __name__ == "__main__":
    main()
