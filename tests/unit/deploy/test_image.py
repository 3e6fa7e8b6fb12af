"""The image: pinned, compiled before, with neither compiler nor secret."""

from __future__ import annotations

import re
import tomllib

from tests.fakes.kustomize import DEPLOY

# --- the image ---


def instructions() -> list[tuple[str, str]]:
    text = (DEPLOY.parent / "Dockerfile").read_text()
    lines = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    joined = [line.strip() for line in lines.replace("\\\n", " ").splitlines() if line.strip()]
    return [(name, rest) for name, _, rest in (line.partition(" ") for line in joined)]


def stages() -> list[list[tuple[str, str]]]:
    starts = [index for index, (name, _) in enumerate(instructions()) if name == "FROM"]
    return [instructions()[start:end] for start, end in zip(starts, [*starts[1:], None], strict=True)]


def test_the_image_is_made_in_two_stages_from_one_pinned_base() -> None:
    (name, base), *_ = instructions()
    assert name == "ARG"
    assert re.fullmatch(r"BASE=python:3\.1\d\.\d+-slim-\w+", base)
    assert [stage[0][1] for stage in stages()] == ["${BASE} AS build", "${BASE}"]


def test_what_the_image_holds_is_pinned_and_compiled_before() -> None:
    build = " ".join(rest for _, rest in stages()[0])
    assert "--require-hashes -r requirements/serve.lock" in build
    assert "--only-binary=:all:" in build
    assert "compileall" in build
    installs = [each for each in re.findall(r"pip (?:--python \S+ )?install[^&]*", build) if "--no-index" not in each]
    assert len(installs) == 2
    assert all("--require-hashes" in each for each in installs)


def test_the_image_has_neither_compiler_nor_installer() -> None:
    _, final = stages()
    commands = [rest for name, rest in final if name == "RUN"]
    assert commands == ["pip uninstall -q -y --root-user-action=ignore setuptools wheel pip"]
    assert [rest for name, rest in final if name == "COPY"] == ["--from=build /opt/dranode /opt/dranode"]
    assert not any("apt" in rest or "gcc" in rest for _, rest in instructions())


def test_every_part_and_nothing_secret_is_copied() -> None:
    copied = {source for name, rest in stages()[0] if name == "COPY" for source in map(str, rest.split()[:-1])}
    listed = tomllib.loads((DEPLOY.parent / "pyproject.toml").read_text())["tool"]["setuptools"]["package-dir"]
    assert set(listed.values()) == {source.rstrip("/") for source in copied if source.endswith("/")} - {"requirements"}
    ignored = (DEPLOY.parent / ".dockerignore").read_text().splitlines()
    assert ignored[1] == "*"
    assert {line[1:] for line in ignored if line.startswith("!")} == {source.rstrip("/") for source in copied}


def test_the_image_starts_the_driver_as_root_without_writing() -> None:
    final = dict(stages()[1])
    assert (final["ENTRYPOINT"], final["CMD"], final["USER"]) == ('["dranode"]', '["serve"]', "0:0")
    assert "PYTHONDONTWRITEBYTECODE=1" in final["ENV"]
