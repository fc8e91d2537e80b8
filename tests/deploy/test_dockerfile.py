"""The Dockerfile without building it; `make test-images` builds and starts the images where it can."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from tests.deploy.chart import REPOSITORY

DOCKERFILE = REPOSITORY / "deploy" / "docker" / "Dockerfile"


def test_hadolint_finds_nothing_to_complain_about() -> None:
    hadolint = Path(sys.executable).parent / "hadolint"
    done = subprocess.run([hadolint, DOCKERFILE], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_image_starts_from_the_chosen_base_and_runs_as_somebody_else_than_root() -> None:
    text = DOCKERFILE.read_text()
    stages = re.findall(r"^FROM (\S+) AS (\S+)$", text, re.MULTILINE)
    (base,) = {image for image, _ in stages} - {stage for _, stage in stages} - {"scratch", "${PART}-contents"}
    assert re.fullmatch(r"python:3\.11-slim-bookworm@sha256:[0-9a-f]{64}", base)
    runtime = text.split(" AS runtime\n")[1].split("\nFROM ")[0]
    assert "\nUSER 10001:0\n" in runtime
    for part in ("server", "dashboard", "client"):
        stage = text.split(f"FROM runtime AS {part}\n")[1].split("\nFROM ")[0]
        assert "HEALTHCHECK" in stage
        assert "USER" not in stage
        assert "RUN" not in stage, "what is built is built in another stage"
        copied = [f"--from={part}-packages /image /", "--from=own /own /", f"--from={part}-contents /sbom.json"]
        order = [stage.index(f"COPY {what}") for what in copied]
        assert order == sorted(order), "what seldom changes lies below, and a new release brings one small layer"


def test_the_version_of_images_and_chart_is_the_packages() -> None:
    version = re.search(r'^version = "(.+)"$', (REPOSITORY / "pyproject.toml").read_text(), re.MULTILINE)
    chart = (REPOSITORY / "deploy" / "helm" / "fedrep" / "Chart.yaml").read_text()
    assert version is not None
    assert f'appVersion: "{version[1]}"' in chart
    assert f"ARG VERSION={version[1]}" in DOCKERFILE.read_text()


def test_the_list_of_contents_names_what_is_installed() -> None:
    script = REPOSITORY / "deploy" / "docker" / "sbom.py"
    runs = [
        subprocess.run([sys.executable, script, "server"], capture_output=True, text=True, check=True, timeout=60) for _ in "ab"
    ]
    assert runs[0].stdout == runs[1].stdout
    document = json.loads(runs[0].stdout)
    purls = {component["purl"].split("@")[0] for component in document["components"]}
    assert {"pkg:pypi/fedrep", "pkg:pypi/numpy", "pkg:pypi/grpcio"} <= purls


LOCKS = REPOSITORY / "deploy" / "docker" / "locks"


def pins(path: Path) -> dict[str, str]:
    return dict(re.findall(r"^([a-z0-9][a-z0-9._-]*)==([^\s;\\]+)", path.read_text(), re.MULTILINE))


@pytest.mark.parametrize("lock", sorted(path.name for path in LOCKS.glob("*.txt")))
def test_every_package_of_an_image_has_a_hash_and_the_version_that_is_tested(lock: str) -> None:
    text = (LOCKS / lock).read_text()
    listed = re.findall(r"^[a-z0-9][^\n]*(?:\n    [^\n]*)*", text, re.MULTILINE)
    assert listed
    assert all("--hash=sha256:" in entry for entry in listed)
    tested = pins(REPOSITORY / "constraints.txt")
    found = pins(LOCKS / lock)
    assert {name: version for name, version in found.items() if tested.get(name, version) != version} == {}


@pytest.mark.parametrize(
    ("lock", "extras"),
    [
        ("server", ["server", "backup"]),
        ("dashboard", ["dashboard"]),
        ("client-cpu", ["client"]),
        ("client-cuda", ["client"]),
    ],
)
def test_a_lock_holds_what_its_image_asks_for(lock: str, extras: list[str]) -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *(item for extra in extras for item in project["optional-dependencies"][extra])]
    names = {re.sub(r"[-_.]+", "-", re.split(r"[\[<>=~! ]", item)[0]).lower() for item in wanted}
    assert names - pins(LOCKS / f"{lock}.txt").keys() == set()
    has_torch = "torch" in pins(LOCKS / f"{lock}.txt")
    assert has_torch is lock.startswith("client")
    assert any(name.startswith("nvidia-") for name in pins(LOCKS / f"{lock}.txt")) is (lock == "client-cuda")


def test_nothing_is_installed_without_its_hash() -> None:
    installs = re.findall(r"pip (?:--python \S+ )?install ([^&\n]*)", DOCKERFILE.read_text().replace("\\\n", ""))
    assert len(installs) == 5
    assert DOCKERFILE.read_text().count("pip wheel --no-build-isolation --no-deps") == 1
    for arguments in installs:
        assert "--require-hashes" in arguments or "/wheel/*.whl" in arguments
        assert "--no-deps" in arguments


def test_a_cpu_image_can_get_no_other_build_of_torch_and_one_for_each_machine() -> None:
    cpu, cuda = ((LOCKS / f"client-{variant}.txt").read_text() for variant in ("cpu", "cuda"))
    hashes = [
        set(re.findall("sha256:([0-9a-f]{64})", *re.findall(r"^torch==[^\n]*(?:\n    [^\n]*)*", lock, re.MULTILINE)))
        for lock in (cpu, cuda)
    ]
    assert len(hashes[0]) == 2
    assert not hashes[0] & hashes[1]


def test_every_image_that_is_not_ours_comes_by_digest(tmp_path: Path) -> None:
    files = ["deploy/docker/Dockerfile", "deploy/compose.yaml", "deploy/kind/postgres.yaml"]
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text((REPOSITORY / name).read_text())
        named = re.findall(r"(?m)^\s*(?:FROM|-?\s*image:) ((?:python|postgres)\S*)", (REPOSITORY / name).read_text())
        assert named
        assert all(re.fullmatch(r"\S+:\S+@sha256:[0-9a-f]{64}", image) for image in named), name

    # Renewed: `make base` asks the registry, here a program that answers for it.
    (tmp_path / "bin").mkdir()
    skopeo = tmp_path / "bin" / "skopeo"
    skopeo.write_text('#!/bin/sh\nprintf %s "$3"\n')
    skopeo.chmod(0o755)
    shutil.copy(REPOSITORY / "deploy" / "docker" / "base.py", tmp_path / "deploy" / "docker" / "base.py")
    environment = {"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin"}
    script = tmp_path / "deploy" / "docker" / "base.py"
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    for name, tag in zip(files, ("python:3.11-slim-bookworm", "postgres:16-bookworm", "postgres:16-bookworm"), strict=True):
        assert f"{tag}@sha256:{hashlib.sha256(f'docker://{tag}'.encode()).hexdigest()}" in (tmp_path / name).read_text()


def test_dependabot_looks_where_versions_stand() -> None:
    updates = yaml.safe_load((REPOSITORY / ".github" / "dependabot.yml").read_text())["updates"]
    looked = {(update["package-ecosystem"], update["directory"]) for update in updates}
    assert looked == {
        ("docker", "/deploy/docker"),
        ("docker", "/deploy/kind"),
        ("docker-compose", "/deploy"),
        ("github-actions", "/"),
        ("pip", "/"),
        ("npm", "/dashboard/web"),
    }
    for _, folder in looked:
        assert (REPOSITORY / folder.lstrip("/")).is_dir()


def test_whatever_is_copied_into_an_image_has_one_time_so_that_its_layer_is_the_same_wherever_it_is_built() -> None:
    """Modules are compiled by their hash where SOURCE_DATE_EPOCH is set; a time in them would differ with every build."""
    text = DOCKERFILE.read_text()
    assert "SOURCE_DATE_EPOCH=${MOMENT}" in text.split(" AS tools\n")[1].split("\nFROM ")[0]
    for stage, folder in (("own", "/own"), *((f"{part}-packages", "/image") for part in ("server", "dashboard", "client"))):
        last = text.split(f"FROM tools AS {stage}\n")[1].split("\n\n")[0].splitlines()[-1]
        assert last == f'    && find {folder} -exec touch --no-dereference --date="@${{SOURCE_DATE_EPOCH}}" {{}} +'
