#!/usr/bin/python
# Copyright vllm-hostkit contributors
# Apache-2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)

from __future__ import annotations

DOCUMENTATION = r"""
module: vllm_service_files
short_description: Write the vLLM template unit and the files of its instances
description:
  - Writes C(vllm@.service) and, for each instance, vLLM's configuration file, its environment file
    and its unit's drop-in, each only when it differs, under a temporary name first.
  - Refuses instances that no server can be made from before it changes anything.
  - Has C(systemd-analyze verify) check each unit as it would be, drop-ins included, before any
    unit file is replaced.
  - Never starts, stops or reloads anything.
options:
  instances:
    description: The instances, as in the variable C(vllm_instances).
    type: list
    elements: dict
    required: true
  unit:
    description: Text of the template unit.
    type: str
    required: true
  engine:
    description:
      - Link to the engine release in use. Check mode does not verify the unit while it leads
        nowhere, as before the first install.
    type: path
    default: /opt/vllm/current
  config_root:
    description: Directory that holds C(instances).
    type: path
    default: /etc/vllm
  group:
    description: Group that may read the configuration, the group of the servers' user.
    type: str
    required: true
  remove:
    description:
      - Names of instances to remove the files of, from RV(stale). Stop their units before.
    type: list
    elements: str
    default: []
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
author:
  - vllm-hostkit
"""

EXAMPLES = r"""
- name: Write the unit and each instance's files
  vllm_service_files:
    instances:
      - {name: chat, model: /srv/models/qwen3-8b, port: 8000, args: {max_model_len: 8192}}
    unit: "{{ lookup('ansible.builtin.template', 'vllm@.service.j2') }}"
    group: vllm
"""

RETURN = r"""
written:
  description: Files that were written, or would be in check mode.
  returned: success
  type: list
  elements: str
  sample: [/etc/vllm/instances/chat/config.yaml]
changed_instances:
  description:
    - Names of the instances that one of these files belongs to; all for the template unit.
  returned: success
  type: list
  elements: str
  sample: [chat]
stale:
  description: Names of instances that this toolkit set up earlier and that are not wanted any more.
  returned: success
  type: list
  elements: str
  sample: [old]
removed:
  description: Files that were removed, or would be in check mode.
  returned: success
  type: list
  elements: str
  sample: [/etc/vllm/instances/old/config.yaml]
"""

import grp
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.hostkit import config, files, unit

UNIT_ROOT = unit.UNIT_ROOTS[0]
TEMPLATE = UNIT_ROOT / "vllm@.service"


def own_files(places: unit.Places, name: str) -> dict[str, Path]:
    """Return the files of one instance. The last is the one that it is known by."""
    directory = places.instance(name)
    return {
        "drop_in": UNIT_ROOT / f"{unit.unit_name(name)}.d" / "50-hostkit.conf",
        "environment": directory / "environment",
        "config": directory / "config.yaml",
    }


def wanted_files(
    instance: dict[str, Any], places: unit.Places, gid: int | None
) -> list[files.WantedFile]:
    paths = own_files(places, instance["name"])
    return [
        files.WantedFile(paths["drop_in"], config.render_drop_in(instance), 0o644),
        files.WantedFile(paths["environment"], config.render_environment(instance), 0o640, gid),
        files.WantedFile(paths["config"], config.render_config(instance), 0o640, gid),
    ]


def group_id(module: AnsibleModule) -> int | None:
    """Return the id of the group, None in check mode when there is none yet."""
    try:
        return grp.getgrnam(module.params["group"]).gr_gid
    except KeyError:
        if not module.check_mode:
            module.fail_json(
                msg=f"The group {module.params['group']!r} does not exist on this host. "
                "Run the role vllm_engine first, which creates it."
            )
    return None


def verify_units(module: AnsibleModule, wanted: list[files.WantedFile], names: list[str]) -> None:
    """Have systemd read the units in a directory of their own before they replace the old ones."""
    engine = Path(module.params["engine"]) / "bin/vllm"
    if module.check_mode and not engine.exists():
        return
    with tempfile.TemporaryDirectory() as directory:
        for file in wanted:
            if UNIT_ROOT in file.path.parents:
                copy = Path(directory) / file.path.relative_to(UNIT_ROOT)
                copy.parent.mkdir(exist_ok=True)
                copy.write_text(file.text, encoding="utf-8")
        units = [str(Path(directory) / unit.unit_name(name)) for name in names or ["verify"]]
        rc, out, err = module.run_command(
            [module.get_bin_path("systemd-analyze", required=True), "verify", "--man=no", *units],
            # Its own directory first, then those of the host: the drop-ins of others count too.
            environ_update={"SYSTEMD_UNIT_PATH": f"{directory}:"},
        )
    if rc != 0:
        said = " ".join((out + err).replace(f"{directory}/", "").split())
        module.fail_json(msg=f"systemd refuses the unit, so the old one stays in place: {said}")


def remove(paths: list[Path]) -> None:
    for path in paths:
        path.unlink()
    for path in paths:
        with suppress(OSError):  # gone, or an administrator keeps files of their own there
            path.parent.rmdir()


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "instances": {"type": "list", "elements": "dict", "required": True},
            "unit": {"type": "str", "required": True},
            "engine": {"type": "path", "default": "/opt/vllm/current"},
            "config_root": {"type": "path", "default": "/etc/vllm"},
            "group": {"type": "str", "required": True},
            "remove": {"type": "list", "elements": "str", "default": []},
        },
        supports_check_mode=True,
    )
    instances = module.params["instances"]
    problems = config.problems(instances)
    if problems:
        module.fail_json(msg=f"{problems[0].message} {problems[0].remedy}")

    places = unit.Places(Path(module.params["engine"]), Path(module.params["config_root"]))
    gid = group_id(module)
    template = files.WantedFile(TEMPLATE, module.params["unit"], 0o644)
    wanted = {one["name"]: wanted_files(one, places, gid) for one in instances}
    every = [template, *(file for group in wanted.values() for file in group)]
    different = [file for file in every if not file.is_there]
    if any(UNIT_ROOT in file.path.parents for file in different):
        verify_units(module, every, [*wanted])

    stale = [name for name in unit.known_instances(places) if name not in wanted]
    removed = [
        path
        for name in stale
        if name in module.params["remove"]
        for path in own_files(places, name).values()
        if path.exists()
    ]
    result = {
        "changed": bool(different or removed),
        "written": [str(file.path) for file in different],
        "changed_instances": [
            name
            for name, group in wanted.items()
            if template in different or any(file in different for file in group)
        ],
        "stale": stale,
        "removed": [str(path) for path in removed],
        "diff": [file.diff for file in different],
    }
    if not module.check_mode:
        for file in different:
            file.write()
        remove(removed)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
