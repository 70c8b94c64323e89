//! The content of the pages.

use crate::bed::Harness as Bed;
use crate::visitor::{WebClient, run_job, submit};

/// Markup that would run if a page did not escape it.
const HOSTILE: &str = r#"</pre></script><script>alert(1)</script><img src=x onerror=alert(2)>"'&"#;

#[test]
fn agent_text_is_never_markup() {
    let bed = Bed::new();
    let visitor = WebClient::log_in(&bed);
    let prompt = format!(
        "{HOSTILE}\n@rehearse think {HOSTILE}\n@rehearse tool Bash {HOSTILE} => {HOSTILE}\n@rehearse say {HOSTILE}\n\
         @rehearse raw {HOSTILE}\n@rehearse fail other {HOSTILE}"
    );
    let job = run_job(&bed, &prompt, HOSTILE);
    let control = run_job(&bed, "@rehearse say \"\u{1b}[2Jred\u{1b}]0;title\u{7} user\u{202e}nimda\"", "t");
    for path in ["/", "/overview", "/agents", &format!("/jobs/{job}"), &format!("/?q={}", "%3Cscript%3E")] {
        let page = visitor.get(path);
        assert_eq!(page.status, 200, "{path}: {}", page.body);
        let markup = page.body.replace("<script src=\"/assets/", "");
        for bad in ["<script", "<img", "</pre></script>", "onerror=alert(2)>"] {
            assert!(!markup.contains(bad), "{path}: {markup}");
        }
    }
    let page = visitor.get(&format!("/jobs/{job}")).body;
    assert!(page.matches("&lt;script&gt;alert(1)&lt;/script&gt;").count() >= 5, "{page}");
    let page = visitor.get(&format!("/jobs/{control}")).body;
    assert!(
        page.contains("red user⟨U+202E⟩nimda") && !page.contains('\u{1b}') && !page.contains('\u{202e}'),
        "{page}"
    );
    let raw = visitor.get(&format!("/jobs/{job}/output"));
    assert_eq!(raw.header("content-type"), Some("text/plain; charset=utf-8"));
    assert!(raw.header("content-disposition").unwrap().starts_with("attachment"), "{}", raw.head);
}

#[test]
fn changes_are_shown_per_file_without_markup() {
    let bed = Bed::new();
    let git = |args: &[&str]| {
        let status = std::process::Command::new("git").args(args).current_dir(bed.work()).status();
        assert!(status.unwrap().success());
    };
    git(&["init", "-q"]);
    let visitor = WebClient::log_in(&bed);
    let prompt =
        format!("@rehearse write a<img>.txt {HOSTILE}\n@rehearse write b.txt plain\n@rehearse answer done");
    let job = run_job(&bed, &prompt, "t");
    let page = visitor.get(&format!("/jobs/{job}")).body;
    let section = page.split("class=\"changes\"").nth(1).unwrap().split("</section>").next().unwrap();
    assert_eq!(section.matches("<details>").count(), 2, "{section}");
    assert!(
        section.contains("a&lt;img&gt;.txt") && section.contains("+&lt;/pre&gt;&lt;/script&gt;"),
        "{section}"
    );
    assert!(section.contains("<span class=\"plus\">+plain\n</span>"), "{section}");
    assert!(!section.contains("<img") && !section.contains("<script"), "{section}");
    let patch = visitor.get(&format!("/jobs/{job}/patch"));
    assert_eq!(patch.header("content-type"), Some("text/plain; charset=utf-8"));
    assert!(patch.header("content-disposition").unwrap().starts_with("attachment"), "{}", patch.head);
    assert!(patch.body.contains("+plain\n"), "{}", patch.body);
}

#[test]
fn job_without_changes_has_no_section_for_them() {
    let bed = Bed::new();
    let visitor = WebClient::log_in(&bed);
    let job = run_job(&bed, "@rehearse answer done", "t");
    assert!(!visitor.get(&format!("/jobs/{job}")).body.contains("class=\"changes\""));
    assert_eq!(visitor.get(&format!("/jobs/{job}/patch")).status, 404);
}

