from __future__ import annotations

from typing import Any

import pytest

from hostkit.findings import Finding, merge
from hostkit.instances import normalise
from hostkit.preflight import judge, unsupported

FACTS = {
    "architecture": "x86_64",
    "distribution": "Debian",
    "distribution_version": "12.15",
    "os_family": "Debian",
    "python_version": "3.11.2",
    "service_mgr": "systemd",
    "system": "Linux",
}
LOCK = {"lock": {"version": "0.32.0", "variant": "cpu", "python": "3.11", "packages": 148,
                 "release_name": "0.32.0-cpu-60a16dd64df8"}}  # fmt: skip
PLAN = {"name": "0.32.0-cpu-60a16dd64df8", "build": "it is not there", "problems": []}
MODEL = {"problems": [], "architectures": ["LlamaForCausalLM"], "size": 2_900_000,
         "has_manifest": True, "unverified": 0, "verified": ["config.json"]}  # fmt: skip


def values(**changes: Any) -> dict[str, Any]:
    instance = normalise({"name": "chat", "model": "/srv/models/chat"})
    return {
        "names": {"unknown": {}, "problems": [], "instances": [instance]},
        "facts": FACTS,
        "looked": {"ports": {"8000": []}, "systemd": True, "uid": 0},
        "lock": LOCK,
        "plan": PLAN,
        "index": {},
        "wanted": {"nofile": 1048576},
        "models": [MODEL],
        **changes,
    }


def held(address: str, unit: str) -> dict[str, Any]:
    holder = {"address": address, "description": f"{address}:8000 is held", "units": [unit]}
    return {"ports": {"8000": [holder]}, "systemd": True, "uid": 0}


def not_passed(**changes: Any) -> list[Finding]:
    return [one for one in merge(judge("gpu1", values(**changes))) if one.status != "pass"]


def only(**changes: Any) -> Finding:
    (finding,) = not_passed(**changes)
    return finding


def test_a_host_on_which_all_is_well_passes_every_check() -> None:
    found = judge("gpu1", values())
    assert {one.status for one in found} == {"pass"}
    assert [one.id for one in found] == [
        "variable_unknown",
        "variable_invalid",
        "host_unsupported",
        "lock_mismatch",
        "release_damaged",
        "port_in_use",
        "nofile",
        "model_incomplete",
    ]


def test_a_misspelt_variable_fails_with_the_right_name() -> None:
    names = {"unknown": {"vllm_usr": "vllm_user"}, "problems": [], "instances": []}
    finding = only(names=names, models=[])
    assert finding.id == "variable_unknown"
    assert finding.remedy == "Write vllm_user instead, or remove it."


def test_a_wrong_instance_fails_with_its_own_words() -> None:
    problem = {"variable": "x", "message": "vllm_instances[0].port is 0.", "remedy": "Choose."}
    names = {"unknown": {}, "problems": [problem], "instances": []}
    finding = only(names=names, models=[])
    assert (finding.id, finding.summary, finding.remedy) == (
        "variable_invalid",
        "vllm_instances[0].port is 0.",
        "Choose.",
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"system": "Darwin"}, "it runs Darwin, not Linux"),
        ({"service_mgr": "openrc"}, "its init is openrc, not systemd"),
        ({"os_family": "Suse", "distribution": "SLES"}, "it is SLES of the Suse family"),
        ({"python_version": "3.8.10"}, "Python 3.8.10 there, older than 3.9"),
    ],
)
def test_a_host_that_cannot_be_managed_is_told_why(change: dict[str, str], said: str) -> None:
    assert said in unsupported({**FACTS, **change})
    assert only(facts={**FACTS, **change}).id == "host_unsupported"


def test_of_a_host_that_is_not_linux_nothing_else_is_judged() -> None:
    found = judge("mac", {"names": values()["names"], "facts": {"system": "Darwin"}})
    assert [one.id for one in found if one.status == "fail"] == ["host_unsupported"]
    assert len(found) == 3


def test_a_host_on_which_systemd_is_not_running_is_refused() -> None:
    finding = only(looked={"ports": {"8000": []}, "systemd": False, "uid": 0})
    assert (finding.id, "does not run as its init" in finding.summary) == ("host_unsupported", True)


def test_tasks_that_do_not_run_as_root_are_refused() -> None:
    finding = only(looked={"ports": {"8000": []}, "systemd": True, "uid": 1000})
    assert "uid 1000" in finding.summary
    assert "become: true" in finding.remedy


