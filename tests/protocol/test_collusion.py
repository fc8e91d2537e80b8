"""Attackers who know each other's updates and no others: what they make of them, and what is refused before the run."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from fedrep.attacks import ATTACKS, alie_z
from fedrep.errors import SettingsError
from fedrep.protocol.collusion import Attack, Numbers, hiding_z, sent_by_all
from fedrep.protocol.manifests import SiloName
from tests.protocol.federation import run_manifest

DEMO = Numbers(silos=10, buffer_size=2, attackers=2)
MODEL = np.zeros(400, np.float32)
OWN = np.random.default_rng(7).normal(size=(2, 400)).astype(np.float32)
NEED_OTHERS = {"alie", "opt_alie", "mimic", "minmax", "minsum", "fang"}
OPTIONS = {"nonfinite": {"kind": "huge"}}


def test_alie_hides_among_the_buffers_that_the_rule_sees() -> None:
    assert alie_z(10, 2) == 0.0, "among ten silos two have no room at all"
    assert hiding_z(DEMO) == pytest.approx(math.sqrt(2) * alie_z(5, 2))
    assert hiding_z(Numbers(silos=7, buffer_size=2, attackers=2)) == pytest.approx(alie_z(7, 2)), "no honest majority of buffers"
    assert Attack("alie").checked(DEMO).options["z"] == hiding_z(DEMO)
    assert Attack("alie", {"z": 1.5}).checked(DEMO).options["z"] == 1.5


@pytest.mark.parametrize(
    ("attack", "numbers", "words"),
    [
        (Attack("alie"), Numbers(20, 2, 2), r"no room to hide in \(z = 0\): take more attackers, fewer silos, or the option z"),
        (Attack("alie"), Numbers(8, 2, 5), "honest majority of at least three: take fewer attackers or give the option z"),
        (Attack("alie", {"z": 0.0}), DEMO, "would send what they learned"),
        (Attack("nonfinite"), DEMO, "use the option kind = 'huge'"),
        (Attack("mimic", {"target": 5}), DEMO, "silo 5 cannot be mimicked"),
        (Attack("fang", {"against": "median"}), DEMO, "against 'trimmed_mean' or 'krum'"),
        (Attack("foe"), Numbers(3, 2, 3), "leave nobody honest"),
        *[(Attack(name, {"z": 1.0} if name == "alie" else {}), Numbers(8, 2, 1), "take more attackers") for name in NEED_OTHERS],
    ],
)
def test_what_cannot_be_played_is_refused_with_what_to_change(attack: Attack, numbers: Numbers, words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        attack.checked(numbers)


@pytest.mark.parametrize("name", sorted(set(ATTACKS) - NEED_OTHERS))
def test_the_other_attacks_are_played_by_one_alone(name: str) -> None:
    Attack(name, OPTIONS.get(name, {})).checked(Numbers(8, 2, 1))


@pytest.mark.parametrize("rule", ["geometric_median", "krum", "mean"])
@pytest.mark.parametrize("name", ATTACKS)
def test_two_who_know_each_other_move_the_mean_with_every_attack(name: str, rule: str) -> None:
    run = run_manifest(14, MODEL, byzantine=0 if rule == "mean" else 2, aggregator=rule)
    attack = Attack(name, OPTIONS.get(name, {})).checked(Numbers.of(run, 2))
    known = {SiloName("a"): OWN[0], SiloName("b"): OWN[1]}
    sent = sent_by_all(attack, run, known, lambda _: np.random.default_rng(3))
    received = np.clip(np.stack([*sent.values()]), -10.0, 10.0)  # as the ring does
    moved = np.linalg.norm(received.mean(axis=0) - OWN.mean(axis=0)) / np.linalg.norm(OWN.mean(axis=0))
    assert moved > 0.1
    again = sent_by_all(attack, run, dict(reversed(known.items())), lambda _: np.random.default_rng(3))
    assert all(np.array_equal(sent[silo], again[silo]) for silo in known), "whoever calculates it gets the same"


def test_fang_guesses_the_edge_of_the_honest_updates_from_the_attackers_own() -> None:
    """Three to four deviations from the mean, against the direction in which it points."""
    sent = Attack("fang").checked(DEMO).crafted(OWN, np.random.default_rng(0), lambda rows: np.median(rows, axis=0))
    steps = (OWN.mean(axis=0) - sent) / OWN.std(axis=0) * np.sign(OWN.mean(axis=0))
    assert steps.min() > 2.99
    assert steps.max() < 4.01
    assert not np.array_equal(sent[0], sent[1])


def test_fang_turns_against_krum_where_the_run_uses_it() -> None:
    numbers = Numbers(silos=14, buffer_size=2, attackers=2, aggregator="multi_krum")
    assert Attack("fang").checked(numbers).options["against"] == "krum"
    assert Attack("fang", {"against": "trimmed_mean"}).checked(numbers).options["against"] == "trimmed_mean"


@pytest.mark.parametrize(("name", "options", "text"), [("foo", {}, "no attack 'foo'"), ("foe", {"bla": 3}, "no option 'bla'")])
def test_a_misspelt_attack_is_refused_though_nobody_plays_it(name: str, options: dict[str, Any], text: str) -> None:
    with pytest.raises(SettingsError, match=text):
        Attack(name, options).checked(Numbers(8, 2, 0))
    assert not Attack("foe").checked(Numbers(8, 2, 0)).name


@pytest.mark.parametrize(("options", "text"), [({"epsilon": "abc"}, "wrong kind"), ({"own": 3}, "no option 'own'")])
def test_an_option_of_the_wrong_kind_is_refused_in_a_sentence(options: dict[str, Any], text: str) -> None:
    with pytest.raises(SettingsError, match=text):
        Attack("foe", options).checked(Numbers(8, 2, 1))
