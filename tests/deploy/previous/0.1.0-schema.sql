BEGIN TRANSACTION;
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('0005');
CREATE TABLE events (
	run VARCHAR NOT NULL, 
	position BIGINT NOT NULL, 
	at DOUBLE NOT NULL, 
	kind VARCHAR NOT NULL, 
	severity VARCHAR NOT NULL, 
	round BIGINT DEFAULT '0' NOT NULL, 
	silo TEXT DEFAULT '' NOT NULL, 
	text TEXT DEFAULT '' NOT NULL, 
	PRIMARY KEY (run, position), 
	FOREIGN KEY(run) REFERENCES runs (name)
);
CREATE TABLE leadership (
	id INTEGER NOT NULL, 
	term BIGINT DEFAULT '0' NOT NULL, 
	holder TEXT DEFAULT '' NOT NULL, 
	PRIMARY KEY (id), 
	CONSTRAINT leadership_one_row CHECK (id = 1)
);
INSERT INTO "leadership" VALUES(1,0,'');
CREATE TABLE ledger (
	run VARCHAR NOT NULL, 
	silo VARCHAR NOT NULL, 
	round BIGINT NOT NULL, 
	d BIGINT NOT NULL, 
	k BIGINT NOT NULL, 
	alpha DOUBLE NOT NULL, 
	epsilon DOUBLE, 
	PRIMARY KEY (run, silo, round), 
	FOREIGN KEY(run) REFERENCES runs (name)
);
CREATE TABLE metrics (
	run VARCHAR NOT NULL, 
	round BIGINT NOT NULL, 
	reporter VARCHAR NOT NULL, 
	role VARCHAR NOT NULL, 
	model_version BIGINT, 
	train_loss DOUBLE, 
	loss DOUBLE, 
	accuracy DOUBLE, 
	samples BIGINT, 
	clip_rate DOUBLE, 
	train_seconds DOUBLE, 
	epsilon_total DOUBLE, 
	epsilon_budget DOUBLE, 
	drill TEXT, 
	problem TEXT, 
	given_up BIGINT, figures JSON, record_epsilon DOUBLE, record_delta DOUBLE, record_budget DOUBLE, record_none BOOLEAN, 
	PRIMARY KEY (run, round, reporter), 
	FOREIGN KEY(run) REFERENCES runs (name)
);
CREATE TABLE model_chunks (
	run VARCHAR NOT NULL, 
	version BIGINT NOT NULL, 
	tensor VARCHAR NOT NULL, 
	number BIGINT NOT NULL, 
	data BLOB NOT NULL, 
	PRIMARY KEY (run, version, tensor, number)
);
CREATE TABLE model_files (
	run VARCHAR NOT NULL, 
	version BIGINT NOT NULL, 
	hash BLOB NOT NULL, 
	chain BLOB NOT NULL, 
	checksum BLOB NOT NULL, 
	PRIMARY KEY (run, version)
);
CREATE TABLE models (
	run VARCHAR NOT NULL, 
	version BIGINT NOT NULL, 
	hash BLOB NOT NULL, 
	chain BLOB NOT NULL, 
	size BIGINT DEFAULT '0' NOT NULL, 
	accuracy DOUBLE, 
	kept BOOLEAN NOT NULL, score DOUBLE, 
	PRIMARY KEY (run, version), 
	FOREIGN KEY(run) REFERENCES runs (name)
);
CREATE TABLE rounds (
	run VARCHAR NOT NULL, 
	round BIGINT NOT NULL, 
	outcome VARCHAR NOT NULL, 
	reason TEXT DEFAULT '' NOT NULL, 
	started_at DOUBLE NOT NULL, 
	phase_seconds JSON NOT NULL, 
	consensus_size BIGINT DEFAULT '0' NOT NULL, 
	roster_size BIGINT DEFAULT '0' NOT NULL, 
	proposed BIGINT DEFAULT '0' NOT NULL, 
	survivors BIGINT DEFAULT '0' NOT NULL, 
	bytes_up BIGINT DEFAULT '0' NOT NULL, 
	bytes_down BIGINT DEFAULT '0' NOT NULL, 
	epsilon DOUBLE, 
	epsilon_theorem2 DOUBLE, 
	clip_range DOUBLE NOT NULL, 
	clip_rate DOUBLE, 
	update_norm DOUBLE, 
	model_version BIGINT DEFAULT '0' NOT NULL, 
	per_silo BIGINT DEFAULT '0' NOT NULL, 
	tolerated BIGINT DEFAULT '0' NOT NULL, 
	buffers JSON NOT NULL, 
	silos JSON NOT NULL, 
	PRIMARY KEY (run, round), 
	FOREIGN KEY(run) REFERENCES runs (name)
);
CREATE TABLE runs (
	name VARCHAR NOT NULL, 
	hash BLOB NOT NULL, 
	manifest BLOB NOT NULL, 
	options BLOB NOT NULL, 
	state VARCHAR NOT NULL, 
	reason TEXT DEFAULT '' NOT NULL, 
	created_at DOUBLE NOT NULL, 
	last_round BIGINT DEFAULT '0' NOT NULL, 
	open_round BIGINT DEFAULT '0' NOT NULL, 
	model_version BIGINT DEFAULT '0' NOT NULL, 
	model_hash BLOB NOT NULL, 
	chain BLOB NOT NULL, 
	clip_range DOUBLE NOT NULL, 
	clip_quiet BIGINT DEFAULT '0' NOT NULL, 
	attendance JSON NOT NULL, 
	buffer_seed BLOB NOT NULL, 
	rounds_applied BIGINT DEFAULT '0' NOT NULL, 
	rounds_skipped BIGINT DEFAULT '0' NOT NULL, 
	bytes_up BIGINT DEFAULT '0' NOT NULL, 
	bytes_down BIGINT DEFAULT '0' NOT NULL, 
	last_event BIGINT DEFAULT '0' NOT NULL, "rollback" BLOB, amendments BLOB, 
	PRIMARY KEY (name), 
	CONSTRAINT runs_hash UNIQUE (hash)
);
CREATE TABLE silos (
	run VARCHAR NOT NULL, 
	name VARCHAR NOT NULL, 
	last_seen DOUBLE DEFAULT '0' NOT NULL, 
	software_version TEXT DEFAULT '' NOT NULL, 
	certificate_expires DOUBLE DEFAULT '0' NOT NULL, 
	bytes_up BIGINT DEFAULT '0' NOT NULL, 
	bytes_down BIGINT DEFAULT '0' NOT NULL, 
	epsilon_ledger DOUBLE DEFAULT '0' NOT NULL, 
	releases_without_guarantee BIGINT DEFAULT '0' NOT NULL, 
	metrics_round BIGINT DEFAULT '0' NOT NULL, 
	epsilon_reported DOUBLE, 
	epsilon_budget DOUBLE, 
	drill TEXT DEFAULT '' NOT NULL, 
	problem TEXT DEFAULT '' NOT NULL, 
	given_up BIGINT DEFAULT '0' NOT NULL, record_epsilon DOUBLE, record_delta DOUBLE, record_budget DOUBLE, record_none BOOLEAN DEFAULT 0 NOT NULL, 
	PRIMARY KEY (run, name), 
	FOREIGN KEY(run) REFERENCES runs (name)
);
CREATE TABLE statements (
	run VARCHAR NOT NULL, 
	round BIGINT NOT NULL, 
	silo VARCHAR NOT NULL, 
	signature BLOB NOT NULL, 
	PRIMARY KEY (run, round, silo), 
	FOREIGN KEY(run) REFERENCES runs (name)
);
CREATE TABLE update_payloads (
	run VARCHAR NOT NULL, 
	round BIGINT NOT NULL, 
	coordinates BLOB NOT NULL, 
	levels BLOB NOT NULL, 
	PRIMARY KEY (run, round), 
	FOREIGN KEY(run) REFERENCES runs (name)
);
CREATE TABLE updates (
	run VARCHAR NOT NULL, 
	round BIGINT NOT NULL, 
	header BLOB NOT NULL, 
	PRIMARY KEY (run, round), 
	FOREIGN KEY(run) REFERENCES runs (name)
);
CREATE INDEX metrics_by_role ON metrics (run, role, round);
CREATE INDEX metrics_best ON metrics (run, role, accuracy);
COMMIT;
