//! One conversation: its plan, its run, and its end.

use std::path::PathBuf;
use std::time::Duration;

use agent_run::{Expectation, RunEnd, RunFollower, RunStep};
use agents::{
    AcpSession, AcpSpec, AppServerSpec, AppServerThread, Driver, DriverSpec, ParseLimits, Patience,
    PermissionRule, UsageReport,
};
use model::{
    AgentEvent, AgentKind, ExpectedSession, Failure, FailureKind, InputMode, Limits, Outcome, Policy,
    RunPlan, TreeEnd, Verdict,
};
use serde_json::json;
use supervisor::{Run, Supervisor};
use tempfile::TempDir;

/// The first argument of this program as `terminal-host`.
pub const TERMINAL_HOST: &str = "--terminal-host";

/// The timeout of a test.
const LONG: Duration = Duration::from_mins(1);

/// The live protocols of the scripted agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LiveProtocol {
    Acp,
    AppServer,
    Claude,
}

pub const ALL: &[LiveProtocol] = &[LiveProtocol::Acp, LiveProtocol::AppServer, LiveProtocol::Claude];
/// The protocols with requests before the prompt.
pub const WITH_OPENING: &[LiveProtocol] = &[LiveProtocol::Acp, LiveProtocol::AppServer];
pub const ACP: &[LiveProtocol] = &[LiveProtocol::Acp];

impl LiveProtocol {
    pub fn name(self) -> &'static str {
        match self {
            Self::Acp => "acp",
            Self::AppServer => "app_server",
            Self::Claude => "claude",
        }
    }

    /// Returns the request that opens a session.
    pub fn opening(self) -> &'static str {
        if self == Self::Acp { "session/new" } else { "thread/start" }
    }

    /// Returns the request with the prompt.
    pub fn prompting(self) -> &'static str {
        if self == Self::Acp { "session/prompt" } else { "turn/start" }
    }

    fn agent(self) -> AgentKind {
        match self {
            Self::Acp => "scripted".parse().unwrap(),
            Self::AppServer => AgentKind::Codex,
            Self::Claude => AgentKind::Rehearsal,
        }
    }

    fn args(self) -> &'static [&'static str] {
        match self {
            Self::Acp => &["--as", "acp"],
            Self::AppServer => &["--as", "codex", "app-server"],
            Self::Claude => &["--input-format", "stream-json"],
        }
    }

    fn spec(self, prompt: String, session: Option<&str>, has_terminals: bool) -> DriverSpec {
        match self {
            Self::Acp => DriverSpec::Acp(AcpSpec {
                cwd: "/".to_owned(),
                add_dirs: Vec::new(),
                session: session.map_or(AcpSession::New, |id| AcpSession::Resume(id.to_owned())),
                prompt,
                images: Vec::new(),
                mcp_servers: Vec::new(),
                model: None,
                effort: None,
                mode: None,
                permissions: PermissionRule::Allow,
                has_terminals,
                usage: UsageReport::PerPrompt,
                errors: agents::ModelErrorReport::Reply,
            }),
            Self::AppServer => DriverSpec::CodexAppServer(AppServerSpec {
                thread: session.map_or(AppServerThread::New, |id| AppServerThread::Resume(id.to_owned())),
                options: serde_json::Map::new(),
                prompt,
                images: Vec::new(),
                turn: serde_json::Map::new(),
            }),
            Self::Claude => DriverSpec::ClaudeLive,
        }
    }
}

/// A conversation with the scripted agent.
pub struct Conversation {
    pub protocol: LiveProtocol,
    /// Faults before the prompt.
    pub opening: &'static [&'static str],
    /// The steps, one per line.
    pub script: String,
    /// Plain text before the steps.
    pub text: String,
    pub session: Option<&'static str>,
    pub limits: Limits,
    pub patience: Patience,
    /// The agent is started by `terminal-host`.
    pub has_terminals: bool,
    /// The working directory.
    pub cwd: PathBuf,
    pub policy: Policy,
}

impl Conversation {
    pub fn new(protocol: LiveProtocol, script: impl Into<String>) -> Self {
        let limits = Limits { wall: Some(LONG), grace: Duration::from_millis(300), ..Limits::default() };
        let (opening, text, session, patience) = (&[][..], String::new(), None, Patience::default());
        let (has_terminals, cwd, policy) = (false, PathBuf::from("/"), Policy::Off);
        let script = script.into();
        Self { protocol, opening, script, text, session, limits, patience, has_terminals, cwd, policy }
    }

