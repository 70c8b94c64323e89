//! Compares docs/tools.md with the schemas.

use std::path::Path;

testkit::tests![reference_page_matches_the_schemas];

fn reference_page_matches_the_schemas() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/tools.md");
    let page = mcp_server::reference::reference_page();
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&file, &page).unwrap();
    }
    let written = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(
        written == page,
        "docs/tools.md differs; `BLESS=1 cargo test -p mcp-server --test mcp reference` regenerates it"
    );
}
