#!/usr/bin/python
"""Read an engine's lock, and compare a directory of wheels with it."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: vllm_lock_info
short_description: Read the lock of an engine
description:
  - Finds the lock that was made for a version, a variant, a Python and an architecture, or reads
    the one that is named, and returns what it pins.
  - Refuses a lock that was made for something else than what is asked for.
  - On request compares a directory of wheels with it, reading every wheel's bytes.
options:
  directory:
    description: Directory of locks to choose from. Its C(uv-VERSION.txt) pins the installer.
    type: path
  path:
    description: Lock to read instead of choosing one.
    type: path
  content:
    description: Text of a lock, for a host that does not have the file.
    type: str
  version:
    description: Version of vLLM that the lock must be for.
    type: str
  variant:
    description: Variant that the lock must be for.
    type: str
    choices: [cpu, cuda]
  python:
    description: Python, as major.minor, that the lock must be for.
    type: str
  arch:
    description: Machine architecture, as C(uname -m) prints it, that the lock must be for.
    type: str
  wheel_dir:
    description: Directory of wheels to compare with the lock.
    type: path
author:
  - vllm-hostkit
attributes:
  check_mode:
    description: Reads only, in check mode too.
    support: full
"""

EXAMPLES = r"""
- name: Choose the lock
  vllm_lock_info:
    directory: "{{ playbook_dir }}/../locks"
    version: 0.33.0
    variant: cuda
    python: "3.12"
    arch: "{{ ansible_facts['architecture'] }}"
  delegate_to: localhost
  become: false
  register: chosen

- name: Compare the wheels on the host with it
  vllm_lock_info:
    content: "{{ chosen.lock.content }}"
    wheel_dir: /srv/wheels/vllm-0.33.0-cuda-cp312-x86_64
  register: wheels
"""

