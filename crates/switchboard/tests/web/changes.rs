//! Changes of jobs: their state, and the actions apply, discard, undo and redo.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::json;

use crate::bed::Harness as Bed;
use crate::visitor::{HttpResponse, WebClient, run_job};

/// Creates a bed whose working directory is a git repository with the file `a.txt`.
pub fn bed_with_repository() -> Bed {
    let bed = Bed::new();
    bed.configure("rehearsal = true\n");
    fs::write(bed.work().join("a.txt"), "one\n").unwrap();
    let identity = ["-c", "user.name=Ana", "-c", "user.email=ana@example.org"];
    for args in [&["init", "-q"][..], &["add", "-A"], &["commit", "-q", "-m", "first"]] {
        let status = Command::new("git").args(identity).args(args).current_dir(bed.work()).status();
        assert!(status.unwrap().success());
    }
    bed
}

/// Runs a job with these steps in a private checkout, and returns its id.
fn run_in_checkout(bed: &Bed, steps: &[&str]) -> String {
    let steps: Vec<String> =
        steps.iter().chain(&["answer done"]).map(|step| format!("@rehearse {step}")).collect();
    let arguments = json!({ "prompt": steps.join("\n"), "cwd": bed.work(), "worktree": true });
    let mut host = bed.bridge();
    host.initialize();
    host.request(1, "tools/call", &json!({ "name": "call_rehearsal", "arguments": arguments }));
    let answer = host.receive();
    host.disconnect();
    let answer = &answer["result"]["structuredContent"];
    assert_eq!(answer["status"], "completed", "{answer}");
    answer["job_id"].as_str().unwrap().to_owned()
}

/// Submits a form of a job's page.
fn act(visitor: &WebClient, job: &str, verb: &str) -> HttpResponse {
    visitor.submit_form(&format!("/jobs/{job}/{verb}"), &visitor.form_token())
}

fn section(visitor: &WebClient, job: &str) -> String {
    visitor.get(&format!("/jobs/{job}")).between("class=\"changes\"", "</section>").to_owned()
}

/// Returns the actions on changes that the page of a job offers.
fn offered(section: &str) -> Vec<&str> {
    let verbs = ["apply", "discard", "undo", "redo"];
    verbs.into_iter().filter(|verb| section.contains(&format!("/{verb}\""))).collect()
}

fn read(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path).unwrap()
}

#[test]
fn failed_verification_is_on_the_page_of_its_job() {
    let bed = bed_with_repository();
    let mut host = bed.bridge();
    host.initialize();
    let verify = "echo '<b>1 failed</b>'; exit 1";
    let arguments = json!({ "prompt": "@rehearse answer done", "cwd": bed.work(), "verify": verify });
    host.request(1, "tools/call", &json!({ "name": "call_rehearsal", "arguments": arguments }));
    let answer = host.receive();
    host.disconnect();
    let job = answer["result"]["structuredContent"]["job_id"].as_str().unwrap_or_else(|| panic!("{answer}"));
    let visitor = WebClient::log_in(&bed);
    let page = visitor.get(&format!("/jobs/{job}"));
    let verified = page.between("class=\"verified\"", "</section>");
    assert!(verified.contains("Not verified") && verified.contains("ended with exit code 1"), "{verified}");
    assert!(verified.contains("&lt;b&gt;1 failed&lt;/b&gt;"), "{verified}");
}

#[test]
fn open_changes_show_branch_directory_and_actions() {
    let bed = bed_with_repository();
    let visitor = WebClient::log_in(&bed);
    let job = run_in_checkout(&bed, &["write b.txt new"]);
    let shown = section(&visitor, &job);
    assert_eq!(offered(&shown), ["apply", "discard"]);
    for part in ["is-open", &format!("switchboard/{}", &job[..13]), bed.work().to_str().unwrap()] {
        assert!(shown.contains(part), "{part} is not in {shown}");
    }
    assert!(!shown.contains("Collisions") && !shown.contains("call_"), "{shown}");
}

