"""What an image holds, as a CycloneDX 1.5 document on stdout: the interpreter that runs this, its packages, and Debian's.

With `--lock FILE` instead of what is installed: the packages of a lock with the hashes of their files, before there is an image.
Needs nothing but the standard library, so that making the list changes nothing in it.
"""

from __future__ import annotations

import json
import platform
import re
import shutil
import subprocess
import sys
import uuid
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any


def interpreter() -> dict[str, Any]:
    """The registry's base image builds it from source, so no package manager knows of it."""
    purl = f"pkg:generic/python@{platform.python_version()}"
    return {"type": "platform", "name": "python", "version": platform.python_version(), "purl": purl, "bom-ref": purl}


def python_packages() -> list[dict[str, Any]]:
    found = {}
    for distribution in distributions():
        name = re.sub(r"[-_.]+", "-", distribution.metadata["Name"]).lower()
        found[name] = _component(name, distribution)
    return [found[name] for name in sorted(found)]


def _component(name: str, distribution: Distribution) -> dict[str, Any]:
    purl = f"pkg:pypi/{name}@{distribution.version}"
    component: dict[str, Any] = {"type": "library", "name": name, "version": distribution.version, "purl": purl, "bom-ref": purl}
    licence = distribution.metadata.get("License-Expression")
    if licence:
        component["licenses"] = [{"expression": licence}]
    return component


def debian_packages() -> list[dict[str, Any]]:
    """Empty on a base that is not Debian's."""
    if shutil.which("dpkg-query") is None:
        return []
    listed = subprocess.run(
        ["dpkg-query", "--show", "--showformat", "${Package} ${Version} ${Architecture}\n"],
        capture_output=True,
        text=True,
        check=True,
    )
    components = []
    for line in sorted(listed.stdout.splitlines()):
        name, version, architecture = line.split()
        purl = f"pkg:deb/debian/{name}@{version}?arch={architecture}"
        components.append({"type": "library", "name": name, "version": version, "purl": purl, "bom-ref": purl})
    return components


def locked_packages(lock: Path) -> list[dict[str, Any]]:
    components = []
    for entry in re.findall(r"^[a-z0-9][^\n]*(?:\n    [^\n]*)*", lock.read_text(encoding="utf-8"), re.MULTILINE):
        name, version = re.split(r"[=\s;]+", entry)[:2]
        purl = f"pkg:pypi/{name}@{version}"
        hashes = [{"alg": "SHA-256", "content": value} for value in re.findall("sha256:([0-9a-f]{64})", entry)]
        # Of the files that the index has of this version, for all kinds of machines; an image holds one of them.
        files = {"type": "distribution", "url": purl, "hashes": hashes}
        components.append(
            {"type": "library", "name": name, "version": version, "purl": purl, "bom-ref": purl, "externalReferences": [files]}
        )
    return components


def document(part: str, lock: Path | None = None) -> dict[str, Any]:
    components = locked_packages(lock) if lock else [interpreter(), *python_packages(), *debian_packages()]
    # The same content gives the same serial number: two builds can be compared byte by byte.
    serial = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(components))
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{serial}",
        "version": 1,
        "metadata": {"component": {"type": "container", "name": f"fedrep-{part}"}},
        "components": components,
    }


if __name__ == "__main__":
    given = Path(sys.argv[3]) if sys.argv[2:3] == ["--lock"] else None
    sys.stdout.write(json.dumps(document(sys.argv[1], given), indent=1) + "\n")
