//! The page of the agents: what `switchboard doctor` knows, kept for a while, since asking programs takes its time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use agents::VersionSupport;
use agents::doctor::{AgentCheck, Finding};
use axum::extract::{Extension, State};
use axum::response::Response;
use maud::{Markup, html};
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::Web;
use super::login::Visitor;
use super::page::{self, Here};
use crate::machine::{self as doctor, MachineCheck as Looking, MachineReport as Looked};
use crate::text::visible;

/// How long what was found is believed.
const KNOWN_FOR: Duration = Duration::from_secs(30);
/// How long a page waits for the first look.
const PATIENCE: Duration = Duration::from_secs(2);
/// How soon a page that came too early looks again, in seconds.
const LOOK_AGAIN: u32 = 2;

/// What was found last, and whether somebody is looking.
pub struct Kept {
    looking: Looking,
    found: Arc<watch::Sender<Option<Arc<Found>>>>,
    busy: Arc<AtomicBool>,
}

struct Found {
    at: Instant,
    millis: u64,
    looked: Looked,
}

impl Kept {
    /// Nothing is known yet.
    pub fn new(looking: Looking) -> Self {
        Self { looking, found: Arc::new(watch::Sender::new(None)), busy: Arc::default() }
    }

    /// What is known; none when the first look takes longer than a reader waits. One look at a time, whoever asks.
    async fn found(&self, now: u64, ended: &CancellationToken) -> Option<Arc<Found>> {
        let known = self.found.borrow().clone();
        if known.as_ref().is_none_or(|found| found.at.elapsed() > KNOWN_FOR) {
            self.look(now, ended.clone());
        }
        if known.is_some() {
            return known;
        }
        let mut found = self.found.subscribe();
        let waited = timeout(PATIENCE, found.wait_for(Option::is_some)).await;
        waited.ok()?.ok()?.clone()
    }

    fn look(&self, now: u64, ended: CancellationToken) {
        if self.busy.swap(true, Ordering::AcqRel) {
            return;
        }
        let (looking, found, busy) = (self.looking.clone(), Arc::clone(&self.found), Arc::clone(&self.busy));
        // Nobody waits for it but the end of the daemon: programs are asked with a deadline, and after the one that is just being asked
        // no other is when the daemon ends.
        drop(tokio::task::spawn_blocking(move || {
            if let Some(looked) = looking.run_while(&|| !ended.is_cancelled()) {
                found.send_replace(Some(Arc::new(Found { at: Instant::now(), millis: now, looked })));
            }
            busy.store(false, Ordering::Release);
        }));
    }
}

/// The page.
pub async fn show(State(web): State<Web>, Extension(visitor): Extension<Visitor>) -> Response {
    let found = web.0.checkup.found(web.desk().now().as_millis(), &web.0.ended).await;
    let Some(found) = found else {
        let main = html! {
            div.head { h1 { "Agents" } }
            section.blank role="status" {
                h2 { "Still looking" }
                p { "The agents are being asked for their versions and logins. This page looks again by itself." }
            }
        };
        return page::refreshing("Agents", Here::Agents, &visitor, &main, Some(LOOK_AGAIN));
    };
    let Looked { checkup, sandbox } = &found.looked;
    let main = html! {
        div.head { h1 { "Agents" } p.aside { "Looked at " (page::moment(found.millis)) "; load the page anew for a newer look." } }
        ul.agents { @for agent in &checkup.agents { (card(agent)) } }
        section.machine aria-labelledby="machine" {
            h2 #machine { "This machine" }
            @match sandbox {
                Ok(proven) => p { (mark(true, "sandbox holds")) " by " (proven.made_of) "; " (proven.proof.escapes.len())
                    " ways out were tried and stopped." },
                Err(finding) => { p { (mark(false, "no sandbox")) " Agents cannot be confined as policies require." } (findings(std::slice::from_ref(finding))) },
            }
            (findings(&checkup.findings))
            p.aside { code { "rehearsal" } ", the scripted agent, needs no account and is always here." }
        }
    };
    page::page("Agents", Here::Agents, &visitor, &main)
}

fn card(agent: &AgentCheck) -> Markup {
    let ready = agent.is_ready();
    let standing = agent.standing.map(|standing| match standing {
        VersionSupport::Tested => "tested",
        VersionSupport::Newer => "newer than the tested ones",
        VersionSupport::Older => "older than the tested ones",
    });
    html! {
        li.agent {
            h2 { (agent.agent) }
            (mark(ready, if ready { "ready" } else { "not ready" }))
            dl.facts-list {
                @if let Some(version) = agent.version {
                    div { dt { "Version" } dd { (version.to_string()) @if let Some(standing) = standing { " (" (standing) ")" } } }
                }
                @if let Some(program) = &agent.program {
                    div { dt { "Login" } dd { (login(agent)) } }
                    div { dt { "Program" } dd { code.path { (visible(&program.to_string_lossy())) } } }
                }
            }
            (findings(&agent.findings))
        }
    }
}

fn login(agent: &AgentCheck) -> &'static str {
    let told = doctor::describe_login(agent).trim_start_matches(", ").trim_start_matches("login ");
    if told.is_empty() { "not logged in" } else { told }
}

fn mark(good: bool, word: &str) -> Markup {
    html! { span class={ "chip " (if good { "is-completed" } else { "is-failed" }) } { (word) } }
}

fn findings(findings: &[Finding]) -> Markup {
    html! {
        @if !findings.is_empty() {
            ul.findings {
                @for finding in findings {
                    li { p { span.who { @if finding.blocks { "Missing" } @else { "Note" } } " " (page::words(&finding.problem)) }
                        @if !finding.remedy.is_empty() { p.hint { (page::words(&finding.remedy)) } } }
                }
            }
        }
    }
}
