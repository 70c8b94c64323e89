//! Login, access checks and security headers.

use std::fs;
use std::net::TcpListener;

use crate::bed::{Harness as Bed, stderr};
use crate::visitor::{WebClient, login_link, run_job, submit};

#[test]
fn login_link_works_once() {
    let bed = Bed::new();
    let (address, path) = login_link(&bed);
    let stranger = WebClient { address, cookie: None };
    let first = stranger.get(&path);
    assert_eq!(first.status, 200, "{}", first.body);
    let cookie = first.header("set-cookie").unwrap();
    for part in ["HttpOnly", "SameSite=Strict", "Path=/"] {
        assert!(cookie.contains(part), "{cookie}");
    }
    assert!(!cookie.contains(path.split_once('=').unwrap().1), "the cookie differs from the link token");
    let second = stranger.get(&path);
    assert_eq!((second.status, second.header("set-cookie")), (401, None));
    let visitor = WebClient { cookie: Some(cookie.split(';').next().unwrap().to_owned()), ..stranger };
    assert_eq!(visitor.get("/").status, 200);
    assert_eq!(visitor.get(&path).header("location"), Some("/"), "a logged-in browser is redirected");
}

#[test]
fn prefetch_does_not_use_up_the_link() {
    let bed = Bed::new();
    let (address, path) = login_link(&bed);
    let stranger = WebClient { address, cookie: None };
    assert_eq!(stranger.send("HEAD", &path, &[], "").header("set-cookie"), None);
    assert_eq!(stranger.send("GET", &path, &[("Sec-Purpose", "prefetch")], "").header("set-cookie"), None);
    assert!(stranger.get(&path).header("set-cookie").is_some());
}

#[test]
fn request_without_cookie_is_unauthorized() {
    let bed = Bed::new();
    let visitor = WebClient::log_in(&bed);
    let job = submit(&bed, "a secret plan\n@rehearse hang", "t");
    let token = visitor.form_token();
    let stranger = visitor.logged_out();
    let guesser =
        WebClient { cookie: Some(format!("{}0", visitor.cookie.as_ref().unwrap())), ..visitor.clone() };
    for client in [&stranger, &guesser] {
        for path in ["/", "/live", "/overview", "/agents", "/metrics"] {
            assert_eq!(client.get(path).status, 401, "{path}");
        }
        for what in ["", "/live", "/processes", "/output", "/error"] {
            let answer = client.get(&format!("/jobs/{job}{what}"));
            assert!(answer.status == 401 && !answer.body.contains("secret"), "{what}: {}", answer.body);
        }
        assert_eq!(client.submit_form(&format!("/jobs/{job}/cancel"), &token).status, 401);
    }
    assert!(visitor.get(&format!("/jobs/{job}")).body.contains("a secret plan"));
    assert!(bed.run(&["cancel", &job]).status.success(), "it was still running");
}

#[test]
fn foreign_host_or_origin_is_forbidden() {
    let bed = Bed::new();
    let visitor = WebClient::log_in(&bed);
    let job = run_job(&bed, "x", "t");
    for host in ["evil.example", "127.0.0.1.evil.example", ""] {
        assert_eq!(visitor.send("GET", "/", &[("Host", host)], "").status, 403, "{host}");
        assert_eq!(visitor.send("GET", "/healthz", &[("Host", host)], "").status, 403, "{host}");
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
        assert_eq!(visitor.send("POST", &retry, headers, &form).status, 403, "{headers:?}");
    }
    let embedded = [("Sec-Fetch-Site", "same-site"), ("Sec-Fetch-Mode", "no-cors")];
    assert_eq!(visitor.send("GET", "/live", &embedded, "").status, 403);
    // A tunnel uses another port. Host and origin must match.
    let tunnel = [("Host", "localhost:9"), ("Origin", "http://localhost:9")];
    assert_eq!(visitor.send("POST", &retry, &tunnel, &form).status, 303);
}

#[test]
fn form_without_csrf_token_is_forbidden() {
    let bed = Bed::new();
    let (visitor, other) = (WebClient::log_in(&bed), WebClient::log_in(&bed));
    let job = submit(&bed, "@rehearse hang", "t");
    let cancel = format!("/jobs/{job}/cancel");
    for token in ["", "0", &other.form_token()] {
        assert_eq!(visitor.submit_form(&cancel, token).status, 403);
    }
    assert_eq!(visitor.submit_form("/logout", "").status, 403);
    let answer = visitor.submit_form(&cancel, &visitor.form_token());
    assert_eq!((answer.status, answer.header("location")), (303, Some(format!("/jobs/{job}").as_str())));
    assert_eq!(bed.run(&["wait", &job]).status.code(), Some(4), "it was cancelled");
}

#[test]
fn logout_ends_the_login() {
    let bed = Bed::new();
    let (visitor, other) = (WebClient::log_in(&bed), WebClient::log_in(&bed));
    assert_eq!(visitor.submit_form("/logout", &visitor.form_token()).status, 200);
    assert_eq!(visitor.get("/").status, 401);
    assert_eq!(other.get("/").status, 200);
}

#[test]
fn every_response_has_security_headers() {
    let bed = Bed::new();
    let visitor = WebClient::log_in(&bed);
    let style = visitor.get("/").between("rel=\"stylesheet\" href=\"", "\"").to_owned();
    for (client, path) in [
        (&visitor, "/"),
        (&visitor, "/overview"),
        (&visitor, "/jobs/0198aaaa"),
        (&visitor, "/nothing/here"),
        (&visitor.logged_out(), "/"),
        (&visitor.logged_out(), "/login?token=x"),
        (&visitor.logged_out(), "/healthz"),
        (&visitor.logged_out(), &style),
    ] {
        let answer = client.get(path);
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
fn healthz_is_public_metrics_require_auth() {
    let bed = Bed::new();
    let visitor = WebClient::log_in(&bed);
    run_job(&bed, "x", "t");
    let health = visitor.logged_out().get("/healthz");
    assert_eq!((health.status, health.body.as_str()), (200, "ok\n"));
    let refused = visitor.logged_out().get("/metrics");
    assert_eq!((refused.status, refused.header("www-authenticate")), (401, Some("Bearer")));
    let token = fs::read_to_string(bed.state().join("http-token")).unwrap();
    let bearer = format!("Bearer {token}");
    let metrics = visitor.logged_out().send("GET", "/metrics", &[("Authorization", &bearer)], "");
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
    assert_eq!(visitor.get("/metrics").status, 200, "a logged-in browser has access, too");
}

#[test]
fn fixed_port_is_served_from_the_start() {
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
    assert_eq!(login_link(&bed).0, format!("127.0.0.1:{port}"), "the port is used once it is free");
    assert!(bed.run(&["stop"]).status.success());
    bed.daemon();
    let visitor = WebClient { address: format!("127.0.0.1:{port}"), cookie: None };
    assert_eq!(visitor.get("/healthz").status, 200, "no link was requested");
}

#[test]
fn disabled_dashboard_is_an_error() {
    let bed = Bed::new();
    bed.configure("[web]\nport = \"off\"\n");
    let output = bed.run(&["open", "--print"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("the web page is switched off"), "{output:?}");
}
