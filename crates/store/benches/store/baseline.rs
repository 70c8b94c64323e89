//! The baseline: the same statements on the same tables with plain rusqlite, with one connection and one transaction each.

use std::path::Path;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant, SystemTime};

use model::{AgentKind, CallSpec, JobId, Timestamp};
use rusqlite::types::Value;
use rusqlite::{Connection, OptionalExtension, params};

use crate::measure::Workload;
use crate::subject::{ANSWER, PROMPT, outcome};

/// A database written with plain rusqlite.
pub struct RusqliteBaseline {
    connection: Mutex<Connection>,
}

fn now() -> Timestamp {
    Timestamp::default().plus(SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap())
}

fn fresh_id() -> [u8; 16] {
    let mut random = [0; 10];
    getrandom::fill(&mut random).unwrap();
    *JobId::new(now(), random).as_uuid().as_bytes()
}

fn millis() -> i64 {
    i64::try_from(now().as_millis()).unwrap()
}

impl RusqliteBaseline {
    /// Opens a file that the store has created.
    pub fn open(path: &Path) -> Self {
        let connection = Connection::open(path).unwrap();
        connection.pragma_update(None, "journal_mode", "wal").unwrap();
        connection.pragma_update(None, "synchronous", "full").unwrap();
        connection.set_prepared_statement_cache_capacity(64);
        let version: i64 = connection.pragma_query_value(None, "user_version", |row| row.get(0)).unwrap();
        assert_eq!(version, 3, "the statements below are those of version 3");
        Self { connection: Mutex::new(connection) }
    }

    /// Runs a workload with a number of threads and returns its duration.
    pub fn run(&self, workload: Workload, workers: usize, count: usize) -> Duration {
        if workload == Workload::ClaimAndFinish {
            self.submit_jobs(workers, count, "host:here");
        }
        let start = Instant::now();
        match workload {
            Workload::Submit => self.submit_jobs(workers, count, "host:elsewhere"),
            Workload::ClaimAndFinish => std::thread::scope(|scope| {
                for worker in 0..workers {
                    scope.spawn(move || while self.claim_and_finish(&format!("worker {worker}")) {});
                }
            }),
        }
        start.elapsed()
    }

    fn submit_jobs(&self, workers: usize, count: usize, home: &'static str) {
        std::thread::scope(|scope| {
            for worker in 0..workers {
                scope.spawn(move || {
                    for _ in (worker..count).step_by(workers) {
                        self.submit_job(home);
                    }
                });
            }
        });
    }

