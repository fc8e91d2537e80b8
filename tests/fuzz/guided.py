"""One target, fuzzed with inputs that coverage chooses: `python -m tests.fuzz.guided TARGET LIBFUZZER-OPTIONS`.

It needs atheris, which `make fuzz` installs beside the environment and not into it: it is made for few versions of Python.
"""

from __future__ import annotations

import sys

import atheris  # type: ignore[import-untyped,import-not-found,unused-ignore]

PACKAGES = ["fedrep", "fedrep_identity", "fedrep_runtime", "fedrep_server", "fedrep_silo", "fedrep_trainers"]
with atheris.instrument_imports(include=PACKAGES):
    from tests.fuzz.mutations import changed
    from tests.fuzz.targets import TARGETS, Message


def main() -> None:
    name, *options = sys.argv[1:]
    target = TARGETS[name]

    def one_input(data: bytes) -> None:
        target.accepts(data)

    message = target.decode
    if isinstance(message, Message):

        def change(data: bytes, most: int, seed: int) -> bytes:
            return changed(message, data, most, seed, atheris.Mutate)

        atheris.Setup([sys.argv[0], *options], one_input, custom_mutator=change)
    else:
        atheris.Setup([sys.argv[0], *options], one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
