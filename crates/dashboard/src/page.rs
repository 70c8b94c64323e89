//! The frame of every page, and the elements that pages share.

use axum::response::{Html, IntoResponse, Response};
use maud::{DOCTYPE, Markup, PreEscaped, html};
use model::StateName;
use render::duration::format_millis;
use render::text::sanitize;

use crate::assets;
use crate::login::WebVisitor;

/// The current page, for the navigation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ActivePage {
    Jobs,
    Overview,
    Agents,
    /// The page of one job, or of a group.
    Job,
}

/// Returns a page.
pub(crate) fn page(title: &str, active: ActivePage, visitor: &WebVisitor, main: &Markup) -> Response {
    refreshing_page(title, active, visitor, main, None)
}

/// Returns a page that reloads after some seconds.
pub(crate) fn refreshing_page(
    title: &str,
    active: ActivePage,
    visitor: &WebVisitor,
    main: &Markup,
    seconds: Option<u32>,
) -> Response {
    let links = [
        (ActivePage::Jobs, "/", "Jobs"),
        (ActivePage::Overview, "/overview", "Overview"),
        (ActivePage::Agents, "/agents", "Agents"),
    ];
    let head = html! {
        nav aria-label="Pages" {
            @for (place, to, name) in links {
                a href=(to) aria-current=[current(place, active)] { (name) }
            }
        }
        // Filled by the script; screen readers announce changes.
        p.live #live role="status" hidden {}
        form method="post" action="/logout" {
            (form_token(visitor))
            button.quiet type="submit" { "Log out" }
        }
    };
    frame(title, &head, main, seconds.map(|seconds| seconds.to_string()))
}

/// Returns the `aria-current` value of a navigation entry. The pages of jobs and groups belong to the entry *Jobs*.
fn current(place: ActivePage, active: ActivePage) -> Option<&'static str> {
    match (place, active) {
        (ActivePage::Jobs, ActivePage::Job) => Some("true"),
        (place, active) => (place == active).then_some("page"),
    }
}

/// Returns a page without navigation, for errors and logged-out browsers.
pub(crate) fn bare_page(title: &str, main: &Markup) -> Response {
    frame(title, &html! {}, main, None)
}

/// Returns a page without navigation that redirects to the jobs.
pub(crate) fn welcome_page(title: &str, main: &Markup) -> Response {
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
                    a.mark href="/" aria-label="Switchboard, jobs" { (LOGO) span { "Switchboard" } }
                    (head)
                }
                main #main tabindex="-1" { (main) }
            }
        }
    };
    Html(document.into_string()).into_response()
}

/// Two lines connected by a plug.
const LOGO: PreEscaped<&str> = PreEscaped(
    r#"<svg class="logo" viewBox="0 0 24 24" width="24" height="24" aria-hidden="true" focusable="false"><circle cx="6" cy="6" r="2.5"/><circle cx="18" cy="6" r="2.5"/><circle cx="6" cy="18" r="2.5"/><circle cx="18" cy="18" r="2.5"/><path d="M6 8.5c0 6 12 1 12 7"/></svg>"#,
);

/// Returns the hidden field with the anti-CSRF token.
pub(crate) fn form_token(visitor: &WebVisitor) -> Markup {
    html! { input type="hidden" name="token" value=(visitor.form_token); }
}

/// Renders a form with one button behind a button that opens it, as the confirmation. Needs no script.
pub(crate) fn confirmed_action(
    visitor: &WebVisitor,
    url: &str,
    name: &str,
    question: &str,
    class: &str,
) -> Markup {
    html! {
        details.action {
            summary class={ "button " (class) } { (name) "…" }
            form method="post" action=(url) {
                p { (inline_code(question)) }
                (form_token(visitor))
                button type="submit" class=(class) { (name) }
            }
        }
    }
}

/// Returns the label of a state. Its color and mark carry no further information.
pub(crate) fn state_chip(state: StateName) -> Markup {
    html! { span class={ "chip is-" (state.as_str()) } { (state.as_str()) } }
}

/// Returns the label of a state, with *stopping* for a job that is being cancelled.
pub(crate) fn state_chips(state: StateName, cancel_requested: bool) -> Markup {
    html! {
        (state_chip(state))
        @if cancel_requested && state.ended().is_none() { " " span.chip.is-cancelled { "stopping" } }
    }
}

/// Returns a time in UTC. The script converts it to local time.
pub(crate) fn timestamp(millis: u64) -> Markup {
    let at = i64::try_from(millis).ok().and_then(chrono::DateTime::from_timestamp_millis);
    let format = |form: &str| at.map(|at| at.format(form).to_string()).unwrap_or_default();
    html! {
        time datetime=(format("%Y-%m-%dT%H:%M:%S%.3fZ")) title=(format("%Y-%m-%d %H:%M:%S UTC")) { (format("%-d %b %H:%M")) }
    }
}

/// Returns the duration of a running job. The script updates it.
pub(crate) fn running_duration(millis: u64) -> Markup {
    html! { span.grows data-millis=(millis) { (format_millis(millis)) } }
}

/// Formats a number with thousands separators.
pub(crate) fn group_digits(number: u64) -> String {
    let digits = number.to_string();
    let groups: Vec<&str> =
        digits.as_bytes().rchunks(3).rev().filter_map(|group| str::from_utf8(group).ok()).collect();
    groups.join(",")
}

/// Formats a number of files.
pub(crate) fn count_files(count: u64) -> String {
    format!("{} {}", group_digits(count), if count == 1 { "file" } else { "files" })
}

/// Renders text with inline code in backticks.
pub(crate) fn inline_code(text: &str) -> Markup {
    let shown = sanitize(text);
    html! {
        @for (at, part) in shown.split('`').enumerate() {
            @if at % 2 == 1 { code { (part) } } @else { (part) }
        }
    }
}

/// Renders a value with a button that copies it. The button is hidden without the script.
pub(crate) fn copyable(name: &str, value: &str) -> Markup {
    html! {
        span.copied {
            code { (nowrap_words(&sanitize(value))) }
            button.copy.quiet type="button" hidden data-copy=(value) aria-label={ "Copy " (name) } { "Copy" }
        }
    }
}

/// Renders a command that wraps only between words: browsers would also break a line inside `--cwd`.
pub(crate) fn nowrap_words(text: &str) -> Markup {
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
    fn command_is_split_into_escaped_words() {
        let shown = nowrap_words("call --cwd <b>").into_string();
        let expected = r#"<span class="word">call</span> <span class="word">--cwd</span> <span class="word">&lt;b&gt;</span>"#;
        assert_eq!(shown, expected);
    }

    #[test]
    fn thousands_are_grouped() {
        assert_eq!([0, 999, 1_000, 1_234_567].map(group_digits), ["0", "999", "1,000", "1,234,567"]);
    }

    #[test]
    fn inline_code_escapes_markup() {
        let shown = inline_code("say `<b>` & <script>alert(1)</script>").into_string();
        assert_eq!(shown, "say <code>&lt;b&gt;</code> &amp; &lt;script&gt;alert(1)&lt;/script&gt;");
    }
}
