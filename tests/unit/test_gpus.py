from __future__ import annotations

from typing import Any

import pytest

from hostkit import gpus


def instance(name: str, used: list[Any] | None = None, **args: Any) -> dict[str, Any]:
    return {"name": name, "model": "/m", "gpus": used or [], "args": args}


@pytest.mark.parametrize(
    ("one", "used"),
    [
        (instance("a"), ["0"]),
        (instance("a", [3]), ["3"]),
        (instance("a", tensor_parallel_size=2), ["0", "1"]),
        (instance("a", [2, 3, 5], **{"tensor-parallel-size": 2}), ["2", "3"]),
        (instance("a", tensor_parallel_size=2, pipeline_parallel_size=2), ["0", "1", "2", "3"]),
        (instance("a", ["GPU-1"]), ["GPU-1"]),
    ],
)
def test_a_server_uses_the_first_gpus_that_it_sees(one: dict[str, Any], used: list[str]) -> None:
    assert gpus.cards(one) == used


def test_one_server_may_want_a_whole_gpu() -> None:
    assert gpus.budgets([instance("a", gpu_memory_utilization=1.0)]) == []


def test_two_servers_with_vllms_default_do_not_fit_one_gpu() -> None:
    (problem,) = gpus.budgets([instance("a"), instance("b")])
    assert problem.variable == "vllm_instances[1].args.gpu_memory_utilization"
    assert problem.found == "0.92, which makes 1.84 of GPU 0 (a 0.92, b 0.92)"
    assert "such as 0.48" in problem.remedy


def test_shares_that_add_up_to_the_whole_fit() -> None:
    thirds = [instance(name, gpu_memory_utilization=1 / 3) for name in "abc"]
    assert gpus.budgets(thirds) == []
    halves = [
        instance("a", None, **{"gpu-memory-utilization": 0.5}),
        instance("b", [0], device_memory_utilization=0.5),
    ]
    assert gpus.budgets(halves) == []


def test_servers_on_different_gpus_do_not_meet() -> None:
    assert gpus.budgets([instance("a", [0]), instance("b", [1]), instance("c", ["GPU-9"])]) == []


def test_a_server_whose_cache_is_given_in_bytes_is_not_counted() -> None:
    assert gpus.budgets([instance("a"), instance("b", kv_cache_memory_bytes="4G")]) == []


def test_every_shared_gpu_of_parallel_servers_is_named() -> None:
    both = [instance("a", [0, 1], tensor_parallel_size=2), instance("b", [1])]
    (problem,) = gpus.budgets(both)
    assert "of GPU 1" in problem.found