#[test]
fn collisions_are_listed_with_a_link_to_the_job() {
    let bed = bed_with_repository();
    let visitor = WebClient::log_in(&bed);
    let first = run_in_checkout(&bed, &["write a.txt first"]);
    let second = run_in_checkout(&bed, &["write a.txt second"]);
    let shown = section(&visitor, &second);
    assert!(shown.contains("Collisions") && shown.contains(&format!("href=\"/jobs/{first}\"")), "{shown}");
}

#[test]
fn apply_writes_the_files_and_lists_them() {
    let bed = bed_with_repository();
    let visitor = WebClient::log_in(&bed);
    let job = run_in_checkout(&bed, &["write b<img>.txt new"]);
    let page = act(&visitor, &job, "apply");
    assert_eq!(page.status, 200, "{}", page.body);
    assert!(page.body.contains("Changes applied") && page.body.contains("b&lt;img&gt;.txt"), "{}", page.body);
    assert_eq!(read(bed.work().join("b<img>.txt")), "new");
    let shown = section(&visitor, &job);
    assert!(shown.contains("is-applied"), "{shown}");
    assert_eq!(offered(&shown), ["undo"]);
    for verb in ["apply", "discard", "redo"] {
        assert_eq!(act(&visitor, &job, verb).status, 409, "{verb}");
    }
}

#[test]
fn applied_changes_are_undone_and_redone() {
    let bed = bed_with_repository();
    let visitor = WebClient::log_in(&bed);
    let job = run_in_checkout(&bed, &["write a.txt job"]);
    act(&visitor, &job, "apply");
    assert_eq!(act(&visitor, &job, "undo").status, 200);
    assert_eq!(read(bed.work().join("a.txt")), "one\n");
    let shown = section(&visitor, &job);
    assert!(shown.contains("is-undone"), "{shown}");
    assert_eq!(offered(&shown), ["redo"]);
    assert!(act(&visitor, &job, "redo").body.contains("Changes redone"));
    assert_eq!(read(bed.work().join("a.txt")), "job");
}

#[test]
fn changes_in_place_are_undone() {
    let bed = bed_with_repository();
    let visitor = WebClient::log_in(&bed);
    let job = run_job(&bed, "@rehearse write a.txt job\n@rehearse answer done", "t");
    assert_eq!(offered(&section(&visitor, &job)), ["undo", "redo"]);
    let page = act(&visitor, &job, "undo");
    assert!(page.body.contains("Changes undone") && page.body.contains("a.txt"), "{}", page.body);
    assert_eq!(read(bed.work().join("a.txt")), "one\n");
    assert_eq!(act(&visitor, &job, "apply").status, 409);
}

#[test]
fn conflicts_are_listed_before_markers_are_written() {
    let bed = bed_with_repository();
    let visitor = WebClient::log_in(&bed);
    let job = run_in_checkout(&bed, &["write a.txt job", "write b.txt job"]);
    fs::write(bed.work().join("a.txt"), "user\n").unwrap();
    let page = act(&visitor, &job, "apply");
    assert_eq!(page.status, 409);
    let listed = page.between("<ul class=\"changed-files\">", "</ul>");
    assert!(listed.contains("a.txt") && listed.contains("same or adjacent lines"), "{listed}");
    assert!(!listed.contains("b.txt") && !bed.work().join("b.txt").exists(), "{listed}");
    assert!(page.body.contains("name=\"markers\" value=\"true\""), "{}", page.body);
    let token = format!("{}&markers=true", visitor.form_token());
    let page = visitor.submit_form(&format!("/jobs/{job}/apply"), &token);
    assert!(page.body.contains("written with conflict markers"), "{}", page.body);
    assert!(read(bed.work().join("a.txt")).contains("<<<<<<<"));
}

