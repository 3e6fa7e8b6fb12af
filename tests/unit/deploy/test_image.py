"""The image is pinned and precompiled, and has neither a compiler nor a secret in it."""

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


def stage(name: str) -> list[tuple[str, str]]:
    (found,) = [stage for stage in stages() if stage[0][1].endswith(f" AS {name}")]
    return found


def test_every_stage_comes_from_one_pinned_base_and_serve_is_last() -> None:
    (name, base), *_ = instructions()
    assert name == "ARG"
    assert re.fullmatch(r"BASE=python:3\.1\d\.\d+-slim-\w+@sha256:[0-9a-f]{64}", base)
    froms = [each[0][1] for each in stages()]
    assert froms[0] == "${BASE} AS python"
    assert froms[1:] == [
        "python AS build", "build AS build-debug", "python AS base", "base AS debug", "base AS serve"
    ]  # fmt: skip


def test_python_is_compiled_and_compiled_files_get_one_timestamp() -> None:
    assert "compileall" in " ".join(rest for _, rest in stage("python"))
    (*_, (_, build)) = stage("build")
    assert build.index("compileall") < build.index("touch")


def test_everything_in_the_image_is_pinned_and_precompiled() -> None:
    for name, lock in (("build", "serve"), ("build-debug", "debug")):
        build = " ".join(rest for _, rest in stage(name))
        assert f"--require-hashes -r requirements/{lock}.lock" in build
        assert "compileall" in build
        installs = re.findall(r"pip (?:--python \S+ )?install[^&]*", build)
        assert installs
        assert all(
            ("--require-hashes" in each and "--only-binary=:all:" in each) or "--no-index" in each for each in installs
        )


def test_the_image_has_neither_a_compiler_nor_pip() -> None:
    assert stage("serve")[1:] == [("COPY", "--from=build /opt/dranode /opt/dranode")]
    (command,) = [rest for name, rest in stage("base") if name == "RUN"]
    assert "pip uninstall" in command
    assert "ensurepip" in command
    assert not any("apt" in rest.split() or "gcc" in rest for _, rest in instructions())


def locked(name: str) -> set[str]:
    text = (DEPLOY.parent / "requirements" / f"{name}.lock").read_text()
    return set(re.findall(r"^([a-z0-9_.-]+)==", text, re.MULTILINE))


def test_the_image_has_every_library_but_the_syntax_highlighter() -> None:
    assert locked("run") - locked("serve") == {"pygments", "markdown-it-py", "mdurl"}
    assert locked("serve") < locked("run")


def test_only_the_debug_image_and_one_extra_have_the_kubernetes_package() -> None:
    project = tomllib.loads((DEPLOY.parent / "pyproject.toml").read_text())["project"]
    assert [name for name, needed in project["optional-dependencies"].items() if "kubernetes" in " ".join(needed)] == [
        "auth-provider"
    ]
    assert {name for name in ("serve", "run", "debug") if "kubernetes" in locked(name)} == {"debug"}


def test_the_image_and_the_package_have_the_same_version() -> None:
    document = tomllib.loads((DEPLOY.parent / "pyproject.toml").read_text())
    assert ("ARG", f"VERSION={document['project']['version']}") in stage("base")


def test_every_package_and_nothing_else_is_copied() -> None:
    copied = {source for name, rest in stage("build") if name == "COPY" for source in map(str, rest.split()[:-1])}
    listed = tomllib.loads((DEPLOY.parent / "pyproject.toml").read_text())["tool"]["setuptools"]["package-dir"]
    assert set(listed.values()) == {source.rstrip("/") for source in copied if source.endswith("/")} - {"requirements"}
    ignored = (DEPLOY.parent / ".dockerignore").read_text().splitlines()
    assert ignored[1] == "*"
    assert {line[1:] for line in ignored if line.startswith("!")} == {source.rstrip("/") for source in copied}


def test_the_image_runs_the_driver_as_root_and_writes_no_bytecode() -> None:
    final = dict(stage("base"))
    assert (final["ENTRYPOINT"], final["CMD"], final["USER"]) == ('["dranode"]', '["serve"]', "0:0")
    assert "PYTHONDONTWRITEBYTECODE=1" in final["ENV"]