def test_a_lock_that_is_not_there_fails_with_the_reason() -> None:
    finding = only(lock={"msg": "there is no lock for vLLM 9.9.9 cpu"}, plan={})
    assert (finding.id, finding.status) == ("lock_mismatch", "fail")
    assert finding.summary == "there is no lock for vLLM 9.9.9 cpu."


def test_what_stands_against_the_release_keeps_its_id() -> None:
    problem = {"id": "disk_full", "summary": "/opt has 1 GiB free.", "remedy": "Free some."}
    finding = only(plan={**PLAN, "problems": [problem]})
    assert (finding.id, finding.summary) == ("disk_full", "/opt has 1 GiB free.")


def test_a_plan_that_could_not_be_made_is_unknown() -> None:
    finding = only(plan={"msg": "/opt/vllm can't be read"})
    assert (finding.status, "can't be read" in finding.summary) == ("unknown", True)


@pytest.mark.parametrize(
    ("answer", "said"),
    [({"status": -1, "msg": "Connection refused"}, "Connection refused"), ({"status": 503}, "503")],
)
def test_an_index_that_does_not_answer_fails_when_it_is_needed(
    answer: dict[str, Any], said: str
) -> None:
    finding = only(index=answer)
    assert finding.id == "index_unreachable"
    assert said in finding.summary
    assert not not_passed(index=answer, plan={**PLAN, "build": ""})
    assert not not_passed(index={"status": 200})


def test_a_port_that_a_stranger_holds_fails_and_names_the_holder() -> None:
    finding = only(looked=held("0.0.0.0", "nginx.service"))
    assert (finding.id, finding.subject) == ("port_in_use", "chat")
    assert finding.evidence == ("0.0.0.0:8000 is held",)


def test_a_port_that_the_instances_own_unit_holds_passes() -> None:
    assert not not_passed(looked=held("127.0.0.1", "vllm@chat.service"))


def test_a_holder_on_another_address_is_not_in_the_way() -> None:
    assert not not_passed(looked=held("10.0.0.1", "nginx.service"))


def test_a_holder_that_cannot_be_seen_fails() -> None:
    looked = held("127.0.0.1", "")
    looked["ports"]["8000"][0]["units"] = []
    assert only(looked=looked).id == "port_in_use"


def test_what_is_wrong_with_a_model_keeps_its_id_and_evidence() -> None:
    problem = {
        "id": "model_damaged",
        "summary": "Not the ones.",
        "evidence": ["a: 1"],
        "remedy": "R",
    }
    finding = only(models=[{**MODEL, "problems": [problem]}])
    assert (finding.id, finding.evidence, finding.subject) == ("model_damaged", ("a: 1",), "chat")


def test_a_model_that_could_not_be_looked_at_is_unknown() -> None:
    assert only(models=[{"msg": "no such user"}]).status == "unknown"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"has_manifest": False}, "without SHA256SUMS"),
        ({"unverified": 5}, "not yet compared with its SHA256SUMS"),
        ({"size": 16_000_000_000}, "16.0 GB"),
    ],
)
def test_a_models_proof_is_told(change: dict[str, Any], said: str) -> None:
    assert said in judge("gpu1", values(models=[{**MODEL, **change}]))[-1].summary


def test_too_few_open_files_for_the_connections_are_named_with_both_numbers() -> None:
    finding = only(wanted={"nofile": 4000})
    assert (finding.id, finding.subject) == ("nofile", "chat")
    assert finding.summary == (
        "host_limits_nofile is 4000; chat needs 4608 for max_connections 4096."
    )
    assert "4608 or more" in finding.remedy


CUDA = {"lock": {**LOCK["lock"], "variant": "cuda"}}


def test_two_servers_that_want_all_of_one_gpu_are_refused() -> None:
    both = [
        normalise({"name": name, "model": "/m", "port": port})
        for name, port in (("a", 1), ("b", 2))
    ]
    names = {"unknown": {}, "problems": [], "instances": both}
    looked = {**values()["looked"], "ports": {"1": [], "2": []}}
    finding = only(names=names, looked=looked, lock=CUDA, models=[MODEL, MODEL])
    assert finding.id == "vram_free_below_util"
    assert "1.84 of GPU 0" in finding.summary


def test_the_memory_of_gpus_is_nothing_to_a_cpu_engine() -> None:
    ids = [one.id for one in judge("h", values())]
    assert "vram_free_below_util" not in ids
    assert "vram_free_below_util" in [one.id for one in judge("h", values(lock=CUDA))]
