//! Parses the arguments of a tool call.
//!
//! Owns the errors that all tools share: unknown, missing and blank parameters, and values of the wrong type. An error contains the
//! nearest name, the type and the description, so that a model can correct its call. The meaning of a value is up to the tool.

use rmcp::model::{JsonObject, Tool};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::rejection::ToolRejection;

/// Minimum similarity of a suggested name.
const MIN_SIMILARITY: f64 = 0.7;

/// Parses the arguments of a call to the tool. Null and blank strings count as absent.
pub(crate) fn parse<T: DeserializeOwned>(tool: &Tool, given: Option<JsonObject>) -> Result<T, ToolRejection> {
    let given = given.unwrap_or_default();
    let empty = JsonObject::new();
    let known = tool.input_schema.get("properties").and_then(Value::as_object).unwrap_or(&empty);
    if let Some(unknown) = given.keys().find(|name| !known.contains_key(*name)) {
        return Err(unknown_parameter(tool, unknown, known));
    }
    let blank: Vec<&String> =
        given.iter().filter(|(name, value)| is_absent(&known[*name], value)).map(|(name, _)| name).collect();
    let required = tool.input_schema.get("required").and_then(Value::as_array).into_iter().flatten();
    for name in required.filter_map(Value::as_str) {
        if blank.iter().any(|blank| *blank == name) {
            return Err(ToolRejection::for_field(name, "the value is empty", describe(name, known)));
        }
        if !given.contains_key(name) {
            return Err(ToolRejection::for_field(
                name,
                "required parameter is missing",
                describe(name, known),
            ));
        }
    }
    let blank: Vec<String> = blank.into_iter().cloned().collect();
    let present = given.into_iter().filter(|(name, _)| !blank.contains(name));
    let arguments: JsonObject = present.map(|(name, value)| (name, normalize_integer(value))).collect();
    serde_path_to_error::deserialize(Value::Object(arguments)).map_err(|error| {
        let path = error.path().to_string();
        let name = path.split(['[', '.']).next().unwrap_or_default();
        ToolRejection::for_field(&path, error.inner().to_string(), describe(name, known))
    })
}

/// Returns the most similar name, if one is similar enough.
pub(crate) fn nearest<'a>(given: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let given = given.to_lowercase();
    let similarity = |name: &str| {
        strsim::jaro_winkler(&given, name).max(strsim::normalized_damerau_levenshtein(&given, name))
    };
    let rated = names.into_iter().map(|name| (similarity(name), name));
    let best = rated.max_by(|(one, _), (other, _)| one.total_cmp(other));
    best.filter(|(similarity, _)| *similarity >= MIN_SIMILARITY).map(|(_, name)| name)
}

/// Parses one of a few values, ignoring case.
pub(crate) fn parse_choice<T: Copy>(
    field: &str,
    given: &str,
    choices: &[(&str, T)],
) -> Result<T, ToolRejection> {
    let given = given.trim();
    let found = choices.iter().find(|(name, _)| name.eq_ignore_ascii_case(given));
    found.map(|(_, choice)| *choice).ok_or_else(|| {
        let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
        let shown: String = given.chars().take(100).collect();
        ToolRejection::for_field(
            field,
            format!("`{}` is not a valid value", shown.escape_debug()),
            format!("use one of: {}", names.join(", ")),
        )
    })
}

fn unknown_parameter(tool: &Tool, name: &str, known: &JsonObject) -> ToolRejection {
    let shown: String = name.chars().take(100).collect();
    let message = format!("{} has no such parameter", tool.name);
    let hint = match nearest(name, known.keys().map(String::as_str)) {
        Some(near) => format!("did you mean `{near}`? {}", describe(near, known)),
        None => {
            format!("the parameters are: {}", known.keys().map(String::as_str).collect::<Vec<_>>().join(", "))
        }
    };
    ToolRejection::for_field(shown, message, hint)
}

/// Returns whether a value counts as absent. A blank string does so only for a string: for a list it is an error, and not "all".
fn is_absent(property: &Value, value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => property["type"] == "string" && text.trim().is_empty(),
        _ => false,
    }
}

