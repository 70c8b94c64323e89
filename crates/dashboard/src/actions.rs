//! The actions of a visitor: log in, log out, cancel a job, run it again. See `restore` for those on changes, and `group`.
//!
//! Each change needs the visitor's form token in addition to the cookie. `auth` has already checked the origin.

use std::time::Instant;

use axum::extract::{Extension, Form, Path, Query, State};
use axum::http::header::SET_COOKIE;
use axum::http::{HeaderMap, Method, StatusCode};
use axum::response::{IntoResponse, Redirect, Response};
use maud::html;
use model::JobId;
use serde::Deserialize;

use crate::context::PageContext;
use crate::login::WebVisitor;
use crate::rejection::{PageRejection, error_page};
use crate::{auth, page};

/// The query parameters of a login request.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct LoginQuery {
    token: String,
}

/// Handles a login request. Each link works once.
pub(crate) async fn login(
    State(context): State<PageContext>,
    method: Method,
    headers: HeaderMap,
    Query(link): Query<LoginQuery>,
) -> Response {
    // A prefetch must not use up the link.
    let is_prefetch =
        method != Method::GET || headers.contains_key("sec-purpose") || headers.contains_key("purpose");
    let redeemed = if is_prefetch { None } else { context.logins().redeem_link(&link.token, Instant::now()) };
    let Some(cookie) = redeemed else {
        // A reload by a browser that is already logged in.
        if auth::find_visitor(&context, &headers).is_some() {
            return Redirect::to("/").into_response();
        }
        let hint = "a link works once, within five minutes; `switchboard open` prints a new one";
        return error_page(StatusCode::UNAUTHORIZED, "This link is no longer valid", hint);
    };
    let cookie = format!("{}={cookie}; Path=/; HttpOnly; SameSite=Strict", context.cookie_name());
    // No HTTP redirect: with `SameSite=Strict`, a redirect that started on another site carries no cookie.
    let main = html! {
        section.blank {
            h1 { "Welcome" }
            p { a href="/" { "Go to the jobs" } }
        }
    };
    ([(SET_COOKIE, cookie)], page::welcome_page("Welcome", &main)).into_response()
}

/// The fields of every form.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct FormFields {
    token: String,
    /// Writes conflicts into the files.
    pub markers: bool,
}

impl FormFields {
    /// Checks the token.
    pub fn check(&self, visitor: &WebVisitor) -> Result<(), PageRejection> {
        if visitor.owns_form(&self.token) {
            return Ok(());
        }
        Err(PageRejection::forbidden("This form is not valid", "reload the page and try again"))
    }

    /// Checks the token and parses the job id.
    pub fn parse_job(&self, job: &str, visitor: &WebVisitor) -> Result<JobId, PageRejection> {
        self.check(visitor)?;
        job.parse().map_err(|_| PageRejection::not_found("Job not found", "all jobs are at `/`"))
    }
}

/// Handles a logout request.
pub(crate) async fn logout(
    State(context): State<PageContext>,
    Extension(visitor): Extension<WebVisitor>,
    headers: HeaderMap,
    Form(form): Form<FormFields>,
) -> Result<Response, PageRejection> {
    form.check(&visitor)?;
    let name = context.cookie_name();
    if let Some(cookie) = auth::cookie(&headers, &name) {
        context.logins().log_out(cookie);
    }
    let expired = format!("{name}=; Path=/; HttpOnly; SameSite=Strict; Max-Age=0");
    let main = html! {
        section.blank { h1 { "Logged out" } p { "Run " code { "switchboard open" } " to log in again." } }
    };
    Ok(([(SET_COOKIE, expired)], page::bare_page("Logged out", &main)).into_response())
}

/// Handles a request to cancel a job.
pub(crate) async fn cancel(
    State(context): State<PageContext>,
    Extension(visitor): Extension<WebVisitor>,
    Path(job): Path<String>,
    Form(form): Form<FormFields>,
) -> Result<Redirect, PageRejection> {
    let job = form.parse_job(&job, &visitor)?;
    context.service().cancel(job).await?;
    tracing::info!(%job, "cancelled on the web page");
    Ok(Redirect::to(&format!("/jobs/{job}")))
}

/// Handles a request to submit a finished job again.
pub(crate) async fn retry(
    State(context): State<PageContext>,
    Extension(visitor): Extension<WebVisitor>,
    Path(job): Path<String>,
    Form(form): Form<FormFields>,
) -> Result<Redirect, PageRejection> {
    let job = form.parse_job(&job, &visitor)?;
    if context.service().job(job).await?.completed_at.is_none() {
        return Err(PageRejection::conflict("This job has not finished", "wait for it, or cancel it first"));
    }
    let submitted = context.service().retry(job, None).await?;
    tracing::info!(%job, again = %submitted.job, "retried on the web page");
    Ok(Redirect::to(&format!("/jobs/{}", submitted.job)))
}
