"""What an image holds, as a CycloneDX 1.5 document on stdout: the Python packages of this interpreter, and Debian's.

Needs nothing but the standard library, so that making the list changes nothing in it.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import uuid
from importlib.metadata import Distribution, distributions
from typing import Any


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


def document(part: str) -> dict[str, Any]:
    components = python_packages() + debian_packages()
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
    sys.stdout.write(json.dumps(document(sys.argv[1]), indent=1) + "\n")
