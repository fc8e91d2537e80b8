"""`make release`: wheel, images by digest, chart with those digests in it, contents, notes, checksums, signatures. Into dist/.

    make release DRY=1                                  # everything that publishes nothing, as far as the tools here allow
    make release REGISTRY=registry.example.org/fedrep   # builds for amd64 and arm64, pushes, signs

SOURCE is the address of the repository (https://github.com/OWNER/NAME), to whose guide the chart's alerts then lead.

A release is made from a commit that its tag names and whose CHANGELOG.md has a chapter of that version. Each step says what it
did, or which tool is missing; without DRY=1 a missing tool ends the release before anything is pushed.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[1]
CHART = REPOSITORY / "deploy" / "helm" / "fedrep"
DOCKERFILE = REPOSITORY / "deploy" / "docker" / "Dockerfile"
PLATFORMS = "linux/amd64,linux/arm64"
IMAGES: dict[str, tuple[str, dict[str, str]]] = {
    "server": ("server", {}),
    "dashboard": ("dashboard", {}),
    "client": ("client", {"VARIANT": "cpu"}),
    "clientCuda": ("client", {"VARIANT": "cuda"}),
}
NEEDS = ("docker", "cosign", "git")


class Stop(Exception):  # noqa: N818 - it is the end of a release, in a sentence
    pass


@dataclass
class Release:
    version: str
    registry: str
    dry: bool
    out: Path
    run: Callable[..., str]
    digests: dict[str, str] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)
    source: str = ""  # address of the repository, as a browser opens it

    def has(self, tool: str, step: str) -> bool:
        if shutil.which(tool) is not None:
            return True
        self.skipped.append(f"{step}: needs {tool}, which is not installed here")
        return False


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def shell(*command: str | Path, errors_too: bool = False) -> str:
    """What the command says on its standard output, or on both."""
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, cwd=REPOSITORY)
    if done.returncode:
        raise Stop(f"{command[0]} failed: {(done.stderr or done.stdout).strip()[-2000:]}")
    return (done.stdout + done.stderr if errors_too else done.stdout).strip()


def check_source(release: Release) -> None:
    """What is published must be what the tag names."""
    if shell("git", "status", "--porcelain"):
        raise Stop("There are changes that are not committed. Commit them, or put them away.")
    tags = shell("git", "tag", "--points-at", "HEAD").split()
    if f"v{release.version}" not in tags:
        raise Stop(f"This commit is not tagged v{release.version}. Tag it, or set the version in pyproject.toml.")
    missing = [tool for tool in NEEDS if shutil.which(tool) is None]
    if missing:
        raise Stop(f"A release needs {', '.join(missing)}. Install them, or say DRY=1.")
    if not release.registry:
        raise Stop("Say where images and chart go: make release REGISTRY=registry.example.org/fedrep")


def notes(release: Release) -> None:
    """The changelog's chapter of this version; in a dry run the one that is being written."""
    text = (REPOSITORY / "CHANGELOG.md").read_text(encoding="utf-8")
    chapters = dict(re.findall(r"^## (\S+)[^\n]*\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL))
    name = release.version if release.version in chapters else "Unreleased" if release.dry else ""
    if not chapters.get(name, "").strip():
        raise Stop(f"CHANGELOG.md has no chapter {release.version}. Give what is under Unreleased that name and a date.")
    (release.out / "NOTES.md").write_text(chapters[name].strip() + "\n", encoding="utf-8")
    say(f"notes: the changelog's chapter {name}")


def wheel(release: Release) -> None:
    if not (REPOSITORY / "dashboard" / "fedrep_dashboard" / "static" / "index.html").exists():
        raise Stop("The dashboard's pages are not built: run make web first.")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    # In a build of its own: what lies in build/ from before would go into the wheel.
    shutil.rmtree(REPOSITORY / "build", ignore_errors=True)
    release.run(*pip, "wheel", "--quiet", "--no-deps", "--wheel-dir", release.out, ".")
    shutil.rmtree(REPOSITORY / "build", ignore_errors=True)
    (made,) = release.out.glob(f"fedrep-{release.version}-*.whl")
    say(f"wheel: {made.name}")


def images(release: Release) -> None:
    if not release.has("docker", "images"):
        return
    if release.dry:
        try:
            release.run("docker", "buildx", "inspect", "--bootstrap")
        except Stop as stop:
            release.skipped.append(f"images: docker's buildx does not answer here ({str(stop).splitlines()[0]})")
            return
    revision = release.run("git", "rev-parse", "HEAD")
    for name, (target, arguments) in IMAGES.items():
        tag = f"{release.registry}/{target}:{release.version}" + _suffix(arguments)
        told = release.out / f"{name}.json"
        given = {"VERSION": release.version, "REVISION": revision, **arguments}
        options = [part for key, value in given.items() for part in ("--build-arg", f"{key}={value}")]
        build = ["docker", "buildx", "build", "--file", DOCKERFILE, *options]
        if release.dry:
            release.run(*build, "--target", target, "--output", "type=cacheonly", ".")
            say(f"image: {target}{_suffix(arguments)} can be built for this machine")
            continue
        release.run(
            *(*build, "--target", target, "--platform", PLATFORMS, "--tag", tag),
            *("--push", "--sbom=true", "--provenance=mode=max", "--metadata-file", told, "."),
        )
        listed = release.out / f"contents-{name}"
        release.run(*build, "--target", "sbom", "--build-arg", f"PART={target}", "--output", listed, ".")
        (listed / "sbom.json").rename(release.out / f"sbom-{target}{_suffix(arguments)}.cdx.json")
        listed.rmdir()
        release.digests[name] = json.loads(told.read_text())["containerimage.digest"]
        told.unlink()
        release.run("cosign", "sign", "--yes", f"{release.registry}/{target}@{release.digests[name]}")
        say(f"image: {tag}@{release.digests[name]}, signed")


def _suffix(arguments: dict[str, str]) -> str:
    return f"-{arguments['VARIANT']}" if arguments else ""


def chart(release: Release) -> None:
    """With registry, digests and guide of this release as its defaults: what was released together runs together."""
    copy = release.out / "chart" / "fedrep"
    shutil.copytree(CHART, copy)
    values = copy / "values.yaml"
    text = values.read_text(encoding="utf-8")
    for part, (target, _) in IMAGES.items():
        if part in release.digests:
            text = re.sub(rf'(?m)^    {part}: ""$', f"    {part}: {release.digests[part]}", text, count=1)
        if release.registry and part == target:
            text = re.sub(rf"(?m)^  {part}: fedrep/{part}$", f"  {part}: {release.registry}/{part}", text)
    if release.source:
        guide = f"{release.source}/blob/v{release.version}/docs/operations.md"
        text = re.sub(r"(?m)^    runbooks: \S+$", f"    runbooks: {guide}", text, count=1)
    values.write_text(text, encoding="utf-8")
    helm = Path(sys.executable).parent / "helm"
    release.run(helm, "package", copy, "--destination", release.out)
    shutil.rmtree(release.out / "chart")
    package = release.out / f"fedrep-{release.version}.tgz"
    say(f"chart: {package.name}")
    if not release.dry:
        # helm says the digest on its standard error
        pushed = release.run(helm, "push", package, f"oci://{release.registry}/charts", errors_too=True)
        found = re.search(r"sha256:[0-9a-f]{64}", pushed)
        if found is None:
            raise Stop(f"helm pushed the chart and told no digest by which it could be signed: {pushed}")
        release.run("cosign", "sign", "--yes", f"{release.registry}/charts/fedrep@{found[0]}")
        say(f"chart: {release.registry}/charts/fedrep@{found[0]}, signed")


def contents(release: Release) -> None:
    """Lists of what is in each image, made where it was built; where none was, of the packages that its lock holds."""
    for name, (target, arguments) in IMAGES.items():
        file = release.out / f"sbom-{target}{_suffix(arguments)}.cdx.json"
        if not file.exists():
            lock = DOCKERFILE.parent / "locks" / f"{target}{_suffix(arguments)}.txt"
            made = release.run(sys.executable, DOCKERFILE.parent / "sbom.py", target, "--lock", lock)
            file.write_text(made + "\n", encoding="utf-8")
        say(f"contents: {file.name}" + ("" if name in release.digests else ", from its lock"))


def checksums(release: Release) -> None:
    files = sorted(path for path in release.out.iterdir() if path.is_file())
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}" for path in files]
    (release.out / "SHA256SUMS").write_text("\n".join(lines) + "\n", encoding="utf-8")
    say(f"checksums: {len(files)} files")
    if release.dry:
        release.skipped.append("signatures: a dry run signs nothing; a release signs images, chart and SHA256SUMS with cosign")
    else:
        bundle = release.out / "SHA256SUMS.bundle"
        release.run("cosign", "sign-blob", "--yes", "--bundle", bundle, release.out / "SHA256SUMS")
        say("signature: SHA256SUMS.bundle")


def main(environment: dict[str, str] | Any = os.environ) -> int:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    out = REPOSITORY / environment.get("OUT", "dist")
    release = Release(
        project["version"], environment.get("REGISTRY", "").rstrip("/").lower(), environment.get("DRY") == "1", out, shell
    )
    release.source = environment.get("SOURCE", "").rstrip("/")
    try:
        if not release.dry:
            check_source(release)
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir(parents=True)
        for step in (notes, wheel, images, chart, contents, checksums):
            step(release)
    except Stop as stop:
        sys.stderr.write(f"{stop}\n")
        return 1
    for line in release.skipped:
        say(f"skipped: {line}")
    say(f"{release.version} is in {out}" + (" (dry: nothing was published)" if release.dry else ""))
    return 0


if __name__ == "__main__":
    sys.exit(main())
