"""Builds images with buildah and starts containers from them, without a container engine: read-only root, no root user.

A started container gets the image's environment, the mounts and the network it is given, a fresh /tmp, and nothing else that can
be written. It ends with the process that started it, however that one ends.
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
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[2]
DOCKERFILE = REPOSITORY / "deploy" / "docker" / "Dockerfile"
USER = "10001:0"
BASE = "localhost/fedrep-test-base"
DEBIAN = "bookworm"
NEEDS = {
    "buildah": "buildah",
    "mmdebstrap": "mmdebstrap",
    "unshare": "util-linux",
    "setpriv": "util-linux",
    "nsenter": "util-linux",
}
# What a registry's base image has besides Debian and Python: an installer, which the Dockerfile takes away.
INSTALLER = {
    "usr/local/bin/pip": "#!/bin/sh\necho an installer\n",
    "usr/local/lib/python3.11/site-packages/pip/__init__.py": "",
}
LOOPBACK = """
import fcntl, socket, struct, sys
with socket.socket() as any_socket:
    fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh14x", b"lo", 0x49))  # SIOCSIFFLAGS: up, running, loopback
    if sys.argv[1:] == ["ipv6"]:
        fcntl.ioctl(any_socket, 0x8916, struct.pack("16sh14x", b"lo", socket.AF_INET))  # SIOCSIFADDR: no address at all