#[test]
fn long_list_is_paged() {
    let bed = Bed::new();
    bed.configure("[limits]\nat_once = 1\n");
    let visitor = WebClient::log_in(&bed);
    let jobs: Vec<String> =
        (0..53).map(|number| submit(&bed, &format!("@rehearse hang {number}"), "t")).collect();
    let first = visitor.get("/");
    assert_eq!(first.body.matches("<li class=\"job\"").count(), 50);
    assert!(first.body.contains("50 of 53"), "{}", first.body);
    assert!(first.body.contains(&jobs[52]) && !first.body.contains(&jobs[2]));
    assert!(first.body.contains("data-live=\"/live\""), "the first page is live");
    let next = first.between("rel=\"next\"", ">").len();
    assert!(next < 100);
    let older = visitor.get(&format!("/?before={}", jobs[3]));
    assert_eq!(older.body.matches("<li class=\"job\"").count(), 3);
    assert!(!older.body.contains("rel=\"next\"") && !older.body.contains("data-live"), "{}", older.body);
    assert_eq!(visitor.get("/?before=nonsense").status, 400);
    assert!(bed.run(&["stop", "--cancel"]).status.success());
}

#[test]
fn jobs_are_filtered_by_state_agent_and_words() {
    let bed = Bed::new();
    let visitor = WebClient::log_in(&bed);
    let good = run_job(&bed, "Mend the Basket", "shop");
    let bad = run_job(&bed, "x\n@rehearse fail other", "100%");
    let open = submit(&bed, "@rehearse hang", "t");
    let found = |query: &str| {
        let page = visitor.get(&format!("/?{query}"));
        assert_eq!(page.status, 200, "{query}: {}", page.body);
        [&good, &bad, &open].map(|job| page.body.contains(&format!("id=\"job-{job}\"")))
    };
    assert_eq!(found(""), [true, true, true]);
    assert_eq!(found("state=failed"), [false, true, false]);
    assert_eq!(found("state=active"), [false, false, true]);
    assert_eq!(found("agent=rehearsal&q=bASket"), [true, false, false]);
    assert_eq!(found("q=shop"), [true, false, false], "the name of the task");
    assert_eq!(found("q=%25"), [false, true, false]);
    assert_eq!(found("agent=claude"), [false, false, false]);
    assert!(visitor.get("/?agent=claude").body.contains("No matching jobs"));
    assert_eq!(visitor.get("/?state=nonsense").status, 400);
    bed.run(&["cancel", &open]);
}

#[test]
fn job_page_shows_transcript_and_outcome() {
    let bed = Bed::new();
    let visitor = WebClient::log_in(&bed);
    let job = run_job(
        &bed,
        "Do it\n@rehearse tool Bash {\"command\":\"ls -l\"} => two files\n@rehearse answer All is done",
        "shop",
    );
    let page = visitor.get(&format!("/jobs/{job}"));
    let session = page.between("<dt>Session</dt><dd><span class=\"copied\"><code>", "</code>").to_owned();
    assert!(page.body.contains(&format!("--session {session} ")), "{}", page.body);
    for part in [
        "Do it",
        "All is done",
        "<strong>Bash</strong>",
        "ls -l",
        "two files",
        "is-completed",
        "confirmed by the kernel",
        "switchboard call rehearsal --cwd",
    ] {
        assert!(page.body.contains(part), "{part} is not in {}", page.body);
    }
    let tool = page.between("<details data-tool=", "</details>");
    assert!(tool.contains("two files"), "the result is inside the tool call: {tool}");
    assert!(!page.body.contains("data-live"), "a finished job has no live stream");
    assert_eq!(
        visitor.get(&format!("/jobs/{}", &job[..18])).header("location"),
        Some(format!("/jobs/{job}").as_str())
    );
    assert_eq!(visitor.get("/jobs/nonsense").status, 404);
    let again = visitor.submit_form(&format!("/jobs/{job}/retry"), &visitor.form_token());
    let again = again.header("location").unwrap().to_owned();
    assert!(
        visitor.get(&again).body.contains(&format!("href=\"/jobs/{job}\"")),
        "it links to the retried job"
    );
}

