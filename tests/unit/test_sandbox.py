from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from hostkit import config, sandbox
from hostkit.instances import normalise

ROOT = Path(__file__).parents[2]
TEMPLATE = (ROOT / "roles/vllm_service/templates/vllm@.service.j2").read_text()
INSTANCE = {"name": "chat", "model": "/srv/models/chat"}


def in_template() -> set[str]:
    """Names of the directives between the heading of the sandbox and the next section."""
    part = TEMPLATE[TEMPLATE.index("# Sandbox") : TEMPLATE.index("[Install]")]
    return set(re.findall(r"^([A-Za-z]+)=", part, re.MULTILINE))


def in_drop_in() -> set[str]:
    return set(re.findall(r"^([A-Za-z]+)=", sandbox.lines(normalise(INSTANCE)), re.MULTILINE))


def problems(**changes: Any) -> list[str]:
    return [f"{one.message} {one.remedy}" for one in config.problems([{**INSTANCE, **changes}])]


def test_every_directive_can_be_undone_and_nothing_else() -> None:
    assert in_template() | in_drop_in() == {*sandbox.UNDO, *sandbox.COMPANIONS}


def test_what_undoes_a_directive_names_it_and_its_companions() -> None:
    for name, text in sandbox.UNDO.items():
        companions = {key for key, of in sandbox.COMPANIONS.items() if of == name}
        named = {line.split("=")[0] for line in text.splitlines()}
        assert named == {name, *companions - {"SystemCallErrorNumber"}}


def test_the_table_is_sorted() -> None:
    assert list(sandbox.UNDO) == sorted(sandbox.UNDO)


def test_the_hidden_directories_are_those_of_the_unit() -> None:
    line = re.search(r"^InaccessiblePaths=(.*)$", TEMPLATE, re.MULTILINE)
    assert line is not None
    assert line[1].split() == [f"-{place}" for place in sandbox.HIDDEN["InaccessiblePaths"]]


def test_a_relaxed_directive_is_undone_last_in_the_drop_in() -> None:
    text = config.render_drop_in({**INSTANCE, "sandbox_relax": ["ProtectHome", "IPAddressDeny"]})
    assert text.endswith("IPAddressDeny=\nIPAddressAllow=\nProtectHome=read-only\n")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("protecthome", "Write 'ProtectHome' instead."),
        ("SystemCallFilters", "Write 'SystemCallFilter' instead."),
        ("IPAddressAllow", "Write 'IPAddressDeny' instead."),
        ("Whatever", "docs/sandbox.md lists them."),
    ],
)
def test_an_unknown_directive_is_refused_with_the_nearest(name: str, said: str) -> None:
    (problem,) = problems(sandbox_relax=[name])
    assert problem.startswith(f"vllm_instances[0].sandbox_relax[0] is {name!r}")
    assert said in problem


@pytest.mark.parametrize(
    ("path", "directive"),
    [
        ("/home/anna/model", "ProtectHome"),
        ("/root", "ProtectHome"),
        ("/tmp/model", "PrivateTmp"),
        ("/var/log/model", "InaccessiblePaths"),
        ("/dev/shm/model", "TemporaryFileSystem"),
        ("/homes/model", ""),
        ("/srv/models/x", ""),
    ],
)
def test_a_model_that_the_sandbox_hides_is_refused(path: str, directive: str) -> None:
    assert sandbox.hidden_by(path) == directive
    assert len(problems(model=path)) == bool(directive)
    if directive:
        assert problems(model=path, sandbox_relax=[directive]) == []


@pytest.mark.parametrize(
    ("host", "environment", "local"),
    [
        ("127.0.0.1", {}, True),
        ("::1", {}, True),
        ("localhost", {}, True),
        ("0.0.0.0", {}, False),
        ("gpu1.example.com", {}, False),
        ("127.0.0.1", {"VLLM_HOST_IP": "192.0.2.7"}, False),
    ],
)
def test_only_a_server_that_listens_on_loopback_is_kept_off_the_network(
    host: str, environment: dict[str, str], local: bool
) -> None:
    instance = normalise({**INSTANCE, "host": host, "environment": environment})
    assert sandbox.is_local(instance) == local
    assert ("IPAddressDeny=any" in sandbox.lines(instance)) == local


def test_shared_memory_and_memory_follow_from_the_instance() -> None:
    text = config.render_drop_in({**INSTANCE, "shm_size": "16G", "memory_max": "64G"})
    assert "TemporaryFileSystem=/dev/shm:mode=1777,nosuid,nodev,noexec,size=16G\n" in text
    assert "MemoryMax=64G\n" in text
