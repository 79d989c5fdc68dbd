from __future__ import annotations

import hashlib
import json
import os
import pwd
import struct
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hostkit import findings, model

if TYPE_CHECKING:
    from collections.abc import Iterator

USER = pwd.getpwuid(os.geteuid()).pw_name
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can look as somebody else")


def safetensors(**tensors: int) -> bytes:
    """A file of one-dimensional F16 tensors with so many elements each."""
    header, end = {}, 0
    for name, count in tensors.items():
        header[name] = {"dtype": "F16", "shape": [count], "data_offsets": [end, end + 2 * count]}
        end += 2 * count
    return with_header({"__metadata__": {"format": "pt"}, **header}, bytes(end))


def with_header(header: Any, data: bytes) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def write_manifest(directory: Path) -> None:
    lines = [
        f"{hashlib.sha256(one.read_bytes()).hexdigest()}  {one.name}\n"
        for one in sorted(directory.iterdir())
        if one.name != model.MANIFEST
    ]
    (directory / model.MANIFEST).write_text("".join(lines))


@pytest.fixture(autouse=True)
def _nothing_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests live under /tmp, which the real table hides."""
    monkeypatch.setattr(model, "HIDDEN", {"ProtectHome": ("nonexistent/home",)})


@pytest.fixture
def directory() -> Iterator[Path]:
    """A complete model that everybody may read."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name).resolve() / "tiny"
        path.mkdir()
        path.parent.chmod(0o755)
        (path / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
        (path / "tokenizer.json").write_text("{}")
        (path / "model.safetensors").write_bytes(safetensors(a=3, b=4))
        write_manifest(path)
        for one in (path, *path.iterdir()):
            one.chmod(0o755 if one.is_dir() else 0o644)
        yield path


def look(directory: Path, record: Any = None, **wish: Any) -> model.Report:
    return model.look(model.Wish(directory, USER, **wish), record or {})


def only_problem(report: model.Report) -> model.Problem:
    (problem,) = report.problems
    assert problem.id in findings.TAXONOMY
    assert problem.remedy
    return problem


def make_sharded(directory: Path) -> None:
    (directory / "model.safetensors").unlink()
    (directory / model.MANIFEST).unlink()
    (directory / "model-00001-of-00002.safetensors").write_bytes(safetensors(a=3))
    (directory / "model-00002-of-00002.safetensors").write_bytes(safetensors(b=4))
    places = {
        "a": "model-00001-of-00002.safetensors",
        "b": "model-00002-of-00002.safetensors",
    }
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))


def test_a_complete_model_has_no_problem_and_every_file_is_verified(directory: Path) -> None:
    report = look(directory)
    assert report.problems == []
    assert report.verified == ["config.json", "model.safetensors", "tokenizer.json"]
    assert report.architectures == ["LlamaForCausalLM"]
    assert (report.has_manifest, report.unlisted, report.unverified) == (True, [], 0)
    assert report.size == sum(one.stat().st_size for one in directory.iterdir())


def test_a_model_without_a_manifest_is_complete_but_not_verified(directory: Path) -> None:
    (directory / model.MANIFEST).unlink()
    report = look(directory)
    assert (report.problems, report.has_manifest, report.verified) == ([], False, [])


def test_every_cut_of_a_safetensors_file_is_caught(tmp_path: Path) -> None:
    whole = safetensors(a=3, b=4)
    path = tmp_path / "model.safetensors"
    path.write_bytes(whole)
    assert set(model.read_header(path)) == {"a", "b"}
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(model.UnsoundError, match=f"^{length} bytes"):
            model.read_header(path)


TENSOR = {"dtype": "F16", "shape": [2], "data_offsets": [0, 4]}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (safetensors(a=3) + b"x", "too long"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", "git lfs pull"),
        (b"<html>not found</html> and more", "lacks the header"),
        (struct.pack("<Q", 4) + b"nope", "can't be read"),
        (with_header({"a": {"dtype": "F16"}}, b""), "can't be read"),
        (with_header([1], b""), "can't be read"),
        (with_header({"a": {**TENSOR, "shape": [3]}}, bytes(4)), "another length than its shape"),
        (with_header({"a": {**TENSOR, "data_offsets": [2, 6]}}, bytes(6)), "begins at 2"),
        (with_header({"a": {**TENSOR, "shape": [9], "dtype": "NEW"}}, bytes(4)), None),
        (with_header({"a": {**TENSOR, "shape": [7], "dtype": "F4"}}, bytes(4)), None),
    ],
)
def test_a_file_that_is_not_what_its_header_says_is_named(
    tmp_path: Path, content: bytes, words: str | None
) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    if words is None:
        model.read_header(path)
    else:
        with pytest.raises(model.UnsoundError, match=words):
            model.read_header(path)


