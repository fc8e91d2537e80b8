"""Atomic files, folder locks, and logs that keep secrets."""

from __future__ import annotations

import io
import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import structlog

from fedrep.errors import SettingsError
from fedrep.secagg.keys import SecretBytes
from fedrep_runtime import logging as fedrep_logging
from fedrep_runtime.files import lock_folder, write_atomically
from fedrep_runtime.tls import channel_options, retry_config


def test_a_crash_while_writing_leaves_the_old_bytes_and_no_litter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "state"
    write_atomically(path, b"old")
    for step in ("fsync", "replace"):

        def crash(*_: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(os, step, crash)
            with pytest.raises(KeyboardInterrupt):
                write_atomically(path, b"new")
        assert path.read_bytes() == b"old"
        assert [entry.name for entry in tmp_path.iterdir()] == ["state"]


def test_a_file_that_cannot_be_written_is_named_as_it_was_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", "a name that nobody knows")

    monkeypatch.setattr("tempfile.mkstemp", refuse)
    with pytest.raises(PermissionError) as refused:
        write_atomically(tmp_path / "state", b"new")
    assert refused.value.filename == str(tmp_path / "state")


def test_files_are_private_unless_told_otherwise(tmp_path: Path) -> None:
    write_atomically(tmp_path / "a" / "secret", b"x")
    write_atomically(tmp_path / "a" / "public", b"x", 0o644)
    assert (tmp_path / "a" / "secret").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "a" / "public").stat().st_mode & 0o777 == 0o644


def test_a_second_process_is_refused_and_a_dead_one_leaves_no_lock(tmp_path: Path) -> None:
    script = (
        "import sys, pathlib\nfrom fedrep_runtime.files import lock_folder\n"
        "with lock_folder(pathlib.Path(sys.argv[1])):\n print('held', flush=True)\n sys.stdin.read()\n"
    )
    holder = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(SettingsError, match=f"in use by another process .id {holder.pid}.") as refused, lock_folder(tmp_path):
            pass
        assert refused.value.reason == "FOLDER_IN_USE"
    finally:
        holder.kill()
        holder.communicate()
    with lock_folder(tmp_path):
        pass


@pytest.fixture
def configured() -> None:
    fedrep_logging.configure_logging("test", json=None)


def test_away_from_a_terminal_every_line_is_json_with_service_level_and_time(
    configured: None, capsys: pytest.CaptureFixture[str]
) -> None:
    structlog.get_logger("a").info("round_applied", round=3, silos=["a", "b"])
    logging.getLogger("grpc").warning("from %s", "elsewhere")
    first, second = (json.loads(line) for line in capsys.readouterr().err.splitlines())
    assert first["event"] == "round_applied"
    assert (first["round"], first["silos"], first["service"], first["level"]) == (3, ["a", "b"], "test", "info")
    assert first["timestamp"].endswith("Z")
    assert (second["event"], second["level"], second["service"]) == ("from elsewhere", "warning", "test")


def test_no_secret_vector_or_key_passes_whatever_it_is_called(
    configured: None, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Numbers among the secrets have ten digits: no timestamp, line number or address in a line can hold them by chance."""
    log = structlog.get_logger("a")
    logging.getLogger().addHandler(caplog.handler)
    token = "fedrep1." + "QUJD" * 20 + ".c3Vt"
    pem = "-----BEGIN PRIVATE KEY-----\nMIGHAgEAMBMG\n-----END PRIVATE KEY-----"
    log.info(
        "x",
        payload=b"\x01secretbytes",
        vector=np.arange(5) + 9_418_237_600,
        wrapped=SecretBytes(b"hush-hush"),
        passphrase="correct horse",
        nested={"seed": "plum stone", "note": f"token was {token}"},
        listing=[b"hush-hush", "fine"],
        long=list(range(7_350_164_000, 7_350_165_000)),
        problem=f"could not read {pem}",
    )
    logging.getLogger("other").error("the token %s failed", token)
    try:
        raise ValueError(f"bad token {token}")
    except ValueError:
        log.exception("failed")
    text = capsys.readouterr().err
    text += "".join(str(record.msg) for record in caplog.records if record.name == "a")  # what other handlers see
    words = ("secretbytes", "hush-hush", "correct horse", "plum stone", token, "QUJDQUJD", "MIGHAgEA")
    numbers = ("9418237600", "9418237604", "7350164000", "7350164998")
    for secret in (*words, *numbers):
        assert secret not in text
    assert "fine" in text
    assert "<array (5,)>" in text


def test_on_a_terminal_a_person_can_read_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    fedrep_logging.configure_logging("test")
    structlog.get_logger("a").info("hello", who="world")
    assert not stream.getvalue().startswith("{")
    assert "hello" in stream.getvalue()


def test_only_the_listed_calls_are_repeated_by_the_channel() -> None:
    config = json.loads(retry_config([("fedrep.wire.v1.FederationService", "GetModel")]))
    (method,) = config["methodConfig"]
    assert method["name"] == [{"service": "fedrep.wire.v1.FederationService", "method": "GetModel"}]
    assert method["retryPolicy"]["retryableStatusCodes"] == ["UNAVAILABLE"]
    assert not any(name == "grpc.service_config" for name, _ in channel_options())
