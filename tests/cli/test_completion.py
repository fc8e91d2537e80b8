"""Shell completion as the shell asks for it, and `fedrep version`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fedrep_cli.main import COMMANDS, main


def completed(line: str) -> list[str]:
    """What bash gets for this line, whose last word is being typed."""
    words = line.split(" ")
    asked = {"_FEDREP_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    done = subprocess.run(
        [sys.executable, "-m", "fedrep_cli.main"], env=os.environ | asked, capture_output=True, text=True, check=True
    )
    return done.stdout.split()


def test_commands_their_subcommands_and_their_options_are_completed() -> None:
    assert completed("fedrep si") == ["simulate", "silo"]
    assert set(completed("fedrep ")) == set(COMMANDS)
    assert completed("fedrep run ex") == ["exclude", "export"]
    assert completed("fedrep new --temp") == ["--template"]
    assert "sklearn" in completed("fedrep new --template ")


def test_names_are_completed_without_importing_a_command() -> None:
    code = (
        "import os, sys; os.environ |= {'_FEDREP_COMPLETE': 'complete_bash', 'COMP_WORDS': 'fedrep ', 'COMP_CWORD': '1'};"
        "from fedrep_cli.main import main; main();"
        "sys.exit(any(name in sys.modules for name in ('grpc', 'numpy', 'torch', 'fedrep_cli.run', 'fedrep_cli.client')))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash here")
def test_the_printed_script_is_one_that_bash_takes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bash"]) == 0
    (tmp_path / "script").write_text(capsys.readouterr().out)
    done = subprocess.run(["bash", "-c", f"source {tmp_path / 'script'} && complete -p fedrep"], capture_output=True, text=True)
    assert "_fedrep_completion fedrep" in done.stdout


@pytest.mark.parametrize("shell", ["zsh", "fish", "powershell"])
def test_every_shell_has_a_script_that_calls_fedrep(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell, "--json"]) == 0
    assert "_FEDREP_COMPLETE" in json.loads(capsys.readouterr().out)["script"]


def test_version_says_what_is_installed_as_text_and_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["version", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["packages"]["numpy"]
    assert found["protocol"] >= 2
    assert main(["version"]) == 0
    assert capsys.readouterr().out.startswith(f"fedrep {found['fedrep']}, protocol {found['protocol']}\n")