def test_a_cut_download_makes_the_model_incomplete(directory: Path) -> None:
    weights = directory / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    problem = only_problem(look(directory))
    assert problem.id == "model_incomplete"
    assert "cut short" in problem.evidence[0]


def test_a_sharded_model_is_complete_with_all_shards_of_its_index(directory: Path) -> None:
    make_sharded(directory)
    assert look(directory).problems == []


@pytest.mark.parametrize("with_index", [True, False])
def test_a_missing_shard_is_named_with_and_without_an_index(
    directory: Path, *, with_index: bool
) -> None:
    make_sharded(directory)
    (directory / "model-00002-of-00002.safetensors").unlink()
    if not with_index:
        (directory / "model.safetensors.index.json").unlink()
    problem = only_problem(look(directory))
    assert problem.evidence == ("model-00002-of-00002.safetensors: missing",)


def test_missing_shards_are_named_in_the_form_of_the_others() -> None:
    names = ["m-00001-of-000003.safetensors", "m-00003-of-000003.safetensors", "m.safetensors"]
    assert model.missing_shards(names) == ["m-00002-of-000003.safetensors"]


def test_a_shard_of_another_model_is_named(directory: Path) -> None:
    make_sharded(directory)
    (directory / "model-00002-of-00002.safetensors").write_bytes(safetensors(other=4))
    problem = only_problem(look(directory))
    assert problem.evidence == (
        "model-00002-of-00002.safetensors: lacks 1 tensors that model.safetensors.index.json looks "
        "for in it, such as b",
    )


def test_an_index_that_is_none_is_named(directory: Path) -> None:
    make_sharded(directory)
    (directory / "model.safetensors.index.json").write_text("[]")
    assert "no index of safetensors" in only_problem(look(directory)).evidence[0]


@pytest.mark.parametrize(
    ("name", "content", "line"),
    [
        ("config.json", None, "config.json: missing"),
        ("config.json", "{", "config.json: no JSON"),
        ("config.json", "{}", "config.json: has no architectures"),
        ("tokenizer.json", None, "no tokenizer"),
        ("model.safetensors", None, "no *.safetensors"),
        ("half.safetensors.incomplete", "", "half.safetensors.incomplete: left by an unfinished"),
    ],
)
def test_what_is_missing_from_a_model_is_named(
    directory: Path, name: str, content: str | None, line: str
) -> None:
    (directory / model.MANIFEST).unlink()
    if content is None:
        (directory / name).unlink()
    else:
        (directory / name).write_text(content)
    problem = only_problem(look(directory))
    assert problem.id == "model_incomplete"
    assert [one for one in problem.evidence if one.startswith(line)]


def test_everything_missing_is_named_at_once(directory: Path) -> None:
    for name in ("config.json", "tokenizer.json"):
        (directory / name).unlink()
    text = "\n".join(only_problem(look(directory)).evidence)
    assert "config.json: missing" in text
    assert "no tokenizer" in text


def test_a_leftover_of_a_download_is_found_in_the_cache_of_the_download(directory: Path) -> None:
    left = directory / ".cache/huggingface/download/x.incomplete"
    left.parent.mkdir(parents=True)
    left.touch()
    assert str(left.relative_to(directory)) in only_problem(look(directory)).evidence[0]


def test_pickled_weights_are_named_when_there_is_nothing_else(directory: Path) -> None:
    (directory / "model.safetensors").rename(directory / "pytorch_model.bin")
    (directory / model.MANIFEST).unlink()
    assert "only pytorch_model.bin" in only_problem(look(directory)).evidence[0]


def test_a_model_needs_no_tokenizer_when_none_is_asked_for(directory: Path) -> None:
    (directory / "tokenizer.json").unlink()
    write_manifest(directory)
    assert look(directory, tokenizer=False).problems == []


def test_a_mistral_model_needs_no_config_json(directory: Path) -> None:
    (directory / "config.json").rename(directory / "params.json")
    write_manifest(directory)
    assert look(directory).problems == []


def test_a_changed_file_is_named_with_both_hashes(directory: Path) -> None:
    weights = directory / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    report = look(directory)
    problem = only_problem(report)
    assert problem.id == "model_damaged"
    assert hashlib.sha256(content).hexdigest() in problem.evidence[0]
    assert report.verified == ["config.json", "tokenizer.json"]


def test_a_file_that_the_manifest_names_and_that_is_gone_is_missing(directory: Path) -> None:
    (directory / "extra.json").write_text("{}")
    write_manifest(directory)
    (directory / "extra.json").unlink()
    problem = only_problem(look(directory))
    assert problem.id == "model_incomplete"
    assert problem.evidence == ("extra.json: missing, SHA256SUMS names it",)


