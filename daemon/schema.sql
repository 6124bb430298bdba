-- The memo of one job's stream. application_id is 'BLST', user_version the number of this schema.
-- hash is XXH3-64 over the rest of the row: SQLite has no checksums of its own.

-- job_digest, plan_text, version (the writer's), committed_step (first step not committed by all
-- ranks), generation, opened (how often), open_boot (boot id while a daemon has the store open,
-- empty after a clean close).
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
