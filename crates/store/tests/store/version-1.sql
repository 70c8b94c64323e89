-- A store as version 1 of the schema left it: one job that has ended, one that waits. Never changed.
PRAGMA journal_mode = wal;
PRAGMA application_id = 0x53574244;
PRAGMA user_version = 1;
CREATE TABLE agent_jobs (
    id BLOB NOT NULL PRIMARY KEY,
    revision INTEGER NOT NULL,
    state TEXT NOT NULL,
    owner TEXT,
    attempt INTEGER NOT NULL,
    requeues INTEGER NOT NULL,
    max_attempts INTEGER NOT NULL,
    paused_until INTEGER,
    cancel_requested_at INTEGER,
    created_at INTEGER NOT NULL,
    started_at INTEGER,
    completed_at INTEGER,
    duration_ms INTEGER,
    agent TEXT NOT NULL,
    model TEXT,
    tool TEXT NOT NULL,
    task TEXT NOT NULL,
    home TEXT NOT NULL,
    cwd TEXT NOT NULL,
    session TEXT,
    exchange BLOB,
    parent BLOB,
    idempotency_key TEXT,
    fire_and_forget INTEGER NOT NULL,
    expose_stream INTEGER NOT NULL,
    input_tokens INTEGER,
    output_tokens INTEGER,
    cached_tokens INTEGER,
    reasoning_tokens INTEGER,
    cost_usd REAL,
    prompt_head TEXT NOT NULL,
    failure TEXT,
    call TEXT NOT NULL,
    prompt TEXT NOT NULL,
    outcome TEXT
) STRICT;
CREATE INDEX jobs_ready ON agent_jobs (home, agent, id) WHERE state = 'queued';
CREATE INDEX jobs_held ON agent_jobs (owner, agent) WHERE state IN ('running', 'interrupted');
CREATE INDEX jobs_paused ON agent_jobs (paused_until) WHERE state = 'paused';
CREATE INDEX jobs_by_state ON agent_jobs (state, id);
CREATE INDEX jobs_by_tool ON agent_jobs (tool, id);
CREATE UNIQUE INDEX jobs_by_key ON agent_jobs (idempotency_key) WHERE idempotency_key IS NOT NULL;
CREATE TABLE agent_exchanges (
    id BLOB NOT NULL PRIMARY KEY,
    job BLOB NOT NULL,
    created_at INTEGER NOT NULL,
    prompt TEXT NOT NULL,
    response TEXT NOT NULL
) STRICT;
CREATE INDEX exchanges_by_job ON agent_exchanges (job);
CREATE TABLE tool_sessions (
    agent TEXT NOT NULL,
    task TEXT NOT NULL,
    home TEXT NOT NULL,
    session TEXT NOT NULL,
    cwd TEXT NOT NULL,
    job BLOB NOT NULL,
    updated_at INTEGER NOT NULL,
    PRIMARY KEY (agent, task, home)
) STRICT, WITHOUT ROWID;
CREATE TABLE agent_workers (
    owner TEXT NOT NULL PRIMARY KEY,
    expires_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO agent_jobs VALUES (x'018bcfe568007000800000000000000a', 3, 'completed', NULL, 1, 0, 3, NULL, NULL,
    1700000000000, 1700000001000, 1700000002000, 1000, 'claude', 'claude-haiku-4-5', 'call_cc', 'sums', 'host:here',
    '/home/ana/shop', 's-1', x'018bcfe570007000800000000000000b', NULL, 'key-1', 0, 0, 10, 1, 0, 0, 0.01,
    'What is 2 + 2?', NULL, '{"agent":"claude","prompt":"","cwd":"/home/ana/shop","limits":{"start_ms":null,"idle_ms":null,"wall_ms":3600000,"output_bytes":1073741824,"grace_ms":5000}}', 'What is 2 + 2?', '{"agent": "claude", "verdict": {"verdict": "success"}, "text": "4", "text_cut": 0, "structured_output": null, "session": "s-1", "session_mismatch": null, "model": "claude-haiku-4-5", "usage": {"input": 10, "output": 1, "cached": 0, "reasoning": 0}, "cost_usd": 0.01, "session_totals": null, "turns": 1, "duration_ms": 900, "permission_denials": [], "retries": 0, "exit": null}');
INSERT INTO agent_jobs VALUES (x'018bcfe678007000800000000000000c', 1, 'queued', NULL, 0, 0, 3, NULL, NULL,
    1700000070000, NULL, NULL, NULL, 'claude', NULL, 'call_cc', 'sums', 'host:here',
    '/home/ana/shop', NULL, NULL, NULL, NULL, 0, 0, NULL, NULL, NULL, NULL, NULL,
    'What is 2 + 3?', NULL, '{"agent":"claude","prompt":"","cwd":"/home/ana/shop","limits":{"start_ms":null,"idle_ms":null,"wall_ms":3600000,"output_bytes":1073741824,"grace_ms":5000}}', 'What is 2 + 3?', NULL);
INSERT INTO agent_exchanges VALUES (x'018bcfe570007000800000000000000b', x'018bcfe568007000800000000000000a',
    1700000002000, 'What is 2 + 2?', '4');
INSERT INTO tool_sessions VALUES ('claude', 'sums', 'host:here', 's-1', '/home/ana/shop',
    x'018bcfe568007000800000000000000a', 1700000002000);
