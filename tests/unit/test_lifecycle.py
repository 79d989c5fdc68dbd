from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING, Any

import pytest

from hostkit import config, life, lifecycle, unit

if TYPE_CHECKING:
    from pathlib import Path

NOBODY = "no-such-user"


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@pytest.fixture
def places(tmp_path: Path, port: int, monkeypatch: pytest.MonkeyPatch) -> unit.Places:
    """Return an installation with the instance ``a``, whose unit systemd has not restarted."""
    monkeypatch.setattr(lifecycle, "_shown", lambda _name, prop: {"NRestarts": "0"}.get(prop, ""))
    monkeypatch.setattr(lifecycle, "_on_term", lambda _action: None)
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    found = unit.Places(tmp_path / "current", tmp_path, [], tmp_path / "run", tmp_path / "cache")
    write(found, {"name": "a", "model": str(model), "port": port})
    return found


def write(places: unit.Places, instance: dict[str, Any]) -> None:
    places.instance("a").mkdir(parents=True, exist_ok=True)
    (places.instance("a") / "config.yaml").write_text(config.render_config(instance))


def test_a_start_is_recorded_with_what_it_uses(places: unit.Places) -> None:
    assert lifecycle.prepare("a", places, NOBODY) == 0
    assert unit.read_record("a", places)["inputs"]["config"] != "missing"
    assert life.read("a", places)["ready_at"] is None


def test_a_held_port_is_refused_with_its_holder_and_may_be_tried_again(
    places: unit.Places, port: int
) -> None:
    with (
        socket.create_server(("127.0.0.1", port)),
        pytest.raises(lifecycle.RefusedError, match=rf"port in use: .* pid {os.getpid()} "),
    ):
        lifecycle.prepare("a", places, NOBODY)
    assert not places.record("a").exists()
    assert life.read("a", places)["refused"]["final"] is False


def test_a_configuration_without_port_is_refused_for_good(places: unit.Places) -> None:
    (places.instance("a") / "config.yaml").write_text('host: "127.0.0.1"\n')
    with pytest.raises(lifecycle.RefusedError, match=r"config\.yaml lacks host, port or model"):
        lifecycle.prepare("a", places, NOBODY)
    assert life.read("a", places)["refused"]["final"] is True


def test_a_configuration_edited_by_hand_into_nonsense_is_named(places: unit.Places) -> None:
    (places.instance("a") / "config.yaml").write_text("port 8000\n")
    with pytest.raises(lifecycle.RefusedError, match="line 1 is not an option"):
        lifecycle.check("a", places, NOBODY)


def test_a_model_that_is_there_passes(places: unit.Places, tmp_path: Path) -> None:
    os.environ["HOME"] = str(tmp_path)
    assert lifecycle.check("a", places, NOBODY) == 0


def test_a_missing_model_is_refused_with_its_path(places: unit.Places, port: int) -> None:
    write(places, {"name": "a", "model": "/nowhere/model", "port": port})
    with pytest.raises(lifecycle.RefusedError, match="can't be read: /nowhere/model: No such file"):
        lifecycle.check("a", places, NOBODY)


def test_a_directory_without_a_model_is_refused(places: unit.Places, tmp_path: Path) -> None:
    (tmp_path / "model/config.json").unlink()
    with pytest.raises(lifecycle.RefusedError, match=r"there is no config\.json"):
        lifecycle.check("a", places, NOBODY)


def test_a_full_cache_is_refused_with_what_it_needs(
    places: unit.Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifecycle, "CACHE_BYTES", 1 << 60)
    with pytest.raises(lifecycle.RefusedError, match=r"MiB free, the server's caches need"):
        lifecycle.check("a", places, NOBODY)


def test_a_stop_after_the_server_has_ended_by_itself_does_nothing(
    places: unit.Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MAINPID", raising=False)
    assert lifecycle.stop("a", places, NOBODY) == 0
    assert life.read("a", places) == {}
