"""Logs for people on a terminal and JSON lines everywhere else, through one processor that lets no secret pass.

Everything goes to stderr, so that stdout stays free for a command's own answer. Lines of other libraries (grpc,
uvicorn, sqlalchemy) take the same way and the same form.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Mapping
from typing import Any, TextIO

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from fedrep_runtime.texts import harmless

HIDDEN = "<hidden>"
LONGEST_LIST = 64

_SECRET_NAME = re.compile(r"token|secret|passphrase|password|private|seed|^share$|^shares$|^mask|residual", re.IGNORECASE)
# An invitation, or a private key in PEM, may sit inside a longer text such as an error message.
_SECRET_TEXT = re.compile(
    r"fedrep1\.[A-Za-z0-9_-]{20,}(?:\.[A-Za-z0-9_-]+)?"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)",
    re.DOTALL,
)


def configure_logging(service: str, json: bool | None = None, level: str = "INFO") -> None:
    """`json=None` chooses by whether stderr is a terminal. Call once, before anything starts."""
    as_json = not sys.stderr.isatty() if json is None else json
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _named(service),
    ]
    render: list[Processor] = (
        [structlog.processors.format_exc_info, hide_secrets, structlog.processors.JSONRenderer(default=str)]
        if as_json
        else [structlog.processors.format_exc_info, hide_secrets, structlog.dev.ConsoleRenderer()]
    )
    structlog.configure(
        # Hidden here too: a handler that another library adds to the root logger sees what this one passes on.
        processors=[*shared, hide_secrets, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,  # tests and `fedrep demo` configure more than once
    )
    handler = _CurrentStderr()
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *render],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    logging.getLogger("alembic.runtime.plugins").setLevel(logging.WARNING)  # one line for each, in every command
    for name in ("httpx", "httpcore"):  # a line for each request with its URL, which of a webhook is a secret
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.getLogger("alembic.runtime.migration").addFilter(_tells_of_a_change)


def _tells_of_a_change(record: logging.LogRecord) -> bool:
    """Which database it is, and that nothing is to be done, is no news; an upgrade is."""
    return record.levelno > logging.INFO or record.getMessage().startswith("Running")


class _CurrentStderr(logging.StreamHandler[TextIO]):
    """Writes to whatever stderr is at that moment: it may be replaced, and the old one closed, in a running process."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


def _named(service: str) -> Processor:
    def add(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        event.setdefault("service", service)
        return event

    return add


def hide_secrets(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """The last step before a line leaves: no bytes, no vectors, nothing named like a secret.

    A traceback is text only later, in the formatter, which comes here again with it.
    """
    return {key: value if key == "exc_info" else safe_value(key, value) for key, value in event.items()}


def safe_value(name: str, value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float):
        return value  # a count called "tokens_left" is not a secret
    if _SECRET_NAME.search(name):
        return HIDDEN
    if isinstance(value, str):
        return harmless(_SECRET_TEXT.sub(HIDDEN, value))
    if isinstance(value, bytes | bytearray | memoryview):
        return f"<{len(value)} bytes>"
    if hasattr(value, "shape"):  # numpy and torch alike, without importing either
        return f"<array {tuple(value.shape)}>"
    if isinstance(value, Mapping):
        return {str(key): safe_value(str(key), inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        if len(value) > LONGEST_LIST:
            return f"<{len(value)} items>"
        return [safe_value(name, inner) for inner in value]
    return harmless(_SECRET_TEXT.sub(HIDDEN, str(value)))
