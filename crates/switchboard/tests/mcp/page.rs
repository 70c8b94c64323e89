//! The page about the tools says what the schemas say.

use std::path::Path;

crate::tests![the_reference_says_what_the_schemas_say];

fn the_reference_says_what_the_schemas_say() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/tools.md");
    let page = switchboard::mcp::reference::page();
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&file, &page).unwrap();
    }
    let written = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(
        written == page,
        "docs/tools.md differs; `BLESS=1 cargo test -p switchboard --test mcp reference` writes it anew"
    );
}
