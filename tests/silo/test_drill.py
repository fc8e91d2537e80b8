"""Drills: attackers who share a folder act together, whoever is missing is missing, and nothing about it breaks a silo."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedrep.attacks import ATTACKS
from fedrep.errors import RefusedError, SettingsError
from fedrep.protocol.collusion import Attack, Numbers
from fedrep.protocol.manifests import RunManifest
from fedrep_runtime.run_config import RunConfig
from fedrep_silo.config import DrillSettings, PolicySettings, load_silo_settings
from fedrep_silo.drill import Drill
from tests.harness.federation import Federation
from tests.harness.scenarios import finish, serve

D = 64
NAMES = tuple(f"silo-{number:02d}" for number in range(10))
G = np.random.default_rng(5).normal(size=(3, D)).astype(np.float32)
OPTIONS: dict[str, dict[str, Any]] = {"nonfinite": {"kind": "huge"}}


def run_of(**changes: Any) -> RunManifest:
    settings: dict[str, Any] = {"silos": NAMES, "byzantine_count": 2, "drills": True, "fraction": 0.5, **changes}
    return RunConfig(name="drill", **settings).manifest(D, bytes(32), bytes(32))


def drills(attack: str, channel: Path | None, count: int = 2, **options: Any) -> list[Drill]:
    settings = DrillSettings(attack=attack, options={**OPTIONS.get(attack, {}), **options}, channel=channel)
    return [Drill.of(settings, name) for name in NAMES[:count]]


def played(run: RunManifest, attackers: list[Drill], round_number: int = 1) -> list[NDArray[np.float32]]:
    """As the machines do: everybody tells before anybody proposes, and sends once the consensus is there."""
    for drill, g in zip(attackers, G, strict=False):
        drill.check(run)
        drill.share(run, round_number, g)
    return [drill.of_update(run, round_number, g) for drill, g in zip(attackers, G, strict=False)]


@pytest.mark.parametrize("attack", ATTACKS)
def test_attackers_with_one_channel_move_the_mean_with_every_attack_of_the_table(attack: str, tmp_path: Path) -> None:
    sent = np.clip(played(run_of(), drills(attack, tmp_path)), -10.0, 10.0).mean(axis=0)  # as the ring does
    assert np.linalg.norm(sent - G[:2].mean(axis=0)) > 0.1 * np.linalg.norm(G[:2].mean(axis=0))


def test_they_send_what_the_attack_makes_of_all_of_their_updates(tmp_path: Path) -> None:
    attack = Attack("minmax").checked(Numbers(10, 2, 3))
    expected = attack.crafted(G, np.random.default_rng(0), lambda rows: rows.mean(axis=0))
    for sent, row in zip(played(run_of(), drills("minmax", tmp_path, 3)), expected, strict=True):
        np.testing.assert_allclose(sent, row, rtol=1e-5)


def test_an_attacker_that_is_late_or_dead_is_left_out_and_nobody_waits(tmp_path: Path) -> None:
    first, second, dead = drills("minmax", tmp_path, 3)
    run = run_of()
    dead.share(run, 1, G[2])  # in the round before it died
    with_two = played(run, [first, second], 2)
    assert np.array_equal(with_two[0], played(run, drills("minmax", tmp_path / "other"), 2)[0])
    assert np.array_equal(played(run, [first], 3)[0], G[0]), "alone it has nothing to make an attack of"


@pytest.mark.parametrize("left", [b"", b"\0" * 7, np.ones(D - 1, "<f4").tobytes(), np.full(D, np.nan, "<f4").tobytes()])
def test_what_is_no_update_in_the_channel_is_passed_over(left: bytes, tmp_path: Path) -> None:
    run = run_of()
    place = tmp_path / run.digest().hex() / "00000001"
    place.mkdir(parents=True)
    (place / NAMES[5]).write_bytes(left)
    (place / "stranger").write_bytes(np.ones(D, "<f4").tobytes())
    assert np.array_equal(played(run, drills("minmax", tmp_path))[0], played(run, drills("minmax", tmp_path / "clean"))[0])


def test_a_channel_that_cannot_be_used_leaves_the_attacker_alone_and_the_silo_alive(tmp_path: Path, lines: list[Any]) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    assert np.array_equal(played(run_of(), drills("minmax", blocked)), G[:2])
    assert any(line["event"] == "drill_channel" and "are not told" in line["text"] for line in lines)


def test_an_attack_that_today_cannot_be_played_sends_the_honest_update(tmp_path: Path, lines: list[Any]) -> None:
    first = drills("mimic", tmp_path, 2, target=1)[0]
    assert np.array_equal(played(run_of(), [first])[0], G[0])
    assert any("this round is played honestly: silo 1 cannot be mimicked" in line.get("text", "") for line in lines)


def test_the_channel_keeps_no_old_rounds_and_nothing_that_others_may_read(tmp_path: Path) -> None:
    run, attackers = run_of(), drills("foe", tmp_path)
    for number in range(1, 6):
        played(run, attackers, number)
    kept = sorted(path.name for path in (tmp_path / run.digest().hex()).iterdir())
    assert kept == ["00000004", "00000005"]
    assert {path.stat().st_mode & 0o077 for path in tmp_path.rglob("silo-*")} == {0}


def test_two_runs_in_one_folder_do_not_mix(tmp_path: Path) -> None:
    one, other = run_of(), run_of(alpha=0.25)
    drills("minmax", tmp_path, 3)[2].share(other, 1, G[2])
    assert np.array_equal(played(one, drills("minmax", tmp_path))[0], played(one, drills("minmax", tmp_path / "x"))[0])


@pytest.mark.parametrize("attack", ["alie", "opt_alie", "mimic", "minmax", "minsum", "fang"])
def test_what_one_cannot_play_alone_asks_for_a_channel_before_anything_starts(attack: str) -> None:
    with pytest.raises(SettingsError, match=r"take more attackers.*\[drill\] channel"):
        drills(attack, None)


def test_a_run_whose_numbers_leave_alie_no_room_is_refused_with_what_to_change(tmp_path: Path) -> None:
    drill = drills("alie", tmp_path)[0]
    drill.check(run_of())
    with pytest.raises(RefusedError, match="take more attackers, fewer silos, or the option z"):
        drill.check(run_of(silos=tuple(f"silo-{number}" for number in range(20))))
    drills("alie", tmp_path, 1, z=1.5)[0].check(run_of(silos=tuple(f"silo-{number}" for number in range(20))))


def test_without_a_drill_nothing_is_shared_and_nothing_changed(tmp_path: Path) -> None:
    drill = Drill.of(DrillSettings(channel=tmp_path), NAMES[0])
    assert np.array_equal(played(run_of(drills=False), [drill])[0], G[0])
    assert list(tmp_path.iterdir()) == []


def test_the_channel_is_meant_from_the_settings_own_folder(tmp_path: Path) -> None:
    file = tmp_path / "client.toml"
    file.write_text('[drill]\nattack = "minmax"\nchannel = "attackers"\n')
    assert load_silo_settings(file, {}).drill.channel == tmp_path / "attackers"


def test_real_silos_play_an_attack_together(tmp_path: Path, lines: list[Any]) -> None:
    async def scenario(federation: Federation, run: str) -> None:
        await federation.create_run(run, drills=True, rounds=2)
        rules, drill = PolicySettings(allow_drills=True), DrillSettings(attack="minmax", channel=tmp_path / "attackers")
        attackers = [federation.daemon(n, run, policy=rules, drill=drill) for n in (0, 1)]
        honest = [federation.daemon(n, run, policy=rules) for n in (2, 3)]
        assert await finish(*attackers, *honest) == [None] * 4
        status = await federation.status(run)
        assert [silo.drill for silo in status.silos] == ["minmax", "minmax", "", ""]

    serve(Federation.create(tmp_path / "federation", silos=4), scenario, "together")
    told = [line["attackers"] for line in lines if line["event"] == "drill"]
    assert told == [2] * 4, "two attackers, two rounds"
