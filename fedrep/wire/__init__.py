"""The wire format: `codec` turns messages into protobuf and back, `chunks` cuts vectors for streams, `v1` is generated."""
