from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from hostkit.instances import normalise
from hostkit.verify import judge, public

if TYPE_CHECKING:
    from hostkit.findings import Finding

OK = {"ok": True, "status": 200, "error": "", "detail": ""}
UNIT = {
    "name": "chat",
    "unit": "vllm@chat.service",
    "active_state": "active",
    "sub_state": "running",
    "result": "success",
    "exit_status": 0,
    "enabled": True,
    "main_pid": 811,
    "action": "none",
    "reason": "it runs with what is on disk",
    "journal": ["OSError: no"],
    "last_end": {},
}
ANSWERS: dict[str, Any] = {
    "url": "http://127.0.0.1:8000",
    "health": OK,
    "version": {**OK, "version": "0.32.0"},
    "models": {**OK, "names": ["chat"]},
    "completion": {**OK, "text": " Paris.", "tokens": 3, "ttft_seconds": 0.12, "seconds": 0.4},
}
RELEASE = {"name": "0.32.0-cpu-60a16dd64df8", "complete": True, "reason": "", "damaged": [],
           "marker": {"packages": {"vllm": "0.32.0+cpu"}}}  # fmt: skip
ENGINE = {"current": "0.32.0-cpu-60a16dd64df8", "release": RELEASE}
MODEL = {"problems": [], "architectures": ["LlamaForCausalLM"], "size": 2_900_000,
         "has_manifest": True, "unverified": 0, "verified": ["config.json"]}  # fmt: skip
OWN = {"address": "127.0.0.1", "description": "own", "units": ["vllm@chat.service"]}
STRANGER = {"address": "127.0.0.1", "description": "nginx", "units": ["nginx.service"]}
PATH = "/etc/systemd/system/vllm@.service"


def process(name: str, soft: int, pid: int = 5) -> dict[str, Any]:
    return {
        "name": name,
        "pid": pid,
        "limits": {
            "nofile": {"soft": soft, "hard": soft},
            "memlock": {"soft": -1, "hard": -1},
            "core": {"soft": 0, "hard": 0},
        },
    }


LIMITS = [
    process("python", 20000, 811),
    process("VLLM::EngineCor", 20000),
    process("VLLM::Worker", -1),
]


def confined(pid: int = 811, **changes: Any) -> dict[str, Any]:
    in_force = {"NoNewPrivileges": True, "ProtectSystem": True, "PrivateDevices": False}
    row = {"pid": pid, "name": "python", "writable": [], "shm_bytes": 2**30, "in_force": in_force}
    return {**row, **changes}


def sandbox(**changes: Any) -> dict[str, Any]:
    unit = {"name": "chat", "exposure": "1.3", "tasks_max": 32768, "memory_max": -1,
            "processes": [confined()]}  # fmt: skip
    host = {"can_filter_addresses": True, "memory_total": 2**31}
    return {"units": [{**unit, **changes}], **host}


def values(**changes: Any) -> dict[str, Any]:
    instance = normalise({"name": "chat", "model": "/srv/models/chat"})
    wanted = {"version": "0.32.0", "nofile": 20000, "unit_path": PATH, "compared": "size",
              "variant": "cuda", "memlock": "infinity", "core": "0", "tasks": 32768,
              "engine_path": "/opt/vllm/current"}  # fmt: skip
    return {
        "names": {"unknown": {}, "problems": [], "instances": [instance]},
        "wanted": wanted,
        "looked": {"ports": {"8000": [OWN]}, "paths": {PATH: True}, "uid": 0},
        "engine": ENGINE,
        "units": [UNIT],
        "limits": [LIMITS],
        "sandbox": sandbox(),
        "endpoints": [ANSWERS],
        "models": [MODEL],
        **changes,
    }


def not_passed(**changes: Any) -> list[Finding]:
    return [one for one in judge("gpu1", values(**changes)) if one.status != "pass"]


def only(**changes: Any) -> Finding:
    (finding,) = not_passed(**changes)
    return finding


def answers(part: str, **changes: Any) -> list[dict[str, Any]]:
    return [{**ANSWERS, part: {**ANSWERS[part], **changes}}]


