//! The official conformance suite over HTTP, with a list of expected failures and their reasons.
//!
//! The suite supports no tokens, so a layer in front of the server adds one.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::Request;
use axum::http::HeaderValue;
use axum::http::header::AUTHORIZATION;
use http_listener::BearerToken;
use libtest_mimic::Trial;
use mcp_server::http::{HttpAccess, router};
use model_api::cli::Invocation;
use tokio::net::TcpListener;

use crate::harness::McpHarness;
use crate::{missing, sdks};

const REMEDY: &str = "the conformance suite is not installed: run scripts/mcp-clients-install";
const LIMIT: Duration = Duration::from_secs(150);

/// The test, the package, its arguments, and the file with the expected failures.
const SUITES: [(&str, &str, &[&str], &str); 2] = [
    ("conformance_suite", "@modelcontextprotocol/conformance", &["--suite", "all"], "expected-failures.yml"),
    (
        "conformance_suite_2026_07_28",
        "conformance-next",
        &["--suite", "all"],
        "expected-failures-2026-07-28.yml",
    ),
];

pub fn trials() -> Vec<Trial> {
    let trial = |(name, package, arguments, expected): (
        &'static str,
        &'static str,
        &'static [&'static str],
        &'static str,
    )| {
        if sdks::node_modules().is_none() {
            return missing(name, REMEDY);
        }
        Trial::test(name, move || {
            run_suite(package, arguments, expected);
            Ok(())
        })
    };
    SUITES.map(trial).into()
}

fn run_suite(package: &'static str, arguments: &'static [&'static str], expected: &'static str) {
    McpHarness::run(async |harness| {
        let url = serve_without_token(harness).await;
        let modules = sdks::node_modules().unwrap();
        let suite = modules.join(package).join("dist/index.js");
        let expected = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mcp/clients").join(expected);
        // Kept for inspection.
        let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join("conformance").join(package);
        let _ = std::fs::remove_dir_all(&out);
        let common = [suite.to_str().unwrap(), "server", "--url", &url, "-o", out.to_str().unwrap()];
        let baseline = ["--expected-failures", expected.to_str().unwrap()];
        let arguments =
            common.iter().chain(&baseline).chain(arguments).map(|&argument| argument.to_owned()).collect();
        let invocation = Invocation {
            program: modules.join("node/bin/node"),
            arguments,
            environment: vec![("PATH".to_owned(), std::env::var("PATH").unwrap())],
            cwd: harness.work(),
            stdin: Vec::new(),
        };
        let output = invocation.run(LIMIT).await.unwrap();
        // Fails for an unexpected failure, and for an expected failure that passes.
        let summary = output.stdout.split("=== SUMMARY ===").last().unwrap_or_default();
        assert_eq!(output.exit, 0, "{summary}\n{}\nthe details are in {}", output.stderr, out.display());
        let total = summary.lines().find(|line| line.starts_with("Total")).unwrap_or_default();
        eprintln!("{package}: {total}");
    });
}

/// Serves HTTP and adds the token to each request.
async fn serve_without_token(harness: &McpHarness) -> String {
    let token = BearerToken::load_or_create(&harness.directory.path().join("token")).unwrap();
    let authorization = HeaderValue::try_from(format!("Bearer {}", token.reveal())).unwrap();
    let (service, options) = (harness.service.clone(), Arc::clone(&harness.options));
    let router = router(
        service,
        options,
        HttpAccess::loopback(token),
        harness.shutdown.clone(),
        harness.shutdown.clone(),
    );
    let router = router.layer(axum::middleware::map_request(move |mut request: Request| {
        let authorization = authorization.clone();
        async move {
            request.headers_mut().insert(AUTHORIZATION, authorization);
            request
        }
    }));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/mcp", listener.local_addr().unwrap());
    let shutdown = harness.shutdown.clone();
    harness.served.lock().await.spawn(async move {
        axum::serve(listener, router).with_graceful_shutdown(shutdown.cancelled_owned()).await.unwrap();
    });
    url
}