RETURN = r"""
lock:
  description: What the lock says.
  returned: always
  type: dict
  contains:
    path:
      description: The file, empty when O(content) was given.
      type: str
      sample: /srv/hostkit/locks/vllm-0.33.0-cuda-cp312-x86_64.txt
    version:
      description: Version of vLLM.
      type: str
      sample: 0.33.0
    engine_version:
      description: Version as the installed package states it.
      type: str
      sample: 0.32.0+cpu
    variant:
      description: Variant.
      type: str
      sample: cuda
    python:
      description: Python that the wheels are for.
      type: str
      sample: "3.12"
    arch:
      description: Machine architecture that the wheels are for.
      type: str
      sample: x86_64
    glibc:
      description: Lowest glibc that the wheels run on.
      type: str
      sample: "2.31"
    sha256:
      description: Digest of the file.
      type: str
      sample: 2b2b76a4fc4a8f1b0b4c6e0a6a0f7c8b4a9d4ed3a1d1f4d8a7ad3c4bbd1a7b0d
    release_name:
      description: Name of a release that is made from it.
      type: str
      sample: 0.33.0-cuda-2b2b76a4fc4a
    packages:
      description: Number of packages.
      type: int
      sample: 199
    content:
      description: The text.
      type: str
      sample: "# engine: vllm\n# version: 0.33.0\n..."
uv:
  description: The pinned installer, with C(version) and the SHA-256 C(hashes) of its wheels.
  returned: when O(directory) is given
  type: dict
  sample:
    version: 0.13.9
    hashes: [5435c5ce14a56431208ca0996416d310f1598e8c2c8ba707688985a16bb82dbe]
wheels:
  description: The comparison of O(wheel_dir) with the lock.
  returned: when O(wheel_dir) is given
  type: dict
  contains:
    exists:
      description: Whether the directory is there.
      type: bool
      sample: true
    complete:
      description: Whether every pinned wheel is there with a locked hash.
      type: bool
      sample: false
    missing:
      description: Pins without a file.
      type: list
      elements: str
      sample: [torch==2.14.0]
    damaged:
      description: Files of a pinned version whose hash is not locked.
      type: list
      elements: dict
      sample:
        - file: numpy-2.3.5-cp312-cp312-manylinux_2_28_x86_64.whl
          package: numpy
          found: 16963d19594e18d746a70c7fce82237bde4f2cac4cfcf0ca2b84796fe9d0c6e9
          wanted: [2c45530751517d6c3bbc69a19473f6effe47cce047bede01ffd8af7ea7b36b25]
    size:
      description: Bytes of the right files together.
      type: int
      sample: 916071235
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.hostkit.lock import (
    Lock,
    LockError,
    check_wheels,
    find_lock,
    lock_mismatches,
    parse_lock,
    parse_pins,
    read_locks,
)

ASKED = ("version", "variant", "python", "arch")


def read(params: dict[str, str | None]) -> tuple[str, bytes]:
    """Return the path and the bytes of the lock that is asked for."""
    if params["content"] is not None:
        return "", params["content"].encode()
    if params["path"]:
        return params["path"], Path(params["path"]).read_bytes()
    locks = read_locks(Path(params["directory"] or ""))
    found = find_lock(locks, *(params[key] or "" for key in ASKED))
    return str(found), found.read_bytes()


def describe(lock: Lock, path: str, content: bytes) -> dict[str, object]:
    """Return a lock as the value that the module documents."""
    return {
        "path": path,
        "version": lock.version,
        "engine_version": lock.engine_version,
        "variant": lock.variant,
        "python": lock.python,
        "arch": lock.arch,
        "glibc": "{}.{}".format(*lock.glibc),
        "sha256": lock.sha256,
        "release_name": lock.release_name,
        "packages": len(lock.pins),
        "content": content.decode(),
    }


def installer(directory: str) -> dict[str, object]:
    """Return the installer that a directory of locks pins."""
    found = sorted(Path(directory).glob("uv-*.txt"))
    if len(found) != 1:
        msg = f"{directory} must hold exactly one uv-VERSION.txt, but holds {len(found)}"
        raise LockError(msg)
    pin = parse_pins(found[0].read_text())[0]
    return {"version": pin.version, "hashes": sorted(pin.hashes)}


def compare(lock: Lock, directory: Path) -> dict[str, object]:
    """Return the comparison of a directory of wheels with a lock."""
    if not directory.is_dir():
        missing = [f"{pin.name}=={pin.version}" for pin in lock.pins]
        return {"exists": False, "complete": False, "missing": missing, "damaged": [], "size": 0}
    check = check_wheels(directory, lock.pins)
    return {
        "exists": True,
        "complete": check.complete,
        "missing": list(check.missing),
        "damaged": [
            {"file": bad.file, "package": bad.package, "found": bad.found, "wanted": bad.wanted}
            for bad in check.damaged
        ],
        "size": check.size,
    }


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "directory": {"type": "path"},
            "path": {"type": "path"},
            # Not a secret, but 20 kB that no log needs.
            "content": {"type": "str", "no_log": True},
            "version": {"type": "str"},
            "variant": {"type": "str", "choices": ["cpu", "cuda"]},
            "python": {"type": "str"},
            "arch": {"type": "str"},
            "wheel_dir": {"type": "path"},
        },
        required_one_of=[("directory", "path", "content")],
        mutually_exclusive=[("path", "content")],
        supports_check_mode=True,
    )
    params = module.params
    if params["directory"] and not (params["path"] or params["content"]):
        absent = [key for key in ASKED if not params[key]]
        if absent:
            module.fail_json(msg=f"to choose a lock of a directory, {', '.join(absent)} is needed")
    path = params["path"] or "the lock"
    try:
        path, content = read(params)
        lock = parse_lock(content)
        asked = [params[key] or getattr(lock, key) for key in ASKED]
        wrong = lock_mismatches(lock, *asked)
        if wrong:
            module.fail_json(
                msg=f"{path or 'the lock'} is for {', '.join(wrong)}; name another lock in "
                "vllm_engine_lock, or leave that empty to have the right one chosen"
            )
        result = {"lock": describe(lock, path, content)}
        if params["directory"]:
            result["uv"] = installer(params["directory"])
        if params["wheel_dir"]:
            result["wheels"] = compare(lock, Path(params["wheel_dir"]))
    except LockError as error:
        prefix = f"{path} can't be used: " if params["path"] else ""
        module.fail_json(msg=f"{prefix}{error}")
    except OSError as error:
        module.fail_json(msg=f"{error.filename} can't be read: {error.strerror}")
    module.exit_json(changed=False, **result)


if __name__ == "__main__":
    main()
