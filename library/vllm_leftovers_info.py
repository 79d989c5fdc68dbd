#!/usr/bin/python
# Copyright vllm-hostkit contributors
# Apache-2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)

from __future__ import annotations

DOCUMENTATION = r"""
module: vllm_leftovers_info
short_description: Tell what stopped vLLM servers have left on a host
description:
  - Processes of the service's user that carry the mark of an instance, shared memory, sockets and
    lock files of that user that no process uses, and who holds the instances' ports.
  - Of an instance that runs, its processes and its port are told as well; ask about stopped ones.
  - Changes nothing.
options:
  names:
    description: Names of the instances.
    type: list
    elements: str
    required: true
  ports:
    description: Their TCP ports.
    type: list
    elements: int
    default: []
  user:
    description: User that the servers run as. One that does not exist has left nothing.
    type: str
    default: vllm
  cache_root:
    description: Directory of the instances' cache directories.
    type: path
    default: /var/cache/vllm
attributes:
  check_mode:
    support: full
author:
  - vllm-hostkit
"""

EXAMPLES = r"""
- name: Look for what a stopped server has left
  vllm_leftovers_info:
    names: [chat]
    ports: [8000]
  register: left

- name: Stop when there is something
  ansible.builtin.assert:
    that: left.found | length == 0
    fail_msg: "{{ left.found | join(', ') }}"
"""

RETURN = r"""
found:
  description: Everything that was left, each in words; empty when nothing was.
  returned: always
  type: list
  elements: str
  sample: ["process 4211 (VLLM::Worker)", "file /dev/shm/psm_1a2b3c4d"]
processes:
  description: The processes by ascending pid.
  returned: always
  type: list
  elements: dict
  sample:
    - {pid: 4211, name: "VLLM::Worker", command: /opt/vllm/current/bin/python, uid: 998, unit: null}
files:
  description: Paths of shared memory, sockets and lock files.
  returned: always
  type: list
  elements: str
  sample: [/dev/shm/psm_1a2b3c4d]
holders:
  description: Who holds the ports, in words.
  returned: always
  type: list
  elements: str
  sample: ["127.0.0.1:8000 is held by pid 4211 (python3, python3, uid 998, no systemd unit)"]
"""

import pwd
from dataclasses import asdict
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.hostkit import leftovers, ports


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "names": {"type": "list", "elements": "str", "required": True},
            "ports": {"type": "list", "elements": "int", "default": []},
            "user": {"type": "str", "default": "vllm"},
            "cache_root": {"type": "path", "default": "/var/cache/vllm"},
        },
        supports_check_mode=True,
    )
    processes, files = [], []
    try:
        uid = pwd.getpwnam(module.params["user"]).pw_uid
    except KeyError:
        uid = None
    if uid is not None:
        root = Path(module.params["cache_root"])
        for name in module.params["names"]:
            processes += leftovers.processes(uid, name, root)
        files = [str(path) for path in leftovers.files(uid)]
    holders = [one.describe() for port in module.params["ports"] for one in ports.holders(port)]
    module.exit_json(
        changed=False,
        processes=[asdict(one) for one in processes],
        files=files,
        holders=holders,
        found=[
            *(f"process {one.pid} ({one.name})" for one in processes),
            *(f"file {path}" for path in files),
            *holders,
        ],
    )


if __name__ == "__main__":
    main()