/// Describes a parameter from its schema.
fn describe(name: &str, known: &JsonObject) -> String {
    let Some(property) = known.get(name) else { return "see the tool's schema".to_owned() };
    let kind = match property["type"].as_str().unwrap_or("value") {
        _ if property["type"].is_array() => "a number of milliseconds, or a string such as `10m`",
        "string" => "a string",
        "integer" => "an integer",
        "boolean" => "true or false",
        "array" => "a list of strings",
        other => other,
    };
    let description = property["description"].as_str().unwrap_or_default();
    let summary = description.split_inclusive(". ").next().unwrap_or_default().trim();
    format!("`{name}` is {kind}: {summary}")
}

/// Turns `5000.0` into 5000: some languages have only one number type.
fn normalize_integer(value: Value) -> Value {
    match value.as_f64() {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "it is an integer within the range"
        )]
        Some(number) if value.is_f64() && number.fract() == 0.0 && (0.0..9e15).contains(&number) => {
            Value::from(number as u64)
        }
        _ => value,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use schemars::JsonSchema;
    use serde::Deserialize;
    use serde_json::json;

    #[derive(Debug, Deserialize, JsonSchema, PartialEq)]
    struct Example {
        /// The task. Any text.
        prompt: String,
        /// The limit.
        timeout_ms: Option<u64>,
        allowed_tools: Option<Vec<String>>,
    }

    fn parse_example(given: Value) -> Result<Example, String> {
        let tool = Tool::new("example", "", crate::schema::input_schema::<Example>());
        let Value::Object(given) = given else { panic!("{given}") };
        parse(&tool, Some(given)).map_err(|rejection| rejection.text())
    }

    #[test]
    fn blank_strings_and_nulls_count_as_absent() {
        let example = parse_example(json!({ "prompt": "x", "timeout_ms": null })).unwrap();
        assert_eq!(example, Example { prompt: "x".into(), timeout_ms: None, allowed_tools: None });
        assert!(
            parse_example(json!({ "prompt": "x", "allowed_tools": "" }))
                .unwrap_err()
                .contains("`allowed_tools`")
        );
        assert_eq!(
            parse_example(json!({ "prompt": "x", "allowed_tools": [] })).unwrap().allowed_tools,
            Some(Vec::new())
        );
    }

    #[test]
    fn missing_and_empty_parameters_are_described() {
        assert_eq!(
            parse_example(json!({})).unwrap_err(),
            "error in `prompt`: required parameter is missing\nhint: `prompt` is a string: The task."
        );
        assert!(
            parse_example(json!({ "prompt": " \n" }))
                .unwrap_err()
                .starts_with("error in `prompt`: the value is empty")
        );
    }

    #[test]
    fn unknown_parameter_gets_a_suggestion() {
        for near in ["timeout", "timeoutMs", "timeout_sec", "TIMEOUT_MS"] {
            assert!(
                parse_example(json!({ "prompt": "x", near: 1 }))
                    .unwrap_err()
                    .contains("did you mean `timeout_ms`?"),
                "{near}"
            );
        }
        assert!(
            parse_example(json!({ "prompt": "x", "zzz": 1 })).unwrap_err().contains("the parameters are: ")
        );
    }

    #[test]
    fn wrong_type_is_reported_with_its_path() {
        let error = parse_example(json!({ "prompt": "x", "timeout_ms": "soon" })).unwrap_err();
        assert!(error.starts_with("error in `timeout_ms`: invalid type"), "{error}");
        assert!(error.ends_with("`timeout_ms` is an integer: The limit."), "{error}");
        let error = parse_example(json!({ "prompt": "x", "allowed_tools": ["Read", 7] })).unwrap_err();
        assert!(error.starts_with("error in `allowed_tools[1]`"), "{error}");
        assert!(parse_example(json!({ "prompt": "x", "timeout_ms": -1 })).is_err());
    }

    #[test]
    fn integral_float_is_accepted_as_integer() {
        assert_eq!(
            parse_example(json!({ "prompt": "x", "timeout_ms": 5000.0 })).unwrap().timeout_ms,
            Some(5000)
        );
        assert!(parse_example(json!({ "prompt": "x", "timeout_ms": 0.5 })).is_err());
    }
}
