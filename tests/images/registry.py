"""A registry of images and charts on this machine's loopback, Debian's: a release is pushed to it, and pulled from it."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedrep_cli.free_ports import free_port
from tests.images.containers import Builder

PROGRAM = shutil.which("docker-registry", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
SETTINGS = """version: 0.1
storage: {{filesystem: {{rootdirectory: {folder}}}}}
http: {{addr: "127.0.0.1:{port}"}}
log: {{level: error, accesslog: {{disabled: true}}}}
"""


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """Its address; it ends with the one that started it."""
    assert PROGRAM is not None
    port, config = free_port(), folder / "registry.yml"
    config.write_text(SETTINGS.format(folder=folder / "blobs", port=port))
    command = ["setpriv", "--pdeathsig", "KILL", PROGRAM, "serve", str(config)]
    with (folder / "registry.log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            _until_it_answers(port, process, folder / "registry.log")
            yield f"127.0.0.1:{port}"
        finally:
            process.kill()


def _until_it_answers(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    limit = time.monotonic() + 60
    while True:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < limit, log.read_text()
        time.sleep(0.1)


def push(builder: Builder, tag: str, target: str) -> str:
    """The digest by which the image can be pulled."""
    told = builder.folder / "pushed"
    builder.buildah("push", "--tls-verify=false", "--digestfile", str(told), tag, f"docker://{target}")
    return told.read_text().strip()


def layers(builder: Builder, image: str) -> list[str]:
    """Pulled anew, what it is made of."""
    pulled = builder.buildah("pull", "--quiet", "--policy", "always", "--tls-verify=false", f"docker://{image}")
    found = builder.buildah("inspect", "--type", "image", "--format", "{{range .OCIv1.RootFS.DiffIDs}}{{.}} {{end}}", pulled)
    return found.split()
