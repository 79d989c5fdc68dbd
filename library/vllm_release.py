#!/usr/bin/python
"""Build a release of the engine, make it current, and remove old ones."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: vllm_release
short_description: Build a release of the engine and make it the current one
description:
  - Builds a virtual environment from a lock, beside the releases that are there, and renames it
    into place when it is whole, so that an interrupted build is never used.
  - A release whose files differ from what its packages recorded is built again and exchanged.
  - Points C(current) at it in one step, and removes the oldest releases, never one that is current
    or that a running process uses.
  - Checks architecture, C library, Python, free space and local wheels before the first change, in
    check mode too.
options:
  root:
    description: Directory that holds C(releases), C(current), the installer and its cache.
    type: path
    default: /opt/vllm
  lock:
    description: Text of the lock, see M(vllm_lock_info).
    type: str
    required: true
  index_url:
    description:
      - Package index instead of the installer's default one. It must not hold a password; put that
        into root's C(~/.netrc) on the host.
    type: str
    default: ""
  extra_index_urls:
    description: Indexes besides that one. The hashes decide which file is installed.
    type: list
    elements: str
    default: []
  find_links:
    description: Directories on the host, or pages, that have more wheels.
    type: list
    elements: str
    default: []
  wheel_dir:
    description: Directory on the host that holds every wheel. No index is asked then.
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
  uv_wheel_dir:
    description: Directory on the host that holds one of these wheels.
    type: path
    required: true
  required_gib:
    description: Free space, in GiB, that there must be before a release is built.
    type: float
    default: 0
  compile_bytecode:
    description: Compile all modules at once, for a quicker first start.
    type: bool
    default: true
  keep_cache:
    description: Keep the installer's cache after a complete build.
    type: bool
    default: false
  keep:
    description: Number of releases that stay, the current one included.
    type: int
    default: 3
  lock_timeout:
    description: Seconds to wait for another run that is building on this host.
    type: float
    default: 1800
author:
  - vllm-hostkit
attributes:
  check_mode:
    description: Makes the same checks and predicts the same changes.
    support: full
  diff_mode:
    description: Shows the finished releases and the current one.
    support: full
"""

EXAMPLES = r"""
- name: Install the engine from wheels on the host
  vllm_release:
    lock: "{{ chosen.lock.content }}"
    uv_version: "{{ chosen.uv.version }}"
    uv_hashes: "{{ chosen.uv.hashes }}"
    uv_wheel_dir: /srv/wheels/vllm-0.33.0-cuda-cp312-x86_64
    wheel_dir: /srv/wheels/vllm-0.33.0-cuda-cp312-x86_64
    required_gib: 12
"""

RETURN = r"""
name:
  description: Name of the release.
  returned: success
  type: str
  sample: 0.33.0-cuda-2b2b76a4fc4a
path:
  description: Its directory.
  returned: success
  type: str
  sample: /opt/vllm/releases/0.33.0-cuda-2b2b76a4fc4a
build:
  description: Why it was built, empty when it was complete.
  returned: success
  type: str
  sample: it is not there
switch:
  description: Whether C(current) was changed.
  returned: success
  type: bool
  sample: true
prune:
  description: What was removed.
  returned: success
  type: list
  elements: str
  sample: [0.31.0-cuda-0c1d2e3f4a5b]
"""

from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.hostkit.lock import LockError, parse_lock
from ansible.module_utils.hostkit.release import (
    Plan,
    ReleaseError,
    Request,
    Sources,
    check_addresses,
    current_release,
    ensure,
    foresee,
    list_releases,
    make_plan,
    problem_text,
)


def picture(root: Path) -> dict[str, object]:
    """Return what a diff shows of a root."""
    names = sorted(name for name, _ in list_releases(root))
    return {"current": current_release(root), "releases": names}


def predicted(before: dict[str, object], name: str, plan: Plan) -> dict[str, object]:
    """Return the picture after a plan."""
    names = before["releases"]
    known = set(names) if isinstance(names, list) else set()
    return {"current": name, "releases": sorted({*known, name} - set(plan.prune))}


def request_of(params: dict[str, Any]) -> Request:
    """Return what the options ask for.

    Raises:
        LockError: the lock is malformed.
        ReleaseError: an address holds a password.
    """
    lock = params["lock"]
    check_addresses([params["index_url"], *params["extra_index_urls"], *params["find_links"]])
    return Request(
        root=Path(params["root"]),
        lock=parse_lock(lock.encode()),
        lock_text=lock,
        sources=Sources(
            params["index_url"],
            tuple(params["extra_index_urls"]),
            tuple(params["find_links"]),
            params["wheel_dir"] or "",
        ),
        python_preference=params["python_preference"],
        uv_version=params["uv_version"],
        uv_hashes=frozenset(params["uv_hashes"]),
        uv_wheel_dir=params["uv_wheel_dir"],
        required_bytes=int(params["required_gib"] * (1 << 30)),
        compile_bytecode=params["compile_bytecode"],
        keep_cache=params["keep_cache"],
        lock_timeout=params["lock_timeout"],
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
            "uv_wheel_dir": {"type": "path", "required": True},
            "required_gib": {"type": "float", "default": 0},
            "compile_bytecode": {"type": "bool", "default": True},
            "keep_cache": {"type": "bool", "default": False},
            "keep": {"type": "int", "default": 3},
            "lock_timeout": {"type": "float", "default": 1800},
        },
        supports_check_mode=True,
    )
    params = module.params
    if params["keep"] < 1:
        module.fail_json(msg=f"keep is {params['keep']}, but at least 1 release must stay")
    try:
        request = request_of(params)
        before = picture(request.root)
        if module.check_mode:
            plan = make_plan(request.root, request.name, params["keep"])
            problems = foresee(request, bool(plan.build))
            if problems:
                module.fail_json(msg=problem_text(problems))
            after = predicted(before, request.name, plan)
        else:
            plan = ensure(request, params["keep"])
            after = picture(request.root)
    except (LockError, ReleaseError) as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(msg=f"{error.filename or params['root']}: {error.strerror}")
    module.exit_json(
        changed=plan.changes,
        name=request.name,
        path=str(request.releases / request.name),
        build=plan.build,
        switch=plan.switch,
        prune=list(plan.prune),
        diff={"before": before, "after": after},
    )


if __name__ == "__main__":
    main()