def test_a_manifest_is_demanded_for_every_file_the_engine_reads(directory: Path) -> None:
    assert look(directory, manifest=True).problems == []
    (directory / "generation_config.json").write_text("{}")
    (directory / "README.md").write_text("not read by any engine")
    report = look(directory)
    assert (report.problems, report.unlisted) == ([], ["generation_config.json"])
    assert only_problem(look(directory, manifest=True)).evidence == (
        "generation_config.json: not named",
    )
    (directory / model.MANIFEST).unlink()
    assert "has no SHA256SUMS" in only_problem(look(directory, manifest=True)).summary


@pytest.mark.parametrize("line", ["../x", "/etc/passwd"])
def test_a_manifest_may_not_name_files_outside(line: str) -> None:
    with pytest.raises(model.UnsoundError, match="outside"):
        model.parse_manifest(f"{'0' * 64}  {line}\n")


def test_a_manifest_that_is_none_is_refused_with_its_line(directory: Path) -> None:
    (directory / model.MANIFEST).write_text(f"{'0' * 64}  config.json\nhello\n")
    problem = only_problem(look(directory))
    assert problem.id == "model_damaged"
    assert "line 2" in problem.evidence[0]


def test_a_manifest_of_binary_mode_and_of_find_is_read() -> None:
    text = f"{'A' * 64} *a b.json\n\n{'1' * 64}  ./sub/c.json\n"
    assert model.parse_manifest(text) == {"a b.json": "a" * 64, "sub/c.json": "1" * 64}


def test_the_command_in_the_remedy_makes_a_sound_manifest(directory: Path) -> None:
    (directory / model.MANIFEST).unlink()
    (directory / "sub").mkdir()
    (directory / "sub/with space.json").write_text("{}")
    subprocess.run(["sh", "-ec", model.manifest_command(directory).strip("`")], check=True)
    subprocess.run(["sha256sum", "-c", "--quiet", model.MANIFEST], cwd=directory, check=True)
    report = look(directory, manifest=True)
    assert report.problems == []
    assert "sub/with space.json" in report.verified


