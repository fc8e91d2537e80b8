"""Which role may call which RPC. A method that is not listed may be called by nobody."""

from __future__ import annotations

from fedrep_identity.certificates import Role

_READERS = frozenset({Role.VIEWER, Role.ADMIN})
FOLLOWERS = frozenset({Role.SILO, Role.EVALUATOR})
_SILO = frozenset({Role.SILO})
_ADMIN = frozenset({Role.ADMIN})

FEDERATION = "/fedrep.wire.v1.FederationService/"
OBSERVER = "/fedrep.wire.v1.ObserverService/"

PERMISSIONS: dict[str, frozenset[Role]] = {
    FEDERATION + "Join": FOLLOWERS,
    FEDERATION + "FindRuns": FOLLOWERS,
    FEDERATION + "GetModel": FOLLOWERS,
    FEDERATION + "GetCertificates": _SILO,
    FEDERATION + "ProposeCoordinates": _SILO,
    FEDERATION + "Abstain": _SILO,
    FEDERATION + "GetConsensus": _SILO,
    FEDERATION + "SubmitMaskedShare": _SILO,
    FEDERATION + "GetSurvivors": _SILO,
    FEDERATION + "ConfirmSurvivors": _SILO,
    FEDERATION + "RevealShares": _SILO,
    FEDERATION + "GetUpdate": FOLLOWERS,
    FEDERATION + "ReportMetrics": FOLLOWERS,
    FEDERATION + "Leave": FOLLOWERS,
    FEDERATION + "Attend": _SILO,
    FEDERATION + "Play": FOLLOWERS,
    OBSERVER + "ListRuns": _READERS,
    OBSERVER + "GetRun": _READERS,
    OBSERVER + "ListRounds": _READERS,
    OBSERVER + "WatchRun": _READERS,
    OBSERVER + "CreateRun": _ADMIN,
    OBSERVER + "StopRun": _ADMIN,
    OBSERVER + "PauseRun": _ADMIN,
    OBSERVER + "ResumeRun": _ADMIN,
    OBSERVER + "ExcludeSilo": _ADMIN,
    OBSERVER + "ReadmitSilo": _ADMIN,
    OBSERVER + "RollBackRun": _ADMIN,
    OBSERVER + "AmendRun": _ADMIN,
    OBSERVER + "TagRun": _ADMIN,
    OBSERVER + "DeleteRun": _ADMIN,
    OBSERVER + "DownloadModel": _READERS | FOLLOWERS,
}

# Anyone with a certificate of the federation may ask whether the server is well and what it offers.
PUBLIC_SERVICES = (
    "/grpc.health.v1.Health/",
    "/grpc.reflection.v1alpha.ServerReflection/",
    "/grpc.reflection.v1.ServerReflection/",
)
