"""A release: what `make release` makes, in which order, from what, and that the workflow does the same."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from tests.deploy.chart import REPOSITORY
from tests.deploy.release_script import release_script

LISTED = ("server", "dashboard", "client-cpu", "client-cuda")
WORKFLOW = REPOSITORY / ".github" / "workflows" / "release.yml"


@pytest.fixture(scope="module")
def release() -> ModuleType:
    return release_script()


class Tools:
    """Docker, cosign and helm, as far as a release asks them; the rest is real."""

    def __init__(self, real: Any) -> None:
        self.real = real
        self.calls: list[list[str]] = []

    def __call__(self, *command: str | Path, errors_too: bool = False) -> str:
        words = [str(part) for part in command]
        self.calls.append(words)
        if words[:3] == ["docker", "buildx", "build"] and "--output" in words:
            folder = Path(words[words.index("--output") + 1])
            folder.mkdir()
            (folder / "sbom.json").write_text("{}")
            return ""
        if words[:3] == ["docker", "buildx", "build"]:
            digest = "sha256:" + hashlib.sha256(words[words.index("--tag") + 1].encode()).hexdigest()
            Path(words[words.index("--metadata-file") + 1]).write_text(json.dumps({"containerimage.digest": digest}))
            return ""
        if words[0] == "cosign":
            return ""
        if words[1:2] == ["push"]:
            return "Digest: sha256:" + "c" * 64 if errors_too else ""  # as helm, which says it on its standard error
        return str(self.real(*command))

    def of(self, *first: str) -> list[list[str]]:
        return [call for call in self.calls if call[: len(first)] == list(first)]


def test_a_dry_run_makes_what_can_be_made_and_says_what_it_left_out(tmp_path: Path) -> None:
    script = REPOSITORY / "deploy" / "release.py"
    done = subprocess.run(
        [sys.executable, script], env={"DRY": "1", "OUT": str(tmp_path / "dist"), "PATH": "/usr/bin:/bin"},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    if "pages are not built" in done.stderr:
        pytest.skip("The dashboard's pages are not built: make web.")
    assert done.returncode == 0, done.stderr
    out = tmp_path / "dist"
    assert {path.name for path in out.iterdir()} == {
        "NOTES.md", "SHA256SUMS", "fedrep-0.1.0-py3-none-any.whl", "fedrep-0.1.0.tgz",
        *(f"sbom-{name}.cdx.json" for name in LISTED),
    }  # fmt: skip
    for line in (out / "SHA256SUMS").read_text().splitlines():
        digest, name = line.split()
        assert hashlib.sha256((out / name).read_bytes()).hexdigest() == digest
    names = zipfile.ZipFile(out / "fedrep-0.1.0-py3-none-any.whl").namelist()
    assert "fedrep_dashboard/static/index.html" in names
    assert not [name for name in names if name.startswith("tests/")]
    for name in LISTED:
        listed = json.loads((out / f"sbom-{name}.cdx.json").read_text())
        packages = {component["name"] for component in listed["components"]}
        assert ("torch" in packages) is name.startswith("client")
        assert all(reference["hashes"] for item in listed["components"] for reference in item["externalReferences"])
    assert "skipped: images" in done.stdout
    assert "skipped: signatures" in done.stdout


@pytest.fixture
def published(release: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Tools, Any]:
    tools = Tools(release.shell)
    made = release.Release("0.1.0", "registry.example.org/fedrep", False, tmp_path, tools, source="https://git.example.org/a/b")
    monkeypatch.setattr(release.shutil, "which", lambda _tool: "/usr/bin/tool")
    release.images(made)
    release.chart(made)
    release.contents(made)
    release.checksums(made)
    return tools, made


def test_a_dry_run_builds_images_for_this_machine_where_an_engine_answers_and_publishes_none(
    release: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[list[str]] = []

    def engine(*command: str | Path) -> str:
        calls.append([str(part) for part in command])
        return ""

    monkeypatch.setattr(release.shutil, "which", lambda _tool: "/usr/bin/tool")
    release.images(release.Release("0.1.0", "", True, tmp_path, engine))
    builds = [call for call in calls if call[:3] == ["docker", "buildx", "build"]]
    assert [call[call.index("--target") + 1] for call in builds] == ["server", "dashboard", "client", "client"]
    assert all(call[call.index("--output") + 1] == "type=cacheonly" for call in builds)
    assert not [call for call in calls if "--push" in call or call[0] == "cosign"]

    def no_engine(*_command: str | Path) -> str:
        raise release.Stop("docker failed: Cannot connect to the Docker daemon\nIs it running?")

    without = release.Release("0.1.0", "", True, tmp_path, no_engine)
    release.images(without)
    assert without.skipped == [
        "images: docker's buildx does not answer here (docker failed: Cannot connect to the Docker daemon)"
    ]


def test_every_image_is_built_for_both_machines_and_signed_by_digest(published: tuple[Tools, Any]) -> None:
    tools, made = published
    builds = [call for call in tools.of("docker", "buildx", "build") if "--push" in call]
    assert len(builds) == 4
    for call in builds:
        assert call[call.index("--platform") + 1] == "linux/amd64,linux/arm64"
        assert {"--push", "--sbom=true", "--provenance=mode=max"} <= set(call)
    signed = {call[-1] for call in tools.of("cosign", "sign")}
    for name, digest in made.digests.items():
        assert f"registry.example.org/fedrep/{'client' if name == 'clientCuda' else name}@{digest}" in signed
    assert "registry.example.org/fedrep/charts/fedrep@sha256:" + "c" * 64 in signed
    assert tools.of("cosign", "sign-blob")


def test_the_chart_of_a_release_names_its_images_by_digest(published: tuple[Tools, Any]) -> None:
    _, made = published
    with tarfile.open(made.out / "fedrep-0.1.0.tgz") as archive:
        file = archive.extractfile("fedrep/values.yaml")
        assert file is not None
        values = yaml.safe_load(file.read())
    assert values["image"]["digests"] == made.digests
    assert values["image"]["server"] == "registry.example.org/fedrep/server"
    assert values["image"]["client"] == "registry.example.org/fedrep/client"
    guide = "https://git.example.org/a/b/blob/v0.1.0/docs/operations.md"
    assert values["metrics"]["prometheusRule"]["runbooks"] == guide, "alerts lead to the guide of what runs"


def test_a_chart_that_could_not_be_signed_ends_the_release(release: ModuleType, tmp_path: Path) -> None:
    class Silent(Tools):
        def __call__(self, *command: str | Path, **_: bool) -> str:
            return super().__call__(*command)

    tools = Silent(release.shell)
    with pytest.raises(release.Stop, match="no digest by which it could be signed"):
        release.chart(release.Release("0.1.0", "registry.example.org/fedrep", False, tmp_path, tools))
    assert not tools.of("cosign")


def test_the_contents_of_every_image_are_among_the_files_of_a_release(published: tuple[Tools, Any]) -> None:
    tools, made = published
    listed = [call for call in tools.of("docker", "buildx", "build") if "--output" in call]
    assert [call[call.index("--target") + 1] for call in listed] == ["sbom"] * 4
    assert {path.name for path in made.out.glob("sbom-*")} == {f"sbom-{name}.cdx.json" for name in LISTED}
    sums = (made.out / "SHA256SUMS").read_text()
    assert all(f"sbom-{name}.cdx.json" in sums for name in LISTED)
    assert not [path for path in made.out.iterdir() if path.is_dir()]


def test_nothing_is_released_from_a_commit_without_its_tag(release: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {"status": "", "tag": "v0.0.9"}
    monkeypatch.setattr(release, "shell", lambda _git, command, *_rest: answers[command])
    made = release.Release("0.1.0", "registry.example.org/fedrep", False, Path("dist"), release.shell)
    with pytest.raises(release.Stop, match=r"not tagged v0\.1\.0"):
        release.check_source(made)
    answers["status"] = " M file"
    with pytest.raises(release.Stop, match="not committed"):
        release.check_source(made)


def test_the_workflow_runs_the_same_command_on_a_tag_after_the_checks_with_no_more_rights_than_it_needs() -> None:
    workflow = yaml.safe_load(WORKFLOW.read_text())
    assert workflow[True] == {"push": {"tags": ["v*"]}}, "yaml reads `on` as true"
    assert workflow["permissions"] == {"contents": "read"}
    (job,) = workflow["jobs"].values()
    assert job["permissions"] == {"contents": "write", "packages": "write", "id-token": "write", "attestations": "write"}
    runs = [step["run"] for step in job["steps"] if "run" in step]
    assert runs[:3] == ["make setup check", "make test", "make release"]
    assert runs[3].startswith("gh release create"), "what was made is published last"
    for line in re.findall(r"uses: (.+)", WORKFLOW.read_text()):
        assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line), "an action by commit, its version beside it"
    release_step = next(step for step in job["steps"] if step.get("run") == "make release")
    assert set(release_step["env"]) == {"REGISTRY", "SOURCE"}
    target = (REPOSITORY / "Makefile").read_text().split("\nrelease:")[1].split("\n\n")[0]
    assert "deploy/release.py" in target
