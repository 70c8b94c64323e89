//! Groups: their page, its live updates, and the actions cancel and keep.

use std::fs;

use serde_json::{Value, json};

use crate::bed::Harness as Bed;
use crate::changes::bed_with_repository;
use crate::visitor::{HttpResponse, WebClient, run_job};

/// Markup that would run if a page did not escape it.
const HOSTILE: &str = "<img src=x onerror=alert(1)>";

/// Two contenders that change the same file, and a judge that prefers the second.
const WRITING: [&str; 3] =
    ["only fast write a.txt one", "only slow write a.txt two", "only judge choose +two"];

struct Group {
    id: String,
    contenders: Vec<String>,
}

impl Group {
    /// Submits a group whose prompt has these steps.
    fn submit(bed: &Bed, steps: &[&str], with: &str, options: &[&str]) -> Self {
        let steps: Vec<String> = steps.iter().map(|step| format!("@rehearse {step}")).collect();
        let (prompt, work) = (format!("Fix the basket\n{}", steps.join("\n")), bed.work());
        let mut args = vec!["race", &prompt, "--with", with, "--cwd", work.to_str().unwrap()];
        args.extend(options);
        args.extend(["--background", "--json"]);
        let output = bed.run(&args);
        assert!(output.status.success(), "{output:?}");
        let submitted: Value = serde_json::from_slice(&output.stdout).unwrap();
        let id = |value: &Value| value.as_str().unwrap_or_else(|| panic!("{submitted}")).to_owned();
        let contenders = submitted["contenders"].as_array().unwrap_or_else(|| panic!("{submitted}"));
        Self {
            id: id(&submitted["group_id"]),
            contenders: contenders.iter().map(|job| id(&job["job_id"])).collect(),
        }
    }

    /// Submits a group, and waits until all its jobs have ended.
    fn run(bed: &Bed, steps: &[&str], with: &str, options: &[&str]) -> Self {
        let group = Self::submit(bed, steps, with, options);
        group.wait(bed);
        group
    }

    fn wait(&self, bed: &Bed) {
        let output = bed.run(&["wait", &self.id]);
        assert!(output.status.code().is_some_and(|code| code < 5), "{output:?}");
    }

    fn page(&self, visitor: &WebClient) -> HttpResponse {
        let page = visitor.get(&format!("/groups/{}", self.id));
        assert_eq!(page.status, 200, "{}", page.body);
        page
    }

    /// Returns the row of a contender, counted from 1.
    fn row(&self, visitor: &WebClient, number: usize) -> String {
        let start = format!("data-swap=\"contender-{number}\"");
        self.page(visitor).between(&start, "</tr>").to_owned()
    }

    fn cancel(&self, visitor: &WebClient) -> HttpResponse {
        visitor.submit_form(&format!("/groups/{}/cancel", self.id), &visitor.form_token())
    }

    /// Keeps a contender, counted from 1.
    fn keep(&self, visitor: &WebClient, number: usize) -> HttpResponse {
        let job = &self.contenders[number - 1];
        visitor.submit_form(&format!("/jobs/{job}/keep"), &visitor.form_token())
    }
}

fn read(bed: &Bed, file: &str) -> String {
    fs::read_to_string(bed.work().join(file)).unwrap()
}

#[test]
fn group_page_compares_the_contenders() {
    let bed = bed_with_repository();
    let visitor = WebClient::log_in(&bed);
    let with = "rehearsal:fast,rehearsal:slow,rehearsal:idle";
    let group = Group::run(&bed, &WRITING, with, &["--judge", "rehearsal:judge"]);
    let page = group.page(&visitor);
    assert!(page.body.contains("race of 3") && page.body.contains("Fix the basket"), "{}", page.body);
    for (number, model) in [(1, "fast"), (2, "slow"), (3, "idle")] {
        let row = group.row(&visitor, number);
        let job = &group.contenders[number - 1];
        for part in [model, "is-completed", &format!("href=\"/jobs/{job}\"")] {
            assert!(row.contains(part), "{part} is not in {row}");
        }
        assert_eq!(row.contains("1 file<"), number < 3, "{row}");
        assert_eq!(row.contains("<code class=\"path\">a.txt</code>"), number < 3, "the overlaps: {row}");
        assert_eq!(row.contains(">best<"), number == 2, "{row}");
    }
    let verdict = page.between("class=\"verdict\"", "</section>");
    assert!(verdict.contains(&format!("href=\"/jobs/{}\"", group.contenders[1])), "{verdict}");
    assert!(verdict.contains("the judge chose contender 2 in both orders"), "{verdict}");
    let reviewers = page.between("class=\"reviewers\"", "</section>");
    assert_eq!(reviewers.matches("href=\"/jobs/").count(), 2, "{reviewers}");
    assert!(!page.body.contains("data-live"), "a finished group has no live stream");
    assert!(!page.body.contains("/cancel\""), "{}", page.body);
}

