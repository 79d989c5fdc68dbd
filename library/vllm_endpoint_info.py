#!/usr/bin/python
"""Ask a running vLLM server what a client would ask."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: vllm_endpoint_info
short_description: Ask a vLLM server for its health, version, models and one completion
description:
  - Asks C(/health), C(/version) and C(/v1/models), and has the server generate one streamed
    completion, whose time to first token it measures.
  - A server that is down, slow or refuses is a state that is returned, not an error of the module.
  - Goes straight to the address given. Proxies of the environment are not used.
options:
  url:
    description: Base address of the server.
    type: str
    required: true
  model:
    description: Model name to ask for.
    type: str
    required: true
  api_key:
    description: Key of the server, when it wants one.
    type: str
  prompt:
    description: Text to complete.
    type: str
    default: The capital of France is
  max_tokens:
    description: Longest answer, in tokens.
    type: int
    default: 16
  chat:
    description: Ask as a chat, which needs a model with a chat template.
    type: bool
    default: false
  connect_timeout:
    description: Seconds for the connection and for each short answer.
    type: float
    default: 10
  completion_timeout:
    description: Seconds for the whole completion.
    type: float
    default: 120
  validate_certs:
    description: Refuse a certificate that the system does not trust.
    type: bool
    default: true
author:
  - vllm-hostkit
attributes:
  check_mode:
    description: Reads only, and asks in check mode too.
    support: full
"""

EXAMPLES = r"""
- name: Ask the server
  vllm_endpoint_info:
    url: http://127.0.0.1:8000
    model: chat
  register: endpoint

- name: Show the answer
  ansible.builtin.debug:
    msg: "{{ endpoint.completion.text }} ({{ endpoint.completion.ttft_seconds }} s)"
"""

RETURN = r"""
url:
  description: The address that was asked.
  returned: always
  type: str
  sample: http://127.0.0.1:8000
health:
  description:
    - Answer of C(/health). This and the next three hold C(ok), C(status) (HTTP status or null),
      C(error) and C(detail). C(error) is empty or one of C(refused), C(timeout),
      C(name_resolution), C(network), C(tls), C(unauthorized), C(model_not_found), C(not_found),
      C(bad_request), C(server_error), C(bad_answer), C(skipped).
  returned: always
  type: dict
  sample: {ok: true, status: 200, error: "", detail: ""}
version:
  description: Answer of C(/version), with C(version).
  returned: always
  type: dict
  sample: {ok: true, status: 200, error: "", detail: "", version: "0.32.0"}
models:
  description: Answer of C(/v1/models), with C(names).
  returned: always
  type: dict
  sample: {ok: true, status: 200, error: "", detail: "", names: [chat]}
completion:
  description:
    - The completion, with C(text), C(tokens), C(finish_reason), C(ttft_seconds) from the request
      to the first token, and C(seconds) to the last one.
  returned: always
  type: dict
  sample:
    ok: true
    status: 200
    error: ""
    detail: ""
    text: " Paris."
    tokens: 3
    finish_reason: stop
    ttft_seconds: 0.1312
    seconds: 0.2204
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.hostkit import endpoint


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "url": {"type": "str", "required": True},
            "model": {"type": "str", "required": True},
            "api_key": {"type": "str", "no_log": True},
            "prompt": {"type": "str", "default": "The capital of France is"},
            "max_tokens": {"type": "int", "default": 16},
            "chat": {"type": "bool", "default": False},
            "connect_timeout": {"type": "float", "default": 10},
            "completion_timeout": {"type": "float", "default": 120},
            "validate_certs": {"type": "bool", "default": True},
        },
        supports_check_mode=True,
    )
    request = endpoint.Request(
        url=module.params["url"],
        model=module.params["model"],
        api_key=module.params["api_key"] or "",
        prompt=module.params["prompt"],
        max_tokens=module.params["max_tokens"],
        chat=module.params["chat"],
        connect_timeout=module.params["connect_timeout"],
        completion_timeout=module.params["completion_timeout"],
        verify_tls=module.params["validate_certs"],
    )
    try:
        answers = endpoint.ask(request)
    except (OSError, ValueError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=False, **answers)


if __name__ == "__main__":
    main()
