"""The host name in the certificate authority's own TLS certificate.

Callers expect it instead of the address they dial: no other server's certificate carries it, and the authority can move to
another address without a new certificate.
"""

AUTHORITY_NAME = "authority.fedrep.internal"
OWN_NAME = "authority"  # in its own certificate; nobody else can be invited under it
