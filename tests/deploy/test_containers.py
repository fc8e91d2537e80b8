"""What the image tests start as another user ends with them."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.images.containers import end


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="Namespaces and another user need root.")
@pytest.mark.parametrize("trap", ["", "trap '' TERM; "])
def test_a_container_ends_with_all_its_processes(trap: str, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    script = f"{trap}sleep 1000 & echo up > {ready}; wait; wait"
    start = f"exec chroot --userspec=10001:0 / sh -c {script!r}"
    tmp_path.chmod(0o777)
    for folder in tmp_path.parents:
        if folder.is_relative_to("/tmp") and folder != Path("/tmp"):
            folder.chmod(folder.stat().st_mode | 0o055)
    process = subprocess.Popen(["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-ec", start])
    try:
        while not ready.exists():
            assert process.poll() is None, "namespaces cannot be had here"
        (inside,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    finally:
        end(process, 2.0)
    assert process.poll() is not None
    assert not Path(f"/proc/{inside}").exists()
