#!/usr/bin/python
# Copyright vllm-hostkit contributors
# Apache-2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)

from __future__ import annotations

DOCUMENTATION = r"""
module: hostkit_core
short_description: Install the commands that units run, with the code they share with the modules
description:
  - Ansible sends the core with each module anyway. This module writes the part that the commands
    need to a directory of the host, so that commands and modules there follow the same rules, and
    installs the commands beside it. Each file is written only when it differs.
options:
  dest:
    description: Directory of the commands. The core becomes its sub-directory C(hostkit).
    type: path
    required: true
  commands:
    description: Text of each command by its name.
    type: dict
    required: true
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
author:
  - vllm-hostkit
"""

EXAMPLES = r"""
- name: Install the commands that the unit runs
  hostkit_core:
    dest: /usr/local/lib/vllm-hostkit
    commands:
      vllm-unit: "{{ lookup('ansible.builtin.file', 'bin/vllm-unit') }}"
"""

RETURN = r"""
written:
  description: Files that were written, or would be in check mode.
  returned: success
  type: list
  elements: str
  sample: [/usr/local/lib/vllm-hostkit/hostkit/ports.py]
"""

import inspect
from pathlib import Path

from ansible.module_utils import hostkit
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.hostkit import (
    config,
    endpoint,
    files,
    instances,
    leftovers,
    life,
    lifecycle,
    metrics,
    ports,
    procfs,
    ready,
    sandbox,
    status,
    unit,
)

CORE = (
    hostkit,
    config,
    endpoint,
    files,
    instances,
    leftovers,
    life,
    lifecycle,
    metrics,
    ports,
    procfs,
    ready,
    sandbox,
    status,
    unit,
)


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "dest": {"type": "path", "required": True},
            "commands": {"type": "dict", "required": True},
        },
        supports_check_mode=True,
    )
    root = Path(module.params["dest"])
    wanted = [
        files.WantedFile(root / name, text, 0o755)
        for name, text in sorted(module.params["commands"].items())
    ]
    for part in CORE:
        short = part.__name__.rpartition("hostkit")[2].lstrip(".") or "__init__"
        text = inspect.getsource(part)
        wanted.append(files.WantedFile(root / "hostkit" / f"{short}.py", text, 0o644))
    different = [file for file in wanted if not file.is_there]
    diff = [file.diff for file in different]
    if not module.check_mode:
        for file in different:
            file.write()
    module.exit_json(
        changed=bool(different), written=[str(file.path) for file in different], diff=diff
    )


if __name__ == "__main__":
    main()
