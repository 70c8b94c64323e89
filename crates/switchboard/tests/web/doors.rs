//! Who is let in, and who is not.

use std::fs;
use std::net::TcpListener;

use crate::bed::{Harness as Bed, stderr};
use crate::visitor::{Visitor, link, place, play};

#[test]
fn a_link_lets_one_browser_in_once() {
    let bed = Bed::new();
    let (address, path) = link(&bed);
    let stranger = Visitor { address, cookie: None };
    let first = stranger.get(&path);
    assert_eq!(first.status, 200, "{}", first.body);
    let cookie = first.header("set-cookie").unwrap();
    for part in ["HttpOnly", "SameSite=Strict", "Path=/"] {
        assert!(cookie.contains(part), "{cookie}");
    }
    assert!(
        !cookie.contains(path.split_once('=').unwrap().1),
        "the word of the link is not that of the cookie"
    );
    let second = stranger.get(&path);
    assert_eq!((second.status, second.header("set-cookie")), (401, None));
    let visitor = Visitor { cookie: Some(cookie.split(';').next().unwrap().to_owned()), ..stranger };
    assert_eq!(visitor.get("/").status, 200);
    assert_eq!(visitor.get(&path).header("location"), Some("/"), "who is in already is led on");
}

#[test]
fn a_browser_that_only_prepares_for_a_click_does_not_use_the_link_up() {
    let bed = Bed::new();
    let (address, path) = link(&bed);
    let stranger = Visitor { address, cookie: None };
    assert_eq!(stranger.ask("HEAD", &path, &[], "").header("set-cookie"), None);
    assert_eq!(stranger.ask("GET", &path, &[("Sec-Purpose", "prefetch")], "").header("set-cookie"), None);
    assert!(stranger.get(&path).header("set-cookie").is_some());
}

#[test]
fn without_the_cookie_nothing_is_shown_and_nothing_is_done() {
    let bed = Bed::new();
    let visitor = Visitor::of(&bed);
    let job = place(&bed, "a secret plan\n@rehearse hang", "t");
    let token = visitor.form_token();
    let stranger = visitor.stranger();
    let guesser =
        Visitor { cookie: Some(format!("{}0", visitor.cookie.as_ref().unwrap())), ..visitor.clone() };
    for somebody in [&stranger, &guesser] {
        for path in ["/", "/live", "/overview", "/agents", "/metrics"] {
            assert_eq!(somebody.get(path).status, 401, "{path}");
        }
        for what in ["", "/live", "/processes", "/output", "/error"] {
            let answer = somebody.get(&format!("/jobs/{job}{what}"));
            assert!(answer.status == 401 && !answer.body.contains("secret"), "{what}: {}", answer.body);
        }
        assert_eq!(somebody.send(&format!("/jobs/{job}/cancel"), &token).status, 401);
    }
    assert!(visitor.get(&format!("/jobs/{job}")).body.contains("a secret plan"));
    assert!(bed.run(&["cancel", &job]).status.success(), "it had gone on");
}

#[test]
fn another_name_or_another_page_is_refused() {
    let bed = Bed::new();
    let visitor = Visitor::of(&bed);
    let job = play(&bed, "x", "t");
    for host in ["evil.example", "127.0.0.1.evil.example", ""] {
        assert_eq!(visitor.ask("GET", "/", &[("Host", host)], "").status, 403, "{host}");
        assert_eq!(visitor.ask("GET", "/healthz", &[("Host", host)], "").status, 403, "{host}");
    }
    let port = visitor.address.rsplit_once(':').unwrap().1;
    let ours = format!("http://127.0.0.1:{port}");
    let retry = format!("/jobs/{job}/retry");
    let form = format!("token={}", visitor.form_token());
    for headers in [
        &[][..],
        &[("Origin", "null")],
        &[("Origin", "http://evil.example")],
        &[("Origin", "http://127.0.0.1:1")],
        &[("Origin", &ours), ("Sec-Fetch-Site", "same-site")],
    ] {
        assert_eq!(visitor.ask("POST", &retry, headers, &form).status, 403, "{headers:?}");
    }
    let embedded = [("Sec-Fetch-Site", "same-site"), ("Sec-Fetch-Mode", "no-cors")];
    assert_eq!(visitor.ask("GET", "/live", &embedded, "").status, 403);
    // A tunnel has a port of its own; what counts is that the page and the server are one.
    let tunnel = [("Host", "localhost:9"), ("Origin", "http://localhost:9")];
    assert_eq!(visitor.ask("POST", &retry, &tunnel, &form).status, 303);
}

#[test]
fn a_form_without_the_visitors_own_token_does_nothing() {
    let bed = Bed::new();
    let (visitor, other) = (Visitor::of(&bed), Visitor::of(&bed));
    let job = place(&bed, "@rehearse hang", "t");
    let cancel = format!("/jobs/{job}/cancel");
    for token in ["", "0", &other.form_token()] {
        assert_eq!(visitor.send(&cancel, token).status, 403);
    }
    assert_eq!(visitor.send("/logout", "").status, 403);
    let answer = visitor.send(&cancel, &visitor.form_token());
    assert_eq!((answer.status, answer.header("location")), (303, Some(format!("/jobs/{job}").as_str())));
    assert_eq!(bed.run(&["wait", &job]).status.code(), Some(4), "it was cancelled");
}

