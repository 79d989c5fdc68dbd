#!/usr/bin/python
# Copyright vllm-hostkit contributors
# Apache-2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)

from __future__ import annotations

DOCUMENTATION = r"""
module: vllm_model_info
short_description: Tell whether a model directory is whole, the one meant, and readable
description:
  - Looks at a model directory as the user who will serve it, in a process with that user's rights.
    When the user does not exist yet, the mode bits for others are read instead.
  - A model is complete when it has a configuration that names an architecture, a tokenizer, every
    shard of its safetensors weights, each as long as its header says, and nothing of an unfinished
    download.
  - Its files are compared with the file C(SHA256SUMS) in the directory, when there is one. What
    M(vllm_model) recorded is not hashed again while size, time and inode of a file stay the same.
  - Never fails because of the model. What is wrong with it is in RV(problems).
options:
  path:
    description: The model directory, an absolute path.
    type: path
    required: true
  variable:
    description: Where the path was written down, for RV(message).
    type: str
    default: path
  user:
    description: User whose rights count.
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
  hash:
    description:
      - Whether files that are not on record are hashed. One thread hashes 0.5 to 2 GB a second.
        With V(false) their bytes are counted in RV(unverified).
    type: bool
    default: true
  record_root:
    description: Directory of the records.
    type: path
    default: /var/lib/vllm-hostkit/models
attributes:
  check_mode:
    description: Reads only.
    support: full
author:
  - vllm-hostkit
"""

EXAMPLES = r"""
- name: Look at a model without reading all of its weights
  vllm_model_info:
    path: /srv/models/qwen3-8b
    hash: false
  register: model
"""

RETURN = r"""
architectures:
  description: What config.json calls the model.
  returned: success
  type: list
  elements: str
  sample: [LlamaForCausalLM]
has_manifest:
  description: Whether the directory holds C(SHA256SUMS).
  returned: success
  type: bool
  sample: true
message:
  description: All problems in one text for a user, empty when there is none.
  returned: success
  type: str
  sample: ""
model:
  description: The model directory.
  returned: success
  type: str
  sample: /srv/models/smollm2-135m-instruct
problems:
  description: Why the model can't be served, each with an id of the taxonomy of findings.
  returned: success
  type: list
  elements: dict
  sample:
    - id: model_incomplete
      summary: /srv/models/smollm2-135m-instruct is not a complete model.
      evidence:
        - "model.safetensors: 1048576 bytes, cut short: its header says 269060552"
      remedy: Copy or download these files again.
size:
  description: Bytes of all files in the directory.
  returned: success
  type: int
  sample: 272599451
tried:
  description: Whether access was tried as the user; V(false) when the user does not exist yet.
  returned: success
  type: bool
  sample: true
unlisted:
  description: Files that the engine reads and that C(SHA256SUMS) does not name.
  returned: success
  type: list
  elements: str
  sample: []
unverified:
  description: Bytes of the files that C(SHA256SUMS) names and that were not hashed.
  returned: success
  type: int
  sample: 0
user:
  description: User whose rights counted.
  returned: success
  type: str
  sample: vllm
verified:
  description: Files whose hash is the one in C(SHA256SUMS).
  returned: success
  type: list
  elements: str
  sample: [config.json, model.safetensors, tokenizer.json]
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.hostkit import model


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "variable": {"type": "str", "default": "path"},
            "user": {"type": "str", "default": "vllm"},
            "tokenizer": {"type": "bool", "default": True},
            "manifest": {"type": "bool", "default": False},
            "hash": {"type": "bool", "default": True},
            "record_root": {"type": "path", "default": "/var/lib/vllm-hostkit/models"},
        },
        supports_check_mode=True,
    )
    wanted = dict(module.params)
    variable = wanted.pop("variable")
    record_root, path = Path(wanted.pop("record_root")), Path(wanted.pop("path"))
    try:
        report = model.examine(model.Wish(path, **wanted), model.read_record(record_root, path))
    except RuntimeError as error:
        module.fail_json(msg=f"{path} can't be looked at: {error}.")
    result = report.as_dict()
    del result["record"]
    module.exit_json(changed=False, message=report.message(variable), **result)


if __name__ == "__main__":
    main()
