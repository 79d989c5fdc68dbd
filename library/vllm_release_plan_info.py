#!/usr/bin/python
"""Foresee what building a release of the engine would change, and why it could not be built."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: vllm_release_plan_info
short_description: Foresee the installation of a release of the engine
description:
  - Tells what M(vllm_release) would do on this host, and why it would fail.
  - Looks at architecture, C library, Python, free space and local wheels when a release has to be
    built, and at nothing of them when it is complete.
options:
  root:
    description: Directory that holds C(releases) and C(current).
    type: path
    default: /opt/vllm
  lock:
    description: Text of the lock, see M(vllm_lock_info).
    type: str
    required: true
  index_url:
    description: Package index instead of the installer's default one.
    type: str
    default: ""
  extra_index_urls:
    description: Indexes besides that one.
    type: list
    elements: str
    default: []
  find_links:
    description: Directories on the host, or pages, that have more wheels.
    type: list
    elements: str
    default: []
  wheel_dir:
    description: Directory on the host that holds every wheel.
    type: path
  python_preference:
    description: Which interpreters may be used, in uv's words.
    type: str
    choices: [only-managed, managed, system, only-system]
    default: only-system
  uv_version:
    description: Version of the installer.
    type: str
    required: true
  uv_hashes:
    description: SHA-256 digests of the installer's wheels.
    type: list
    elements: str
    required: true
  required_gib:
    description: Free space, in GiB, that there must be before a release is built.
    type: float
    default: 0
  keep:
    description: Number of releases that stay, the current one included.
    type: int
    default: 3
author:
  - vllm-hostkit
attributes:
  check_mode:
    description: Reads only, in check mode too.
    support: full
"""

EXAMPLES = r"""
- name: Foresee the installation
  vllm_release_plan_info:
    lock: "{{ chosen.lock.content }}"
    uv_version: "{{ chosen.uv.version }}"
    uv_hashes: "{{ chosen.uv.hashes }}"
    wheel_dir: /srv/wheels/vllm-0.33.0-cuda-cp312-x86_64
    required_gib: 12
  register: plan
"""

RETURN = r"""
name:
  description: Name of the release.
  returned: always
  type: str
  sample: 0.33.0-cuda-2b2b76a4fc4a
build:
  description: Why it would be built, empty when it is complete.
  returned: always
  type: str
  sample: it is not there
switch:
  description: Whether C(current) would change.
  returned: always
  type: bool
  sample: true
prune:
  description: What would be removed.
  returned: always
  type: list
  elements: str
  sample: [0.31.0-cuda-0c1d2e3f4a5b]
work:
  description: Whether anything would be done.
  returned: always
  type: bool
  sample: true
problems:
  description: Why it would fail, empty when nothing stands against it.
  returned: always
  type: list
  elements: dict
  sample:
    - id: disk_full
      summary: /opt/vllm has 3.1 GiB free, but the engine needs 12.0 GiB (vllm_engine_required_gib).
      remedy: Free some, or put vllm_root on a larger file system.
"""

from dataclasses import asdict
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.hostkit.lock import LockError, parse_lock
from ansible.module_utils.hostkit.release import (
    ReleaseError,
    Request,
    Sources,
    check_addresses,
    foresee,
    make_plan,
)


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "path", "default": "/opt/vllm"},
            # Not a secret, but 20 kB that no log needs.
            "lock": {"type": "str", "required": True, "no_log": True},
            "index_url": {"type": "str", "default": ""},
            "extra_index_urls": {"type": "list", "elements": "str", "default": []},
            "find_links": {"type": "list", "elements": "str", "default": []},
            "wheel_dir": {"type": "path"},
            "python_preference": {
                "type": "str",
                "choices": ["only-managed", "managed", "system", "only-system"],
                "default": "only-system",
            },
            "uv_version": {"type": "str", "required": True},
            "uv_hashes": {"type": "list", "elements": "str", "required": True},
            "required_gib": {"type": "float", "default": 0},
            "keep": {"type": "int", "default": 3},
        },
        supports_check_mode=True,
    )
    params = module.params
    addresses = [params["index_url"], *params["extra_index_urls"], *params["find_links"]]
    try:
        lock = parse_lock(params["lock"].encode())
        check_addresses(addresses)
    except (LockError, ReleaseError) as error:
        module.fail_json(msg=str(error))
    request = Request(
        root=Path(params["root"]),
        lock=lock,
        lock_text=params["lock"],
        sources=Sources(
            params["index_url"],
            tuple(params["extra_index_urls"]),
            tuple(params["find_links"]),
            params["wheel_dir"] or "",
        ),
        python_preference=params["python_preference"],
        uv_version=params["uv_version"],
        uv_hashes=frozenset(params["uv_hashes"]),
        uv_wheel_dir=params["wheel_dir"] or "",
        required_bytes=int(params["required_gib"] * (1 << 30)),
    )
    try:
        plan = make_plan(request.root, request.name, params["keep"])
        problems = foresee(request, bool(plan.build))
    except OSError as error:
        module.fail_json(msg=f"{error.filename} can't be read: {error.strerror}")
    module.exit_json(
        changed=False,
        name=request.name,
        build=plan.build,
        switch=plan.switch,
        prune=list(plan.prune),
        work=plan.changes,
        problems=[asdict(problem) for problem in problems],
    )


if __name__ == "__main__":
    main()
