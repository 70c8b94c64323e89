//! The official conformance suite over HTTP, with the scenarios that are expected to fail, each with its reason.
//!
//! The suite knows no tokens, so a layer in front of the door adds one.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::Request;
use axum::http::HeaderValue;
use axum::http::header::AUTHORIZATION;
use libtest_mimic::Trial;
use model_api::cli::Invocation;
use switchboard::mcp::http::{Gate, Token, router};
use tokio::net::TcpListener;

use crate::scene::Scene;
use crate::{missing, sdks};

const REMEDY: &str = "the conformance suite is not installed: run scripts/mcp-clients-install";
const LIMIT: Duration = Duration::from_secs(150);

/// The package, its further arguments, and the file of what is expected to fail.
const SUITES: [(&str, &str, &[&str], &str); 2] = [
    ("conformance_suite", "@modelcontextprotocol/conformance", &["--suite", "all"], "expected-failures.yml"),
    (
        "conformance_suite_of_2026_07_28",
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
            play(package, arguments, expected);
            Ok(())
        })
    };
    SUITES.map(trial).into()
}

fn play(package: &'static str, arguments: &'static [&'static str], expected: &'static str) {
    Scene::play(async |scene| {
        let url = open(scene).await;
        let modules = sdks::node_modules().unwrap();
        let suite = modules.join(package).join("dist/index.js");
        let expected = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mcp/clients").join(expected);
        // Kept for a look at what was checked.
        let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join("conformance").join(package);
        let _ = std::fs::remove_dir_all(&out);
        let own = [suite.to_str().unwrap(), "server", "--url", &url, "-o", out.to_str().unwrap()];
        let baseline = ["--expected-failures", expected.to_str().unwrap()];
        let arguments = own.iter().chain(&baseline).chain(arguments).map(|&word| word.to_owned()).collect();
        let invocation = Invocation {
            program: modules.join("node/bin/node"),
            arguments,
            environment: vec![("PATH".to_owned(), std::env::var("PATH").unwrap())],
            cwd: scene.work(),
            stdin: Vec::new(),
        };
        let ended = invocation.run(LIMIT).await.unwrap();
        // It fails for a scenario that fails and is not named, and for one that is named and does not.
        let summary = ended.stdout.split("=== SUMMARY ===").last().unwrap_or_default();
        assert_eq!(ended.exit, 0, "{summary}\n{}\nthe details are in {}", ended.stderr, out.display());
        let total = summary.lines().find(|line| line.starts_with("Total")).unwrap_or_default();
        eprintln!("{package}: {total}");
    });
}

/// A door that stands open, for a suite that has no key.
async fn open(scene: &Scene) -> String {
    let token = Token::in_file(&scene.folder.path().join("token")).unwrap();
    let key = HeaderValue::try_from(format!("Bearer {}", token.reveal())).unwrap();
    let (desk, options) = (scene.desk.clone(), Arc::clone(&scene.options));
    let router = router(desk, options, Gate::loopback(token), scene.shutdown.clone(), scene.shutdown.clone());
    let router = router.layer(axum::middleware::map_request(move |mut request: Request| {
        let key = key.clone();
        async move {
            request.headers_mut().insert(AUTHORIZATION, key);
            request
        }
    }));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/mcp", listener.local_addr().unwrap());
    let shutdown = scene.shutdown.clone();
    scene.served.lock().await.spawn(async move {
        axum::serve(listener, router).with_graceful_shutdown(shutdown.cancelled_owned()).await.unwrap();
    });
    url
}