#[test]
fn job_page_shows_processes_of_running_job() {
    let bed = Bed::new();
    let visitor = WebClient::log_in(&bed);
    let job = submit(&bed, "@rehearse spawn setsid for 60s\n@rehearse say up\n@rehearse hang", "t");
    visitor.watch(&format!("/jobs/{job}/live")).until(|name, html| name == "piece" && html.contains("up"));
    let page = visitor.get(&format!("/jobs/{job}")).body;
    assert!(page.contains("rehearsal") && page.contains("class=\"depth-1\""), "{page}");
    let part = visitor.get(&format!("/jobs/{job}/processes")).body;
    assert!(part.contains("pid ") && !part.contains("<html"), "{part}");
    assert_eq!(visitor.submit_form(&format!("/jobs/{job}/retry"), &visitor.form_token()).status, 409);
    assert_eq!(visitor.submit_form(&format!("/jobs/{job}/cancel"), &visitor.form_token()).status, 303);
    bed.run(&["wait", &job]);
    assert_eq!(
        visitor.submit_form(&format!("/jobs/{job}/cancel"), &visitor.form_token()).status,
        303,
        "cancelling twice is accepted"
    );
}

#[test]
fn overview_has_charts_and_tables() {
    let bed = Bed::new();
    let visitor = WebClient::log_in(&bed);
    assert!(visitor.get("/").body.contains("No calls yet"));
    assert!(visitor.get("/overview").body.contains("Nothing yet"));
    run_job(&bed, "x", "t");
    run_job(&bed, "x\n@rehearse fail other", "t");
    let page = visitor.get("/overview?days=7").body;
    for id in ["calls", "success", "durations", "cost"] {
        let svg = format!("aria-labelledby=\"{id}-t {id}-d\"");
        assert!(page.contains(&format!("id=\"{id}-title\"")), "{page}");
        assert!(page.contains(&svg) || page.contains("Nothing to show yet"), "{page}");
    }
    assert!(page.matches("<svg viewBox").count() >= 3 && page.contains("50% of 2 finished calls"), "{page}");
    assert_eq!(page.matches("As a table").count(), page.matches("role=\"img\"").count());
}

#[test]
fn agents_page_lists_agents_and_machine() {
    let bed = Bed::new();
    let visitor = WebClient::log_in(&bed);
    let page = loop {
        let page = visitor.get("/agents").body;
        if !page.contains("Checking …") {
            break page;
        }
        assert!(page.contains("http-equiv=\"refresh\""), "it reloads automatically: {page}");
    };
    for part in ["claude", "codex", "gemini", "not ready", "This machine"] {
        assert!(page.contains(part), "{part} is not in {page}");
    }
}

#[test]
fn hanging_agent_does_not_block_the_agents_page() {
    use std::os::unix::fs::PermissionsExt;
    let bed = Bed::new();
    let slow = bed.scratch().join("slow");
    std::fs::write(&slow, "#!/bin/sh\nexec /bin/sleep 20\n").unwrap();
    std::fs::set_permissions(&slow, std::fs::Permissions::from_mode(0o755)).unwrap();
    bed.configure(&format!("[programs]\nclaude = \"{}\"\n", slow.display()));
    let visitor = WebClient::log_in(&bed);
    let page = visitor.get("/agents").body;
    assert!(page.contains("Checking …") && page.contains("http-equiv=\"refresh\""), "{page}");
    assert_eq!(visitor.get("/").status, 200, "other pages are not blocked");
}
