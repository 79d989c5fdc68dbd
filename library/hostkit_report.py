#!/usr/bin/python
"""Judge what was gathered about a host, as findings and a table."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: hostkit_report
short_description: Turn what was gathered about a host into findings, a table and a JSON report
description:
  - Judges the values that the info modules returned, and returns findings, the worst of them, and
    a table of plain text.
  - Needs nothing from the host that the values come from, so it runs on the control node.
  - Writing a report is no change of a host, so this module never reports one.
options:
  kind:
    description: Which judgement to make.
    type: str
    choices: [preflight, verify]
    required: true
  host:
    description: Name of the host that the values come from.
    type: str
    required: true
  data:
    description: What was gathered; the role of the same kind says what belongs in it.
    type: dict
    required: true
  strict:
    description: Count what could not be found out as failed.
    type: bool
    default: false
  width:
    description: Columns of the table.
    type: int
    default: 100
  dest:
    description:
      - File for the report as JSON, put in place whole. Directories on the way are made.
      - Not written in check mode.
    type: path
  time:
    description: When the values were gathered, for the JSON report.
    type: str
    default: ""
  engine_version:
    description: Version of the engine that the host should run, for the JSON report.
    type: str
    default: ""
author:
  - vllm-hostkit
attributes:
  check_mode:
    description: Judges as usual and writes no file.
    support: full
"""

EXAMPLES = r"""
- name: Judge the host
  hostkit_report:
    kind: preflight
    host: "{{ inventory_hostname }}"
    data:
      instances: "{{ vllm_instances }}"
  delegate_to: localhost
  become: false
  register: report
"""

RETURN = r"""
failed_checks:
  description: Whether the run must end here.
  returned: always
  type: bool
  sample: false
status:
  description: The worst status.
  returned: always
  type: str
  sample: pass
counts:
  description: Number of findings of each status.
  returned: always
  type: dict
  sample: {pass: 12, warn: 0, unknown: 0, fail: 0}
findings:
  description: All findings, worst last.
  returned: always
  type: list
  elements: dict
  sample:
    - id: port_in_use
      status: pass
      summary: Port 8000 is free.
      evidence: []
      remedy: ""
      subject: chat
table:
  description: The findings as text.
  returned: always
  type: str
  sample: |-
    Preflight of gpu1: 0 fail, 0 unknown, 0 warn, 1 pass

    STATUS  SUBJECT  CHECK        FINDING
    PASS    chat     port_in_use  Port 8000 is free.
dest:
  description: File that the report was written to; empty when none was.
  returned: always
  type: str
  sample: /srv/hostkit/reports/gpu1-verify.json
"""

import json
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.hostkit import findings, preflight, verify

KINDS = {"preflight": ("Preflight", preflight.judge), "verify": ("Verification", verify.judge)}


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "kind": {"type": "str", "choices": sorted(KINDS), "required": True},
            "host": {"type": "str", "required": True},
            "data": {"type": "dict", "required": True},
            "strict": {"type": "bool", "default": False},
            "width": {"type": "int", "default": 100},
            "dest": {"type": "path"},
            "time": {"type": "str", "default": ""},
            "engine_version": {"type": "str", "default": ""},
        },
        supports_check_mode=True,
    )
    params = module.params
    title, judge = KINDS[params["kind"]]
    found = findings.merge(judge(params["host"], params["data"]))
    report = {
        "kind": params["kind"],
        "host": params["host"],
        "time": params["time"],
        "engine_version": params["engine_version"],
        "status": findings.worst(found),
        "counts": findings.count(found),
        "findings": [finding.as_dict() for finding in found],
    }
    dest = "" if module.check_mode else params["dest"] or ""
    if dest:
        partial = Path(module.tmpdir, "report.json")
        try:
            partial.write_text(json.dumps(report, indent=2) + "\n")
            partial.chmod(0o644)
            Path(dest).parent.mkdir(parents=True, exist_ok=True)
            module.atomic_move(str(partial), dest)
        except OSError as error:
            module.fail_json(msg=f"The report can't be written to {dest}: {error.strerror}.")
    module.exit_json(
        changed=False,
        failed_checks=findings.failed(found, strict=params["strict"]),
        status=report["status"],
        counts=report["counts"],
        findings=report["findings"],
        table=findings.render(f"{title} of {params['host']}", found, width=params["width"]),
        dest=dest,
    )


if __name__ == "__main__":
    main()
