-- The memo of one job's stream. application_id is 'BLST', user_version the number of the last
-- version below. A new store takes all of them in turn, an older one those that it lacks.
-- hash is XXH3-64 over the rest of the row: SQLite has no checksums of its own.

-- version 1

-- job_digest, plan_text, version (the writer's), committed_step (first step not committed by all
-- ranks; see also ranks), generation, generation_step and generation_by (where it began and by whom; not before the
-- first), export N (step N was exported: its row stays), open_boot (boot id while a daemon has the
-- store open, empty after a clean close).
CREATE TABLE meta (
    key   TEXT PRIMARY KEY,
    value ANY NOT NULL,
    hash  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- One row for each planned step that is kept. state: encoded plan state from which it is planned.
CREATE TABLE steps (
    step             INTEGER PRIMARY KEY,
    state            BLOB NOT NULL,
    digest           BLOB NOT NULL,
    tokens           INTEGER NOT NULL,
    documents        INTEGER NOT NULL,
    plan_ns          INTEGER NOT NULL,
    attention_ppm    INTEGER NOT NULL,
    total_ppm        INTEGER NOT NULL,
    predicted_ppm    INTEGER NOT NULL,
    bound_ppm        INTEGER NOT NULL,
    context_ppm      INTEGER NOT NULL,
    original_ppm     INTEGER NOT NULL,
    delay_mean_milli INTEGER NOT NULL,
    delay_max        INTEGER NOT NULL,
    allowance_ppm    INTEGER NOT NULL,
    urgency_ppm      INTEGER NOT NULL,
    outliers         INTEGER NOT NULL,
    early            INTEGER NOT NULL,
    forced           INTEGER NOT NULL,
    waiting_tokens   INTEGER NOT NULL,
    leftovers        INTEGER NOT NULL,
    hash             INTEGER NOT NULL
) STRICT;

-- version 2

-- In meta also: store_id (16 random bytes, as in ballast.mark), groups (transactions so far),
-- rows_step (of which step the rows for people below are).

-- The datasets that the job was begun with, in the config's order, then those that sections append.
CREATE TABLE datasets (
    dataset     INTEGER PRIMARY KEY,
    name        TEXT NOT NULL,
    dtype       INTEGER NOT NULL,
    documents   INTEGER NOT NULL,
    tokens      INTEGER NOT NULL,
    bin_bytes   INTEGER NOT NULL,
    fingerprint BLOB NOT NULL
) STRICT;

-- The next two are for people: of the step that was stored last, before it is planned, and written
-- in its group. The daemon never reads them.
CREATE TABLE waiting (
    stream_index INTEGER PRIMARY KEY,
    dataset      INTEGER NOT NULL,
    document     INTEGER NOT NULL,
    offset       INTEGER NOT NULL,
    length       INTEGER NOT NULL,
    nominal_step INTEGER NOT NULL,
    epoch        INTEGER NOT NULL,
    leftover     INTEGER NOT NULL,
    bin          INTEGER NOT NULL
) STRICT;

CREATE TABLE delays (
    dataset             INTEGER PRIMARY KEY,
    delivered_documents INTEGER NOT NULL,
    delivered_tokens    INTEGER NOT NULL,
    delay_token_steps   INTEGER NOT NULL,
    delay_p50           INTEGER NOT NULL,
    delay_p99           INTEGER NOT NULL,
    delay_max           INTEGER NOT NULL
) STRICT;

-- SELECT * FROM one of these.
CREATE VIEW plans AS
    SELECT step, lower(hex(digest)) AS digest, tokens, documents,
           total_ppm / 1e6 AS imbalance, attention_ppm / 1e6 AS attention_imbalance,
           delay_mean_milli / 1e3 AS delay_mean, delay_max, waiting_tokens
    FROM steps;

CREATE VIEW waiting_documents AS
    SELECT name AS dataset, document, offset, length, nominal_step,
           max(0, (SELECT value FROM meta WHERE key = 'rows_step') - nominal_step) AS delay, epoch,
           leftover
    FROM waiting LEFT JOIN datasets USING (dataset);

CREATE VIEW dataset_delays AS
    SELECT name AS dataset, delivered_documents, delivered_tokens,
           round(1.0 * delay_token_steps / max(1, delivered_tokens), 3) AS delay_mean,
           delay_p50, delay_p99, delay_max
    FROM delays LEFT JOIN datasets USING (dataset);

-- version 3

-- The ranks that have committed more than all have: the first step that each did not commit. A rank
-- without a row stands at committed_step. A generation begins without rows.
CREATE TABLE ranks (
    dp             INTEGER NOT NULL,
    pp             INTEGER NOT NULL,
    cp             INTEGER NOT NULL,
    tp             INTEGER NOT NULL,
    committed_step INTEGER NOT NULL,
    hash           INTEGER NOT NULL,
    PRIMARY KEY (dp, pp, cp, tp)
) STRICT, WITHOUT ROWID;
