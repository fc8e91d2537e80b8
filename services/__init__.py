"""The processes around the pure library: server, client, identity, and the command that starts them.

gRPC for Python has no switch for TLS 1.3 only, and reads its one related setting when it is first imported. Hence this
place: with suites that need an RSA certificate, TLS 1.2 finds no cipher for the federation's ECDSA certificates, while the
suites of TLS 1.3 are always on.
"""

import os
import sys

TLS12_SUITES = "ECDHE-RSA-AES256-GCM-SHA384"

tls13_only = "grpc" not in sys.modules or os.environ.get("GRPC_SSL_CIPHER_SUITES") == TLS12_SUITES
os.environ["GRPC_SSL_CIPHER_SUITES"] = TLS12_SUITES
