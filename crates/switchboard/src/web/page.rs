//! What every page is made of: its frame, and the small things that stand in all of them.

use axum::response::{Html, IntoResponse, Response};
use maud::{DOCTYPE, Markup, PreEscaped, html};
use model::StateName;

use super::assets;
use super::login::Visitor;
use crate::text::visible;
pub use crate::text::{brief, dollars};

/// Where a reader is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Here {
    Jobs,
    Overview,
    Agents,
    /// On the page of one job.
    Job,
}

/// A whole page.
pub fn page(title: &str, here: Here, visitor: &Visitor, main: &Markup) -> Response {
    refreshing(title, here, visitor, main, None)
}

/// A whole page that loads itself again after so many seconds.
pub fn refreshing(
    title: &str,
    here: Here,
    visitor: &Visitor,
    main: &Markup,
    seconds: Option<u32>,
) -> Response {
    let links = [
        (Here::Jobs, "/", "Jobs"),
        (Here::Overview, "/overview", "Overview"),
        (Here::Agents, "/agents", "Agents"),
    ];
    let head = html! {
        nav aria-label="Pages" {
            @for (place, to, name) in links {
                a href=(to) aria-current=[current(place, here)] { (name) }
            }
        }
        // Said aloud only when it changes: a script writes it, and nothing is missing without one.
        p.live #live role="status" hidden {}
        form method="post" action="/logout" {
            (form_token(visitor))
            button.quiet type="submit" { "Log out" }
        }
    };
    frame(title, &head, main, seconds.map(|seconds| seconds.to_string()))
}

/// A job is among the jobs, though it is not their page.
fn current(place: Here, here: Here) -> Option<&'static str> {
    match (place, here) {
        (Here::Jobs, Here::Job) => Some("true"),
        (place, here) => (place == here).then_some("page"),
    }
}

/// A page for who has not been let in, or has asked for what is not there.
pub fn bare(title: &str, main: &Markup) -> Response {
    frame(title, &html! {}, main, None)
}

/// The same, which leads to the jobs by itself.
pub fn welcome(title: &str, main: &Markup) -> Response {
    frame(title, &html! {}, main, Some("0;url=/".to_owned()))
}

fn frame(title: &str, head: &Markup, main: &Markup, refresh: Option<String>) -> Response {
    let document = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                meta name="robots" content="noindex";
                @if let Some(refresh) = refresh { meta http-equiv="refresh" content=(refresh); }
                title { (title) " · Switchboard" }
                link rel="icon" href=(assets::ICON.path) type="image/svg+xml";
                link rel="stylesheet" href=(assets::STYLE.path);
                script src=(assets::SCRIPT.path) defer {}
            }
            body {
                a.skip href="#main" { "Skip to the content" }
                header.top {
                    a.mark href="/" aria-label="Switchboard, to the jobs" { (LOGO) span { "Switchboard" } }
                    (head)
                }
                main #main tabindex="-1" { (main) }
            }
        }
    };
    Html(document.into_string()).into_response()
}

/// Two lines that a plug connects.
const LOGO: PreEscaped<&str> = PreEscaped(
    r#"<svg class="logo" viewBox="0 0 24 24" width="24" height="24" aria-hidden="true" focusable="false"><circle cx="6" cy="6" r="2.5"/><circle cx="18" cy="6" r="2.5"/><circle cx="6" cy="18" r="2.5"/><circle cx="18" cy="18" r="2.5"/><path d="M6 8.5c0 6 12 1 12 7"/></svg>"#,
);

/// What proves that a form is of ours.
pub fn form_token(visitor: &Visitor) -> Markup {
    html! { input type="hidden" name="token" value=(visitor.form_token); }
}

/// Where a job stands, in a word; the mark before it and its colour only repeat the word.
pub fn chip(state: StateName) -> Markup {
    html! { span class={ "chip is-" (state.as_str()) } { (state.as_str()) } }
}

/// The same for one that is to end and has not yet.
pub fn chips(state: StateName, cancel_requested: bool) -> Markup {
    html! {
        (chip(state))
        @if cancel_requested && state.ended().is_none() { " " span.chip.is-cancelled { "stopping" } }
    }
}

/// A moment in UTC; a script puts it into the reader's own time.
pub fn moment(millis: u64) -> Markup {
    let at = i64::try_from(millis).ok().and_then(chrono::DateTime::from_timestamp_millis);
    let told = |form: &str| at.map(|at| at.format(form).to_string()).unwrap_or_default();
    html! {
        time datetime=(told("%Y-%m-%dT%H:%M:%S%.3fZ")) title=(told("%Y-%m-%d %H:%M:%S UTC")) { (told("%-d %b %H:%M")) }
    }
}

/// How long something has been going on; a script lets it grow.
pub fn growing(millis: u64) -> Markup {
    html! { span.grows data-millis=(millis) { (render::duration::format_millis(millis)) } }
}

/// A number that a person can read.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let groups: Vec<&str> =
        digits.as_bytes().rchunks(3).rev().filter_map(|group| str::from_utf8(group).ok()).collect();
    groups.join(",")
}

/// Memory, or a file.
pub fn bytes(number: u64) -> String {
    let tenths = |unit: u64| format!("{}.{}", number / unit, number % unit * 10 / unit);
    match number {
        ..1_000 => format!("{number} B"),
        1_000..1_000_000 => format!("{} kB", tenths(1_000)),
        1_000_000..1_000_000_000 => format!("{} MB", tenths(1_000_000)),
        _ => format!("{} GB", tenths(1_000_000_000)),
    }
}

/// Words with `code` in them.
pub fn words(text: &str) -> Markup {
    let shown = visible(text);
    html! {
        @for (at, piece) in shown.split('`').enumerate() {
            @if at % 2 == 1 { code { (piece) } } @else { (piece) }
        }
    }
}

/// A value that can be copied by a button, which is there when a script is.
pub fn copied(what: &str, value: &str) -> Markup {
    html! {
        span.copied {
            code { (unbroken(&visible(value))) }
            button.copy.quiet type="button" hidden data-copy=(value) aria-label={ "Copy " (what) } { "Copy" }
        }
    }
}

/// A command whose lines end between its words: a browser would also end them in the middle of `--cwd`.
pub fn unbroken(text: &str) -> Markup {
    if !text.contains(' ') {
        return html! { (text) };
    }
    html! {
        @for (at, word) in text.split(' ').enumerate() {
            @if at > 0 { " " }
            span.word { (word) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_has_all_its_words_and_is_no_markup() {
        let shown = unbroken("call --cwd <b>").into_string();
        let expected = r#"<span class="word">call</span> <span class="word">--cwd</span> <span class="word">&lt;b&gt;</span>"#;
        assert_eq!(shown, expected);
    }

    #[test]
    fn numbers_are_written_as_a_person_reads_them() {
        assert_eq!([0, 999, 1_000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!([12, 12_340_000].map(bytes), ["12 B", "12.3 MB"]);
    }

    #[test]
    fn words_are_never_markup() {
        let shown = words("say `<b>` & <script>alert(1)</script>").into_string();
        assert_eq!(shown, "say <code>&lt;b&gt;</code> &amp; &lt;script&gt;alert(1)&lt;/script&gt;");
    }
}
