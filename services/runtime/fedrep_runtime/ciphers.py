"""How a process prefers TLS 1.3, before it imports grpc.

gRPC for Python has no switch for TLS 1.3 only, and reads its one related setting when it is first imported. With suites that
need an RSA certificate, TLS 1.2 finds no cipher for the federation's ECDSA certificates, while the suites of TLS 1.3 are
always on. Programs call this first thing; `fedrep_runtime.tls.require_tls13` looks again at every call.
"""

from __future__ import annotations

import os


def prefer_tls13() -> None:
    os.environ["GRPC_SSL_CIPHER_SUITES"] = "ECDHE-RSA-AES256-GCM-SHA384"
