#!/usr/bin/python
# Copyright vllm-hostkit contributors
# Apache-2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)

from __future__ import annotations

DOCUMENTATION = r"""
module: vllm_unit_info
short_description: Tell the state of vLLM units and whether they run with what is on disk
description:
  - For each instance, what systemd says about C(vllm@NAME.service), its processes, what its last
    start recorded, what a start would use now, and so whether it has to be started or restarted.
  - A unit that is not there is a state, V(not-found) in RV(units[].load_state), not an error.
options:
  names:
    description: Names of the instances. When not given, all that this toolkit has set up here.
    type: list
    elements: str
  engine:
    description: Link to the engine release in use.
    type: path
    default: /opt/vllm/current
  config_root:
    description: Directory that holds C(instances).
    type: path
    default: /etc/vllm
  journal_lines:
    description:
      - How many telling lines of each unit's journal since its last start to return; V(0) for none.
    type: int
    default: 0
attributes:
  check_mode:
    support: full
author:
  - vllm-hostkit
"""

EXAMPLES = r"""
- name: See which servers run with old files
  vllm_unit_info:
  register: servers

- name: Name them
  ansible.builtin.debug:
    msg: "{{ item.unit }}: {{ item.action }}, because {{ item.reason }}"
  loop: "{{ servers.units }}"

- name: Read why a server did not start
  vllm_unit_info:
    names: [chat]
    journal_lines: 15
"""

RETURN = r"""
units:
  description: One entry for each name, in the order asked.
  returned: always
  type: list
  elements: dict
  contains:
    name:
      description: Name of the instance.
      type: str
      sample: chat
    unit:
      description: Name of the unit.
      type: str
      sample: vllm@chat.service
    load_state:
      description: Whether systemd knows the unit, V(loaded) or V(not-found) among others.
      type: str
      sample: loaded
    active_state:
      description: Such as V(active), V(activating), V(inactive), V(failed).
      type: str
      sample: active
    sub_state:
      description: Such as V(running), V(start-post), V(auto-restart), V(dead).
      type: str
      sample: running
    result:
      description: How the last run ended, such as V(success), V(exit-code), V(timeout), V(signal).
      type: str
      sample: success
    exit_status:
      description: Exit status, or number of the signal, of the last main process.
      type: int
      sample: 0
    enabled:
      description: Whether it starts at boot.
      type: bool
      sample: true
    main_pid:
      description: Process id of the server; V(0) when it does not run.
      type: int
      sample: 4211
    restarts:
      description: How often systemd has restarted it by itself.
      type: int
      sample: 0
    need_daemon_reload:
      description: Whether unit files changed on disk since systemd read them.
      type: bool
      sample: false
    processes:
      description: The unit's processes by ascending pid.
      type: list
      elements: dict
      sample:
        - {pid: 4211, name: vllm, command: /opt/vllm/current/bin/python, uid: 998,
           unit: vllm@chat.service}
    started_with:
      description: What the last start recorded; empty when it recorded nothing.
      type: dict
      sample: {release: "/opt/vllm/releases/0.33.0-cuda-0c6cbd0a5ef1 completed 1764561600000000000"}
    inputs:
      description: The same of what is on disk now.
      type: dict
      sample: {release: "/opt/vllm/releases/0.33.0-cuda-0c6cbd0a5ef1 completed 1764561600000000000"}
    action:
      description: V(none), V(wait) while it starts, V(start) or V(restart).
      type: str
      sample: none
    reason:
      description: Why, in words.
      type: str
      sample: it runs with what is on disk
    last_end:
      description:
        - How the server last ended since the host came up; empty when it has not.
        - V(at) in seconds since the epoch, V(phase) (V(starting), V(serving) or V(draining)),
          V(asked) whether someone had asked for it, V(cause), V(summary), V(evidence), and V(next),
          what follows.
      type: dict
      sample: {at: 1796123731.9, phase: serving, asked: false, cause: oom,
               summary: The kernel ended a process of it for want of memory., evidence: [],
               next: "starts again in 5 s, death 1 of at most 5"}
    journal:
      description: Lines that tell why a start failed, oldest first.
      type: list
      elements: str
      sample: ["OSError: [Errno 98] Address already in use"]
"""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.hostkit import life, procfs, unit


def journal(module: AnsibleModule, name: str, invocation: str, limit: int) -> list[str]:
    """Return the telling lines of a unit's last start; of its whole journal when it has no id."""
    journalctl = module.get_bin_path("journalctl")
    if limit < 1 or journalctl is None:
        return []
    command = [journalctl, "--quiet", "--no-pager", "--output=cat", "--lines=2000"]
    if invocation:  # what the unit's processes said, and what systemd said about this start
        command += [f"_SYSTEMD_INVOCATION_ID={invocation}", "+", f"INVOCATION_ID={invocation}"]
    else:
        command.append(f"--unit={unit.unit_name(name)}")
    _rc, out, _err = module.run_command(command)
    lines: list[str] = unit.relevant_lines(out.splitlines(), limit)
    return lines


def describe(
    module: AnsibleModule, name: str, shown: dict[str, str], places: unit.Places
) -> dict[str, Any]:
    record = unit.read_record(name, places)
    now = unit.inputs(name, places)
    action, reason = unit.decide(shown, record, now)
    processes = procfs.processes_of_unit(unit.unit_name(name))
    return {
        "name": name,
        "unit": unit.unit_name(name),
        "load_state": shown.get("LoadState", "not-found"),
        "active_state": shown.get("ActiveState", "inactive"),
        "sub_state": shown.get("SubState", "dead"),
        "result": shown.get("Result", "success"),
        "exit_status": int(shown.get("ExecMainStatus") or 0),
        "enabled": shown.get("UnitFileState") == "enabled",
        "main_pid": int(shown.get("MainPID") or 0),
        "restarts": int(shown.get("NRestarts") or 0),
        "need_daemon_reload": shown.get("NeedDaemonReload") == "yes",
        "processes": [asdict(process) for process in processes],
        "started_with": record.get("inputs", {}),
        "inputs": now,
        "action": action,
        "reason": reason,
        "last_end": life.read(name, places).get("last_end", {}),
        "journal": journal(
            module, name, shown.get("InvocationID", ""), module.params["journal_lines"]
        ),
    }


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "names": {"type": "list", "elements": "str"},
            "engine": {"type": "path", "default": "/opt/vllm/current"},
            "config_root": {"type": "path", "default": "/etc/vllm"},
            "journal_lines": {"type": "int", "default": 0},
        },
        supports_check_mode=True,
    )
    places = unit.Places(Path(module.params["engine"]), Path(module.params["config_root"]))
    names = module.params["names"]
    if names is None:
        names = unit.known_instances(places)
    shown: list[dict[str, str]] = []
    if names:
        command = [
            module.get_bin_path("systemctl", required=True),
            "show",
            f"--property={','.join(unit.PROPERTIES)}",
            *[unit.unit_name(name) for name in names],
        ]
        _rc, out, _err = module.run_command(command, check_rc=True)
        shown = unit.parse_show(out)
    module.exit_json(
        changed=False,
        units=[
            describe(module, name, properties, places) for name, properties in zip(names, shown)
        ],
    )


if __name__ == "__main__":
    main()
