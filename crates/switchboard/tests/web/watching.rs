//! What is heard live, and that nobody who listens holds the daemon.

use std::io::Write;
use std::net::TcpStream;

use crate::bed::Harness as Bed;
use crate::visitor::{Visitor, place};

#[test]
fn who_watches_the_list_hears_of_a_job_that_is_placed_later_and_of_its_end() {
    let bed = Bed::new();
    let visitor = Visitor::of(&bed);
    let mut all = visitor.watch("/live");
    let mut failed = visitor.watch("/live?state=failed");
    let mut others = visitor.watch("/live?q=somewhere%20else");
    for watcher in [&mut all, &mut failed, &mut others] {
        assert_eq!(watcher.next().unwrap().0, "hello");
    }
    let job = place(&bed, "look at <this>\n@rehearse fail other", "t");
    let mine = format!("id=\"job-{job}\"");
    let row = all.until(|name, html| name == "job" && html.contains(&mine));
    assert!(row.contains("look at &lt;this&gt;"), "{row}");
    all.until(|_, html| html.contains(&mine) && html.contains("data-state=\"failed\""));
    // In a list that it does not fit it is told to be away, until it fits.
    let (_, away) = failed.next().unwrap();
    assert!(away["id"] == job.as_str() && away["html"].is_null(), "{away}");
    failed.until(|_, html| html.contains(&mine));
    let (_, away) = others.next().unwrap();
    assert!(away["html"].is_null(), "{away}");
}

#[test]
fn who_watches_a_job_hears_what_it_says_from_where_the_page_ends() {
    let bed = Bed::new();
    let visitor = Visitor::of(&bed);
    let prompt = "@rehearse say first <b>words</b>\n@rehearse tool Bash ls => ok\n@rehearse stream 400 8 20ms\n@rehearse say last words";
    let job = place(&bed, prompt, "t");
    let mut early = visitor.watch(&format!("/jobs/{job}/live"));
    early.until(|name, html| name == "piece" && html.contains("first &lt;b&gt;words"));
    early.until(|name, html| name == "answered" && html.contains("ok"));
    // A page that is made now has what was said, and the rest follows from there.
    let page = visitor.get(&format!("/jobs/{job}"));
    assert!(page.body.contains("first &lt;b&gt;words"), "{}", page.body);
    let rest = page.between("class=\"job-page\" data-live=\"", "\"").to_owned();
    let mut late = visitor.watch(&rest);
    let mut heard = Vec::new();
    late.until(|name, html| {
        heard.push(html.to_owned());
        name == "ended"
    });
    assert!(heard.iter().all(|html| !html.contains("first")), "nothing is told twice: {heard:?}");
    assert!(heard.iter().any(|html| html.contains("last words")), "{heard:?}");
    assert!(late.next().is_none(), "it is over");
    early.until(|name, _| name == "ended");
}

#[test]
fn the_daemon_ends_though_pages_are_open() {
    for args in [&["stop"][..], &["stop", "--now"], &["stop", "--cancel"]] {
        let bed = Bed::new();
        let visitor = Visitor::of(&bed);
        let mut list = visitor.watch("/live");
        assert_eq!(list.next().unwrap().0, "hello");
        // One that never says what it wants, and one that never reads what it is told.
        let mut half = TcpStream::connect(&visitor.address).unwrap();
        half.write_all(b"GET / HTTP/1.1\r\nHost:").unwrap();
        let deaf = visitor.request("GET", "/live", &[], "");
        let daemon = bed.running_daemon().unwrap();
        let output = bed.run(args);
        assert!(output.status.success(), "{output:?}");
        daemon.wait();
        assert!(list.next().is_none(), "{args:?}: who watches is let go");
        drop((half, deaf));
    }
}

#[test]
fn a_job_that_is_watched_goes_on_when_the_daemon_ends_and_is_found_by_the_next() {
    let bed = Bed::new();
    let visitor = Visitor::of(&bed);
    let job = place(&bed, "@rehearse say up\n@rehearse hang", "t");
    let mut watcher = visitor.watch(&format!("/jobs/{job}/live"));
    watcher.until(|name, html| name == "piece" && html.contains("up"));
    assert!(bed.run(&["stop", "--now"]).status.success());
    while watcher.next().is_some() {}
    let visitor = Visitor::of(&bed);
    let mut watcher = visitor.watch(&format!("/jobs/{job}/live"));
    watcher.until(|name, html| name == "piece" && html.contains("up"));
    assert_eq!(visitor.send(&format!("/jobs/{job}/cancel"), &visitor.form_token()).status, 303);
    watcher.until(|name, _| name == "ended");
}