def test_what_is_on_record_is_not_hashed_again(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = look(directory)
    hashed = []
    real = model.hash_file

    def listen(path: Path) -> dict[str, Any]:
        hashed.append(path.name)
        return real(path)

    monkeypatch.setattr(model, "hash_file", listen)
    assert look(directory, first.record).verified == first.verified
    assert hashed == []
    (directory / "tokenizer.json").write_text("{ }")
    assert only_problem(look(directory, first.record)).id == "model_damaged"
    assert hashed == ["tokenizer.json"]


def test_a_manifest_that_changed_is_compared_with_the_record(directory: Path) -> None:
    record = look(directory).record
    manifest = directory / model.MANIFEST
    manifest.write_text(manifest.read_text().replace(record["config.json"]["sha256"], "0" * 64))
    assert only_problem(look(directory, record, hash=False)).id == "model_damaged"


def test_without_hashing_the_bytes_left_to_hash_are_counted(directory: Path) -> None:
    record = look(directory).record
    del record["model.safetensors"]
    report = look(directory, record, hash=False)
    assert report.unverified == (directory / "model.safetensors").stat().st_size
    assert report.verified == ["config.json", "tokenizer.json"]


def test_a_file_that_changes_while_it_is_hashed_is_not_verified(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.fstat
    calls: list[int] = []

    def later(handle: int) -> os.stat_result:
        calls.append(handle)
        found = real(handle)
        return os.stat_result((*found[:6], found.st_size + len(calls), *found[7:10]))

    monkeypatch.setattr(os, "fstat", later)
    assert model.hash_file(directory / "config.json")["sha256"] == ""


def test_a_record_is_read_back_and_an_unsound_one_is_none(directory: Path, tmp_path: Path) -> None:
    report = look(directory)
    path = model.record_path(tmp_path, directory)
    assert path.name.startswith("tiny-")
    assert model.read_record(tmp_path, directory) == {}
    path.write_text(model.render_record(report))
    assert model.read_record(tmp_path, directory) == report.record
    for text in ("", "[]", "{}", '{"model": "/other", "files": {"a": {}}}'):
        path.write_text(text)
        assert model.read_record(tmp_path, directory) == {}


def test_a_missing_directory_is_named_with_what_lies_beside_it(directory: Path) -> None:
    problem = only_problem(look(directory.parent / "Tiny"))
    assert problem.id == "model_not_found"
    assert problem.summary.endswith(f"{directory.parent} holds tiny.")


def test_a_file_and_a_link_to_nothing_are_no_models(directory: Path) -> None:
    assert "is a file" in only_problem(look(directory / "config.json")).summary
    link = directory.parent / "link"
    link.symlink_to("/nonexistent/model")
    problem = only_problem(look(link))
    assert (problem.id, "/nonexistent/model" in problem.summary) == ("model_not_found", True)
    link.unlink()
    link.symlink_to(link)
    assert only_problem(look(link)).id == "model_not_found"


def test_a_weight_that_is_a_link_to_nothing_is_missing(directory: Path) -> None:
    (directory / "model.safetensors").unlink()
    (directory / "model.safetensors").symlink_to("../../blobs/0123")
    assert only_problem(look(directory)).id == "model_incomplete"


@pytest.mark.parametrize(
    ("path", "directive"),
    [
        ("/home/me/models/x", "ProtectHome"),
        ("/root", "ProtectHome"),
        ("/tmp/x", "PrivateTmp"),
        ("/var/tmp/x", "PrivateTmp"),
        ("/homes/x", ""),
        ("/srv/tmp/x", ""),
    ],
)
def test_what_the_sandbox_hides_is_known(
    monkeypatch: pytest.MonkeyPatch, path: str, directive: str
) -> None:
    monkeypatch.undo()
    assert model.hidden_by(Path(path)) == directive


def test_a_model_that_the_sandbox_hides_is_refused_also_behind_a_link(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = directory.parent / "link"
    link.symlink_to(directory)
    monkeypatch.setattr(model, "HIDDEN", {"ProtectHome": (str(directory)[1:],)})
    for path in (directory, link):
        problem = only_problem(look(path))
        assert (problem.id, "ProtectHome=yes" in problem.summary) == ("model_unreadable", True)


def test_weights_behind_a_link_into_a_hidden_place_are_refused(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blob = tmp_path.resolve() / "blob"
    (directory / "model.safetensors").rename(blob)
    (directory / "model.safetensors").symlink_to(blob)
    assert look(directory).problems == []
    monkeypatch.setattr(model, "HIDDEN", {"ProtectHome": (str(blob.parent)[1:],)})
    assert str(blob) in only_problem(look(directory)).summary


def test_access_of_a_user_to_come_is_read_from_the_mode_bits(directory: Path) -> None:
    wish = model.Wish(directory, "no-such-user")
    report = model.examine(wish, {})
    assert (report.problems, report.tried) == ([], False)
    (directory / "config.json").chmod(0o640)
    directory.chmod(0o751)
    directory.parent.chmod(0o750)
    problem = only_problem(model.examine(wish, {}))
    assert problem.id == "model_unreadable"
    assert [line.split(",")[0] for line in problem.evidence] == [
        f"{directory.parent}: mode 0750",
        f"{directory}: mode 0751",
        f"{directory / 'config.json'}: mode 0640",
    ]


@as_root
def test_access_is_tried_with_the_rights_of_the_user(directory: Path) -> None:
    wish = model.Wish(directory, "nobody")
    report = model.examine(wish, {})
    assert (report.problems, report.tried, report.user) == ([], True, "nobody")
    assert report.verified == ["config.json", "model.safetensors", "tokenizer.json"]

    (directory / "config.json").chmod(0o600)
    problem = only_problem(model.examine(wish, {}))
    assert problem.evidence == ("config.json: may not be read",)
    os.chown(directory / "config.json", pwd.getpwnam("nobody").pw_uid, 0)
    assert model.examine(wish, {}).problems == []

    directory.chmod(0o711)
    assert "may not be listed" in only_problem(model.examine(wish, {})).evidence[0]
    directory.chmod(0o755)
    directory.parent.chmod(0o700)
    problem = only_problem(model.examine(wish, {}))
    assert (problem.id, f"pass {directory.parent} on" in problem.summary) == (
        "model_unreadable",
        True,
    )


@as_root
def test_a_failure_in_the_child_process_is_an_error(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ValueError("broken")

    monkeypatch.setattr(model, "look", fail)
    with pytest.raises(RuntimeError, match="broken"):
        model.examine(model.Wish(directory, "nobody"), {})
    monkeypatch.setattr(model, "look", lambda *_, **__: os._exit(3))
    with pytest.raises(RuntimeError, match="ended with status"):
        model.examine(model.Wish(directory, "nobody"), {})


def test_a_message_names_the_variable_what_was_found_and_what_to_do(directory: Path) -> None:
    (directory / "config.json").unlink()
    write_manifest(directory)
    message = look(directory).message("vllm_instances[chat].model")
    assert message == (
        f"vllm_instances[chat].model: {directory} is not a complete model. "
        "Found: config.json: missing. Copy or download these files again."
    )


def test_a_message_of_many_files_is_cut(directory: Path) -> None:
    problem = model.Problem("model_incomplete", "S.", tuple(f"f{i}" for i in range(13)), "R.")
    assert problem.message("v").endswith("f9; and 3 more. R.")