print("up", flush=True)
sys.stdin.read()
"""


def why_not() -> str | None:
    """The sentence that says what is missing, or nothing."""
    if os.environ.get("FEDREP_TEST_IMAGES") != "1":
        return "Images are built by `make test-images`, which sets FEDREP_TEST_IMAGES=1."
    missing = sorted({package for tool, package in NEEDS.items() if shutil.which(tool) is None})
    if missing:
        return f"Images cannot be built here: {', '.join(missing)} is missing (Debian: apt-get install {' '.join(missing)})."
    if os.geteuid() != 0:
        return "Images cannot be built here: buildah's chroot isolation and the mounts of these tests need root."
    return None


@dataclass
class Builder:
    """buildah with a storage of its own under `folder`, so that nothing is left behind and nothing else is touched."""

    folder: Path
    kept: bool = False
    said: list[str] = field(default_factory=list)  # where a stand-in took the place of the real thing
    driver: str = field(init=False)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.driver = "overlay" if _layers_lie_over_each_other(self.folder) else "vfs"

    def buildah(self, *arguments: str, seconds: float = 3600) -> str:
        environment = {**os.environ, "STORAGE_DRIVER": self.driver, "BUILDAH_ISOLATION": "chroot", "BUILDAH_FORMAT": "docker"}
        storage = ["--root", str(self.folder / "root"), "--runroot", str(self.folder / "run")]
        command = ["setpriv", "--pdeathsig", "KILL", "buildah", *storage, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, env=environment)
        assert done.returncode == 0, f"buildah {' '.join(arguments)}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return done.stdout.strip()

    def make_base(self) -> None:
        """The Dockerfile's own base if its registry can be reached, else Debian of the same release with its own Python."""
        (wanted,) = re.findall(r"^FROM (python:\S+@sha256:\S+) AS base$", DOCKERFILE.read_text(), re.MULTILINE)
        by_digest = f"python@{wanted.split('@')[1]}"
        with suppress(AssertionError):
            self.buildah("tag", self.buildah("pull", "--quiet", f"docker://{by_digest}"), BASE)
            return
        self.said.append(f"base: no registry is reached, so Debian {DEBIAN} with its Python stands in for {wanted}")
        more = self.folder / "base"
        for name, text in INSTALLER.items():
            (more / name).parent.mkdir(parents=True, exist_ok=True)
            (more / name).write_text(text)
            (more / name).chmod(0o755)
        self.debian(BASE, "FEDREP_TEST_BASE_TAR", ["python3", "python3-venv", "ca-certificates"], more)

    def debian(self, tag: str, kept: str, packages: Sequence[str], more: Path) -> None:
        """An image of Debian's packages and the files of a folder. The variable `kept` may name a tar file to keep them in."""
        archive = Path(os.environ.get(kept, self.folder / f"{kept}.tar"))
        if self.kept and tag in self.buildah("images", "--format", "{{.Name}}").split():
            return
        if not archive.exists():
            wanted = f"--include={','.join(packages)}"
            subprocess.run(
                ["mmdebstrap", "--variant=minbase", wanted, DEBIAN, archive], check=True, timeout=900, capture_output=True
            )
        container = self.buildah("from", "scratch")
        self.buildah("add", container, str(archive), "/")
        self.buildah("add", container, str(more), "/")
        self.buildah("commit", "--rm", container, tag)

    def build(self, target: str, *arguments: str) -> str:
        """As the Dockerfile's first lines say; packages come from where this machine's pip gets them."""
        tag = f"localhost/fedrep-test-{target}"
        options = ["--file", str(DOCKERFILE), "--ignorefile", f"{DOCKERFILE}.dockerignore", "--target", target, "--tag", tag]
        base = ["--layers", "--build-context", f"base=container-image://{BASE}"]
        self.buildah("bud", *options, *base, *self._pip(), *arguments, str(REPOSITORY))
        return tag

    def build_client(self) -> str:
        """The silo's image for CPUs; without the PyTorch project's index, with that very file from this machine's pip."""
        lock = (DOCKERFILE.parent / "locks" / "client-cpu.txt").read_text()
        (entry,) = re.findall(r"^torch==[^\n]*(?:\n    [^\n]*)*", lock, re.MULTILINE)
        version = re.split(r"[=\s]+", entry)[1]
        arguments = ["--build-arg", "VARIANT=cpu"]
        if not _reached("https://download.pytorch.org/whl/cpu/torch/"):
            index = self.folder / "torch-index"
            (index / "torch").mkdir(parents=True, exist_ok=True)
            (self.folder / "torch.txt").write_text(entry + "\n")
            fetch = [sys.executable, *["-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes", "--requirement"]]
            subprocess.run([*fetch, self.folder / "torch.txt", "--dest", index / "torch"], check=True, timeout=900)
            (wheel,) = (index / "torch").glob("*.whl")
            (index / "torch" / "index.html").write_text(f'<a href="{wheel.name.replace("+", "%2B")}">{wheel.name}</a>')
            self.said.append(f"torch: its project's index is not reached, so {wheel.name} of torch {version} comes from here")
            arguments += ["--build-arg", f"TORCH_INDEX=file://{index}", "--volume", f"{index}:{index}:ro"]
        return self.build("client", *arguments)

    def _pip(self) -> list[str]:
        """Volumes that give pip inside the build the settings and local folders of pip outside."""
        listed = subprocess.run(
            [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
        ).stdout
        found = dict(re.findall(r"^\S*?([a-z-]+)='(.*)'$", listed, re.MULTILINE))
        wanted = {key: found[key] for key in ("index-url", "extra-index-url", "cert", "default-timeout") if key in found}
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

    def config(self, tag: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.buildah("inspect", "--type", "image", tag))["Docker"]["config"]
        return found

    def unpack(self, tag: str) -> Path:
        """The image's files."""
        return Path(self.buildah("mount", self.buildah("from", tag)))

    def close(self) -> None:
        self.buildah("umount", "--all")
        if self.kept:
            self.buildah("rm", "--all")
        else:
            shutil.rmtree(self.folder, ignore_errors=True)


def _layers_lie_over_each_other(folder: Path) -> bool:
    """Whether the kernel lays folders over each other here: without that every layer is a whole copy of all before it."""
    with tempfile.TemporaryDirectory(dir=folder) as place:
        options = ",".join(f"{key}={place}/{key}" for key in ("lowerdir", "upperdir", "workdir"))
        script = f"cd {shlex.quote(place)}; mkdir lowerdir upperdir workdir all; mount -t overlay overlay -o {options} all"
        return subprocess.run(["unshare", "--mount", "sh", "-ec", script], capture_output=True).returncode == 0


def _reached(address: str) -> bool:
    done = subprocess.run(["curl", "--silent", "--fail", "--head", "--max-time", "10", address], capture_output=True)
    return done.returncode in (0, 22)  # 22: it answered, with a refusal


@contextmanager
def own_network(*families: str) -> Iterator[int]:
    """A network with nothing but a loopback of its own, by the id of the process that holds it: what listens there, on whatever
    address and port, is reached from nowhere else. With "ipv6" that loopback has no address of IPv4."""
    hold = ["setpriv", "--pdeathsig", "KILL", "unshare", "--net", sys.executable, "-c", LOOPBACK, *families]
    with subprocess.Popen(hold, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"up\n", "networks of one's own cannot be had here"
        yield holder.pid  # its end closes the holder's standard input, for which the holder waits


def apart(script: str, network: int | None = None) -> list[str]:
    """A command that runs `script` as the first process of namespaces of its own, which end with whoever started it.

    A shell that stays root comes first there: whoever changes its user is no longer killed with its parent.
    """
    entered = ["nsenter", f"--net=/proc/{network}/ns/net"] if network is not None else []
    first = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-ec", script]
    return ["setpriv", "--pdeathsig", "KILL", *entered, *first]


# Not everybody who is root has the folders of its tools on the PATH.
CHROOT = shutil.which("chroot", path=f"{os.environ['PATH']}:/usr/sbin:/sbin") or "chroot"
# Passes on the request to end, and ends with the code of what it has started.
AS_FIRST = """%s & child=$!
trap 'kill -TERM "$child" 2>/dev/null || true' TERM
while :; do code=0; wait "$child" || code=$?; kill -0 "$child" 2>/dev/null || exit "$code"; done"""


@dataclass(frozen=True)
class Container:
    root: Path
    environment: Mapping[str, str]
    mounts: Mapping[str, Path]
    network: int | None = None
    user: str = USER

    def command(self, arguments: Sequence[str], variables: Mapping[str, str] | None = None) -> list[str]:
        """In mounts of its own, that end with it. A folder given as a mount is writable only by its own permissions."""
        root = shlex.quote(str(self.root))
        steps = [f"mount --bind {root} {root}", f"mount -t tmpfs tmpfs {root}/tmp", f"chmod 1777 {root}/tmp"]
        for target, source in self.mounts.items():
            place = f"{root}{target}"
            made = f"mkdir -p {place}" if source.is_dir() else f"mkdir -p $(dirname {place}); touch {place}"
            steps += [made, f"mount --bind {shlex.quote(str(source))} {place}"]
        steps += [f"mount -t proc proc {root}/proc", f"mount --rbind /dev {root}/dev", f"mount -o remount,bind,ro {root}"]
        given = [f"{key}={value}" for key, value in {**self.environment, **(variables or {})}.items()]
        start = shlex.join([CHROOT, f"--userspec={self.user}", str(self.root), "/usr/bin/env", "-i", *given, *arguments])
        return apart("\n".join([*steps, AS_FIRST % start]), self.network)

    def run(self, *arguments: str, seconds: float = 60) -> subprocess.CompletedProcess[str]:
        return subprocess.run(self.command(arguments), capture_output=True, text=True, timeout=seconds)


def end(process: subprocess.Popen[bytes], seconds: float = 30.0) -> None:
    """Ends what `apart` started: first politely, then with all that is in its namespace."""
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
