"""What a person does with the preflight: the facts of a run, one conclusion, and the settings with which it would work."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from fedrep.buffers import number_of_buffers
from fedrep.protocol.manifests import RunManifest
from fedrep.protocol.preflight import findings
from fedrep.protocol.remedies import SILOS, remedies
from fedrep.protocol.thresholds import buffers_to_be_robust, share_threshold

WORKS: Final = "this run can be created"


@dataclass(frozen=True, slots=True)
class Fact:
    """One side of the run in a sentence, and what is wrong with it."""

    topic: str
    text: str
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Remedy:
    """Settings of the run file (`silos`: how many) that make it work, and the same in words."""

    settings: Mapping[str, Any]
    text: str


@dataclass(frozen=True, slots=True)
class Advice:
    """The conclusion is one sentence that ends with what to do; the remedies are what it offers."""

    facts: tuple[Fact, ...]
    conclusion: str
    remedies: tuple[Remedy, ...] = ()

    @property
    def problems(self) -> list[str]:
        return [problem for fact in self.facts for problem in fact.problems]

    @property
    def sentence(self) -> str:
        """For an error of one line: the reasons, unless the conclusion says them, and the conclusion last."""
        reasons = [problem.rstrip(".") for problem in self.problems if problem not in self.conclusion]
        return f"{'; '.join(reasons)}. {self.conclusion[:1].upper()}{self.conclusion[1:]}" if reasons else self.conclusion

    def described(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "problems": self.problems,
            "facts": [{"topic": fact.topic, "text": fact.text, "problems": list(fact.problems)} for fact in self.facts],
            "conclusion": self.conclusion,
            "remedies": [{"settings": dict(remedy.settings), "text": remedy.text} for remedy in self.remedies],
        }


def advise(run: RunManifest, options: Mapping[str, str] | None = None, *, may_change: Collection[str] | None = None) -> Advice:
    """`options` says what a command calls a setting, such as {"silos": "--silos"}; the others are named as in the run file.

    With `may_change` nothing else is offered: the terms of a run that exists are signed.
    """
    found = findings(run)
    facts = tuple(Fact(topic, FACTS[topic](run), tuple(problems)) for topic, problems in found.items())
    others = [problem for topic, problems in found.items() if topic != "terms" for problem in problems]
    if not others:
        return Advice(facts, "; ".join(found["terms"]) or WORKS)
    possible = [each for each in remedies(run) if may_change is None or set(each) <= set(may_change)]
    offered = tuple(Remedy(settings, _words(run, settings, options or {})) for settings in possible)
    return Advice(facts, "; besides, ".join((_conclusion(run, others, offered), *found["terms"])), offered)


def _conclusion(run: RunManifest, problems: list[str], offered: tuple[Remedy, ...]) -> str:
    if not offered:
        return "; ".join(problems)  # each says what to do, as far as anybody knows
    what = ", or ".join(remedy.text for remedy in offered)
    needed = next((remedy.settings[SILOS] for remedy in offered if SILOS in remedy.settings), None)
    if needed is None:
        return problems[0] if len(problems) == 1 else f"these settings do not go together: {what}"
    aim = f"f = {run.byzantine}" if run.byzantine else run.aggregator
    return f"with {aim} and s = {run.buffer_size} you need {needed} silos; you have {len(run.silos)}: {what}"


def _words(run: RunManifest, settings: Mapping[str, Any], options: Mapping[str, str]) -> str:
    invited = settings.get(SILOS)
    parts = [] if invited is None or SILOS in options else [f"invite {invited - len(run.silos)} more"]
    if taken := [f"{options[name]} {value}" for name, value in settings.items() if name in options]:
        parts.append("take " + " ".join(taken))
    if written := [f"{name} = {value!r}" for name, value in settings.items() if name not in options and name != SILOS]:
        parts.append("set " + " and ".join(written))
    return " and ".join(parts)


def _silos(run: RunManifest) -> str:
    return f"{len(run.silos)} silos, {run.quorum} of whom make a quorum"


def _terms(run: RunManifest) -> str:
    return f"{run.rounds} rounds, alpha = {run.alpha:g}, new buffers every {run.reshuffle_every} rounds"


def _holders(run: RunManifest) -> str:
    m, t = len(run.silos), share_threshold(len(run.silos))
    return (
        f"{t} of {m} silos recover a secret, so {m - t} may fall silent; f = {run.byzantine} may send anything, "
        f"c = {run.colluders} may help the server"
    )


def _buffers(run: RunManifest) -> str:
    count = number_of_buffers(len(run.silos), run.buffer_size)
    needed = f"; f = {run.byzantine} needs {buffers_to_be_robust(run.byzantine, run.aggregator)}" if run.byzantine else ""
    return f"{count} buffers of s = {run.buffer_size}, opened with {run.min_survivors} survivors or more{needed}"


def _bits(run: RunManifest) -> str:
    return f"{run.value_bits} bits per value in a ring of {run.ring_bits}"


def _coordinates(run: RunManifest) -> str:
    return f"K = {run.coordinates:,} of d = {run.parameters:,} coordinates, {run.coordinates // len(run.silos):,} per silo"


def _rule(run: RunManifest) -> str:
    return f"{run.aggregator} over the buffers, settings {run.aggregator_settings}"


FACTS: Final[Mapping[str, Callable[[RunManifest], str]]] = {
    "silos": _silos,
    "terms": _terms,
    "holders": _holders,
    "buffers": _buffers,
    "bits": _bits,
    "coordinates": _coordinates,
    "rule": _rule,
}