#[test]
fn synthesis_of_answers_is_on_the_group_page() {
    let bed = bed_with_repository();
    let visitor = WebClient::log_in(&bed);
    let steps = ["only one answer red", "only two answer blue", "only writer answer It is <b>red</b>."];
    let options = ["--observe", "--judge", "rehearsal:writer"];
    let group = Group::run(&bed, &steps, "rehearsal:one,rehearsal:two", &options);
    let page = group.page(&visitor);
    let synthesis = page.between("class=\"synthesis\"", "</section>");
    assert!(synthesis.contains("It is &lt;b&gt;red&lt;/b&gt;."), "{synthesis}");
    assert!(page.body.contains("2 independent answers"), "{}", page.body);
    for part in ["/keep\"", "Overlaps", "class=\"verdict\""] {
        assert!(!page.body.contains(part), "{part} is in {}", page.body);
    }
}

#[test]
fn verification_of_contenders_is_in_the_table() {
    let bed = bed_with_repository();
    let visitor = WebClient::log_in(&bed);
    let verify = ["--verify", "grep -q two a.txt"];
    let group = Group::run(&bed, &WRITING, "rehearsal:fast,rehearsal:slow", &verify);
    let failed = group.row(&visitor, 1);
    assert!(failed.contains("is-failed") && failed.contains("ended with exit code 1"), "{failed}");
    let passed = group.row(&visitor, 2);
    assert!(passed.contains("is-completed") && passed.contains(">passed<"), "{passed}");
    assert!(!group.page(&visitor).body.contains("class=\"verdict\""), "there is no judge");
}

#[test]
fn group_page_runs_no_agent_markup() {
    let bed = bed_with_repository();
    let visitor = WebClient::log_in(&bed);
    let message = json!({ "id": "m", "role": "assistant", "model": HOSTILE, "content": [] });
    let usage = json!({ "input_tokens": 1, "output_tokens": 1 });
    let result = json!({ "type": "result", "subtype": "success", "is_error": false, "result": HOSTILE, "usage": usage });
    let steps = [
        format!("only judge fail other {HOSTILE}"),
        format!("only bad write {}.txt x", HOSTILE.replace(' ', "-")),
        format!("only bad raw {}", json!({ "type": "assistant", "message": message })),
        format!("only bad raw {result}"),
        "only bad exit 0".to_owned(),
        format!("only stuck say {HOSTILE}\u{202e}"),
        "only stuck hang".to_owned(),
    ];
    let steps: Vec<&str> = steps.iter().map(String::as_str).collect();
    let options = ["--judge", "rehearsal:judge"];
    let group = Group::submit(&bed, &steps, "rehearsal:bad,rehearsal:bad,rehearsal:stuck", &options);
    let mut live = visitor.watch(&format!("/groups/{}/live", group.id));
    let lines = loop {
        let (name, data) = live.next().expect("the stream has ended");
        if name == "activity" && data["lines"][&group.contenders[2]].to_string().contains("onerror") {
            break data["lines"].to_string();
        }
    };
    assert!(lines.contains("&lt;img src=x") && !lines.contains("<img"), "{lines}");
    assert!(!lines.contains('\u{202e}'), "{lines}");
    let running = group.page(&visitor).body;
    bed.run(&["cancel", &group.contenders[2]]);
    group.wait(&bed);
    let ended = group.page(&visitor).body;
    for page in [running, ended] {
        assert!(page.matches("&lt;img src=x onerror=alert(1)&gt;").count() >= 4, "{page}");
        assert!(!page.contains("<img") && !page.contains('\u{202e}'), "{page}");
    }
    let row = group.row(&visitor, 1);
    for part in
        ["<span class=\"meta\">&lt;img src=x onerror=alert(1)&gt;", "&lt;img-src=x-onerror=alert(1)&gt;.txt"]
    {
        assert!(row.contains(part), "{part} is not in {row}");
    }
    let verdict = group.page(&visitor).between("class=\"verdict\"", "</section>").to_owned();
    assert!(verdict.contains("the judge failed: &lt;img src=x"), "{verdict}");
}

