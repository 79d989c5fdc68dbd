from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from hostkit import instances, variables

ROLES = Path(__file__).resolve().parents[2] / "roles"
SPECS = {path.parts[-3]: path for path in sorted(ROLES.glob("*/meta/argument_specs.yml"))}


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text()) or {}


def test_options_are_those_of_all_entry_points() -> None:
    spec: dict[str, Any] = {
        "argument_specs": {"main": {"options": {"a": {}}}, "other": {"options": {"b": {}}}}
    }
    assert variables.options(spec) == {"a", "b"}
    assert variables.options({"argument_specs": {"main": {}}}) == set()


def test_a_prefix_that_another_one_covers_is_left_out() -> None:
    roles = ["vllm_engine", "vllm", "host_limits"]
    assert variables.prefixes(roles) == ["vllm_", "host_limits_"]


def test_a_misspelt_name_comes_with_the_nearest_right_one() -> None:
    found = variables.unknown(
        ["vllm_instance", "host_limits_nofiles", "vllm_instances", "ansible_host", "__vllm_x"],
        ["vllm_instances", "host_limits_nofile"],
        ["vllm", "host_limits"],
    )
    assert found == {"host_limits_nofiles": "host_limits_nofile", "vllm_instance": "vllm_instances"}


def test_a_name_that_resembles_nothing_has_no_suggestion() -> None:
    assert variables.unknown(["vllm_zzzzzzzzzzzzzzzz"], ["vllm_user"], ["vllm"]) == {
        "vllm_zzzzzzzzzzzzzzzz": ""
    }


@pytest.mark.parametrize("role", sorted(path.name for path in ROLES.iterdir() if path.is_dir()))
def test_each_role_describes_all_its_variables_with_their_true_defaults(role: str) -> None:
    stated = load(SPECS[role])["argument_specs"]["main"].get("options", {})
    path = ROLES / role / "defaults" / "main.yml"
    given = load(path) if path.exists() else {}
    assert set(given) <= set(stated), "defaults that the argument spec does not describe"
    for name, option in stated.items():
        assert name.startswith(f"{role}_"), "a public variable carries its role's name"
        assert option.get("description"), name
        if name in given:
            assert option.get("default") == given[name], name
        else:
            assert option.get("required") or "default" not in option, f"{name}: default not set"


def test_the_described_keys_of_an_instance_are_those_that_are_accepted() -> None:
    described = load(SPECS["vllm"])["argument_specs"]["instance"]["options"]
    assert list(described) == list(instances.KEYS)
    stated = {name: item["default"] for name, item in described.items() if "default" in item}
    assert stated == instances.DEFAULTS


SPEC: dict[str, Any] = {
    "argument_specs": {
        "main": {
            "options": {
                "vllm_root": {"type": "path", "default": "/opt/vllm", "description": "x"},
                "vllm_cache_root": {"type": "path"},
                "vllm_engine_variant": {"type": "str", "choices": ["cpu", "cuda"]},
                "vllm_instances": {"type": "list", "elements": "dict"},
            }
        }
    }
}


def test_instances_are_not_checked_by_type() -> None:
    assert set(variables.checkable(SPEC)) == {
        "vllm_root",
        "vllm_cache_root",
        "vllm_engine_variant",
    }
    assert variables.checkable(SPEC)["vllm_root"] == {"type": "path"}


def test_a_refused_value_comes_with_what_is_allowed() -> None:
    option = variables.checkable(SPEC)["vllm_engine_variant"]
    problem = variables.refused("vllm_engine_variant", "gpu", option)
    assert problem.message == "vllm_engine_variant is 'gpu'; allowed: cpu or cuda."
    numbers = variables.refused("x", "a", {"type": "list", "elements": "int"})
    assert numbers.allowed == "a list, each a whole number"


@pytest.mark.parametrize(
    ("name", "value", "wrong"),
    [
        ("vllm_root", "/opt/vllm", False),
        ("vllm_root", "opt/vllm", True),
        ("vllm_cache_root", "/var/cache/vllm", False),
        ("vllm_cache_root", "/data/cache", True),
        ("vllm_cache_root", "/var/cache/../lib", True),
    ],
)
def test_paths_are_absolute_and_caches_lie_where_systemd_makes_them(
    name: str, value: str, wrong: bool
) -> None:
    found = variables.problems({name: value}, [variables.checkable(SPEC)])
    assert [one.variable for one in found] == ([name] if wrong else [])


def test_the_values_that_the_preflight_passes_are_those_of_every_role() -> None:
    text = (ROLES / "vllm_preflight/vars/main.yml").read_text()
    pattern = text.split("'ansible.builtin.varnames', '", 1)[1].split("'", 1)[0]
    for role in SPECS:
        assert re.match(pattern, f"{role}_something")
