from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from hostkit import config, life, status, unit

if TYPE_CHECKING:
    from pathlib import Path

SHOWN = {
    "ActiveState": "active", "SubState": "running", "UnitFileState": "enabled", "MainPID": "811",
    "NRestarts": "1", "MemoryCurrent": "2684354560", "ActiveEnterTimestampMonotonic": "1000000000",
}  # fmt: skip
DEAD = {
    **SHOWN, "ActiveState": "failed", "SubState": "failed", "MainPID": "0",
    "MemoryCurrent": "18446744073709551615", "ActiveEnterTimestampMonotonic": "0",
}  # fmt: skip


@pytest.fixture
def places(tmp_path: Path) -> unit.Places:
    release = tmp_path / "releases/0.32.0-cpu-60a16dd64df8"
    release.mkdir(parents=True)
    (tmp_path / "current").symlink_to(release)
    units = tmp_path / "units"
    for name in ("chat", "small"):
        (units / f"vllm@{name}.service.d").mkdir(parents=True)
        (units / f"vllm@{name}.service.d/50-hostkit.conf").touch()
    (units / "vllm@.service.d").mkdir()
    (units / "vllm@.service.d/50-hostkit.conf").touch()
    instance = {"name": "chat", "model": "/m", "port": 8100, "gpus": ["GPU-aaaabbbb-1", 3]}
    found = unit.Places(tmp_path / "current", tmp_path, [units], tmp_path / "run")
    found.instance("chat").mkdir(parents=True)
    (found.instance("chat") / "config.yaml").write_text(config.render_config(instance))
    (found.instance("chat") / "environment").write_text(config.render_environment(instance))
    return found


def described(places: unit.Places, shown: dict[str, str], name: str = "chat") -> dict[str, Any]:
    return status.describe(name, shown, places, now=5000.0)


def test_instances_are_known_by_what_everybody_may_read(places: unit.Places) -> None:
    assert status.instances(places) == ["chat", "small"]


def test_a_running_server_is_described(places: unit.Places) -> None:
    found = described(places, SHOWN)
    assert (found["version"], found["host"], found["port"]) == ("0.32.0", "127.0.0.1", 8100)
    assert found["gpus"] == ["GPU-aaaabbbb-1", "3"]
    assert (found["memory_bytes"], found["uptime_seconds"]) == (2684354560, 4000)
    line = status.table([{**found, "running": 2, "waiting": 0}]).splitlines()[1]
    assert line.split("  ")[0] == "chat"
    for cell in ("active", "0.32.0", "127.0.0.1:8100", "GPU-aaaa,3", "2.5 GiB", "1h 6m", "2 run"):
        assert cell in line


def test_what_may_not_be_read_is_left_out(places: unit.Places) -> None:
    found = described(places, SHOWN, "small")
    assert (found["port"], found["gpus"]) == (None, [])
    assert status.table([found])


def test_a_dead_server_says_why_and_where_to_look(places: unit.Places) -> None:
    last = {
        "at": 1.8e9, "phase": "starting", "asked": False, "cause": "exit-code", "evidence": ["no!"],
        "summary": "It ended with exit status 1.", "next": "stays down: it failed twice",
    }  # fmt: skip
    life.write("chat", places, {"last_end": last})
    found = described(places, DEAD)
    assert (found["memory_bytes"], found["uptime_seconds"]) == (None, None)
    text = status.table([found])
    assert "It ended with exit status 1. It stays down: it failed twice." in text
    assert "It said: no!" in text
    assert "journalctl -u vllm@chat.service" in text
    assert max(map(len, text.splitlines())) <= status.WIDTH


def test_a_server_of_an_older_engine_is_told(places: unit.Places) -> None:
    started = {"release": "/opt/vllm/releases/0.31.2-cpu-1234 completed 1"}
    places.record_root.mkdir(exist_ok=True)
    places.record("chat").write_text(unit.render_record("id", started))
    found = described(places, SHOWN)
    assert (found["version"], found["current_version"]) == ("0.31.2", "0.32.0")
    assert "older engine than 0.32.0" in status.table([found])


@pytest.mark.parametrize(
    ("seconds", "text"), [(None, "-"), (5, "5s"), (725, "12m 5s"), (273600, "3d 4h"), (60, "1m 0s")]
)
def test_times_are_shown_in_their_two_largest_units(seconds: int | None, text: str) -> None:
    assert status._span(seconds) == text


def test_the_command_prints_json_and_tells_by_its_status_whether_all_is_well(
    places: unit.Places, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [described(places, SHOWN), described(places, DEAD, "small")]
    monkeypatch.setattr(status, "instances", lambda _places: ["chat", "small"])
    monkeypatch.setattr(
        status, "gather", lambda names, _places: [row for row in rows if row["name"] in names]
    )
    assert status.main(["--json"]) == 1
    assert [one["name"] for one in json.loads(capsys.readouterr().out)] == ["chat", "small"]
    assert status.main(["chat"]) == 0
    with pytest.raises(SystemExit) as ended:
        status.main(["chta"])
    assert ended.value.code == 2
    assert "no instance 'chta' here; there are: chat, small" in capsys.readouterr().err


def test_a_host_without_servers_says_so(tmp_path: Path) -> None:
    assert status.instances(unit.Places(tmp_path, tmp_path, [tmp_path])) == []
    assert status.table([]) == "No vLLM server is set up on this host.\n"


def test_a_systemd_that_does_not_answer_is_told_and_not_waited_for(
    places: unit.Places,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = tmp_path / "bin/systemctl"
    command.parent.mkdir()
    command.write_text("#!/bin/sh\nexec sleep 60\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(command.parent), prepend=":")
    monkeypatch.setattr(status, "ANSWER_SECONDS", 0.2)
    monkeypatch.setattr(status, "instances", lambda _places: ["chat"])
    assert status.main([]) == 1
    assert capsys.readouterr().err == (
        "vllm-status: systemd can't be asked: no answer within 0.2 s\n"
    )
