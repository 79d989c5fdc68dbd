from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from hostkit import config, unit

if TYPE_CHECKING:
    from pathlib import Path

INSTANCE = {"name": "chat", "args": {}}


@pytest.fixture
def places(tmp_path: Path) -> unit.Places:
    release = tmp_path / "opt/releases/1"
    release.mkdir(parents=True)
    (release / ".hostkit-release.json").write_text("{}")
    (tmp_path / "opt/current").symlink_to("releases/1")
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    units = tmp_path / "units"
    (units / "vllm@chat.service.d").mkdir(parents=True)
    (units / "vllm@.service").write_text("[Service]\n")
    (units / "vllm@chat.service.d/50-hostkit.conf").write_text("[Unit]\n")
    directory = tmp_path / "etc/instances/chat"
    directory.mkdir(parents=True)
    (directory / "config.yaml").write_text(config.render_config({**INSTANCE, "model": str(model)}))
    (directory / "environment").write_text(config.render_environment({**INSTANCE, "model": "/m"}))
    return unit.Places(
        tmp_path / "opt/current", tmp_path / "etc", [units], tmp_path / "run/records"
    )


def running(invocation: str = "i1", **more: str) -> dict[str, str]:
    return {
        "ActiveState": "active", "SubState": "running", "InvocationID": invocation, **more,
    }  # fmt: skip


def test_two_units_that_systemctl_shows_are_told_apart() -> None:
    text = "Id=vllm@a.service\nResult=success\n\nId=vllm@b.service\nResult=exit-code=1\n"
    assert unit.parse_show(text) == [
        {"Id": "vllm@a.service", "Result": "success"},
        {"Id": "vllm@b.service", "Result": "exit-code=1"},
    ]


def test_nothing_changed_means_nothing_to_do(places: unit.Places) -> None:
    found = unit.inputs("chat", places)
    assert "missing" not in found.values()
    record = json.loads(unit.render_record("i1", found))
    assert unit.decide(running(), record, unit.inputs("chat", places))[0] == "none"


@pytest.mark.parametrize(
    ("path", "part"),
    [
        ("etc/instances/chat/environment", "environment"),
        ("units/vllm@.service", "unit"),
        ("units/vllm@chat.service.d/50-hostkit.conf", "unit"),
        ("model/config.json", "model"),
    ],
)
def test_a_changed_file_calls_for_a_restart_and_is_named(
    places: unit.Places, tmp_path: Path, path: str, part: str
) -> None:
    record = json.loads(unit.render_record("i1", unit.inputs("chat", places)))
    with (tmp_path / path).open("a") as file:
        file.write("# more\n")
    action, reason = unit.decide(running(), record, unit.inputs("chat", places))
    assert (action, reason) == ("restart", f"changed since its start: {part}")


def test_an_administrators_drop_in_counts(places: unit.Places, tmp_path: Path) -> None:
    before = unit.inputs("chat", places)
    (tmp_path / "units/vllm@chat.service.d/override.conf").write_text("[Service]\nNice=5\n")
    assert unit.inputs("chat", places)["unit"] != before["unit"]


def test_another_release_and_the_same_release_made_anew_call_for_a_restart(
    places: unit.Places, tmp_path: Path
) -> None:
    first = unit.inputs("chat", places)["release"]
    marker = tmp_path / "opt/releases/1/.hostkit-release.json"
    os.utime(marker, ns=(1, 1))
    anew = unit.inputs("chat", places)["release"]
    (tmp_path / "opt/releases/2").mkdir()
    (tmp_path / "opt/current").unlink()
    (tmp_path / "opt/current").symlink_to("releases/2")
    other = unit.inputs("chat", places)["release"]
    assert len({first, anew, other}) == 3


def test_a_bare_host_has_every_input_missing(tmp_path: Path) -> None:
    places = unit.Places(tmp_path / "current", tmp_path, [tmp_path])
    assert set(unit.inputs("chat", places).values()) == {"missing"}


@pytest.mark.parametrize(
    ("properties", "action"),
    [
        ({}, "start"),
        ({"ActiveState": "failed"}, "start"),
        ({"ActiveState": "inactive"}, "start"),
        ({"ActiveState": "deactivating"}, "start"),
        (running(invocation="another"), "restart"),
        ({**running(), "ActiveState": "activating", "SubState": "start-post"}, "wait"),
        ({**running(), "ActiveState": "activating", "SubState": "auto-restart"}, "restart"),
    ],
)
def test_what_to_do_follows_from_the_units_state(properties: dict[str, str], action: str) -> None:
    record = {"invocation": "i1", "inputs": {"config": "1"}}
    assert unit.decide(properties, record, {"config": "1"})[0] == action


@pytest.mark.parametrize("content", ["", "{", "[]", None])
def test_a_damaged_record_counts_as_none(places: unit.Places, content: str | None) -> None:
    if content is not None:
        places.record_root.mkdir(parents=True)
        places.record("chat").write_text(content)
    assert unit.read_record("chat", places) == {}
    assert unit.decide(running(), {}, {})[0] == "restart"


def test_only_instances_of_this_toolkit_are_known(places: unit.Places) -> None:
    foreign = places.instance("theirs")
    foreign.mkdir()
    (foreign / "config.yaml").write_text("model: /m\n")
    assert unit.known_instances(places) == ["chat"]


JOURNAL = """\
Starting vllm@tiny.service - vLLM server tiny...
INFO 12-01 04:30:01 [launcher.py:40] vLLM API server version 0.32.0
(EngineCore pid=9) INFO 12-01 04:30:05 [core.py:80] Initializing a V1 LLM engine
Loading safetensors checkpoint shards: 100% 1/1 [00:00<00:00, 12.1it/s]
(EngineCore pid=9) ERROR 12-01 04:30:06 [core.py:90] EngineCore failed to start.
(EngineCore pid=9) ERROR 12-01 04:30:06 [core.py:90]   File "/opt/y.py", line 8, in run
(EngineCore pid=9) ERROR 12-01 04:30:06 [core.py:90]     return func(*args, **kwargs)
(EngineCore pid=9) Traceback (most recent call last):
(EngineCore pid=9)   File "/opt/x.py", line 9, in run
(EngineCore pid=9)     raise ValueError(text)
(EngineCore pid=9)           ^^^^^^^^^^
(EngineCore pid=9) ValueError: To serve at least one request with max seq len (99), 2 GiB is needed
RuntimeError: Engine core initialization failed. See root cause above.
nanobind: leaked 514 functions!
 - leaked function "create_while_op"
 - ... skipped remainder
See https://nanobind.readthedocs.io/en/latest/refleaks.html
vllm@tiny.service: Killing process 1972 (n/a) with signal SIGKILL.
vllm@tiny.service: Main process exited, code=exited, status=1/FAILURE
""".splitlines()


def test_the_cause_of_a_failed_start_is_among_the_relevant_lines() -> None:
    found = unit.relevant_lines(JOURNAL)
    assert any("To serve at least one request" in line for line in found)
    assert not any("INFO" in line or 'File "' in line or "it/s" in line for line in found)
    assert not any("Killing" in line or "leaked" in line or "nanobind" in line for line in found)
    assert not any("return func" in line for line in found)
    assert found[-1] == JOURNAL[-1]


def test_when_nothing_is_relevant_the_last_lines_are_shown() -> None:
    assert unit.relevant_lines(["INFO a", "INFO b", "INFO c"], limit=2) == ["INFO b", "INFO c"]
