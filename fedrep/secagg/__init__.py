"""Secure aggregation primitives: transcripts, keys, Shamir sharing, sealed shares, keystreams and masks.

Nothing here knows the protocol: who may learn what, and when, is decided in `fedrep.protocol`.
"""
