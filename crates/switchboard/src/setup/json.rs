//! Edits one entry of a JSON file with comments and trailing commas.
//!
//! The rest of the file stays byte-identical. Invalid files are rejected.

use jsonc_parser::ParseOptions;
use jsonc_parser::cst::{CstInputValue, CstRootNode};
use serde_json::Value;

/// Returns the entry `servers.name`.
pub fn get_entry(text: &str, servers: &str, name: &str) -> Result<Option<Value>, String> {
    if text.trim().is_empty() {
        return Ok(None);
    }
    let root = parse(text)?;
    let Some(all) = root.object_value() else { return Err("it is not an object".to_owned()) };
    if all.get(servers).is_some() && all.object_value(servers).is_none() {
        return Err(format!("`{servers}` is not an object"));
    }
    let entry = all.object_value(servers).and_then(|servers| servers.get(name));
    Ok(entry.and_then(|entry| entry.value()).and_then(|entry| entry.to_serde_value()))
}

/// Returns the file with an entry added or replaced.
pub fn set_entry(text: &str, servers: &str, name: &str, entry: &[(&str, Value)]) -> Result<String, String> {
    get_entry(text, servers, name)?;
    let root = parse(if text.trim().is_empty() { "{}\n" } else { text })?;
    let servers = root.object_value_or_set().object_value_or_set(servers);
    let entry =
        CstInputValue::Object(entry.iter().map(|(key, value)| ((*key).to_owned(), to_cst(value))).collect());
    match servers.get(name) {
        Some(old) => old.set_value(entry),
        None => drop(servers.append(name, entry)),
    }
    Ok(root.to_string())
}

/// Returns the file without an entry, and without the servers object if it becomes empty.
pub fn remove_entry(text: &str, servers: &str, name: &str) -> Result<String, String> {
    let root = parse(text)?;
    let Some(all) = root.object_value() else { return Ok(root.to_string()) };
    let Some(object) = all.object_value(servers) else { return Ok(root.to_string()) };
    if let Some(entry) = object.get(name) {
        entry.remove();
    }
    if is_blank(&object.to_string())
        && let Some(servers) = all.get(servers)
    {
        servers.remove();
    }
    Ok(root.to_string())
}

/// Returns whether a file or an object has neither an entry nor a comment.
pub fn is_blank(text: &str) -> bool {
    let inside = text.trim().strip_prefix('{').and_then(|text| text.strip_suffix('}'));
    inside.is_some_and(|inside| inside.trim().is_empty())
}

fn parse(text: &str) -> Result<CstRootNode, String> {
    let options = ParseOptions {
        allow_comments: true,
        allow_trailing_commas: true,
        allow_loose_object_property_names: false,
        allow_missing_commas: false,
        allow_single_quoted_strings: false,
        allow_hexadecimal_numbers: false,
        allow_unary_plus_numbers: false,
        ..ParseOptions::default()
    };
    CstRootNode::parse(text, &options).map_err(|error| error.to_string())
}

fn to_cst(value: &Value) -> CstInputValue {
    match value {
        Value::Null => CstInputValue::Null,
        Value::Bool(value) => CstInputValue::Bool(*value),
        Value::Number(value) => CstInputValue::Number(value.to_string()),
        Value::String(value) => CstInputValue::String(value.clone()),
        Value::Array(values) => CstInputValue::Array(values.iter().map(to_cst).collect()),
        Value::Object(values) => {
            CstInputValue::Object(values.iter().map(|(key, value)| (key.clone(), to_cst(value))).collect())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const THEIRS: &str = "// mine\n{\n  \"zeta\": 1, // last on purpose\n  \"servers\": {\n    /* old */\n    \"other\": { \"command\": \"x\", },\n  },\n  \"alpha\": [1,2],\n}\n";

    fn entry() -> Vec<(&'static str, Value)> {
        vec![("command", "/bin/s".into()), ("args", serde_json::json!(["mcp"]))]
    }

    #[test]
    fn removed_entry_leaves_no_empty_object() {
        let alone = set_entry("", "mcpServers", "switchboard", &entry()).unwrap();
        let left = remove_entry(&alone, "mcpServers", "switchboard").unwrap();
        assert!(is_blank(&left), "{left}");
        let theirs =
            set_entry("{\n  \"theme\": \"dark\"\n}\n", "mcpServers", "switchboard", &entry()).unwrap();
        let left = remove_entry(&theirs, "mcpServers", "switchboard").unwrap();
        assert!(left.contains("dark") && !left.contains("mcpServers"), "{left}");
    }

    #[test]
    fn entry_is_added_and_removed_without_other_changes() {
        let added = set_entry(THEIRS, "servers", "switchboard", &entry()).unwrap();
        assert_eq!(get_entry(&added, "servers", "switchboard").unwrap().unwrap()["args"][0], "mcp");
        for theirs in [
            "// mine\n",
            "\"zeta\": 1, // last on purpose\n",
            "/* old */\n",
            "{ \"command\": \"x\", }",
            "\"alpha\": [1,2],\n",
        ] {
            assert!(added.contains(theirs), "{theirs} is lost in {added}");
        }
        assert_eq!(set_entry(&added, "servers", "switchboard", &entry()).unwrap(), added, "twice is once");
        let removed = remove_entry(&added, "servers", "switchboard").unwrap();
        assert_eq!(get_entry(&removed, "servers", "switchboard").unwrap(), None);
        assert!(removed.contains("/* old */") && removed.contains("\"other\""), "{removed}");
    }

    #[test]
    fn entry_is_added_to_empty_file() {
        let text = set_entry("", "mcpServers", "switchboard", &entry()).unwrap();
        let value: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["mcpServers"]["switchboard"]["command"], "/bin/s");
    }

    #[test]
    fn invalid_files_are_rejected() {
        for text in ["{", "[]", "{\"servers\": 1}", "{a: 1}"] {
            assert!(set_entry(text, "servers", "switchboard", &entry()).is_err(), "{text}");
        }
    }
}
