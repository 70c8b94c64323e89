//! The house stands as ARCHITECTURE.md draws it.
#![expect(clippy::unwrap_used, reason = "a test may")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use cargo_metadata::{DependencyKind, MetadataCommand};

/// For each crate, the crates of this workspace that it uses.
type Arrows = BTreeMap<String, BTreeSet<String>>;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The lines `name/ … → a, b` of the block under the heading "Crates". `nothing` is no crate.
fn drawn(text: &str) -> Arrows {
    let block = text.split("## Crates").nth(1).and_then(|rest| rest.split("```").nth(1)).unwrap();
    let lines = block.lines().filter_map(|line| line.split_once('→'));
    lines
        .map(|(left, right)| {
            let name = left.split('/').next().unwrap().trim().to_owned();
            let targets =
                right.split(',').map(|name| name.trim().to_owned()).filter(|name| name != "nothing");
            (name, targets.collect())
        })
        .collect()
}

/// What is really built. Tests may use what they like.
fn built() -> Arrows {
    let metadata = MetadataCommand::new()
        .current_dir(root())
        .no_deps()
        .other_options(["--offline".into()])
        .exec()
        .unwrap();
    let names: BTreeSet<String> = metadata.packages.iter().map(|package| package.name.to_string()).collect();
    let arrows = metadata.packages.iter().map(|package| {
        let uses =
            package.dependencies.iter().filter(|dependency| dependency.kind != DependencyKind::Development);
        let inside = uses.map(|dependency| dependency.name.clone()).filter(|name| names.contains(name));
        (package.name.to_string(), inside.collect())
    });
    arrows.collect()
}

/// Every arrow, a crate without one being an arrow to itself.
fn pairs(arrows: &Arrows) -> BTreeSet<(&str, &str)> {
    let own = arrows.keys().map(|name| (name.as_str(), name.as_str()));
    let outward = arrows
        .iter()
        .flat_map(|(name, uses)| uses.iter().map(move |target| (name.as_str(), target.as_str())));
    own.chain(outward).collect()
}

/// Where the drawing and the house differ.
fn differences(drawn: &Arrows, built: &Arrows) -> Vec<String> {
    let (drawn, built) = (pairs(drawn), pairs(built));
    let forbidden =
        built.difference(&drawn).map(|(from, to)| format!("`{from}` → `{to}` is built and not drawn"));
    let missing =
        drawn.difference(&built).map(|(from, to)| format!("`{from}` → `{to}` is drawn and not built"));
    forbidden.chain(missing).collect()
}

#[test]
fn crate_dependencies_match_architecture() {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    assert_eq!(differences(&drawn(&text), &built()), Vec::<String>::new());
}

#[test]
fn forbidden_dependency_is_found() {
    let text = "## Crates\n```\nmodel/  nouns  → nothing\nstore/  rows  → model\n```\n";
    let arrows = |pairs: &[(&str, &[&str])]| -> Arrows {
        pairs
            .iter()
            .map(|(name, uses)| ((*name).into(), uses.iter().map(|&name| name.into()).collect()))
            .collect()
    };
    let built = arrows(&[("model", &["store"]), ("store", &[]), ("web", &[])]);
    assert_eq!(
        differences(&drawn(text), &built),
        [
            "`model` → `store` is built and not drawn",
            "`web` → `web` is built and not drawn",
            "`store` → `model` is drawn and not built"
        ]
    );
}
