#!/usr/bin/python
# Copyright vllm-hostkit contributors
# Apache-2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)

from __future__ import annotations

DOCUMENTATION = r"""
module: process_limits_info
short_description: Read resource limits from running processes
description:
  - Reads the limits of one process, or of every process of a systemd unit, from the kernel.
  - What a unit asks for and what its processes have differ where the machine can't give it
    (for example inside a container); only the process tells the truth.
  - A process or unit that is not there is a state, an empty RV(processes), not an error.
options:
  pid:
    description: Process id.
    type: int
  unit:
    description: Name of a systemd unit, with its suffix. Processes are found by control group.
    type: str
notes:
  - Run it as root to see the processes of other users where C(/proc) is mounted with C(hidepid).
attributes:
  check_mode:
    support: full
author:
  - vllm-hostkit
"""

EXAMPLES = r"""
- name: Read the limits of every process of a server
  process_limits_info:
    unit: vllm@chat.service
  register: chat

- name: Each may open enough files
  ansible.builtin.assert:
    that: item.limits.nofile.soft >= 65536
  loop: "{{ chat.processes }}"

- name: Read the limits of PID 1
  process_limits_info:
    pid: 1
"""

RETURN = r"""
processes:
  description: The processes by ascending pid; empty when there are none.
  returned: always
  type: list
  elements: dict
  contains:
    pid:
      description: Process id.
      type: int
      sample: 4211
    name:
      description: The kernel's name of the process, at most 15 characters.
      type: str
      sample: "VLLM::EngineCor"
    may_raise:
      description:
        - Whether the process may raise its hard limits, for want of which a container can give no
          more than it was given.
      type: bool
      sample: false
    limits:
      description:
        - Limits by their names in limits.conf(5), each with V(soft) and V(hard); V(-1) is no limit.
        - Files for V(nofile), processes for V(nproc), bytes for V(memlock), V(core), V(fsize),
          V(data), V(stack), V(rss), V(as) and V(msgqueue), seconds for V(cpu),
          microseconds for V(rttime).
      type: dict
      sample: {"nofile": {"soft": 1048576, "hard": 1048576}, "memlock": {"soft": -1, "hard": -1}}
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.hostkit import limits


def main() -> None:
    module = AnsibleModule(
        argument_spec={"pid": {"type": "int"}, "unit": {"type": "str"}},
        mutually_exclusive=[("pid", "unit")],
        required_one_of=[("pid", "unit")],
        supports_check_mode=True,
    )
    module.exit_json(
        changed=False, processes=limits.report(module.params["pid"], module.params["unit"])
    )


if __name__ == "__main__":
    main()
