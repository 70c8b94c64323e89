//! Live streams, and shutdown with open streams.

use std::io::Write;
use std::net::TcpStream;

use crate::bed::Harness as Bed;
use crate::visitor::{WebClient, submit};

#[test]
fn live_list_reports_new_and_finished_jobs() {
    let bed = Bed::new();
    let visitor = WebClient::log_in(&bed);
    let mut all = visitor.watch("/live");
    let mut failed = visitor.watch("/live?state=failed");
    let mut others = visitor.watch("/live?q=somewhere%20else");
    for watcher in [&mut all, &mut failed, &mut others] {
        assert_eq!(watcher.next().unwrap().0, "hello");
    }
    let job = submit(&bed, "look at <this>\n@rehearse fail other", "t");
    let mine = format!("id=\"job-{job}\"");
    let row = all.until(|name, html| name == "job" && html.contains(&mine));
    assert!(row.contains("look at &lt;this&gt;"), "{row}");
    all.until(|_, html| html.contains(&mine) && html.contains("data-state=\"failed\""));
    // A list that the job does not match gets its removal, until it matches.
    let (_, away) = failed.next().unwrap();
    assert!(away["id"] == job.as_str() && away["html"].is_null(), "{away}");
    failed.until(|_, html| html.contains(&mine));
    let (_, away) = others.next().unwrap();
    assert!(away["html"].is_null(), "{away}");
}

#[test]
fn live_job_continues_after_the_page() {
    let bed = Bed::new();
    let visitor = WebClient::log_in(&bed);
    let prompt = "@rehearse say first <b>words</b>\n@rehearse tool Bash ls => ok\n@rehearse stream 400 8 20ms\n@rehearse say last words";
    let job = submit(&bed, prompt, "t");
    let mut early = visitor.watch(&format!("/jobs/{job}/live"));
    early.until(|name, html| name == "piece" && html.contains("first &lt;b&gt;words"));
    early.until(|name, html| name == "answered" && html.contains("ok"));
    // A page that is loaded now contains the events so far, and its stream continues after them.
    let page = visitor.get(&format!("/jobs/{job}"));
    assert!(page.body.contains("first &lt;b&gt;words"), "{}", page.body);
    let rest = page.between("class=\"job-page\" data-live=\"", "\"").to_owned();
    let mut late = visitor.watch(&rest);
    let mut received = Vec::new();
    late.until(|name, html| {
        received.push(html.to_owned());
        name == "ended"
    });
    assert!(received.iter().all(|html| !html.contains("first")), "no event is sent twice: {received:?}");
    assert!(received.iter().any(|html| html.contains("last words")), "{received:?}");
    assert!(late.next().is_none(), "the stream has ended");
    early.until(|name, _| name == "ended");
}

#[test]
fn open_pages_do_not_delay_shutdown() {
    for args in [&["stop"][..], &["stop", "--now"], &["stop", "--cancel"]] {
        let bed = Bed::new();
        let visitor = WebClient::log_in(&bed);
        let mut list = visitor.watch("/live");
        assert_eq!(list.next().unwrap().0, "hello");
        // A half-sent request, and a client that does not read.
        let mut half = TcpStream::connect(&visitor.address).unwrap();
        half.write_all(b"GET / HTTP/1.1\r\nHost:").unwrap();
        let deaf = visitor.start_request("GET", "/live", &[], "");
        let daemon = bed.running_daemon().unwrap();
        let output = bed.run(args);
        assert!(output.status.success(), "{output:?}");
        daemon.wait();
        assert!(list.next().is_none(), "{args:?}: the stream is closed");
        drop((half, deaf));
    }
}

#[test]
fn watched_job_survives_a_daemon_restart() {
    let bed = Bed::new();
    let visitor = WebClient::log_in(&bed);
    let job = submit(&bed, "@rehearse say up\n@rehearse hang", "t");
    let mut watcher = visitor.watch(&format!("/jobs/{job}/live"));
    watcher.until(|name, html| name == "piece" && html.contains("up"));
    assert!(bed.run(&["stop", "--now"]).status.success());
    while watcher.next().is_some() {}
    let visitor = WebClient::log_in(&bed);
    let mut watcher = visitor.watch(&format!("/jobs/{job}/live"));
    watcher.until(|name, html| name == "piece" && html.contains("up"));
    assert_eq!(visitor.submit_form(&format!("/jobs/{job}/cancel"), &visitor.form_token()).status, 303);
    watcher.until(|name, _| name == "ended");
}
