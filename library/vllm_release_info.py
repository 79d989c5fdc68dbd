#!/usr/bin/python
"""Tell which releases of the engine a host has, and whether they are whole."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: vllm_release_info
short_description: Tell which releases of the engine a host has
description:
  - Returns the releases below a root, the current one, and which of them running processes use.
  - Compares one release's files with what its packages recorded, and names those that differ.
  - A release that is missing or damaged is a state that is returned, not an error.
options:
  root:
    description: Directory that holds C(releases) and C(current).
    type: path
    default: /opt/vllm
  name:
    description: Release to look at. The current one when not given.
    type: str
  content:
    description: Read every file and compare its hash, not only its size, which takes seconds.
    type: bool
    default: false
author:
  - vllm-hostkit
attributes:
  check_mode:
    description: Reads only, in check mode too.
    support: full
"""

EXAMPLES = r"""
- name: Look at the engine that services start from
  vllm_release_info:
    content: true
  register: engine

- name: Stop when a file of it was lost
  ansible.builtin.assert:
    that: engine.release.complete
    fail_msg: "{{ engine.release.reason }}"
"""

RETURN = r"""
release:
  description: The release that was looked at.
  returned: always
  type: dict
  contains:
    name:
      description: Name of its directory, empty when none is current and none was asked for.
      type: str
      sample: 0.33.0-cuda-2b2b76a4fc4a
    path:
      description: Its directory.
      type: str
      sample: /opt/vllm/releases/0.33.0-cuda-2b2b76a4fc4a
    exists:
      description: Whether the directory is there.
      type: bool
      sample: true
    complete:
      description: Whether it was built to the end and no file differs.
      type: bool
      sample: false
    reason:
      description: Why it is not complete, empty when it is.
      type: str
      sample: lib/python3.12/site-packages/torch/version.py (torch) is missing
    damaged:
      description: Files that differ from the records, at most 100.
      type: list
      elements: dict
      sample:
        - path: lib/python3.12/site-packages/torch/version.py
          package: torch
          problem: missing
    damaged_count:
      description: How many files differ.
      type: int
      sample: 1
    marker:
      description: What was recorded at the end of its build.
      type: dict
      sample:
        version: 0.33.0
        variant: cuda
        python: "3.12"
        lock_sha256: 2b2b76a4fc4a8f1b0b4c6e0a6a0f7c8b4a9d4ed3a1d1f4d8a7ad3c4bbd1a7b0d
        uv: 0.13.9
        build: 5f1d0c3ab6a0e1c2
        installed: "2026-12-01T04:20:00Z"
        packages: {torch: 2.14.0, vllm: 0.33.0}
current:
  description: Name of the release that C(current) points to, empty when it points to none.
  returned: always
  type: str
  sample: 0.33.0-cuda-2b2b76a4fc4a
releases:
  description: Names of the finished releases, the newest first.
  returned: always
  type: list
  elements: str
  sample: [0.33.0-cuda-2b2b76a4fc4a]
leftovers:
  description: Directories that an interrupted build or exchange left, removed by the next build.
  returned: always
  type: list
  elements: str
  sample: [0.33.0-cuda-2b2b76a4fc4a.partial]
in_use:
  description: Releases that running processes have files of mapped, with the processes' ids.
  returned: always
  type: dict
  sample:
    0.33.0-cuda-2b2b76a4fc4a: [811, 902]
pythons:
  description: Interpreters of the host that a release can be built with.
  returned: always
  type: list
  elements: dict
  sample:
    - path: /usr/bin/python3.12
      version: 3.12.3
glibc:
  description: Version of the host's glibc, empty when it has another C library.
  returned: always
  type: str
  sample: "2.39"
"""

import os
from dataclasses import asdict
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.hostkit.release import (
    current_release,
    find_pythons,
    glibc_version,
    list_leftovers,
    list_releases,
    read_release,
    releases_in_use,
)

SHOWN = 100


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "path", "default": "/opt/vllm"},
            "name": {"type": "str"},
            "content": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    root = Path(module.params["root"])
    current = current_release(root)
    name = module.params["name"] or current
    release = read_release(root, name, module.params["content"])
    module.exit_json(
        changed=False,
        release={
            "name": name,
            "path": str(root / "releases" / name) if name else "",
            "exists": release.exists,
            "complete": release.complete,
            "reason": release.reason,
            "damaged": [asdict(damage) for damage in release.damages[:SHOWN]],
            "damaged_count": len(release.damages),
            "marker": release.marker,
        },
        current=current,
        releases=[known for known, _ in list_releases(root)],
        leftovers=list_leftovers(root),
        in_use=releases_in_use(root),
        pythons=[asdict(python) for python in find_pythons(os.environ)],
        glibc="{}.{}".format(*(glibc_version() or ("", ""))).strip("."),
    )


if __name__ == "__main__":
    main()
