"""Checks every rendering of the chart, and the Dockerfile, against checkov's policies: python -m tests.deploy.policies CHECKOV.

checkov lives in an environment of its own, because its dependencies do not agree with ours. Whatever it finds and is not
listed here, with a reason, is an error.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml

from tests.deploy.chart import MATRIX, REPOSITORY, case

SKIPPED = {
    "CKV_DOCKER_7": "stages are named without a version; the one image from outside has a digest",
    "CKV_K8S_43": "image.digests takes digests; a chart that is not published with its images cannot know them",
    "CKV_K8S_15": "the default tag is a version, which never changes; image.pullPolicy is there for those who overwrite tags",
    "CKV_K8S_8": "only of the silo and the one-time test: a silo listens on no port, and ends by itself when it cannot go on",
    "CKV_K8S_9": "likewise; nobody calls a silo, so that it cannot be ready for anything",
    "CKV_K8S_35": "the URLs of database and webhook and the dashboard's tokens are settings, which no file but a ConfigMap holds",
    "CKV_K8S_40": "only with arbitraryUids, where the cluster chooses a high one itself",
}


def findings(checkov: str, folder: Path) -> list[str]:
    command = [
        checkov,
        "--directory",
        str(folder),
        "--framework",
        "kubernetes",
        "dockerfile",
        "--output",
        "json",
        "--skip-download",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    try:
        reports = json.loads(done.stdout)
    except json.JSONDecodeError:
        raise SystemExit(f"checkov did not answer: {done.stderr or done.stdout}") from None
    reports = reports if isinstance(reports, list) else [reports]
    passed = sum(report["summary"]["passed"] for report in reports)
    if not passed:
        raise SystemExit("checkov found nothing to check, which cannot be right.")
    sys.stdout.write(f"{passed} checks passed.\n")
    failed = [item for report in reports for item in report["results"]["failed_checks"] if item["check_id"] not in SKIPPED]
    return sorted({f"{item['check_id']} {item['resource']}: {item['check_name']}" for item in failed})


def main(arguments: list[str]) -> int:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for name in MATRIX:
            (folder / f"{name}.yaml").write_text("\n---\n".join(yaml.safe_dump(manifest) for manifest in case(name)))
        (folder / "Dockerfile").write_text((REPOSITORY / "deploy" / "docker" / "Dockerfile").read_text())
        found = findings(arguments[0] if arguments else "checkov", folder)
    for line in found:
        sys.stdout.write(line + "\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
