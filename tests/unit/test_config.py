from __future__ import annotations

from typing import Any

import pytest
import yaml

from hostkit import config

INSTANCE: dict[str, Any] = {
    "name": "chat",
    "model": "/srv/models/qwen3-8b",
    "port": 8001,
    "gpus": [0, "GPU-11111111-2222"],
    "args": {
        "max_model_len": 8192,
        "compilation-config": {"pass_config": {"fuse": True}, "level": None},
        "enable_prefix_caching": False,
        "lora_modules": ["a=/x", "b=/y"],
        "chat_template": "{{ 'ü: #\"' }}",
    },
    "environment": {"WORDS": 'a "b" $c `d` \\e', "NUMBER": 1},
    "drain_seconds": 60,
    "start_timeout_seconds": 900,
}


def with_args(**args: Any) -> list[dict[str, Any]]:
    return [{"name": "a", "model": "/m", "args": args}]


def test_vllms_parser_reads_what_was_rendered() -> None:
    text = config.render_config(INSTANCE)
    assert yaml.safe_load(text) == {
        "model": "/srv/models/qwen3-8b",
        "served-model-name": "chat",
        "host": "127.0.0.1",
        "port": 8001,
        "shutdown-timeout": 60,
        "chat-template": "{{ 'ü: #\"' }}",
        "compilation-config": {"pass_config": {"fuse": True}, "level": None},
        "enable-prefix-caching": False,
        "lora-modules": ["a=/x", "b=/y"],
        "max-model-len": 8192,
    }
    assert config.read_config(text) == yaml.safe_load(text)


def test_a_configuration_edited_by_hand_into_other_yaml_is_named_by_line_and_key() -> None:
    with pytest.raises(ValueError, match=r"line 2 .* 'host'"):
        config.read_config("port: 8000\nhost: somewhere\n")


def test_the_environment_is_quoted_as_systemd_reads_it() -> None:
    lines = config.render_environment(INSTANCE).splitlines()[1:]
    assert lines == [
        'CUDA_VISIBLE_DEVICES="0,GPU-11111111-2222"',
        'NUMBER="1"',
        'VLLM_ENGINE_READY_TIMEOUT_S="870"',
        'WORDS="a \\"b\\" \\$c \\`d\\` \\\\e"',
    ]


@pytest.mark.parametrize(("start", "engine"), [(1800, 1770), (60, 30), (1, 1)])
def test_vllm_gives_up_before_systemd_does(start: int, engine: int) -> None:
    instance = {"name": "a", "model": "/m", "start_timeout_seconds": start}
    assert config.server_environment(instance)["VLLM_ENGINE_READY_TIMEOUT_S"] == str(engine)


def test_an_environment_of_the_instances_own_wins() -> None:
    instance = {"name": "a", "model": "/m", "environment": {"VLLM_ENGINE_READY_TIMEOUT_S": 7}}
    assert config.server_environment(instance)["VLLM_ENGINE_READY_TIMEOUT_S"] == "7"


def test_systemds_times_follow_from_the_instance() -> None:
    text = config.render_drop_in(INSTANCE)
    assert "TimeoutStartSec=900\n" in text
    assert "TimeoutStopSec=90\n" in text
    assert "Environment=HOSTKIT_START_SECONDS=900 HOSTKIT_DRAIN_SECONDS=60\n" in text


def test_a_server_waits_for_the_mount_of_its_model_whatever_its_path() -> None:
    text = config.render_drop_in({**INSTANCE, "model": '/srv/a 100% "b"'})
    assert 'RequiresMountsFor="/srv/a 100%% \\"b\\""\n' in text


def test_good_instances_have_no_problems() -> None:
    assert config.problems([INSTANCE]) == []


@pytest.mark.parametrize(
    ("args", "place", "remedy"),
    [
        ({"port": 1}, "args.port", "'port'"),
        ({"served-model-name": "x"}, "args.served-model-name", "'served_name'"),
        ({"shutdown_timeout": 5}, "args.shutdown_timeout", "'drain_seconds'"),
        ({"api_key": "sk-1"}, "args.api_key", "every local reader"),
        ({"uds": "/x"}, "args.uds", "host and port"),
        ({"max_model_len": 1, "max-model-len": 2}, "args.max-model-len", "one of the two"),
        ({"a": "--host"}, "args.a", "documentation"),
        ({"a": [None]}, "args.a", "documentation"),
        ({"a": [{"b": 1}]}, "args.a", "documentation"),
        ({"a": float("nan")}, "args.a", "documentation"),
        ({"a": {"b": float("inf")}}, "args.a", "documentation"),
        ({"a": "two\nlines"}, "args.a", "documentation"),
    ],
)
def test_an_option_that_would_not_arrive_as_meant_is_refused(
    args: dict[str, Any], place: str, remedy: str
) -> None:
    (problem,) = config.problems(with_args(**args))
    assert problem.variable == f"vllm_instances[0].{place}"
    assert remedy in problem.remedy


def test_a_refused_secret_is_not_shown() -> None:
    instance = {"name": "a", "model": "/m", "environment": {"HF_TOKEN": "hf_secret"}}
    (in_environment,) = config.problems([instance])
    (in_args,) = config.problems(with_args(hf_token="hf_secret"))
    for problem in (in_environment, in_args):
        assert "hf_secret" not in problem.message + problem.remedy


def test_negative_numbers_and_nested_nulls_are_values() -> None:
    assert config.problems(with_args(max_model_len=-1, seed="-1", x={"y": None})) == []


@pytest.mark.parametrize(
    ("variables", "name"),
    [
        ({"CUDA_VISIBLE_DEVICES": "0"}, "CUDA_VISIBLE_DEVICES"),
        ({"A": True}, "A"),
        ({"A": "x\x00y"}, "A"),
    ],
)
def test_an_environment_that_would_not_arrive_as_meant_is_refused(
    variables: dict[str, Any], name: str
) -> None:
    (problem,) = config.problems([{"name": "a", "model": "/m", "environment": variables}])
    assert problem.variable == f"vllm_instances[0].environment.{name}"


def test_a_privileged_port_is_refused() -> None:
    (problem,) = config.problems([{"name": "a", "model": "/m", "port": 80}])
    assert problem.variable == "vllm_instances[0].port"
    assert "1024" in problem.allowed