    fn lock(&self) -> MutexGuard<'_, Connection> {
        self.connection.lock().unwrap()
    }

    fn submit_job(&self, home: &str) {
        // The store also creates an id and serializes the call.
        let id = fresh_id();
        let call = serde_json::to_string(&CallSpec::new(AgentKind::Claude, "", "/home/ana/shop")).unwrap();
        let connection = self.lock();
        begin(&connection);
        connection
            .prepare_cached(
                "INSERT INTO agent_jobs (id, revision, state, attempt, requeues, max_attempts, created_at, agent,
                    tool, task, home, cwd, fire_and_forget, expose_stream, prompt_head, call, prompt)
                VALUES (?1, 1, 'queued', 0, 0, 3, ?2, 'claude', 'call_cc', 'call_cc', ?3, '/home/ana/shop', 0, 0, ?4, ?5, ?4)
                ON CONFLICT DO NOTHING",
            )
            .unwrap()
            .execute(params![id, millis(), home, PROMPT, call])
            .unwrap();
        commit(&connection);
    }

    fn claim_and_finish(&self, owner: &str) -> bool {
        let Some(id) = self.claim(owner) else { return false };
        self.finish(id);
        true
    }

    fn claim(&self, owner: &str) -> Option<[u8; 16]> {
        let connection = self.lock();
        begin(&connection);
        connection
            .prepare_cached(
                "INSERT INTO agent_workers (owner, expires_at) VALUES (?1, ?2)
                ON CONFLICT DO UPDATE SET expires_at = excluded.expires_at",
            )
            .unwrap()
            .execute(params![owner, millis() + 30_000])
            .unwrap();
        let due: Vec<[u8; 16]> = connection
            .prepare_cached("SELECT id FROM agent_jobs WHERE state = 'paused' AND paused_until <= ?1")
            .unwrap()
            .query_map([millis()], |row| row.get(0))
            .unwrap()
            .collect::<Result<_, _>>()
            .unwrap();
        assert!(due.is_empty());
        let held: i64 = connection
            .prepare_cached(
                "SELECT count(*) FROM agent_jobs
                WHERE state IN ('running', 'interrupted') AND owner = ?1 AND agent = 'claude'",
            )
            .unwrap()
            .query_row([owner], |row| row.get(0))
            .unwrap();
        assert!(held < 100);
        let id: Option<[u8; 16]> = connection
            .prepare_cached(
                "SELECT id FROM agent_jobs WHERE state = 'queued' AND home = 'host:here' AND agent = 'claude'
                ORDER BY id LIMIT 1",
            )
            .unwrap()
            .query_row([], |row| row.get(0))
            .optional()
            .unwrap();
        if let Some(id) = id {
            head(&connection, id);
            connection
                .prepare_cached(
                    "UPDATE agent_jobs SET state = 'running', owner = ?2, attempt = 1, requeues = 0,
                        paused_until = NULL, cancel_requested_at = NULL, started_at = ?3, completed_at = NULL,
                        duration_ms = NULL, revision = 2
                    WHERE id = ?1",
                )
                .unwrap()
                .execute(params![id, owner, millis()])
                .unwrap();
            let call = whole(&connection, id);
            let call: CallSpec = serde_json::from_str(&call).unwrap();
            assert_eq!(call.agent, AgentKind::Claude);
        }
        commit(&connection);
        id
    }

    fn finish(&self, id: [u8; 16]) {
        let outcome = serde_json::to_string(&outcome()).unwrap();
        let connection = self.lock();
        begin(&connection);
        head(&connection, id);
        connection
            .prepare_cached(
                "UPDATE agent_jobs SET state = 'completed', owner = NULL, attempt = 1, requeues = 0,
                    paused_until = NULL, cancel_requested_at = NULL, started_at = started_at, completed_at = ?2,
                    duration_ms = 5, revision = 3
                WHERE id = ?1",
            )
            .unwrap()
            .execute(params![id, millis()])
            .unwrap();
        let exchange = fresh_id();
        connection
            .prepare_cached(
                "UPDATE agent_jobs SET model = 'claude-haiku-4-5', session = 's-1', exchange = ?2,
                    input_tokens = 1000, output_tokens = 50, cached_tokens = 900, reasoning_tokens = 0,
                    cost_usd = 0.01, failure = NULL, outcome = ?3, metadata = NULL
                WHERE id = ?1",
            )
            .unwrap()
            .execute(params![id, exchange, outcome])
            .unwrap();
        connection
            .prepare_cached(
                "INSERT INTO agent_exchanges (id, job, created_at, prompt, response) VALUES (?1, ?2, ?3, ?4, ?5)",
            )
            .unwrap()
            .execute(params![exchange, id, millis(), PROMPT, ANSWER])
            .unwrap();
        connection
            .prepare_cached(
                "INSERT INTO tool_sessions (agent, task, home, session, cwd, job, updated_at)
                SELECT agent, task, home, 's-1', cwd, id, ?2 FROM agent_jobs WHERE id = ?1
                ON CONFLICT DO UPDATE SET session = excluded.session, cwd = excluded.cwd, job = excluded.job,
                    updated_at = excluded.updated_at",
            )
            .unwrap()
            .execute(params![id, millis()])
            .unwrap();
        commit(&connection);
    }

    pub fn list_newest(&self) {
        let connection = self.lock();
        let mut statement = connection
            .prepare_cached(
                "SELECT id, state, owner, attempt, requeues, max_attempts, paused_until, cancel_requested_at,
                    created_at, started_at, completed_at, agent, model, tool, task, home, cwd, session, parent,
                    input_tokens, output_tokens, cached_tokens, reasoning_tokens, cost_usd, prompt_head, failure
                FROM agent_jobs ORDER BY id DESC LIMIT 101",
            )
            .unwrap();
        let lines: Vec<Vec<Value>> = statement
            .query_map([], |row| (0..26).map(|column| row.get(column)).collect())
            .unwrap()
            .collect::<Result<_, _>>()
            .unwrap();
        assert!(!lines.is_empty());
    }
}

fn begin(connection: &Connection) {
    connection.prepare_cached("BEGIN IMMEDIATE").unwrap().execute([]).unwrap();
}

fn commit(connection: &Connection) {
    connection.prepare_cached("COMMIT").unwrap().execute([]).unwrap();
}

fn head(connection: &Connection, id: [u8; 16]) {
    let state: String = connection
        .prepare_cached(
            "SELECT state, owner, attempt, requeues, max_attempts, paused_until, cancel_requested_at, started_at,
                revision
            FROM agent_jobs WHERE id = ?1",
        )
        .unwrap()
        .query_row([id], |row| row.get(0))
        .unwrap();
    assert!(!state.is_empty());
}

fn whole(connection: &Connection, id: [u8; 16]) -> String {
    connection
        .prepare_cached(
            "SELECT * FROM agent_jobs AS job LEFT JOIN agent_workers AS worker ON worker.owner = job.owner
            WHERE id = ?1",
        )
        .unwrap()
        .query_row([id], |row| row.get("call"))
        .unwrap()
}