#[test]
fn live_group_reports_changes_until_its_end() {
    let bed = bed_with_repository();
    let visitor = WebClient::log_in(&bed);
    let steps = ["only stuck say busy with it", "only stuck hang", "only fast delay 1s"];
    let group = Group::submit(&bed, &steps, "rehearsal:fast,rehearsal:stuck", &[]);
    let path = format!("/groups/{}/live", group.id);
    assert!(group.page(&visitor).body.contains(&format!("data-live=\"{path}\"")));
    let mut live = visitor.watch(&path);
    assert_eq!(live.next().unwrap().0, "changed", "the page may be older than the stream");
    let mut is_busy = false;
    while !(is_busy && group.row(&visitor, 1).contains("is-completed")) {
        let (name, data) = live.next().expect("the stream has ended");
        is_busy |= name == "activity" && data["lines"][&group.contenders[1]] == "busy with it";
    }
    assert!(group.row(&visitor, 2).contains("busy with it"), "{}", group.row(&visitor, 2));
    assert_eq!(group.cancel(&visitor).status, 303);
    let last = std::iter::from_fn(|| live.next()).last().unwrap();
    assert_eq!(last.0, "ended");
    assert!(!group.page(&visitor).body.contains("data-live"));
}

#[test]
fn group_is_cancelled_on_its_page() {
    let bed = bed_with_repository();
    let visitor = WebClient::log_in(&bed);
    let group = Group::submit(&bed, &["hang"], "rehearsal:a,rehearsal:b", &["--judge", "rehearsal"]);
    let page = group.page(&visitor);
    assert!(page.body.contains(&format!("action=\"/groups/{}/cancel\"", group.id)), "{}", page.body);
    let expected = format!("/groups/{}", group.id);
    assert_eq!(group.cancel(&visitor).header("location"), Some(expected.as_str()));
    group.wait(&bed);
    let page = group.page(&visitor);
    assert_eq!(page.body.matches("is-cancelled").count(), 4, "{}", page.body);
    assert!(!page.body.contains("/cancel\""), "{}", page.body);
    assert_eq!(group.cancel(&visitor).status, 303, "cancelling twice is accepted");
}

#[test]
fn kept_contender_is_applied_and_the_others_discarded() {
    let bed = bed_with_repository();
    let visitor = WebClient::log_in(&bed);
    let steps = [&WRITING[..], &["only stuck hang"]].concat();
    let with = "rehearsal:fast,rehearsal:slow,rehearsal:stuck";
    let group = Group::submit(&bed, &steps, with, &["--judge", "rehearsal:judge"]);
    for job in &group.contenders[..2] {
        assert!(bed.run(&["wait", job]).status.success());
    }
    let question = group.page(&visitor).between("data-swap=\"keep-2\"", "</details>").to_owned();
    for part in ["contender 1 (rehearsal:fast, 1 file changed)", "contender 3 (rehearsal:stuck, has not"] {
        assert!(question.contains(part), "{part} is not in {question}");
    }
    let page = group.keep(&visitor, 2);
    assert_eq!(page.status, 200, "{}", page.body);
    assert!(page.body.contains("Changes applied, the others discarded"), "{}", page.body);
    assert!(page.body.contains("Discarded: contender 1"), "{}", page.body);
    assert_eq!(read(&bed, "a.txt"), "two");
    group.wait(&bed);
    for (number, state) in [(1, "is-discarded"), (2, "is-applied"), (3, "is-cancelled")] {
        let row = group.row(&visitor, number);
        assert!(row.contains(state), "{row}");
    }
    assert!(!group.page(&visitor).body.contains("/keep\""), "nothing is left to keep");
}

#[test]
fn conflicts_of_a_kept_contender_discard_nothing() {
    let bed = bed_with_repository();
    let visitor = WebClient::log_in(&bed);
    let group = Group::run(&bed, &WRITING, "rehearsal:fast,rehearsal:slow", &[]);
    fs::write(bed.work().join("a.txt"), "user\n").unwrap();
    let page = group.keep(&visitor, 2);
    assert_eq!(page.status, 409, "{}", page.body);
    assert!(page.between("class=\"changed-files\"", "</ul>").contains("a.txt"), "{}", page.body);
    assert!(page.body.contains("Nothing was discarded"), "{}", page.body);
    assert_eq!(read(&bed, "a.txt"), "user\n");
    for number in [1, 2] {
        assert!(group.row(&visitor, number).contains("is-open"), "{number}");
    }
    // Once the conflict is in the file, the others can be discarded.
    let job = &group.contenders[1];
    let form = format!("{}&markers=true", visitor.form_token());
    assert_eq!(visitor.submit_form(&format!("/jobs/{job}/apply"), &form).status, 200);
    let question = group.page(&visitor).between("data-swap=\"keep-2\"", "</details>").to_owned();
    assert!(question.contains("Discard the others") && question.contains("contender 1"), "{question}");
    assert_eq!(group.keep(&visitor, 2).status, 303);
    assert!(group.row(&visitor, 1).contains("is-discarded"));
}