def test_a_server_that_serves_passes_every_check_and_tells_its_figures() -> None:
    found = {one.id: one for one in judge("gpu1", values())}
    assert {one.status for one in found.values()} == {"pass"}
    assert list(found) == [
        "variable_unknown",
        "variable_invalid",
        "release_damaged",
        "unit_missing",
        "unit_inactive",
        "port_in_use",
        "health",
        "engine_version",
        "served_model_404",
        "completion_failed",
        "nofile",
        "limits_clamped",
        "shm",
        "sandbox_ignored",
        "model_incomplete",
    ]
    assert "3 tokens in 0.40 s, the first after 0.12 s" in found["completion_failed"].summary
    assert "(API server, engine core, worker)" in found["nofile"].summary


def test_a_host_without_instances_is_proved_by_its_engine_alone() -> None:
    names: dict[str, Any] = {"unknown": {}, "problems": [], "instances": []}
    found = judge(
        "gpu1",
        values(names=names, units=[], limits=[], sandbox={"units": []}, endpoints=[], models=[]),
    )
    assert [one.id for one in found] == ["variable_unknown", "variable_invalid", "release_damaged"]


def test_a_missing_link_is_named() -> None:
    finding = only(engine={**ENGINE, "current": ""})
    assert finding.summary == "/opt/vllm/current is missing or leads to no release."


def test_a_lost_file_of_a_wheel_is_named_with_its_package() -> None:
    damage = {"path": "lib/x.py", "package": "torch", "problem": "missing"}
    release = {**RELEASE, "complete": False, "reason": "lib/x.py (torch) is missing",
               "damaged": [damage]}  # fmt: skip
    finding = only(engine={**ENGINE, "release": release})
    assert finding.id == "release_damaged"
    assert finding.evidence == ("lib/x.py (torch): missing",)


def test_a_missing_unit_file_is_named_by_its_path() -> None:
    finding = only(looked={"ports": {"8000": [OWN]}, "paths": {PATH: False}, "uid": 0})
    assert (finding.id, PATH in finding.summary) == ("unit_missing", True)


def test_a_unit_that_is_down_shows_the_end_of_its_journal() -> None:
    unit = {**UNIT, "active_state": "failed", "sub_state": "failed", "exit_status": 1}
    finding = only(units=[unit])
    assert (finding.id, finding.evidence) == ("unit_inactive", ("OSError: no",))
    assert "exit status 1" in finding.summary


def test_a_unit_that_is_down_tells_why_it_stays_so() -> None:
    last = {"summary": "Its engine died.", "next": "stays down: it died 5 times"}
    finding = only(units=[{**UNIT, "active_state": "failed", "last_end": last}])
    assert finding.summary.endswith("Its engine died. It stays down: it died 5 times.")


def test_a_unit_that_would_not_start_at_boot_fails() -> None:
    assert "next boot" in only(units=[{**UNIT, "enabled": False}]).summary


def test_a_unit_that_runs_with_something_older_fails_with_the_reason() -> None:
    finding = only(units=[{**UNIT, "action": "restart", "reason": "changed since: config"}])
    assert (finding.id, "changed since: config" in finding.summary) == ("unit_outdated", True)


@pytest.mark.parametrize("holders", [[STRANGER], [OWN, STRANGER], []])
def test_a_port_that_is_not_held_by_the_unit_alone_fails(holders: list[dict[str, Any]]) -> None:
    finding = only(looked={"ports": {"8000": holders}, "paths": {PATH: True}, "uid": 0})
    assert (finding.id, finding.status) == ("port_in_use", "fail")


def test_a_server_that_refuses_is_one_failure_of_its_health() -> None:
    health = {"ok": False, "status": None, "error": "refused", "detail": "connection refused"}
    skipped = {"ok": False, "status": None, "error": "skipped", "detail": "not asked"}
    down = {**ANSWERS, "health": health, "version": skipped, "models": skipped,
            "completion": skipped}  # fmt: skip
    assert only(endpoints=[down]).id == "health"


def test_another_version_than_the_pinned_one_fails_and_the_local_part_does_not_count() -> None:
    finding = only(endpoints=answers("version", version="0.31.0"))
    assert finding.summary == "vLLM 0.31.0 answers, 0.32.0 is wanted."
    assert not not_passed(endpoints=answers("version", version="0.32.0+cpu"))
    assert public("0.32.0+cpu") == "0.32.0"


