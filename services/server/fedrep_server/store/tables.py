"""The tables, for queries. The schema itself is made by `fedrep_server.migrations`; a test holds the two together.

Rows are keyed by the run's name, so that a backup reads on its own. A round's buffers and silos are JSON inside the
round: they are always read with it and never searched across rounds. Totals that the dashboard asks for with every
event (bytes, rounds, epsilon) are running columns, changed in the transaction that changes their cause.
"""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    false,
)

metadata = MetaData()


def _run() -> Column[str]:
    return Column("run", String, ForeignKey("runs.name"), primary_key=True)


def _number(name: str, default: str | None = "0") -> Column[int]:
    return Column(name, BigInteger, nullable=False, server_default=default)


def _text(name: str) -> Column[str]:
    return Column(name, Text, nullable=False, server_default="")


def _key(name: str) -> Column[int]:
    return Column(name, BigInteger, primary_key=True, autoincrement=False)


runs = Table(
    "runs",
    metadata,
    Column("name", String, primary_key=True),
    Column("hash", LargeBinary, nullable=False),
    Column("manifest", LargeBinary, nullable=False),
    Column("options", LargeBinary, nullable=False),
    Column("state", String, nullable=False),
    _text("reason"),
    Column("created_at", Double, nullable=False),
    _number("last_round"),
    _number("open_round"),
    _number("model_version"),
    Column("model_hash", LargeBinary, nullable=False),
    Column("chain", LargeBinary, nullable=False),
    Column("clip_range", Double, nullable=False),
    _number("clip_quiet"),
    Column("attendance", JSON, nullable=False),
    Column("buffer_seed", LargeBinary, nullable=False),
    _number("rounds_applied"),
    _number("rounds_skipped"),
    _number("bytes_up"),
    _number("bytes_down"),
    _number("last_event"),
    Column("rollback", LargeBinary),
    Column("amendments", LargeBinary),
    Column("tags", JSON),
    Column("deleted_at", Double),
    UniqueConstraint("hash", name="runs_hash"),
)

rounds = Table(
    "rounds",
    metadata,
    _run(),
    _key("round"),
    Column("outcome", String, nullable=False),
    _text("reason"),
    Column("started_at", Double, nullable=False),
    Column("phase_seconds", JSON, nullable=False),
    _number("consensus_size"),
    _number("roster_size"),
    _number("proposed"),
    _number("survivors"),
    _number("bytes_up"),
    _number("bytes_down"),
    Column("epsilon", Double),
    Column("epsilon_theorem2", Double),
    Column("clip_range", Double, nullable=False),
    Column("clip_rate", Double),
    Column("update_norm", Double),
    _number("model_version"),
    _number("per_silo"),
    _number("tolerated"),
    Column("buffers", JSON, nullable=False),
    Column("silos", JSON, nullable=False),
)

updates = Table("updates", metadata, _run(), _key("round"), Column("header", LargeBinary, nullable=False))

update_payloads = Table(
    "update_payloads",
    metadata,
    _run(),
    _key("round"),
    Column("coordinates", LargeBinary, nullable=False),
    Column("levels", LargeBinary, nullable=False),
)

statements = Table(
    "statements",
    metadata,
    _run(),
    _key("round"),
    Column("silo", String, primary_key=True),
    Column("signature", LargeBinary, nullable=False),
)

metrics = Table(
    "metrics",
    metadata,
    _run(),
    _key("round"),
    Column("reporter", String, primary_key=True),
    Column("role", String, nullable=False),
    Column("model_version", BigInteger),
    Column("train_loss", Double),
    Column("loss", Double),
    Column("accuracy", Double),
    Column("samples", BigInteger),
    Column("clip_rate", Double),
    Column("train_seconds", Double),
    Column("epsilon_total", Double),
    Column("epsilon_budget", Double),
    Column("drill", Text),
    Column("problem", Text),
    Column("given_up", BigInteger),
    Column("figures", JSON),
    Column("record_epsilon", Double),
    Column("record_delta", Double),
    Column("record_budget", Double),
    Column("record_none", Boolean),
    Column("epsilon_none", Boolean),
    Index("metrics_by_role", "run", "role", "round"),
    Index("metrics_best", "run", "role", "accuracy"),
)

silos = Table(
    "silos",
    metadata,
    _run(),
    Column("name", String, primary_key=True),
    Column("last_seen", Double, nullable=False, server_default="0"),
    _text("software_version"),
    Column("certificate_expires", Double, nullable=False, server_default="0"),
    _number("bytes_up"),
    _number("bytes_down"),
    Column("epsilon_ledger", Double, nullable=False, server_default="0"),
    _number("releases_without_guarantee"),
    _number("metrics_round"),
    Column("epsilon_reported", Double),
    Column("epsilon_budget", Double),
    _text("drill"),
    _text("problem"),
    _number("given_up"),
    Column("record_epsilon", Double),
    Column("record_delta", Double),
    Column("record_budget", Double),
    Column("record_none", Boolean, nullable=False, server_default=false()),
    Column("epsilon_none", Boolean, nullable=False, server_default=false()),
)

ledger = Table(
    "ledger",
    metadata,
    _run(),
    Column("silo", String, primary_key=True),
    _key("round"),
    _number("d", None),
    _number("k", None),
    Column("alpha", Double, nullable=False),
    Column("epsilon", Double),
)

events = Table(
    "events",
    metadata,
    _run(),
    _key("position"),
    Column("at", Double, nullable=False),
    Column("kind", String, nullable=False),
    Column("severity", String, nullable=False),
    _number("round"),
    _text("silo"),
    _text("text"),
)

models = Table(
    "models",
    metadata,
    _run(),
    _key("version"),
    Column("hash", LargeBinary, nullable=False),
    Column("chain", LargeBinary, nullable=False),
    _number("size"),
    Column("accuracy", Double),
    Column("kept", Boolean, nullable=False),
    Column("score", Double),
)

# Written before the run or round that refers to them exists, hence without a foreign key: see `model_store`.
model_files = Table(
    "model_files",
    metadata,
    Column("run", String, primary_key=True),
    _key("version"),
    Column("hash", LargeBinary, nullable=False),
    Column("chain", LargeBinary, nullable=False),
    Column("checksum", LargeBinary, nullable=False),
)

model_chunks = Table(
    "model_chunks",
    metadata,
    Column("run", String, primary_key=True),
    _key("version"),
    Column("tensor", String, primary_key=True),
    _key("number"),
    Column("data", LargeBinary, nullable=False),
)

leadership = Table(
    "leadership",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    _number("term"),
    _text("holder"),
    CheckConstraint("id = 1", name="leadership_one_row"),
)

# Parents before children: the order in which a restore may insert. Chunks travel as model files, the term does not travel.
BACKED_UP: tuple[Table, ...] = (
    runs,
    rounds,
    updates,
    update_payloads,
    statements,
    metrics,
    silos,
    ledger,
    events,
    models,
)