#[test]
fn only_a_contender_can_be_kept() {
    let bed = bed_with_repository();
    let visitor = WebClient::log_in(&bed);
    let options = ["--judge", "rehearsal:judge"];
    let group = Group::run(&bed, &WRITING, "rehearsal:fast,rehearsal:slow", &options);
    let page = group.page(&visitor);
    let reviewer = page.between("class=\"reviewers\"", "</section>");
    let reviewer = reviewer.split("href=\"/jobs/").nth(1).unwrap().split('"').next().unwrap().to_owned();
    let alone = run_job(&bed, "@rehearse answer done", "t");
    for job in [reviewer, alone] {
        let page = visitor.submit_form(&format!("/jobs/{job}/keep"), &visitor.form_token());
        assert_eq!(page.status, 409, "{}", page.body);
    }
    assert!(group.row(&visitor, 1).contains("is-open") && read(&bed, "a.txt") == "one\n");
}

#[test]
fn group_is_found_by_a_prefix_and_by_its_jobs() {
    let bed = bed_with_repository();
    let visitor = WebClient::log_in(&bed);
    let group = Group::run(&bed, &["answer done"], "rehearsal:a,rehearsal:b", &["--observe"]);
    let location = format!("/groups/{}", group.id);
    let prefix = group.id[..group.id.len() - 18].to_owned();
    for given in [prefix, format!("group-{}", group.contenders[1])] {
        let found = visitor.get(&format!("/groups/{given}"));
        assert_eq!(found.header("location"), Some(location.as_str()), "{given}: {}", found.body);
    }
    let page = visitor.get(&format!("/jobs/{}", group.contenders[1])).body;
    assert!(page.contains(&format!("One of 2 in <a href=\"{location}\">")), "{page}");
}

#[test]
fn unknown_group_is_not_found() {
    let bed = bed_with_repository();
    let visitor = WebClient::log_in(&bed);
    let alone = run_job(&bed, "@rehearse answer done", "t");
    let unknown = "group-01900000-0000-7000-8000-000000000000".to_owned();
    for id in [unknown, "group-x".to_owned(), "nonsense".to_owned(), format!("group-{alone}"), alone] {
        for path in [format!("/groups/{id}"), format!("/groups/{id}/live")] {
            assert_eq!(visitor.get(&path).status, 404, "{path}");
        }
        let cancelled = visitor.submit_form(&format!("/groups/{id}/cancel"), &visitor.form_token());
        assert_eq!(cancelled.status, 404, "{id}");
    }
    assert!(!visitor.get(&format!("/groups/{HOSTILE}").replace(' ', "%20")).body.contains("<img"));
}

#[test]
fn actions_on_groups_need_the_form_token() {
    let bed = bed_with_repository();
    let visitor = WebClient::log_in(&bed);
    let steps = ["only fast write a.txt one", "only stuck hang"];
    let group = Group::submit(&bed, &steps, "rehearsal:fast,rehearsal:stuck", &[]);
    assert!(bed.run(&["wait", &group.contenders[0]]).status.success());
    for path in [format!("/groups/{}/cancel", group.id), format!("/jobs/{}/keep", group.contenders[0])] {
        assert_eq!(visitor.submit_form(&path, "made-up").status, 403, "{path}");
        let foreign = [("Origin", "http://evil.example")];
        let body = format!("token={}", visitor.form_token());
        assert_eq!(visitor.send("POST", &path, &foreign, &body).status, 403, "{path}");
        assert_eq!(visitor.logged_out().submit_form(&path, &visitor.form_token()).status, 401, "{path}");
        assert_eq!(visitor.get(&path).status, 405, "{path}");
    }
    assert_eq!(visitor.logged_out().get(&format!("/groups/{}", group.id)).status, 401);
    assert!(group.row(&visitor, 1).contains("is-open") && group.row(&visitor, 2).contains("is-running"));
    assert_eq!(read(&bed, "a.txt"), "one\n");
    group.cancel(&visitor);
}