def test_another_served_name_fails() -> None:
    finding = only(endpoints=answers("models", names=["other"]))
    assert finding.summary == "/v1/models lists other, not chat."


@pytest.mark.parametrize(
    ("error", "finding_id"),
    [
        ("server_error", "completion_failed"),
        ("timeout", "timeout"),
        ("unauthorized", "client_auth_401"),
        ("model_not_found", "served_model_404"),
    ],
)
def test_a_completion_that_fails_is_named_by_its_cause(error: str, finding_id: str) -> None:
    finding = only(endpoints=answers("completion", ok=False, error=error, detail="HTTP 500"))
    assert (finding.id, finding.status) == (finding_id, "fail")


def test_a_process_with_a_lower_limit_is_named() -> None:
    finding = only(limits=[[*LIMITS, process("VLLM::Worker", 1024)]])
    assert finding.summary == "1 of 4 processes may open fewer than 20000 files."
    assert "VLLM::Worker (pid 5) has soft nofile 1024" in finding.evidence[0]


def test_limits_of_no_process_are_unknown() -> None:
    assert only(limits=[[]]).status == "unknown"


def test_a_lost_model_file_is_named() -> None:
    problem = {"id": "model_incomplete", "summary": "It lacks config.json.", "remedy": "Copy it."}
    finding = only(models=[{**MODEL, "problems": [problem]}])
    assert (finding.id, finding.subject) == ("model_incomplete", "chat")


def test_a_limit_that_the_kernel_clamped_is_named_with_both_numbers() -> None:
    clamped = {
        **LIMITS[0],
        "limits": {**LIMITS[0]["limits"], "memlock": {"soft": 8192, "hard": 8192}},
    }
    finding = only(limits=[[clamped, *LIMITS[1:]]])
    assert finding.id == "limits_clamped"
    assert finding.evidence[0] == "python (pid 811) has soft memlock 8192, wanted unlimited"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"tasks_max": 307}, "pids.max 307, wanted 32768"),
        ({"memory_max": 4096}, "memory.max 4096, wanted unlimited"),
        ({"memory_max": None}, "memory.max of the control group can't be read"),
    ],
)
def test_a_limit_of_the_control_group_that_is_another_is_named(
    changes: dict[str, Any], said: str
) -> None:
    finding = only(sandbox=sandbox(**changes))
    assert (finding.id, said in finding.evidence[0]) == ("limits_clamped", True)


def test_small_shared_memory_fails() -> None:
    finding = only(sandbox=sandbox(processes=[confined(shm_bytes=64 * 1024**2)]))
    assert (finding.id, "python (pid 811)" in finding.evidence[0]) == ("shm", True)


def test_a_directive_that_is_not_in_force_is_named_with_the_process() -> None:
    open_one = confined(in_force={"ProtectSystem": False}, writable=["/usr"])
    finding = only(sandbox=sandbox(processes=[confined(), open_one]))
    assert finding.id == "sandbox_ignored"
    assert finding.evidence == ("python (pid 811): ProtectSystem; writable: /usr",)


def test_a_relaxed_directive_passes_and_is_told() -> None:
    instance = normalise({"name": "chat", "model": "/m", "sandbox_relax": ["ProtectSystem"]})
    names: dict[str, Any] = {"unknown": {}, "problems": [], "instances": [instance]}
    processes = [confined(in_force={"ProtectSystem": False, "NoNewPrivileges": True})]
    found = judge("gpu1", values(names=names, sandbox=sandbox(processes=processes)))
    (told,) = [one for one in found if one.id == "sandbox_ignored"]
    assert (told.status, "relaxed: ProtectSystem" in told.summary) == ("pass", True)
    assert "exposure 1.3" in told.summary


def test_a_packet_filter_that_the_host_can_not_have_is_a_warning() -> None:
    finding = only(sandbox={**sandbox(), "can_filter_addresses": False})
    assert (finding.id, finding.status) == ("sandbox_ignored", "warn")
