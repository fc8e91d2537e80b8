"""Builds images with buildah and starts containers from them, without a container engine: read-only root, no root user.

A started container gets the image's environment, the mounts it is given, a fresh /tmp, and nothing else that can be written.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[2]
DOCKERFILE = REPOSITORY / "deploy" / "docker" / "Dockerfile"
USER = "10001:0"
BASE = "localhost/fedrep-test-base"
DEBIAN = "bookworm"


def why_not() -> str | None:
    """The sentence that says what is missing, or nothing."""
    if os.environ.get("FEDREP_TEST_IMAGES") != "1":
        return "Images are built by `make test-images`, which sets FEDREP_TEST_IMAGES=1."
    missing = [tool for tool in ("buildah", "mmdebstrap", "unshare") if shutil.which(tool) is None]
    if missing:
        return f"Images cannot be built here: {', '.join(missing)} is missing (Debian: apt-get install buildah mmdebstrap)."
    if os.geteuid() != 0:
        return "Images cannot be built here: buildah's chroot isolation and the mounts of these tests need root."
    return None


@dataclass
class Builder:
    """buildah with a storage of its own under `folder`, so that nothing is left behind and nothing else is touched."""

    folder: Path

    def buildah(self, *arguments: str, seconds: float = 900) -> str:
        environment = {**os.environ, "STORAGE_DRIVER": "vfs", "BUILDAH_ISOLATION": "chroot", "BUILDAH_FORMAT": "docker"}
        storage = ["--root", str(self.folder / "root"), "--runroot", str(self.folder / "run")]
        done = subprocess.run(["buildah", *storage, *arguments], capture_output=True, text=True, timeout=seconds, env=environment)
        assert done.returncode == 0, f"buildah {' '.join(arguments)}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return done.stdout.strip()

    def make_base(self) -> None:
        """Debian with Python from its own packages: the part that a registry would otherwise deliver."""
        archive = Path(os.environ.get("FEDREP_TEST_BASE_TAR", self.folder / "base.tar"))
        if not archive.exists():
            wanted = "--include=python3,python3-venv,ca-certificates"
            subprocess.run(
                ["mmdebstrap", "--variant=minbase", wanted, DEBIAN, archive], check=True, timeout=900, capture_output=True
            )
        container = self.buildah("from", "scratch")
        self.buildah("add", container, str(archive), "/")
        self.buildah("commit", "--rm", container, BASE)

    def build(self, target: str, *arguments: str) -> str:
        """As the Dockerfile's first lines say; packages come from where this machine's pip gets them."""
        tag = f"localhost/fedrep-test-{target}"
        options = ["--file", str(DOCKERFILE), "--ignorefile", f"{DOCKERFILE}.dockerignore", "--target", target, "--tag", tag]
        self.buildah("bud", *options, "--build-arg", f"BASE={BASE}", *self._pip(), *arguments, str(REPOSITORY))
        return tag

    def _pip(self) -> list[str]:
        """Volumes that give pip inside the build the settings and local folders of pip outside."""
        listed = subprocess.run(
            [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
        ).stdout
        found = dict(re.findall(r"^\S*?([a-z-]+)='(.*)'$", listed, re.MULTILINE))
        wanted = {
            key: found[key] for key in ("index-url", "extra-index-url", "find-links", "cert", "default-timeout") if key in found
        }
        config = self.folder / "pip.conf"
        config.write_text("[global]\n" + "".join(f"{key} = {value}\n" for key, value in wanted.items()))
        volumes = ["--volume", f"{config}:/etc/pip.conf:ro"]
        for value in wanted.values():
            for path in (Path(part.removeprefix("file://")) for part in value.split()):
                while path.is_absolute() and not path.exists():
                    path = path.parent
                if path.is_absolute() and path != Path("/"):
                    folder = path.parent if path.name == "simple" else path
                    volumes += ["--volume", f"{folder}:{folder}:ro"]
        return volumes

    def inspect(self, tag: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.buildah("inspect", "--type", "image", tag))
        return found

    def unpack(self, tag: str) -> Path:
        """The image's files."""
        return Path(self.buildah("mount", self.buildah("from", tag)))


@dataclass(frozen=True)
class Container:
    root: Path
    environment: Mapping[str, str]
    mounts: Mapping[str, Path]

    def command(self, arguments: Sequence[str], variables: Mapping[str, str] | None = None) -> list[str]:
        """In mounts of its own, that end with it. A folder given as a mount is writable only by its own permissions."""
        root = shlex.quote(str(self.root))
        steps = [f"mount --bind {root} {root}", f"mount -t tmpfs tmpfs {root}/tmp", f"chmod 1777 {root}/tmp"]
        steps += [f"mount --bind {shlex.quote(str(source))} {root}{target}" for target, source in self.mounts.items()]
        steps += [f"mount -t proc proc {root}/proc", f"mount --rbind /dev {root}/dev", f"mount -o remount,bind,ro {root}"]
        given = [f"{key}={value}" for key, value in {**self.environment, **(variables or {})}.items()]
        start = shlex.join(["chroot", f"--userspec={USER}", str(self.root), "/usr/bin/env", "-i", *given, *arguments])
        return ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-ec", "; ".join([*steps, f"exec {start}"])]

    def run(self, *arguments: str, seconds: float = 60) -> subprocess.CompletedProcess[str]:
        return subprocess.run(self.command(arguments), capture_output=True, text=True, timeout=seconds)


def end(process: subprocess.Popen[bytes], seconds: float = 30.0) -> None:
    """Ends what `Container.command` started.

    A signal to `unshare` alone would leave it behind: whoever changes its user is no longer killed with its parent. Its child is
    the first process of its own PID namespace, and takes all others there along.
    """
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    inside = [int(pid) for pid in children.read_text().split()] if process.poll() is None else []
    for name in (signal.SIGTERM, signal.SIGKILL):
        for pid in inside:
            with suppress(ProcessLookupError):
                os.kill(pid, name)
        try:
            process.wait(seconds)
            return
        except subprocess.TimeoutExpired:
            continue
    process.kill()
    process.wait()
