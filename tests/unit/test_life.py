from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from hostkit import life, unit

if TYPE_CHECKING:
    from pathlib import Path

NOW = 1_800_000_000.0
SERVING: dict[str, Any] = {
    "started_at": NOW - 90, "ready_at": NOW - 60, "stop_requested_at": None, "deaths": [],
}  # fmt: skip
STARTING = {**SERVING, "ready_at": None}
DRAINING = {**SERVING, "stop_requested_at": NOW - 5}


def end(code: str = "exited", status: str = "0", result: str = "success", **more: Any) -> life.End:
    return life.End(result, code, status, at=NOW, **more)


@pytest.mark.parametrize(
    ("record", "how", "cause"),
    [
        (DRAINING, end(), "stopped"),
        (DRAINING, end(told=True), "stopped"),
        (DRAINING, end("killed", "KILL"), "signal"),
        (DRAINING, end(engine_dead=True), "engine-died"),
        ({**DRAINING, "cut_off": "It was cut off."}, end("killed", "KILL"), "cut-off"),
        ({**DRAINING, "ready_at": None}, end("killed", "KILL"), "stopped"),
        (SERVING, end(), "engine-died"),
        (SERVING, end(engine_dead=True, told=True), "engine-died"),
        (SERVING, end(told=True), "told"),
        (SERVING, end("killed", "KILL"), "signal"),
        (SERVING, end("dumped", "SEGV", "core-dump"), "signal"),
        (SERVING, end("killed", "KILL", oom_kills=1), "oom"),
        (SERVING, end(result="oom-kill"), "oom"),
        (STARTING, end("exited", "1", "exit-code"), "exit-code"),
        (STARTING, end("killed", "TERM"), "told"),
        (STARTING, end("killed", "KILL", "timeout"), "timeout"),
        (STARTING, end("", ""), "refused"),
    ],
)
def test_the_cause_of_an_end_is_told_apart(
    record: dict[str, Any], how: life.End, cause: str
) -> None:
    assert life.judge(record, how).record["last_end"]["cause"] == cause


def test_an_end_that_was_asked_for_is_final_and_forgets_earlier_deaths() -> None:
    verdict = life.judge({**DRAINING, "deaths": [NOW - 100]}, end())
    assert (verdict.asked, verdict.restart) == (True, False)
    assert verdict.record["deaths"] == []


def test_each_death_in_a_row_waits_longer_and_the_fifth_is_the_last() -> None:
    record, pauses = dict(SERVING), []
    for _ in range(life.DEATH_LIMIT):
        verdict = life.judge(record, end("killed", "KILL"))
        pauses.append(verdict.record["not_before"] - NOW if verdict.restart else None)
        record = {**SERVING, "deaths": verdict.record["deaths"]}
    assert pauses == [5, 10, 20, 40, None]
    assert "died 5 times" in verdict.record["last_end"]["next"]


def test_a_stable_run_forgets_the_deaths_before_it() -> None:
    record = {**SERVING, "ready_at": NOW - life.STABLE_SECONDS, "deaths": [1.0, 2.0, 3.0, 4.0]}
    verdict = life.judge(record, end("killed", "KILL"))
    assert verdict.restart
    assert verdict.record["deaths"] == [NOW]


@pytest.mark.parametrize(
    "line",
    [
        "vllm: error: unrecognized arguments: --no-such-key",
        "  Value error, User-specified max_model_len (8192) is greater than the derived",
        "ValueError: Total number of attention heads (9) must be divisible by tensor parallel size",
        "ValueError: Model architectures ['Foo'] are not supported for now. Supported: ...",
        "The repository /m contains custom code which must be executed to correctly load it.",
        "safetensors_rust.SafetensorError: Error while deserializing header: incomplete metadata",
        "huggingface_hub.errors.HFValidationError: Repo id must be in the form 'repo_name'",
        "RuntimeError: Failed to infer device type, please set the environment variable",
        "ValueError: To serve at least one request with the model's max seq len (4096), (2 GiB KV "
        "cache is needed, which is larger than the available KV cache memory (1 GiB).",
    ],
)
def test_a_wrong_setting_is_never_tried_again(line: str) -> None:
    verdict = life.judge(STARTING, end("exited", "1", "exit-code", lines=[line]))
    assert not verdict.restart
    assert "have to be changed first" in verdict.record["last_end"]["next"]


def test_words_of_a_wrong_setting_in_a_server_that_has_served_keep_it_from_nothing() -> None:
    lines = ["ValueError: tools are not supported for now"]
    assert life.judge(SERVING, end("exited", "1", "exit-code", lines=lines)).restart


def test_options_that_vllm_refuses_are_final() -> None:
    assert not life.judge(STARTING, end("exited", "2", "exit-code")).restart


def test_an_unknown_failure_of_a_start_is_tried_once_more_and_not_when_it_is_the_same() -> None:
    first = life.judge(STARTING, end("exited", "1", "exit-code", lines=["pid 17: odd at 0x7f3a"]))
    assert first.restart
    again = {**STARTING, "deaths": first.record["deaths"], "last_end": first.record["last_end"]}
    same = life.judge(again, end("exited", "1", "exit-code", lines=["pid 99: odd at 0x1b"]))
    assert not same.restart
    other = life.judge(again, end("exited", "1", "exit-code", lines=["something else"]))
    assert other.restart


def test_a_killed_start_is_tried_again() -> None:
    assert life.judge(STARTING, end("killed", "KILL", lines=["x"])).restart


def test_a_step_that_refused_for_good_is_final_and_one_that_may_pass_is_not() -> None:
    refused = {**STARTING, "refused": {"summary": "port in use: pid 1", "final": False}}
    passing = life.judge(refused, end("", ""))
    assert passing.restart
    assert passing.record["last_end"]["summary"] == "port in use: pid 1"
    refused["refused"] = {"summary": "config.yaml is missing", "final": True}
    assert not life.judge(refused, end("", "")).restart


def test_a_start_by_a_person_forgets_deaths_and_pauses() -> None:
    record = {"deaths": [NOW], "not_before": NOW + 9, "last_end": {"cause": "signal"}}
    assert life.begin(record, NOW, restarts=0)["deaths"] == []
    assert life.begin(record, NOW, restarts=0)["not_before"] == 0.0
    assert life.begin(record, NOW, restarts=1)["deaths"] == [NOW]
    assert life.begin(record, NOW, restarts=1)["not_before"] == NOW + 9
    assert life.begin(record, NOW, restarts=0)["last_end"] == {"cause": "signal"}


def test_a_record_comes_back_as_written_and_a_damaged_one_is_none(tmp_path: Path) -> None:
    places = unit.Places(tmp_path, tmp_path, record_root=tmp_path / "run")
    assert life.read("a", places) == {}
    life.write("a", places, SERVING)
    assert life.read("a", places) == SERVING
    assert places.life("a").stat().st_mode & 0o777 == 0o644
    assert places.record_root.stat().st_mode & 0o777 == 0o755
    places.life("a").write_text('{"deaths": [')
    assert life.read("a", places) == {}


def test_what_the_server_said_about_its_end_is_found() -> None:
    told = (
        "(APIServer pid=1) INFO 12-01 [launcher.py:254] [shutdown] API server: shutdown triggered"
    )
    dead = "(EngineCore pid=2) ERROR [x.py:1] Worker proc VllmWorker-0 died unexpectedly (exit"
    assert life.seen([told]) == {"told": True, "engine_dead": False}
    assert life.seen([dead, "other"]) == {"told": False, "engine_dead": True}
