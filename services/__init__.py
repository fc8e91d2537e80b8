"""The processes around the pure library: server, client, identity, and the command that starts them.

gRPC for Python has no switch for TLS 1.3 only, and reads its one related setting when it is first imported. Hence this
place: with suites that need an RSA certificate, TLS 1.2 finds no cipher for the federation's ECDSA certificates, while
the suites of TLS 1.3 are always on. `services.runtime.tls.require_tls13` looks again at every call.
"""

import os

os.environ["GRPC_SSL_CIPHER_SUITES"] = "ECDHE-RSA-AES256-GCM-SHA384"