    fn plan(&self) -> RunPlan {
        let steps = self.script.lines().map(|step| format!("@rehearse {}\n", step.trim()));
        let prompt = format!("{}\n{}", self.text, steps.collect::<String>());
        let spec = self.protocol.spec(prompt.clone(), self.session, self.has_terminals);
        let program = std::env::current_exe().unwrap();
        let openings = self.opening.iter().flat_map(|fault| ["--opening", fault]);
        let hosting = [TERMINAL_HOST, program.to_str().unwrap()];
        let hosting = hosting.into_iter().filter(|_| self.has_terminals);
        let args =
            hosting.chain([rehearsal::CUE]).chain(self.protocol.args().iter().copied()).chain(openings);
        let input = match self.protocol {
            LiveProtocol::Claude => {
                let message = json!({ "type": "user", "message": { "role": "user", "content": prompt } });
                format!("{message}\n").into_bytes()
            }
            _ => Driver::new(&spec, ParseLimits::default()).unsent().to_vec(),
        };
        RunPlan {
            args: args.map(str::to_owned).collect(),
            input,
            input_mode: InputMode::Open,
            driver: serde_json::to_vec(&spec).unwrap(),
            limits: self.limits.clone(),
            policy: self.policy.clone(),
            ..RunPlan::new(&program, &self.cwd)
        }
    }

    /// Runs the conversation to its end.
    pub fn end(&self) -> Ended {
        self.end_with(async |run, patience| {
            let mut follower = RunFollower::new(&run, self.protocol.agent(), Some(patience)).unwrap();
            let mut events = Vec::new();
            let end = read_to_end(&mut follower, &mut events).await;
            (end, events)
        })
    }

    /// Starts the conversation and lets a test follow it to its end.
    pub fn end_with<F>(&self, follow: F) -> Ended
    where
        F: AsyncFnOnce(Run, Patience) -> (RunEnd, Vec<AgentEvent<'static>>),
    {
        let directory = TempDir::new().unwrap();
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        runtime.unwrap().block_on(async {
            let supervisor = Supervisor::this_program().unwrap();
            let run = supervisor.start(&directory.path().join("run"), &self.plan()).await.unwrap();
            let following = follow(run.clone(), self.patience);
            let (end, events) = tokio::time::timeout(2 * LONG, following).await.expect("the run hangs");
            assert_eq!(end.report.tree, TreeEnd::ProvenEmpty, "{:?}", end.report);
            let session = ExpectedSession::Any;
            let outcome = end.judge(Expectation {
                agent: self.protocol.agent(),
                session: &session,
                model: None,
                schema: None,
                before: None,
                limits: &self.limits,
            });
            let input = std::fs::read_to_string(run.spool().input()).unwrap();
            Ended { outcome, events, input, end }
        })
    }

    pub fn agent(&self) -> AgentKind {
        self.protocol.agent()
    }
}

/// Follows a run to its end.
pub async fn read_to_end(follower: &mut RunFollower, events: &mut Vec<AgentEvent<'static>>) -> RunEnd {
    loop {
        match follower.next(&mut |event| events.push(event.into_owned())).await.unwrap() {
            RunStep::Ended(end) => return *end,
            RunStep::StoppedEarly(_, stopped) => drop(stopped.unwrap()),
            RunStep::Output | RunStep::Error(_) => {}
        }
    }
}

/// An ended conversation.
#[derive(Debug)]
pub struct Ended {
    pub outcome: Outcome,
    pub events: Vec<AgentEvent<'static>>,
    /// Everything that was sent to the agent.
    pub input: String,
    pub end: RunEnd,
}

impl Ended {
    /// Returns the answer of a successful conversation.
    pub fn answer(&self) -> &str {
        assert_eq!(self.outcome.verdict, Verdict::Success, "{self:?}");
        &self.outcome.text
    }

    /// Returns the failure of a failed conversation.
    pub fn failure(&self) -> (&FailureKind, &str) {
        match &self.outcome.verdict {
            Verdict::Failed(Failure { kind, message }) => (kind, message),
            other @ Verdict::Success => panic!("{other:?}: {self:?}"),
        }
    }

    /// Returns whether each message was sent once.
    pub fn sent_once(&self) -> bool {
        let mut lines: Vec<&str> = self.input.lines().collect();
        let count = lines.len();
        lines.sort_unstable();
        lines.dedup();
        lines.len() == count
    }
}
