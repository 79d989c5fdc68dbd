from __future__ import annotations

import pytest

from hostkit.findings import (
    TAXONOMY,
    Finding,
    count,
    failed,
    from_dict,
    merge,
    render,
    worst,
)

FREE = Finding("port_in_use", "pass", "Port 8000 is free.", subject="chat")
TAKEN = Finding(
    "port_in_use",
    "fail",
    "Port 8001 is held by pid 812 (nginx).",
    evidence=("127.0.0.1:8001",),
    remedy="Stop nginx.",
    subject="code",
)
UNSURE = Finding("disk_full", "unknown", "The free space could not be read.")


def test_every_id_has_a_meaning_and_a_remedy_that_is_a_sentence_and_the_table_is_sorted() -> None:
    assert list(TAXONOMY) == sorted(TAXONOMY)
    for meaning, remedy in TAXONOMY.values():
        assert meaning
        assert remedy[0].isupper()
        assert remedy.endswith(".")


def test_an_id_or_status_outside_the_vocabulary_is_refused() -> None:
    with pytest.raises(ValueError, match="no such finding id: 'port'"):
        Finding("port", "pass", "x")
    with pytest.raises(ValueError, match="no such finding status: 'ok'"):
        Finding("port_in_use", "ok", "x")


def test_a_finding_without_a_remedy_gets_the_one_of_its_id_for_its_subject() -> None:
    finding = Finding("unit_inactive", "fail", "vllm@chat is failed.", subject="chat")
    assert "`journalctl -u vllm@chat`" in finding.remedy
    assert FREE.remedy == ""


def test_a_finding_survives_the_way_through_json() -> None:
    assert from_dict(TAKEN.as_dict()) == TAKEN
    with pytest.raises(ValueError, match="needs the key 'status'"):
        from_dict({"id": "port_in_use", "summary": "x"})


def test_merging_puts_the_worst_last_and_names_nothing_twice() -> None:
    assert merge([TAKEN, FREE], [UNSURE, TAKEN]) == [FREE, UNSURE, TAKEN]


def test_the_worst_status_decides_and_nothing_found_proves_nothing() -> None:
    assert worst([FREE]) == "pass"
    assert worst([FREE, UNSURE]) == "unknown"
    assert worst([TAKEN, UNSURE]) == "fail"
    assert worst([]) == "unknown"


def test_what_could_not_be_found_out_fails_in_a_strict_run_only() -> None:
    assert not failed([FREE, UNSURE])
    assert failed([FREE, UNSURE], strict=True)
    assert failed([]) is False
    assert failed([], strict=True)
    assert failed([TAKEN])


def test_every_status_is_counted() -> None:
    assert count([FREE, FREE, TAKEN]) == {"pass": 2, "warn": 0, "unknown": 0, "fail": 1}


def test_the_table_is_aligned_and_says_what_to_do_about_what_did_not_pass() -> None:
    assert render("Preflight of gpu1", [FREE, TAKEN], width=80).splitlines() == [
        "Preflight of gpu1: 1 fail, 0 unknown, 0 warn, 1 pass",
        "",
        "STATUS  SUBJECT  CHECK        FINDING",
        "PASS    chat     port_in_use  Port 8000 is free.",
        "FAIL    code     port_in_use  Port 8001 is held by pid 812 (nginx).",
        "                              - 127.0.0.1:8001",
        "                              Next: Stop nginx.",
    ]


def test_long_text_is_wrapped_to_the_width() -> None:
    finding = Finding("disk_full", "fail", "word " * 60, evidence=("more " * 40,), subject="host")
    lines = render("Preflight of gpu1", [finding], width=72).splitlines()
    assert max(len(line) for line in lines) <= 72
    assert "".join(lines).count("word") == 60


def test_a_command_stays_on_one_line() -> None:
    text = "A rather long sentence that leads to it: `journalctl -u vllm@chat -n 100`"
    for width in range(60, 120):
        table = render("X", [Finding("health", "fail", text, remedy="Do.")], width=width)
        assert "`journalctl -u vllm@chat -n 100`" in table


def test_no_line_ends_in_a_space_and_control_characters_are_shown_escaped() -> None:
    finding = Finding("completion_failed", "pass", 'It said "a\x1b[31m\tb\nc".')
    table = render("Preflight of gpu1", [finding])
    assert r"a\x1b[31m\tb\nc" in table
    assert all(line == line.rstrip() for line in table.splitlines())
