"""Robust aggregation (Definition 1 of the paper): rules that bear f Byzantine rows, and pre-steps to put before them.

Every rule is `rule(vectors, byzantine_count=f, pre=[...], **settings) -> Aggregate`: (n, d) updates in, one float32 vector
and an account of each row out. Nothing is mutated or remembered, the order of the rows does not matter, and memory beyond
input and output stays at a few megabytes.
"""

from fedrep.aggregators.coordinatewise import meamed, mean, median, trimmed_mean
from fedrep.aggregators.distances import centered_clipping, geometric_median, krum, multi_krum
from fedrep.aggregators.filters import dnc, filter_l2
from fedrep.aggregators.outcome import Aggregate, AggregatorWarning
from fedrep.aggregators.prepare import PRE_STEPS, Arc, Bucketing, Clip, Nnm, PreStep, arc, bucketing, clip, nnm
from fedrep.aggregators.rules import AGGREGATORS, ConfiguredRule, build_rule, conditions, rows_needed, tolerated

__all__ = [
    "AGGREGATORS",
    "PRE_STEPS",
    "Aggregate",
    "AggregatorWarning",
    "Arc",
    "Bucketing",
    "Clip",
    "ConfiguredRule",
    "Nnm",
    "PreStep",
    "arc",
    "bucketing",
    "build_rule",
    "centered_clipping",
    "clip",
    "conditions",
    "dnc",
    "filter_l2",
    "geometric_median",
    "krum",
    "meamed",
    "mean",
    "median",
    "multi_krum",
    "nnm",
    "rows_needed",
    "tolerated",
    "trimmed_mean",
]
