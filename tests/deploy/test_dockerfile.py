"""The Dockerfile without building it; `make test-images` builds and starts the images where it can."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

from tests.deploy.chart import REPOSITORY

DOCKERFILE = REPOSITORY / "deploy" / "docker" / "Dockerfile"


def test_hadolint_finds_nothing_to_complain_about() -> None:
    hadolint = Path(sys.executable).parent / "hadolint"
    done = subprocess.run([hadolint, DOCKERFILE], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_image_starts_from_the_chosen_base_and_runs_as_somebody_else_than_root() -> None:
    text = DOCKERFILE.read_text()
    stages = dict(re.findall(r"^FROM (\S+) AS (\S+)$", text, re.MULTILINE))
    assert set(stages) <= {"${BASE}", "tools", "runtime", "scratch", "${PART}-build"}
    runtime = text.split(" AS runtime\n")[1].split("\nFROM ")[0]
    assert "\nUSER 10001:0\n" in runtime
    for part in ("server", "dashboard", "client"):
        stage = text.split(f"FROM runtime AS {part}\n")[1].split("\nFROM ")[0]
        assert "HEALTHCHECK" in stage
        assert "USER" not in stage
        assert "RUN" not in stage, "what is built is built in another stage"


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
