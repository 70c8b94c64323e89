//! What a visitor can do: come in, leave, end a job, place one again.
//!
//! Every change needs the visitor's own form token beside the cookie; where it comes from, `gate` has looked at already.

use std::time::Instant;

use axum::extract::{Extension, Form, Path, Query, State};
use axum::http::header::SET_COOKIE;
use axum::http::{HeaderMap, Method, StatusCode};
use axum::response::{IntoResponse, Redirect, Response};
use maud::html;
use model::JobId;
use serde::Deserialize;

use super::login::Visitor;
use super::refusal::{Refusal, refuse};
use super::{Web, gate, page};

/// The word of a link.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Link {
    token: String,
}

/// Lets a browser in, once for each link.
pub async fn login(
    State(web): State<Web>,
    method: Method,
    headers: HeaderMap,
    Query(link): Query<Link>,
) -> Response {
    // A browser that only prepares for a click must not use the link up.
    let only_looks =
        method != Method::GET || headers.contains_key("sec-purpose") || headers.contains_key("purpose");
    let entered = if only_looks { None } else { web.doors().enter(&link.token, Instant::now()) };
    let Some(word) = entered else {
        // Loaded again by who is in already.
        if gate::visitor(&web, &headers).is_some() {
            return Redirect::to("/").into_response();
        }
        let hint = "each lets one browser in, once, for five minutes; `switchboard open` prints a new one";
        return refuse(StatusCode::UNAUTHORIZED, "This link is not valid any more", hint);
    };
    let cookie = format!("{}={word}; Path=/; HttpOnly; SameSite=Strict", web.cookie_name());
    // No redirect: with `SameSite=Strict` one that began on another page would come without the cookie.
    let main = html! {
        section.blank {
            h1 { "Welcome" }
            p { a href="/" { "To the jobs" } }
        }
    };
    ([(SET_COOKIE, cookie)], page::welcome("Welcome", &main)).into_response()
}

/// What every form brings.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Sent {
    token: String,
}

impl Sent {
    fn check(&self, visitor: &Visitor) -> Result<(), Refusal> {
        if visitor.has_sent(&self.token) {
            return Ok(());
        }
        Err(Refusal::forbidden(
            "This form is not of a page that you were given",
            "load the page anew, and try again",
        ))
    }

    /// The job that it is about.
    fn about(&self, job: &str, visitor: &Visitor) -> Result<JobId, Refusal> {
        self.check(visitor)?;
        job.parse().map_err(|_| Refusal::not_found("There is no such job", "all are at `/`"))
    }
}

/// Forgets the browser.
pub async fn logout(
    State(web): State<Web>,
    Extension(visitor): Extension<Visitor>,
    headers: HeaderMap,
    Form(sent): Form<Sent>,
) -> Result<Response, Refusal> {
    sent.check(&visitor)?;
    let name = web.cookie_name();
    if let Some(word) = gate::cookie(&headers, &name) {
        web.doors().leave(word);
    }
    let gone = format!("{name}=; Path=/; HttpOnly; SameSite=Strict; Max-Age=0");
    let main = html! {
        section.blank { h1 { "Logged out" } p { code { "switchboard open" } " lets you in again." } }
    };
    Ok(([(SET_COOKIE, gone)], page::bare("Logged out", &main)).into_response())
}

/// Ends a job.
pub async fn cancel(
    State(web): State<Web>,
    Extension(visitor): Extension<Visitor>,
    Path(job): Path<String>,
    Form(sent): Form<Sent>,
) -> Result<Redirect, Refusal> {
    let job = sent.about(&job, &visitor)?;
    web.desk().cancel(job).await?;
    tracing::info!(%job, "cancelled on the web page");
    Ok(Redirect::to(&format!("/jobs/{job}")))
}

/// Places an ended job again.
pub async fn retry(
    State(web): State<Web>,
    Extension(visitor): Extension<Visitor>,
    Path(job): Path<String>,
    Form(sent): Form<Sent>,
) -> Result<Redirect, Refusal> {
    let job = sent.about(&job, &visitor)?;
    if web.desk().job(job).await?.completed_at.is_none() {
        return Err(Refusal::conflict("This job has not ended", "wait for it, or cancel it first"));
    }
    let placed = web.desk().retry(job, None).await?;
    tracing::info!(%job, again = %placed.job, "placed again on the web page");
    Ok(Redirect::to(&format!("/jobs/{}", placed.job)))
}
