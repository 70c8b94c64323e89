//! A home with a past: jobs that ended in the weeks before, kept as the daemon keeps them, without a process for any of them.
//!
//! For the figures of the page, and for its pictures. The numbers are made up and always the same.

use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use model::{
    AgentKind, CallSpec, Failure as AgentFailure, FailureKind, JobEnd, NewJob, Outcome, Owner, Placement,
    Timestamp, Usage, Verdict,
};
use store::{Capacity, ClaimRequest, ManualClock, Store, StoreOptions, StoreSetting};

use crate::Failure;

/// The repeated prompts.
const ASKED: [(&str, &str); 10] = [
    ("shop", "Find out why the basket loses its last item, and write a test that shows it"),
    ("shop", "Mend the failing test in checkout, and nothing else"),
    ("docs", "Read the guide as a newcomer would, and list what is missing"),
    ("api", "Rename `fetch_all` to `list` everywhere, keep the old name as deprecated"),
    ("api", "Which endpoints answer slower than 200 ms, and why?"),
    ("review", "Review the last commit for races and for errors that are swallowed"),
    ("infra", "Explain what the deploy script does when the migration fails half way"),
    ("shop", "Add a field for a gift note to the order, from the form to the database"),
    ("data", "Write a query for the orders of last month by country, with totals"),
    ("docs", "Turn the notes in NOTES.md into a page with examples that run"),
];
const AGENTS: [(AgentKind, &str); 5] = [
    (AgentKind::Claude, "claude-sonnet-5"),
    (AgentKind::Codex, "gpt-5.2-codex"),
    (AgentKind::Claude, "claude-haiku-4-5"),
    (AgentKind::Gemini, "gemini-3-pro"),
    (AgentKind::Claude, "claude-opus-4-7"),
];

/// Stores that many jobs in the state directory below `home`, evenly over the last days. No daemon may run there.
pub async fn fill(home: &Path, count: u64, days: u64) -> Result<(), Failure> {
    let state = home.join("state");
    fs::DirBuilder::new().recursive(true).mode(0o700).create(&state)?;
    let span = Duration::from_hours(24 * days);
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
    let begin = now.saturating_sub(span);
    let clock = ManualClock::at(moment(begin));
    let opening = StoreOptions {
        clock: clock.clock(),
        ..StoreOptions::new(StoreSetting::Sqlite { path: None }, state.join("switchboard.db"))
    };
    let store = Store::open(opening).await?;
    for number in 0..count {
        // No two days alike.
        let place = span.as_secs() * number / count.max(1);
        let uneven = scattered(number, 5 * 3600);
        clock.set(moment(begin + Duration::from_secs(place.saturating_sub(uneven))));
        keep(&store, &clock, number).await?;
    }
    Ok(())
}

async fn keep(store: &Store, clock: &ManualClock, number: u64) -> Result<(), Failure> {
    let (agent, model) = AGENTS[pick(number * 7 + number / 11, AGENTS.len())];
    let (task, prompt) = ASKED[pick(scattered(number, 1000), ASKED.len())];
    let here = Placement::Host("here".to_owned());
    let call = CallSpec { model: Some(model.to_owned()), ..CallSpec::new(agent, prompt, "/home/ana/shop") };
    store.submit(NewJob { task: task.to_owned(), ..NewJob::new(call, "cli", here.clone()) }).await?;
    clock.advance(Duration::from_millis(20));
    let request = ClaimRequest {
        owner: Owner::new("bench"),
        homes: vec![here],
        agents: vec![Capacity { agent, at_once: 1 }],
        lease: Duration::from_mins(1),
    };
    let job = store.claim(request).await?.ok_or("a submitted job cannot be claimed")?;
    let claim = job.claim().ok_or("a claimed job has no owner")?;
    let took = Duration::from_millis(900 + scattered(number, 1 << 12) * scattered(number + 1, 1 << 6));
    clock.advance(took);
    store.finish(&claim, end(agent, model, number, took)).await?;
    Ok(())
}

fn end(agent: AgentKind, model: &str, number: u64, took: Duration) -> JobEnd {
    let tokens = 2_000 + scattered(number, 60_000);
    let verdict = match scattered(number, 100) {
        0..7 => {
            failed(FailureKind::RateLimit { retry_after: None }, "429: the quota of this hour is used up")
        }
        7..9 => failed(FailureKind::Deadline { which: model::Deadline::Wall }, "wall deadline"),
        _ => Verdict::Success,
    };
    JobEnd::from(Outcome {
        agent,
        verdict,
        text: "It is done, and the tests pass.".to_owned(),
        text_cut: 0,
        structured_output: None,
        session: uuid_like(number).parse().ok(),
        session_mismatch: None,
        model: Some(model.to_owned()),
        usage: Some(Usage { input: tokens, output: tokens / 9, cached: tokens / 2, reasoning: tokens / 30 }),
        cost_usd: (agent == AgentKind::Claude).then(|| cost(model, tokens)),
        session_totals: None,
        turns: Some(3),
        duration_ms: u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
        permission_denials: Vec::new(),
        background: Vec::new(),
        refusals: Vec::new(),
        implausible: Vec::new(),
        retries: 0,
        exit: Some(model::Exit::Code(0)),
    })
}

fn failed(kind: FailureKind, message: &str) -> Verdict {
    Verdict::Failed(AgentFailure { kind, message: message.to_owned() })
}

#[expect(clippy::cast_precision_loss, reason = "a made-up cost needs no sixteenth digit")]
fn cost(model: &str, tokens: u64) -> f64 {
    let of_a_token = if model.contains("opus") {
        1.5e-5
    } else if model.contains("haiku") {
        1.2e-6
    } else {
        5e-6
    };
    tokens as f64 * of_a_token
}

fn uuid_like(number: u64) -> String {
    format!("5b0ae6cb-8b3f-4c3a-9d3f-{number:012x}")
}

/// A number below `bound` that looks as if it were drawn.
fn scattered(number: u64, bound: u64) -> u64 {
    (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20) % bound
}

fn pick(number: u64, bound: usize) -> usize {
    usize::try_from(number % bound as u64).unwrap_or(0)
}

fn moment(since_1970: Duration) -> Timestamp {
    Timestamp::from_millis(0).plus(since_1970)
}
