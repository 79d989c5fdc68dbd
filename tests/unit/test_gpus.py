from __future__ import annotations

from typing import Any

import pytest

from hostkit import gpus
from hostkit.nvml import Gpu, Gpus


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


GIB = 1024**3
BIG = Gpu(0, "GPU-11aa", "NVIDIA H100", 3, 80 * GIB, 0, mig=("MIG-1", "MIG-2"))
SMALL = Gpu(1, "GPU-11bb", "NVIDIA L4", 1, 20 * GIB, 0)
HOST = Gpus("ok", "", "580.95.05", (BIG, SMALL))


@pytest.mark.parametrize(
    ("wanted", "uuids", "nodes"),
    [
        ([], ["GPU-11aa", "GPU-11bb"], ["/dev/nvidia1", "/dev/nvidia3"]),
        ([1, 0], ["GPU-11bb", "GPU-11aa"], ["/dev/nvidia1", "/dev/nvidia3"]),
        (["0"], ["GPU-11aa"], ["/dev/nvidia3"]),
        (["GPU-11b"], ["GPU-11bb"], ["/dev/nvidia1"]),
        (["MIG-2"], ["MIG-2"], ["/dev/nvidia3"]),
    ],
)
def test_gpus_are_named_by_their_full_uuids_in_the_order_asked_for(
    wanted: list[Any], uuids: list[str], nodes: list[str]
) -> None:
    assert gpus.resolve(wanted, HOST) == (uuids, [])
    assert gpus.devices(wanted, HOST) == nodes


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        ([7], "7 is no GPU of this host; there are: 0 (GPU-11aa, NVIDIA H100), 1 (GPU-11bb,"),
        (["GPU-22"], "GPU-22 is no GPU of this host"),
        (["GPU-11"], "GPU-11 names several GPUs"),
        ([0, "GPU-11aa"], "GPU-11aa names GPU-11aa, which is in the list already."),
    ],
)
def test_a_gpu_that_can_not_be_meant_is_named_with_those_that_are_there(
    wanted: list[Any], says: str
) -> None:
    _, (problem,) = gpus.resolve(wanted, HOST)
    assert says in problem


def used(size: int, *processes: tuple[int, int | None]) -> Gpus:
    return Gpus("ok", "", "", (Gpu(1, "GPU-b", "L4", 1, 20 * GIB, size * GIB, processes), BIG))


def check(found: Gpus, *own: int) -> list[str]:
    return gpus.held(["GPU-b"], found, own, 0.9, lambda pid: f"pid {pid}")


def test_a_gpu_with_the_memory_free_is_not_named() -> None:
    assert check(used(2)) == []
    assert check(used(19, (5, 18 * GIB)), 5) == []
    assert check(used(19, (5, None)), 5) == []


def test_a_gpu_that_others_hold_is_named_with_numbers_and_holders() -> None:
    assert check(used(5, (5, 4 * GIB), (6, None))) == [
        "GPU 1 (GPU-b) has 15.0 GiB of 20.0 GiB free, less than the 18.0 GiB of "
        "gpu_memory_utilization 0.9: pid 5 has 4.0 GiB; pid 6 has an unknown part."
    ]
    assert "no process that the driver tells of" in check(used(5))[0]


def test_what_is_not_ours_is_not_taken_for_free() -> None:
    assert check(used(19, (5, None), (6, 10 * GIB)), 5)[0].endswith("pid 6 has 10.0 GiB.")


def test_a_start_waits_for_memory_that_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [used(10), used(10), used(0)]
    monkeypatch.setattr(gpus, "probe", lambda: answers.pop(0))
    monkeypatch.setattr("time.sleep", lambda _seconds: None)
    assert gpus.check_before_start(["GPU-b"], 0.9) == []
    assert answers == []


def test_a_start_without_the_memory_or_the_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "probe", lambda: used(10))
    assert "10.0 GiB of 20.0 GiB free" in gpus.check_before_start(["GPU-b"], 0.9, wait=0)[0]
    assert "GPU-z is no GPU" in gpus.check_before_start(["GPU-z"], 0.9, wait=0)[0]
    monkeypatch.setattr(gpus, "probe", lambda: Gpus("mismatch", "They differ."))
    assert gpus.check_before_start(["GPU-b"], 0.9) == ["They differ."]


def test_our_processes_that_still_have_gpu_memory_are_named() -> None:
    found = used(5, (4194305, 4 * GIB), (6, GIB))
    assert gpus.held_by([4194305], found) == ["pid 4194305 has 4.0 GiB of GPU 1 (GPU-b)"]
    assert gpus.held_by([7], found) == []
