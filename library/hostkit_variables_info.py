#!/usr/bin/python
"""Find variables that carry a prefix of this toolkit but that no role knows."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: hostkit_variables_info
short_description: Find misspelt variables and instances that can't be built
description:
  - Compares the names of a host's variables with those that the roles' argument specs describe.
  - A name that begins with a role's name, or with C(vllm_), and that no role knows is reported with
    the nearest right name. Names that begin with an underscore are private and not looked at.
  - Checks the instances as a whole, from their values alone.
  - Reads the roles' directory, so it runs on the control node.
options:
  names:
    description: Names of all variables that the host has.
    type: list
    elements: str
    required: true
  values:
    description:
      - Values of the variables that the roles know. Each is checked against the type and the
        choices that its role's argument spec states, before that role would check it itself.
    type: dict
    default: {}
  instances:
    description: The value of C(vllm_instances), whatever it is.
    type: raw
    default: []
  roles_path:
    description: Directory that holds the roles.
    type: path
    required: true
author:
  - vllm-hostkit
requirements:
  - PyYAML, which Ansible itself needs
attributes:
  check_mode:
    description: Reads only.
    support: full
"""

EXAMPLES = r"""
- name: Find misspelt variables
  hostkit_variables_info:
    names: "{{ query('ansible.builtin.varnames', '^(vllm|host_limits)_') }}"
    values: {vllm_engine_variant: cpu, host_limits_nofile: 65536}
    instances: "{{ vllm_instances }}"
    roles_path: "{{ playbook_dir }}/../roles"
  delegate_to: localhost
  become: false
"""

RETURN = r"""
instances:
  description:
    - The instances with every key filled in, and C(url), where the host itself reaches the server.
      None when there is a problem with one.
  returned: always
  type: list
  elements: dict
  sample: [{name: chat, model: /srv/models/chat, served_name: chat, host: 127.0.0.1, port: 8000,
            url: "http://127.0.0.1:8000"}]
problems:
  description: Values of variables, then values in the instances, that are not allowed.
  returned: always
  type: list
  elements: dict
  sample:
    - variable: vllm_instances[0].port
      message: "vllm_instances[0].port is 'http'; allowed: a whole number from 1 to 65535."
      remedy: Choose a free port, such as 8000.
values_valid:
  description: Whether every value beside the instances is allowed.
  returned: always
  type: bool
  sample: true
known:
  description: Names of all variables that the roles know, sorted.
  returned: always
  type: list
  elements: str
  sample: [host_limits_nofile, vllm_instances]
prefixes:
  description: Prefixes under which a name must be known.
  returned: always
  type: list
  elements: str
  sample: [vllm_, host_limits_]
unknown:
  description: Names that no role knows, each with the nearest known name or an empty text.
  returned: always
  type: dict
  sample: {vllm_instance: vllm_instances}
"""

from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible.module_utils.hostkit import config, ready, variables
from ansible.module_utils.hostkit.instances import normalise

try:
    import yaml

    HAS_YAML = True
except ImportError:
    HAS_YAML = False


def describe(instance: dict[str, Any]) -> dict[str, Any]:
    """Return an instance with the address at which its host reaches it."""
    host = ready.reach(instance["host"])
    options = {config.option_name(key) for key in instance["args"]}
    scheme = "https" if "ssl-certfile" in options else "http"
    address = f"[{host}]" if ":" in host else host
    return {**instance, "url": f"{scheme}://{address}:{instance['port']}"}


def value_problems(values: dict[str, Any], specs: list[dict[str, Any]]) -> list[Any]:
    """Return the values that Ansible itself would refuse, else those that break a rule of ours."""
    refused = []
    for spec in specs:
        for name in spec.keys() & values.keys():
            result = ArgumentSpecValidator({name: spec[name]}).validate({name: values[name]})
            if result.error_messages:
                refused.append(variables.refused(name, values[name], spec[name]))
    return refused or variables.problems(values, specs)


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "names": {"type": "list", "elements": "str", "required": True},
            "values": {"type": "dict", "default": {}},
            "instances": {"type": "raw", "default": []},
            "roles_path": {"type": "path", "required": True},
        },
        supports_check_mode=True,
    )
    if not HAS_YAML:
        module.fail_json(msg="PyYAML is missing: run this module on the control node.")
    roles_path = Path(module.params["roles_path"])
    files = sorted(roles_path.glob("*/meta/argument_specs.yml"))
    if not files:
        module.fail_json(msg=f"{roles_path} holds no role with meta/argument_specs.yml.")
    specs = {file.parent.parent.name: yaml.safe_load(file.read_text()) or {} for file in files}
    known = {name for spec in specs.values() for name in variables.options(spec)}
    wanted = module.params["instances"]
    invalid = value_problems(
        module.params["values"], [variables.checkable(spec) for spec in specs.values()]
    )
    problems = config.problems(wanted)
    module.exit_json(
        changed=False,
        instances=[] if problems else [describe(normalise(instance)) for instance in wanted],
        problems=[
            {"variable": one.variable, "message": one.message, "remedy": one.remedy}
            for one in [*invalid, *problems]
        ],
        values_valid=not invalid,
        known=sorted(known),
        prefixes=variables.prefixes(specs),
        unknown=variables.unknown(module.params["names"], known, specs),
    )


if __name__ == "__main__":
    main()
