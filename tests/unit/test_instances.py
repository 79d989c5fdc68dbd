from __future__ import annotations

from typing import Any

import pytest

from hostkit.instances import normalise, problems

GOOD = {"name": "chat", "model": "/srv/models/chat"}


def only(instances: Any) -> str:
    found = problems(instances)
    assert len(found) == 1, found
    return f"{found[0].message} {found[0].remedy}"


def with_value(key: str, value: Any) -> list[dict[str, Any]]:
    return [{**GOOD, key: value}]


def test_an_instance_with_name_and_model_is_enough_and_gets_every_default() -> None:
    assert problems([GOOD]) == []
    filled = normalise(GOOD)
    assert (filled["served_name"], filled["host"], filled["port"]) == ("chat", "127.0.0.1", 8000)
    assert list(filled)[:3] == ["name", "model", "served_name"]


def test_no_instances_are_allowed() -> None:
    assert problems([]) == []


def test_every_key_may_be_given() -> None:
    full = {
        **GOOD,
        "served_name": "Qwen/Qwen3-8B",
        "host": "::1",
        "port": "8001",
        "gpus": [0, "GPU-11111111-2222"],
        "args": {"max_model_len": 8192, "enable-lora": True},
        "environment": {"VLLM_LOGGING_LEVEL": "DEBUG", "OMP_NUM_THREADS": 4},
        "drain_seconds": 5,
        "start_timeout_seconds": 60,
        "max_connections": 100,
        "memory_max": "8G",
        "shm_size": "4G",
        "sandbox_relax": ["IPAddressDeny"],
    }
    assert problems([full]) == []
    assert normalise(full)["port"] == 8001


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("name", "Chat", "1 to 32 lower-case letters"),
        ("name", "chat-", "1 to 32 lower-case letters"),
        ("name", "a" * 33, "1 to 32 lower-case letters"),
        ("name", 7, "vllm_instances[0].name is 7"),
        ("model", "models/chat", "absolute path"),
        ("model", "/srv/../etc", "absolute path"),
        ("port", 0, "a whole number from 1 to 65535"),
        ("port", 65536, "vllm_instances[0].port is 65536"),
        ("port", "http", "vllm_instances[0].port is 'http'"),
        ("port", True, "vllm_instances[0].port is True"),
        ("port", 80.5, "vllm_instances[0].port is 80.5"),
        ("host", "a b", "an address of the host"),
        ("gpus", "0,1", "a list of GPU indexes"),
        ("gpus", [-1], "a list of GPU indexes"),
        ("args", ["--max-model-len"], "a mapping of vLLM's option names"),
        ("args", {"--max-model-len": 1}, "without leading dashes"),
        ("args", {"max_model_len": None}, "values that are not null"),
        ("environment", {"1X": "a"}, "a mapping of environment variables"),
        ("environment", {"X": "a\nb"}, "on one line"),
        ("drain_seconds", 0, "0 would cut requests in flight"),
        ("start_timeout_seconds", -1, "a whole number of seconds"),
        ("max_connections", 0, "a whole number of connections"),
        ("memory_max", "lots", "infinity, or bytes"),
        ("memory_max", "512M", "at least 1G"),
        ("shm_size", "0%", "a share of the memory"),
        ("shm_size", True, "a share of the memory"),
        ("sandbox_relax", "IPAddressDeny", "a list of names"),
        ("sandbox_relax", ["No new line\n"], "a list of names"),
        ("served_name", "", "the name that clients send"),
    ],
)
def test_a_wrong_value_is_named_with_what_is_allowed(key: str, value: Any, said: str) -> None:
    message = only(with_value(key, value))
    assert message.startswith(f"vllm_instances[0].{key} is ")
    assert said in message


def test_a_hub_id_is_refused_with_the_command_that_fetches_it() -> None:
    message = only(with_value("model", "Qwen/Qwen3-8B"))
    assert "`hf download Qwen/Qwen3-8B --local-dir /srv/models/qwen3-8b`" in message
    assert "set model: /srv/models/qwen3-8b" in message


def test_a_misspelt_key_is_named_with_the_right_one() -> None:
    message = only([{**GOOD, "prot": 8001}])
    assert message.startswith("vllm_instances[0].prot is not a key of an instance")
    assert "Write 'port' instead." in message


@pytest.mark.parametrize("key", ["name", "model"])
def test_a_missing_key_is_named(key: str) -> None:
    instance = {one: value for one, value in GOOD.items() if one != key}
    assert only([instance]).startswith(f"vllm_instances[0].{key} is missing")


def test_two_instances_with_one_name_are_refused() -> None:
    message = only([GOOD, {**GOOD, "port": 8001}])
    assert message.startswith("vllm_instances[1].name is 'chat', like vllm_instances[0].name")


def test_two_instances_on_one_port_are_refused_even_by_default() -> None:
    message = only([GOOD, {**GOOD, "name": "code"}])
    assert message.startswith("vllm_instances[1].port is 8000 on 127.0.0.1, like vllm_instances[0]")


def test_one_port_on_two_addresses_is_allowed_but_not_beside_all_addresses() -> None:
    other = {**GOOD, "name": "code"}
    assert problems([{**GOOD, "host": "10.0.0.1"}, other]) == []
    assert "on 0.0.0.0" in only([{**GOOD, "host": "0.0.0.0"}, other])
    assert "on ::" in only([{**GOOD, "host": "::"}, other])


@pytest.mark.parametrize("value", ["chat", {"name": "chat"}, None, 3])
def test_anything_but_a_list_is_refused(value: Any) -> None:
    assert "allowed: a list of instances" in only(value)


def test_an_element_that_is_no_mapping_is_refused() -> None:
    assert only(["chat"]).startswith("vllm_instances[0] is 'chat'")
