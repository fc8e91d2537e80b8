"""The command line: what it imports, what it prints, how it fails."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import typer
from typer.main import get_command

from fedrep.errors import InvalidInputError
from fedrep.privacy import coordinate_epsilon
from fedrep_cli.main import CANNOT_CONNECT, COMMANDS, EXIT_CODES, Command, main
from fedrep_cli.output import emit

DOCS = Path(__file__).parents[2] / "docs" / "cli.md"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fedrep_cli.main", *arguments], capture_output=True, text=True, check=False, timeout=60
    )


def json_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main([*arguments, "--json"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    result: dict[str, Any] = json.loads(captured.out)
    return result


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], None]], None]:
    """Registers a command `fake` that does what it is told."""

    def register(action: Callable[[], None]) -> None:
        module = ModuleType("fake_command")
        module.app = typer.Typer()  # type: ignore[attr-defined]
        module.app.command()(action)
        monkeypatch.setitem(sys.modules, "fake_command", module)
        monkeypatch.setitem(COMMANDS, "fake", Command("fake_command:app", "A command for tests.", "server"))

    return register


def raising(error: BaseException) -> Callable[[], None]:
    def action() -> None:
        raise error

    return action


def test_help_and_version_import_nothing_heavy() -> None:
    script = (
        "import sys; from fedrep_cli.main import main; main(['--help']); main(['--version']);"
        "print([name for name in ('numpy', 'torch', 'grpc', 'typer', 'rich', 'cryptography') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "[]"


def test_help_lists_every_command_and_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--help"], ["-h"], []):
        assert main(arguments) == 0
        text = capsys.readouterr().out
        for name, entry in COMMANDS.items():
            assert re.search(rf"^  {name} +{re.escape(entry.help)}$", text, re.MULTILINE)
        for code, meaning in EXIT_CODES.items():
            assert f"{code:>3}  {meaning}" in text


def test_the_exit_codes_are_documented() -> None:
    documented = re.findall(r"^\| (\d+) \|", DOCS.read_text(), re.MULTILINE)
    assert [int(code) for code in documented] == list(EXIT_CODES)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_documented_with_its_sub_commands(name: str) -> None:
    row = re.search(rf"^\| `fedrep {name}` \| (.*?) ?\|", DOCS.read_text(), re.MULTILINE)
    assert row is not None
    module, _, attribute = COMMANDS[name].target.partition(":")
    command = get_command(getattr(importlib.import_module(module), attribute))
    assert set(re.findall(r"`([a-z-]+)`", row[1])) == set(getattr(command, "commands", ()))


SERVE_UNTIL_STOPPED = {"client", "dashboard", "ca serve"}  # these print no result, only what happens


def programs(name: str, command: Any) -> Iterator[tuple[str, set[str]]]:
    """Every command below `name` that can be run, with its options."""
    for sub, inner in getattr(command, "commands", {}).items():
        yield from programs(f"{name} {sub}", inner)
    if not getattr(command, "commands", None) or command.invoke_without_command:
        yield name, {option for parameter in command.params for option in parameter.opts}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_that_prints_a_result_takes_json(name: str) -> None:
    module, _, attribute = COMMANDS[name].target.partition(":")
    command = get_command(getattr(importlib.import_module(module), attribute))
    without = {path for path, options in programs(name, command) if "--json" not in options}
    assert without <= SERVE_UNTIL_STOPPED


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_points_at_a_module_that_exists(name: str) -> None:
    module, _, attribute = COMMANDS[name].target.partition(":")
    assert find_spec(module) is not None
    assert attribute
    assert len(COMMANDS[name].help) < 100


def test_an_unknown_command_is_a_usage_error_with_a_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["epsilom"]) == 2
    assert capsys.readouterr().err == "fedrep: there is no command 'epsilom'. Did you mean 'epsilon'? See fedrep --help.\n"
    assert main(["--frobnicate"]) == 2
    assert "no option '--frobnicate'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--d", "100"], "'--k'"),
        (["--d", "100", "--k", "x", "--alpha", "1"], "'--k'"),
        (["--d", "100", "--k", "2", "--alpha", "1", "--what"], "--what"),
        (["--d", "100", "--k", "2"], "give --alpha"),
        (["--d", "100", "--k", "2", "--alpha", "0.5", "--budget", "inf"], "--budget must be a number"),
        (["--d", "100", "--k", "2", "--budget", "nan"], "--budget must be a number"),
    ],
)
def test_a_wrong_command_line_is_one_sentence_and_exit_code_2(
    arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["epsilon", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert reason in captured.err
    assert captured.err.endswith("See fedrep epsilon --help.\n")


def test_a_wrong_option_of_a_sub_command_points_to_its_own_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "show", "--what"]) == 2
    assert capsys.readouterr().err == "fedrep run: No such option: --what. See fedrep run show --help.\n"


@pytest.mark.parametrize(
    ("error", "code", "sentence"),
    [
        (InvalidInputError("k is wrong;\n take another"), 1, "k is wrong; take another"),
        (ConnectionRefusedError("nobody listens"), 3, "cannot connect: nobody listens."),
        (TimeoutError("no answer"), 3, "cannot connect: no answer."),
        (FileNotFoundError(2, "No such file or directory", "run.toml"), 1, "No such file or directory: run.toml."),
        (OSError(28, "No space left on device"), 1, "the disk is full. Free some space and start again"),
        (OSError(28, "took only a part of a record", "changes-1.log"), 1, "the disk is full: changes-1.log. Free some space"),
        (ModuleNotFoundError("No module named 'grpc'", name="grpc"), 1, "install fedrep[server]"),
        (ZeroDivisionError("division by zero"), 70, "ZeroDivisionError: division by zero"),
        (ModuleNotFoundError("No module named 'fedrep.x'", name="fedrep.x"), 70, "No module named 'fedrep.x'"),
    ],
)
def test_what_a_command_raises_becomes_one_sentence_and_an_exit_code(
    error: Exception,
    code: int,
    sentence: str,
    command: Callable[[Callable[[], None]], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    command(raising(error))
    assert main(["fake"]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("fedrep fake: ")
    assert captured.err.count("\n") == 1
    assert sentence in captured.err


@pytest.mark.parametrize(("status", "code"), [("UNAVAILABLE", 3), ("DEADLINE_EXCEEDED", 3), ("PERMISSION_DENIED", 1)])
def test_a_failed_call_says_what_the_server_said(
    status: str, code: int, command: Callable[[Callable[[], None]], None], capsys: pytest.CaptureFixture[str]
) -> None:
    grpc = pytest.importorskip("grpc")

    class Failed(grpc.RpcError):  # type: ignore[misc,name-defined]
        def code(self) -> Any:
            return getattr(grpc.StatusCode, status)

        def details(self) -> str:
            return "the server said so"

    command(raising(Failed()))
    assert main(["fake"]) == code
    said = capsys.readouterr().err
    assert f"the server said so ({status})." in said
    assert said.count("\n") == 1
    assert ("fedrep doctor" in said) is (code == CANNOT_CONNECT), "only who cannot connect is sent to look"


def test_an_interrupted_command_is_quiet(
    command: Callable[[Callable[[], None]], None], capsys: pytest.CaptureFixture[str]
) -> None:
    command(raising(KeyboardInterrupt()))
    assert main(["fake"]) == 130
    assert capsys.readouterr() == ("", "")


def test_an_interruption_while_a_command_is_loading_is_quiet(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(name: str) -> ModuleType:
        raise KeyboardInterrupt

    monkeypatch.setattr("fedrep_cli.loading.importlib.import_module", interrupted)
    assert main(["epsilon"]) == 130
    assert capsys.readouterr() == ("", "")


def test_a_command_may_choose_its_exit_code(command: Callable[[Callable[[], None]], None]) -> None:
    command(raising(typer.Exit(5)))
    assert main(["fake"]) == 5


def test_debugging_shows_the_traceback(command: Callable[[Callable[[], None]], None], monkeypatch: pytest.MonkeyPatch) -> None:
    command(raising(InvalidInputError("k is wrong")))
    monkeypatch.setenv("FEDREP_DEBUG", "1")
    with pytest.raises(InvalidInputError):
        main(["fake"])


def test_a_reader_that_goes_away_is_no_news() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "fedrep_cli.main", "epsilon", "--d", "100", "--k", "2", "--alpha", "0.5"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"},  # fails at the last flush
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(timeout=60) == 1


def test_emit_prints_the_same_mapping_either_way(capsys: pytest.CaptureFixture[str]) -> None:
    result = {"b": np.float64(1.5), "a": np.arange(3), "path": Path("x"), "names": {"z", "y"}}
    emit(result, True, lambda _: "unused")
    assert json.loads(capsys.readouterr().out) == {"b": 1.5, "a": [0, 1, 2], "path": "x", "names": ["y", "z"]}
    emit(result, False, lambda shown: f"b is {shown['b']}")
    assert capsys.readouterr().out == "b is 1.5\n"


def test_emit_draws_what_rich_can_draw_and_refuses_json_that_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    from rich.text import Text

    emit({}, False, lambda _: Text("drawn"))
    assert capsys.readouterr().out == "drawn\n"
    for value in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match="not JSON compliant"):
            emit({"epsilon": value}, True, lambda _: "")
    with pytest.raises(TypeError, match="has no JSON form"):
        emit({"x": object()}, True, lambda _: "")


def test_epsilon_prints_the_check_values_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    result = json_of(capsys, "epsilon", "--d", "272474", "--k", "425", "--alpha", "0.95", "--rounds", "10")
    assert result["epsilon_round"] == pytest.approx(9.539, abs=5e-4)
    assert result["epsilon_theorem2"] == pytest.approx(18.592, abs=5e-4)
    assert result["epsilon_total"] == pytest.approx(10 * result["epsilon_round"])
    assert result["alpha"] == 0.95
    assert result["meaningful"] is False


def test_epsilon_says_none_without_obfuscation_and_what_it_covers(capsys: pytest.CaptureFixture[str]) -> None:
    result = json_of(capsys, "epsilon", "--d", "100", "--k", "2", "--alpha", "0", "--budget", "5")
    assert result["epsilon_round"] == result["epsilon_theorem2"] == result["epsilon_total"] == "none"
    assert result["within_budget"] is False
    assert result["rounds_within_budget"] == 0
    assert "opened sums" in result["covers"]
    assert main(["epsilon", "--d", "100", "--k", "2", "--alpha", "0"]) == 0
    assert "no guarantee" in capsys.readouterr().out


def test_epsilon_text_rounds_up_and_warns(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["epsilon", "--d", "272474", "--k", "425", "--alpha", "0.95", "--rounds", "2"]) == 0
    text = capsys.readouterr().out
    assert "9.540" in text
    assert "19.079" in text
    assert "too large to mean much" in text
    assert main(["epsilon", "--d", "100", "--k", "1", "--alpha", "0.2"]) == 0
    text = capsys.readouterr().out
    assert "the theorem fails" in text
    assert "too large" not in text


def test_epsilon_finds_the_alpha_for_a_budget(capsys: pytest.CaptureFixture[str]) -> None:
    result = json_of(capsys, "epsilon", "--d", "1000", "--k", "5", "--budget", "8", "--rounds", "20")
    assert result["alpha"] == result["alpha_for_budget"]
    assert 20 * (coordinate_epsilon(1000, 5, result["alpha"]) or 0) <= 8
    assert result["within_budget"] is True
    assert result["rounds_within_budget"] == 20
    free = json_of(capsys, "epsilon", "--d", "1000", "--k", "5", "--alpha", "1", "--budget", "8")
    assert free["rounds_within_budget"] == "any number"
    assert main(["epsilon", "--d", "1000", "--k", "5", "--alpha", "1", "--budget", "8"]) == 0
    assert "it lasts for any number of rounds;" in " ".join(capsys.readouterr().out.split())
    over = json_of(capsys, "epsilon", "--d", "1000", "--k", "5", "--alpha", "0.5", "--budget", "8", "--rounds", "20")
    assert over["within_budget"] is False
    assert over["rounds_within_budget"] == int(8 / over["epsilon_round"])


def test_plan_describes_the_papers_experiment(capsys: pytest.CaptureFixture[str]) -> None:
    result = json_of(capsys, "plan", "--alpha", "0.5")
    assert result["problems"] == []
    assert result["k"] == 425
    assert result["buffers"]["sizes"] == [2] * 16
    assert result["buffers"]["value_bits"] == 14  # seats are fixed: no turnout makes a larger buffer
    slack = {"absent_silos": 10, "silent_holders": 10, "dropouts_per_buffer": 0, "lost_buffers": 1, "then_skipped": False}
    assert result["slack"] == slack
    assert result["privacy"]["epsilon_round"] == pytest.approx(12.512, abs=5e-4)
    assert result["privacy"]["epsilon_total"] == pytest.approx(1251.2, abs=0.05)
    exponent = np.exp(-0.5 * 425 * 24 / 272474)
    assert result["contraction"]["d_cons"] == pytest.approx(272474 * (1 - exponent) + 425 * exponent)
    assert result["traffic"]["bits_per_round"] == result["traffic"]["bits_up"] + result["traffic"]["bits_down"]
    assert 0 < result["traffic"]["against_paper"] < 1


def test_plan_says_plainly_when_epsilon_means_little_or_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--alpha", "0.95", "--rounds", "2"]) == 0
    assert "too large to mean much" in capsys.readouterr().out
    assert main(["plan", "--alpha", "0.95", "--rounds", "1"]) == 0
    assert "too large" not in capsys.readouterr().out
    assert main(["plan", "--alpha", "0"]) == 0
    text = capsys.readouterr().out
    assert "epsilon none per round, none in total" in text
    assert "no guarantee" in text


def test_plan_lists_every_reason_for_a_refusal_and_ends_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--silos", "6", "--byzantine", "2", "--json"]) == 1
    captured = capsys.readouterr()
    assert len(json.loads(captured.out)["problems"]) >= 2
    assert captured.err == ""
    assert main(["plan", "--silos", "6", "--byzantine", "2"]) == 1
    assert "This run would be refused:\n  - " in capsys.readouterr().out


def test_plan_survives_settings_for_which_little_can_be_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--silos", "8", "--byzantine", "0", "--K", "4", "--d", "100"]) == 1
    text = capsys.readouterr().out
    assert "none can be promised" in text
    assert text.count("cannot be counted") == 2
    assert main(["plan", "--quorum", "1"]) == 1
    assert "  - quorum 1: a round needs at least " in capsys.readouterr().out
    assert main(["plan", "--silos", "3", "--buffer-size", "4"]) == 1
    assert "3 silos do not fill one buffer of 4" in capsys.readouterr().err


def test_plan_names_no_quorum_that_nobody_set(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--silos", "4", "--byzantine", "1", "--json"]) == 1
    result = json.loads(capsys.readouterr().out)
    assert result["quorum"] == 4
    assert [problem.partition(":")[0] for problem in result["problems"][:1]] == ["quorum 4"]
    assert any("4 silos in buffers of 2 give 2 buffers" in problem for problem in result["problems"])


@pytest.mark.parametrize(
    ("option", "value", "setting", "reason"),
    [
        ("--quorum", 1, "quorum", "quorum 1: a round needs at least 7 silos"),
        ("--quorum", 11, "quorum", "quorum 11: between 1 and the 10 silos"),
        ("--buffer-size", 1, "buffer_size", "buffer size 1: at least 2"),
        ("--min-survivors", 1, "min_survivors", "min_survivors 1: raise it to c + 2 = 2"),
    ],
)
def test_what_the_preflight_refuses_is_listed_alike_for_options_and_run_files(
    option: str, value: int, setting: str, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.toml"
    names = json.dumps([f"silo-{number:03}" for number in range(10)])
    path.write_text(f'name = "plan"\nsilos = {names}\nalpha = 0.95\nbyzantine_count = 2\n{setting} = {value}\n')
    results = []
    for arguments in (["--silos", "10", "--byzantine", "2", option, str(value)], ["--config", str(path)]):
        assert main(["plan", "--d", "5000", "--json", *arguments]) == 1
        results.append(json.loads(capsys.readouterr().out))
    assert results[0] == results[1]
    assert any(problem.startswith(reason) for problem in results[0]["problems"])


def test_plan_reads_a_run_file_and_says_what_the_same_options_would(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = [f"silo-{number:03}" for number in range(10)]
    path = tmp_path / "run.toml"
    path.write_text(f'name = "first"\nsilos = {json.dumps(names)}\nrounds = 7\nalpha = 0.9\nbyzantine_count = 2\n')
    options = ["--silos", "10", "--rounds", "7", "--alpha", "0.9", "--byzantine", "2"]
    from_file = json_of(capsys, "plan", "--config", str(path), "--d", "5000")
    assert from_file == json_of(capsys, "plan", "--d", "5000", *options)
    path.write_text(path.read_text().replace("byzantine_count = 2", "byzantine_count = 4"))
    assert main(["plan", "--config", str(path), "--d", "5000"]) == 1
    assert "This run would be refused:\n  - " in capsys.readouterr().out


def test_plan_takes_no_options_that_could_contradict_a_run_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.toml"
    path.write_text('name = "first"\nsilos = ["a", "b"]\n')
    assert main(["plan", "--config", str(path)]) == 2
    assert "give --d too" in capsys.readouterr().err
    assert main(["plan", "--config", str(path), "--d", "5000", "--alpha", "0.95"]) == 2
    assert "leave out what else you gave (alpha)" in capsys.readouterr().err
    assert main(["plan", "--config", str(tmp_path / "none.toml"), "--d", "5000"]) == 1
    assert "There is no settings file" in capsys.readouterr().err


@pytest.mark.parametrize("density", ["nan", "inf", "-1", "0", "2"])
def test_plan_refuses_a_density_that_is_no_share(density: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--density", density]) == 2
    assert "'--density'" in capsys.readouterr().err


def test_the_program_itself_ends_with_the_exit_code() -> None:
    assert run("epsilon", "--d", "10", "--k", "2", "--alpha", "2").returncode == 1
    done = run("nothing")
    assert done.returncode == 2
    assert done.stdout == ""


def test_with_json_stdout_holds_the_result_alone_whatever_else_is_printed(
    command: Callable[[Callable[..., None]], None], capsys: pytest.CaptureFixture[str]
) -> None:
    def action(as_json: bool = typer.Option(False, "--json")) -> None:
        sys.stdout.write("rows loaded\n")
        emit({"answer": 42}, as_json, str)

    command(action)
    assert main(["fake", "--json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out) == {"answer": 42}
    assert captured.err == "rows loaded\n"
    assert main(["fake"]) == 0
    assert capsys.readouterr().out.startswith("rows loaded\n")


def test_a_file_that_ends_too_soon_is_no_question_without_an_answer(
    command: Callable[[Callable[[], None]], None], capsys: pytest.CaptureFixture[str]
) -> None:
    command(raising(EOFError("no data left in file")))
    assert main(["fake"]) != 0
    said = capsys.readouterr().err
    assert "no data left in file" in said
    assert "question" not in said


def test_a_closed_stdout_is_no_fault() -> None:
    asked = f"{sys.executable} -m fedrep_cli.main epsilon --d 100 --k 5 --alpha 0.5 >&-"
    ended = subprocess.run(["sh", "-c", asked], capture_output=True, text=True, check=False, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, "")
