#!/usr/bin/python
# Copyright vllm-hostkit contributors
# Apache-2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)

from __future__ import annotations

DOCUMENTATION = r"""
module: vllm_model
short_description: Prove that a model directory holds what its SHA256SUMS says, and record it
description:
  - Looks at a model as M(vllm_model_info) does, hashes the files that C(SHA256SUMS) names, several
    at once, and records hash, size, time and inode of each on the host, so that unchanged files are
    not hashed again.
  - Fails when the model can't be served. Never changes anything in the model directory.
options:
  path:
    description: The model directory, an absolute path.
    type: path
    required: true
  variable:
    description: Where the path was written down, for messages.
    type: str
    default: path
  user:
    description: User whose rights count. It must exist except in check mode.
    type: str
    default: vllm
  tokenizer:
    description: Whether the directory must hold a tokenizer.
    type: bool
    default: true
  manifest:
    description: Whether it must hold C(SHA256SUMS) that names every file the engine reads.
    type: bool
    default: false
  record_root:
    description: Directory of the records, which root owns. Made when it is missing.
    type: path
    default: /var/lib/vllm-hostkit/models
attributes:
  check_mode:
    description: Hashes the files, and records nothing.
    support: full
  diff_mode:
    description: Shows the record.
    support: full
author:
  - vllm-hostkit
"""

EXAMPLES = r"""
- name: Prove that the weights are the ones meant
  vllm_model:
    path: /srv/models/qwen3-8b
    variable: vllm_instances[chat].model
    manifest: true
"""

RETURN = r"""
problems:
  description: Why the model can't be served.
  returned: always
  type: list
  elements: dict
  sample: []
verified:
  description: Files whose hash is the one in C(SHA256SUMS).
  returned: always
  type: list
  elements: str
  sample: [config.json, model.safetensors, tokenizer.json]
"""

import pwd
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.hostkit import files, model


def user_exists(name: str) -> bool:
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "variable": {"type": "str", "default": "path"},
            "user": {"type": "str", "default": "vllm"},
            "tokenizer": {"type": "bool", "default": True},
            "manifest": {"type": "bool", "default": False},
            "record_root": {"type": "path", "default": "/var/lib/vllm-hostkit/models"},
        },
        supports_check_mode=True,
    )
    wanted = dict(module.params)
    variable = wanted.pop("variable")
    record_root, path = Path(wanted.pop("record_root")), Path(wanted.pop("path"))
    if not module.check_mode and not user_exists(wanted["user"]):
        module.fail_json(
            msg=f"The user {wanted['user']!r} does not exist on this host, so whether it may read "
            f"{path} can't be tried. Run the role vllm_engine first, which creates it."
        )
    try:
        report = model.examine(model.Wish(path, **wanted), model.read_record(record_root, path))
    except RuntimeError as error:
        module.fail_json(msg=f"{path} can't be looked at: {error}.")
    record = files.WantedFile(
        model.record_path(record_root, path), model.render_record(report), 0o644
    )
    changed = bool(report.record) and not record.is_there
    if changed and not module.check_mode:
        record.write()
    result = {
        "changed": changed,
        "problems": report.as_dict()["problems"],
        "verified": report.verified,
        "diff": record.diff if changed else {},
    }
    if report.problems:
        module.fail_json(msg=report.message(variable), **result)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