#[test]
fn who_leaves_is_not_known_any_more() {
    let bed = Bed::new();
    let (visitor, other) = (Visitor::of(&bed), Visitor::of(&bed));
    assert_eq!(visitor.send("/logout", &visitor.form_token()).status, 200);
    assert_eq!(visitor.get("/").status, 401);
    assert_eq!(other.get("/").status, 200);
}

#[test]
fn every_answer_tells_the_browser_what_it_may_do() {
    let bed = Bed::new();
    let visitor = Visitor::of(&bed);
    let style = visitor.get("/").between("rel=\"stylesheet\" href=\"", "\"").to_owned();
    for (somebody, path) in [
        (&visitor, "/"),
        (&visitor, "/overview"),
        (&visitor, "/jobs/0198aaaa"),
        (&visitor, "/nothing/here"),
        (&visitor.stranger(), "/"),
        (&visitor.stranger(), "/login?token=x"),
        (&visitor.stranger(), "/healthz"),
        (&visitor.stranger(), &style),
    ] {
        let answer = somebody.get(path);
        let policy =
            answer.header("content-security-policy").unwrap_or_else(|| panic!("{path}: {}", answer.head));
        for part in [
            "default-src 'none'",
            "script-src 'self';",
            "style-src 'self';",
            "frame-ancestors 'none'",
            "base-uri 'none'",
        ] {
            assert!(policy.contains(part), "{path}: {policy}");
        }
        assert!(!policy.contains("unsafe"), "{policy}");
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"), "{path}");
        assert_eq!(answer.header("referrer-policy"), Some("same-origin"), "{path}");
        assert!(
            path == style || answer.header("cache-control") == Some("no-store"),
            "{path}: {}",
            answer.head
        );
    }
    let page = visitor.get("/").body;
    assert!(!page.contains("<style") && !page.contains(" style=") && !page.contains(" onclick="), "{page}");
    assert!(!page.contains("https://") && !page.contains("//cdn"), "{page}");
}

#[test]
fn anybody_may_ask_whether_it_is_there_and_only_the_user_how_much_it_does() {
    let bed = Bed::new();
    let visitor = Visitor::of(&bed);
    play(&bed, "x", "t");
    let health = visitor.stranger().get("/healthz");
    assert_eq!((health.status, health.body.as_str()), (200, "ok\n"));
    let refused = visitor.stranger().get("/metrics");
    assert_eq!((refused.status, refused.header("www-authenticate")), (401, Some("Bearer")));
    let token = fs::read_to_string(bed.state().join("http-token")).unwrap();
    let bearer = format!("Bearer {token}");
    let metrics = visitor.stranger().ask("GET", "/metrics", &[("Authorization", &bearer)], "");
    assert_eq!(metrics.status, 200, "{}", metrics.body);
    for line in [
        "switchboard_jobs{agent=\"rehearsal\",state=\"completed\"} 1\n",
        "switchboard_jobs{agent=\"claude\",state=\"completed\"} 0\n",
        "switchboard_job_duration_seconds_count{agent=\"rehearsal\"} 1\n",
        "# TYPE switchboard_build_info gauge\n",
        "\nswitchboard_held_jobs 0\n",
    ] {
        assert!(metrics.body.contains(line), "{line} is not in {}", metrics.body);
    }
    let memory = metrics.between("\nprocess_resident_memory_bytes ", "\n").parse::<u64>().unwrap();
    assert!(memory > 1_000_000, "{memory}");
    assert_eq!(visitor.get("/metrics").status, 200, "a visitor may, too");
}

#[test]
fn a_port_that_is_named_is_there_from_the_start_and_one_that_is_taken_is_told() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let bed = Bed::new();
    bed.configure(&format!("[web]\nport = {port}\n"));
    bed.daemon();
    let output = bed.run(&["open", "--print"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(
        stderr(&output).contains(&format!("cannot serve the web page on 127.0.0.1:{port}")),
        "{output:?}"
    );
    drop(taken);
    assert_eq!(link(&bed).0, format!("127.0.0.1:{port}"), "once it is free, it is used");
    assert!(bed.run(&["stop"]).status.success());
    bed.daemon();
    let visitor = Visitor { address: format!("127.0.0.1:{port}"), cookie: None };
    assert_eq!(visitor.get("/healthz").status, 200, "nobody has asked for a link");
}

#[test]
fn a_page_that_is_switched_off_is_not_there() {
    let bed = Bed::new();
    bed.configure("[web]\nport = \"off\"\n");
    let output = bed.run(&["open", "--print"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("the web page is switched off"), "{output:?}");
}
