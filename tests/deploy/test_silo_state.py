"""What a silo has spent stays known when its kind changes: both kinds can go on with either claim, and neither forgets one."""

from __future__ import annotations

import pytest

from tests.deploy.api import render_in
from tests.deploy.chart import MATRIX, Manifest, Refused, one, pods, render

CLAIMS = {"StatefulSet": "state-fed-fedrep-silo-0", "Job": "fed-fedrep-silo-state"}
OTHER = {"StatefulSet": "Job", "Job": "StatefulSet"}


def silo(kind: str, claim: str = "") -> Manifest:
    values = MATRIX["silo-job"]
    return values | {"silo": values["silo"] | {"kind": kind, "state": {"existingClaim": claim}}}


def used(manifests: list[Manifest]) -> str:
    """The claim on which the silo's state is."""
    (pod,) = pods(manifests)
    named = [item["persistentVolumeClaim"]["claimName"] for item in pod["spec"]["volumes"] if item["name"] == "state"]
    made = [
        f"{template['metadata']['name']}-{item['metadata']['name']}-0"
        for item in manifests
        if item["kind"] == "StatefulSet"
        for template in item["spec"].get("volumeClaimTemplates", [])
    ]
    (claim,) = named + made
    return str(claim)


def rendered(kind: str, claim: str, *there: str) -> list[Manifest]:
    def objects(_: str, name: str) -> Manifest | None:
        return {"metadata": {"name": name, "namespace": "fedrep"}} if name in there else None

    return render_in(objects, silo(kind, claim))


@pytest.mark.parametrize("kind", CLAIMS)
def test_a_silo_of_another_kind_is_refused_while_the_claim_of_before_is_not_named(kind: str) -> None:
    own, left = CLAIMS[kind], CLAIMS[OTHER[kind]]
    assert used(rendered(kind, "")) == own
    assert used(rendered(kind, "", own)) == own
    for there in ((left,), (left, own)):
        words = f"silo.kind={kind} would begin with an empty ledger.*silo.state.existingClaim={left} to go on.*={own} to leave"
        with pytest.raises(Refused, match=words):
            rendered(kind, "", *there)
        for chosen in (own, left):
            assert used(rendered(kind, chosen, *there)) == chosen


@pytest.mark.parametrize("kind", CLAIMS)
@pytest.mark.parametrize("claim", ["", *CLAIMS.values(), "by-hand"])
def test_a_silo_has_its_state_on_the_claim_that_is_named(kind: str, claim: str) -> None:
    manifests = render(silo(kind, claim))
    assert used(manifests) == (claim or CLAIMS[kind])
    made = [item["metadata"]["name"] for item in manifests if item["kind"] == "PersistentVolumeClaim"]
    assert made == ([CLAIMS["Job"]] if used(manifests) == CLAIMS["Job"] else []), "what leaves a release may be deleted"


def test_a_stateful_set_that_is_told_its_own_claim_keeps_its_template_which_nobody_can_change() -> None:
    named, unnamed = (
        one(render(silo("StatefulSet", claim)), "StatefulSet", "fed-fedrep-silo") for claim in (CLAIMS["StatefulSet"], "")
    )
    assert named == unnamed
