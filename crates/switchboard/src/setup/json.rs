//! One entry in a JSON file of somebody else's, with comments and commas as editors allow them.
//!
//! Everything else in the file stays byte for byte. What is not understood is refused.

use jsonc_parser::ParseOptions;
use jsonc_parser::cst::{CstInputValue, CstRootNode};
use serde_json::Value;

/// What the file says under `servers.name`.
pub fn get(text: &str, servers: &str, name: &str) -> Result<Option<Value>, String> {
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

/// The file with that entry.
pub fn with(text: &str, servers: &str, name: &str, entry: &[(&str, Value)]) -> Result<String, String> {
    get(text, servers, name)?;
    let root = parse(if text.trim().is_empty() { "{}\n" } else { text })?;
    let servers = root.object_value_or_set().object_value_or_set(servers);
    let entry =
        CstInputValue::Object(entry.iter().map(|(key, value)| ((*key).to_owned(), input(value))).collect());
    match servers.get(name) {
        Some(old) => old.set_value(entry),
        None => drop(servers.append(name, entry)),
    }
    Ok(root.to_string())
}

/// Returns the file without that entry, and without the object of servers if nothing is left in it.
pub fn without(text: &str, servers: &str, name: &str) -> Result<String, String> {
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

fn input(value: &Value) -> CstInputValue {
    match value {
        Value::Null => CstInputValue::Null,
        Value::Bool(value) => CstInputValue::Bool(*value),
        Value::Number(value) => CstInputValue::Number(value.to_string()),
        Value::String(value) => CstInputValue::String(value.clone()),
        Value::Array(values) => CstInputValue::Array(values.iter().map(input).collect()),
        Value::Object(values) => {
            CstInputValue::Object(values.iter().map(|(key, value)| (key.clone(), input(value))).collect())
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
        let alone = with("", "mcpServers", "switchboard", &entry()).unwrap();
        let left = without(&alone, "mcpServers", "switchboard").unwrap();
        assert!(is_blank(&left), "{left}");
        let theirs = with("{\n  \"theme\": \"dark\"\n}\n", "mcpServers", "switchboard", &entry()).unwrap();
        let left = without(&theirs, "mcpServers", "switchboard").unwrap();
        assert!(left.contains("dark") && !left.contains("mcpServers"), "{left}");
    }

    #[test]
    fn an_entry_comes_and_goes_and_all_else_stays_in_its_place() {
        let with = with(THEIRS, "servers", "switchboard", &entry()).unwrap();
        assert_eq!(get(&with, "servers", "switchboard").unwrap().unwrap()["args"][0], "mcp");
        for theirs in [
            "// mine\n",
            "\"zeta\": 1, // last on purpose\n",
            "/* old */\n",
            "{ \"command\": \"x\", }",
            "\"alpha\": [1,2],\n",
        ] {
            assert!(with.contains(theirs), "{theirs} is lost in {with}");
        }
        assert_eq!(super::with(&with, "servers", "switchboard", &entry()).unwrap(), with, "twice is once");
        let without = without(&with, "servers", "switchboard").unwrap();
        assert_eq!(get(&without, "servers", "switchboard").unwrap(), None);
        assert!(without.contains("/* old */") && without.contains("\"other\""), "{without}");
    }

    #[test]
    fn an_empty_file_becomes_one_with_the_entry() {
        let text = with("", "mcpServers", "switchboard", &entry()).unwrap();
        let value: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["mcpServers"]["switchboard"]["command"], "/bin/s");
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        for text in ["{", "[]", "{\"servers\": 1}", "{a: 1}"] {
            assert!(with(text, "servers", "switchboard", &entry()).is_err(), "{text}");
        }
    }
}
