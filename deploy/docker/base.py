"""Writes the digests that the tags of the images we start from have now, wherever these are named: `make base`.

Dependabot (.github/dependabot.yml) proposes the same at GitHub. Needs skopeo, or docker with buildx, and the registry.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
FILES = ("deploy/docker/Dockerfile", "deploy/compose.yaml", "deploy/kind/postgres.yaml")
NAMED = re.compile(r"(?P<tag>[a-z0-9./-]+:[A-Za-z0-9._-]+)@(?P<digest>sha256:[0-9a-f]{64})")


def digest(tag: str) -> str:
    """Of the whole list of a tag's images, one for each kind of machine."""
    if shutil.which("skopeo") is not None:
        command = ["skopeo", "inspect", "--raw", f"docker://{tag}"]
    elif shutil.which("docker") is not None:
        command = ["docker", "buildx", "imagetools", "inspect", tag, "--format", "{{.Manifest.Digest}}"]
    else:
        raise SystemExit("Neither skopeo nor docker is installed, so no registry can be asked.")
    done = subprocess.run(command, capture_output=True)
    if done.returncode:
        raise SystemExit(f"{tag}: {done.stderr.decode().strip()}")
    return done.stdout.decode().strip() if command[0] == "docker" else f"sha256:{hashlib.sha256(done.stdout).hexdigest()}"


def main() -> int:
    texts = {name: (REPOSITORY / name).read_text(encoding="utf-8") for name in FILES}
    tags = sorted({match["tag"] for text in texts.values() for match in NAMED.finditer(text)})
    now = {tag: digest(tag) for tag in tags}
    for name, text in texts.items():
        fresh = NAMED.sub(lambda match: f"{match['tag']}@{now[match['tag']]}", text)
        if fresh != text:
            (REPOSITORY / name).write_text(fresh, encoding="utf-8")
            sys.stdout.write(f"{name} has changed\n")
    for tag in tags:
        sys.stdout.write(f"{tag}@{now[tag]}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
