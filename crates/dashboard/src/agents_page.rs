//! The page with the agents and the sandbox.

use agents::doctor::{AgentCheck, Finding, Login};
use agents::{AgentProfile, VersionSupport};
use axum::extract::{Extension, State};
use axum::response::Response;
use maud::{Markup, html};
use render::text::sanitize;

use crate::context::PageContext;
use crate::login::WebVisitor;
use crate::machine_check::MachineHealth;
use crate::page::{self, ActivePage};

/// Reload interval of a page without a result, in seconds.
const REFRESH_SECONDS: u32 = 2;

/// Handles requests for the agents page.
pub(crate) async fn show(
    State(context): State<PageContext>,
    Extension(visitor): Extension<WebVisitor>,
) -> Response {
    let now = context.service().now().as_millis();
    let Some(cached) = context.checks().get(now, context.shutdown()).await else {
        let main = html! {
            div.head { h1 { "Agents" } }
            section.blank role="status" {
                h2 { "Checking …" }
                p { "The versions and logins of the agents are being checked. This page reloads automatically." }
            }
        };
        return page::refreshing_page("Agents", ActivePage::Agents, &visitor, &main, Some(REFRESH_SECONDS));
    };
    let MachineHealth { checkup, sandbox } = &cached.check;
    let main = html! {
        div.head { h1 { "Agents" } p.aside { "Checked at " (page::timestamp(cached.millis)) "; reload the page to check again." } }
        ul.agents { @for agent in &checkup.agents { (card(agent)) } }
        section.machine aria-labelledby="machine" {
            h2 #machine { "This machine" }
            @match sandbox {
                Ok(sandbox) => p { (mark(true, "sandbox works")) " " (sandbox.mechanisms) ". Its self-test blocked "
                    (sandbox.blocked_escapes) " escape attempts." },
                Err(finding) => { p { (mark(false, "no sandbox")) " Sandbox policies cannot be enforced." } (findings(std::slice::from_ref(finding))) },
            }
            (findings(&checkup.findings))
            p.aside { code { "rehearsal" } ", the scripted agent, needs no account and is always available." }
        }
    };
    page::page("Agents", ActivePage::Agents, &visitor, &main)
}

fn card(agent: &AgentCheck) -> Markup {
    let ready = agent.is_ready();
    let standing = agent.standing.map(|standing| match standing {
        VersionSupport::Tested => "tested",
        VersionSupport::Newer => "newer than tested",
        VersionSupport::Older => "older than tested",
    });
    html! {
        li.agent {
            h2 { (agent.agent) }
            (mark(ready, if ready { "ready" } else { "not ready" }))
            dl.facts-list {
                @if let Some(version) = agent.version {
                    div { dt { "Version" } dd { (version.to_string()) @if let Some(standing) = standing { " (" (standing) ")" } } }
                }
                @if let Some(profile) = &agent.profile {
                    div { dt { "Product" } dd { (sanitize(profile.description.as_ref().unwrap_or(&profile.title))) } }
                    @if !profile.features.is_empty() {
                        div { dt { "Features" } dd { (features(profile)) } }
                    }
                }
                @if let Some(program) = &agent.program {
                    div { dt { "Login" } dd { (login(agent.login)) } }
                    div { dt { "Program" } dd { code.path { (sanitize(&program.to_string_lossy())) } } }
                }
            }
            (findings(&agent.findings))
        }
    }
}

fn features(profile: &AgentProfile) -> String {
    profile.features.iter().map(|feature| feature.name()).collect::<Vec<_>>().join(", ")
}

fn login(login: Login) -> &'static str {
    match login {
        Login::ByVariable => "key in the environment",
        Login::ByFile | Login::Reported => "logged in",
        Login::LoggedOut => "not logged in",
        Login::Unknown => "unknown",
    }
}

fn mark(good: bool, label: &str) -> Markup {
    html! { span class={ "chip " (if good { "is-completed" } else { "is-failed" }) } { (label) } }
}

fn findings(findings: &[Finding]) -> Markup {
    html! {
        @if !findings.is_empty() {
            ul.findings {
                @for finding in findings {
                    li { p { span.who { @if finding.blocks { "Missing" } @else { "Note" } } " " (page::inline_code(&finding.problem)) }
                        @if !finding.remedy.is_empty() { p.hint { (page::inline_code(&finding.remedy)) } } }
                }
            }
        }
    }
}