#[test]
fn conflicts_of_an_undo_name_the_command() {
    let bed = bed_with_repository();
    let visitor = WebClient::log_in(&bed);
    let job = run_job(&bed, "@rehearse write a.txt job\n@rehearse answer done", "t");
    fs::write(bed.work().join("a.txt"), "user\n").unwrap();
    let page = act(&visitor, &job, "undo");
    assert_eq!(page.status, 409);
    assert!(page.body.contains(&format!("switchboard undo {job} PATH")), "{}", page.body);
    assert_eq!(read(bed.work().join("a.txt")), "user\n");
}

#[test]
fn discard_removes_the_checkout() {
    let bed = bed_with_repository();
    let visitor = WebClient::log_in(&bed);
    let job = run_in_checkout(&bed, &["write b.txt new"]);
    let answer = act(&visitor, &job, "discard");
    assert_eq!(answer.header("location"), Some(format!("/jobs/{job}").as_str()), "{}", answer.body);
    let shown = section(&visitor, &job);
    assert!(shown.contains("is-discarded") && shown.contains("+new"), "{shown}");
    assert!(offered(&shown).is_empty() && !bed.work().join("b.txt").exists(), "{shown}");
}

#[test]
fn job_without_changes_in_a_checkout_has_no_actions() {
    let bed = bed_with_repository();
    let visitor = WebClient::log_in(&bed);
    let job = run_in_checkout(&bed, &[]);
    let shown = section(&visitor, &job);
    assert!(shown.contains("is-unchanged"), "{shown}");
    assert!(offered(&shown).is_empty(), "{shown}");
}

#[test]
fn actions_on_changes_need_the_form_token() {
    let bed = bed_with_repository();
    let visitor = WebClient::log_in(&bed);
    let job = run_in_checkout(&bed, &["write b.txt new"]);
    for verb in ["apply", "discard", "undo", "redo"] {
        let path = format!("/jobs/{job}/{verb}");
        assert_eq!(visitor.submit_form(&path, "made-up").status, 403, "{verb}");
        let foreign = [("Origin", "http://evil.example")];
        let body = format!("token={}", visitor.form_token());
        assert_eq!(visitor.send("POST", &path, &foreign, &body).status, 403, "{verb}");
        assert_eq!(visitor.logged_out().submit_form(&path, &visitor.form_token()).status, 401, "{verb}");
        assert_eq!(visitor.get(&path).status, 405, "{verb}");
    }
    assert!(section(&visitor, &job).contains("is-open") && !bed.work().join("b.txt").exists());
}

#[test]
fn open_changes_are_marked_and_filtered_in_the_list() {
    let bed = bed_with_repository();
    let visitor = WebClient::log_in(&bed);
    let open = run_in_checkout(&bed, &["write b.txt new"]);
    let other = run_job(&bed, "x", "t");
    let page = visitor.get("/").body;
    assert_eq!(page.matches("<span class=\"waits\">open changes</span>").count(), 1, "{page}");
    assert!(page.contains("href=\"/?changes=open\""), "{page}");
    let found = |query: &str| {
        let page = visitor.get(&format!("/?{query}")).body;
        [&open, &other].map(|job| page.contains(&format!("id=\"job-{job}\"")))
    };
    assert_eq!(found("changes=open"), [true, false]);
    assert_eq!(found("changes=open&state=completed&agent=rehearsal&q=b.txt"), [true, false]);
    assert_eq!(found("changes=open&state=failed"), [false, false]);
    assert_eq!(visitor.get("/?changes=nonsense").status, 400);
    act(&visitor, &open, "discard");
    assert_eq!(found("changes=open"), [false, false]);
    assert!(!visitor.get("/").body.contains("open changes"));
}

#[test]
fn row_of_an_ended_job_is_marked_live() {
    let bed = bed_with_repository();
    let visitor = WebClient::log_in(&bed);
    let mut live = visitor.watch("/live");
    let job = run_in_checkout(&bed, &["write b.txt new"]);
    let row = live.until(|name, html| name == "job" && html.contains("is-completed"));
    assert!(row.contains(&job) && row.contains("open changes"), "{row}");
}
