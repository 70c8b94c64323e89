//! From the arguments of a tool call to parameters.
//!
//! Owns what is wrong with arguments in general: an unknown name, a missing one, a value of the wrong type. What a value means is
//! the tool's. A model that guessed wrong is told enough to guess right: the nearest name, the type, the description.

use rmcp::model::{JsonObject, Tool};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::refusal::Refusal;

/// How alike two names must be for one to be meant by the other.
const ALIKE: f64 = 0.7;

/// Reads the arguments of a call of that tool. Null and blank texts count as absent.
pub(crate) fn read<T: DeserializeOwned>(tool: &Tool, given: Option<JsonObject>) -> Result<T, Refusal> {
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
            return Err(Refusal::of(name, "it is empty", meaning(name, known)));
        }
        if !given.contains_key(name) {
            return Err(Refusal::of(name, "it is missing", meaning(name, known)));
        }
    }
    let blank: Vec<String> = blank.into_iter().cloned().collect();
    let kept = given.into_iter().filter(|(name, _)| !blank.contains(name));
    let arguments: JsonObject = kept.map(|(name, value)| (name, whole(value))).collect();
    serde_path_to_error::deserialize(Value::Object(arguments)).map_err(|error| {
        let path = error.path().to_string();
        let name = path.split(['[', '.']).next().unwrap_or_default();
        Refusal::of(&path, error.inner().to_string(), meaning(name, known))
    })
}

/// The one of these names that was probably meant.
pub(crate) fn nearest<'a>(given: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let given = given.to_lowercase();
    let alike = |name: &str| {
        strsim::jaro_winkler(&given, name).max(strsim::normalized_damerau_levenshtein(&given, name))
    };
    let rated = names.into_iter().map(|name| (alike(name), name));
    let best = rated.max_by(|(one, _), (other, _)| one.total_cmp(other));
    best.filter(|(alike, _)| *alike >= ALIKE).map(|(_, name)| name)
}

/// Picks one of a few words, in any case.
pub(crate) fn one_of<T: Copy>(field: &str, given: &str, words: &[(&str, T)]) -> Result<T, Refusal> {
    let given = given.trim();
    let found = words.iter().find(|(word, _)| word.eq_ignore_ascii_case(given));
    found.map(|(_, meant)| *meant).ok_or_else(|| {
        let words: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
        let shown: String = given.chars().take(100).collect();
        Refusal::of(
            field,
            format!("`{}` is none of its values", shown.escape_debug()),
            format!("use one of: {}", words.join(", ")),
        )
    })
}

fn unknown_parameter(tool: &Tool, name: &str, known: &JsonObject) -> Refusal {
    let shown: String = name.chars().take(100).collect();
    let message = format!("{} has no parameter of that name", tool.name);
    let hint = match nearest(name, known.keys().map(String::as_str)) {
        Some(near) => format!("did you mean `{near}`? {}", meaning(near, known)),
        None => {
            format!("its parameters are: {}", known.keys().map(String::as_str).collect::<Vec<_>>().join(", "))
        }
    };
    Refusal::of(shown, message, hint)
}

/// A blank text is absent only where a text is expected: an empty text for a list is a mistake, and not "all of them".
fn is_absent(property: &Value, value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => property["type"] == "string" && text.trim().is_empty(),
        _ => false,
    }
}

/// What a parameter is, in the schema's own words.
fn meaning(name: &str, known: &JsonObject) -> String {
    let Some(property) = known.get(name) else { return "see the tool's schema".to_owned() };
    let kind = match property["type"].as_str().unwrap_or("value") {
        _ if property["type"].is_array() => "a number of milliseconds, or a text such as `10m`",
        "string" => "a text",
        "integer" => "a whole number",
        "boolean" => "true or false",
        "array" => "a list of texts",
        other => other,
    };
    let description = property["description"].as_str().unwrap_or_default();
    // The first sentence says what it is.
    let first = description.split_inclusive(". ").next().unwrap_or_default().trim();
    format!("`{name}` is {kind}: {first}")
}

/// `5000.0` is 5000: some languages have only one kind of number.
fn whole(value: Value) -> Value {
    match value.as_f64() {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "it is whole, and within the range"
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
        /// What is asked. Anything.
        prompt: String,
        /// How long.
        timeout_ms: Option<u64>,
        allowed_tools: Option<Vec<String>>,
    }

    fn parse(given: Value) -> Result<Example, String> {
        let tool = Tool::new("example", "", super::super::schema::of_input::<Example>());
        let Value::Object(given) = given else { panic!("{given}") };
        read(&tool, Some(given)).map_err(|refusal| refusal.text())
    }

    #[test]
    fn blank_texts_and_nulls_count_as_absent_but_not_for_a_list() {
        let example = parse(json!({ "prompt": "x", "timeout_ms": null })).unwrap();
        assert_eq!(example, Example { prompt: "x".into(), timeout_ms: None, allowed_tools: None });
        assert!(
            parse(json!({ "prompt": "x", "allowed_tools": "" })).unwrap_err().contains("`allowed_tools`")
        );
        assert_eq!(
            parse(json!({ "prompt": "x", "allowed_tools": [] })).unwrap().allowed_tools,
            Some(Vec::new())
        );
    }

    #[test]
    fn what_is_missing_or_empty_is_named_with_what_it_is() {
        assert_eq!(
            parse(json!({})).unwrap_err(),
            "error in `prompt`: it is missing\nhint: `prompt` is a text: What is asked."
        );
        assert!(parse(json!({ "prompt": " \n" })).unwrap_err().starts_with("error in `prompt`: it is empty"));
    }

    #[test]
    fn an_unknown_name_is_told_the_nearest() {
        for near in ["timeout", "timeoutMs", "timeout_sec", "TIMEOUT_MS"] {
            assert!(
                parse(json!({ "prompt": "x", near: 1 })).unwrap_err().contains("did you mean `timeout_ms`?"),
                "{near}"
            );
        }
        assert!(parse(json!({ "prompt": "x", "zzz": 1 })).unwrap_err().contains("its parameters are: "));
    }

    #[test]
    fn a_wrong_type_is_told_the_right_one_and_where() {
        let error = parse(json!({ "prompt": "x", "timeout_ms": "soon" })).unwrap_err();
        assert!(error.starts_with("error in `timeout_ms`: invalid type"), "{error}");
        assert!(error.ends_with("`timeout_ms` is a whole number: How long."), "{error}");
        let error = parse(json!({ "prompt": "x", "allowed_tools": ["Read", 7] })).unwrap_err();
        assert!(error.starts_with("error in `allowed_tools[1]`"), "{error}");
        assert!(parse(json!({ "prompt": "x", "timeout_ms": -1 })).is_err());
    }

    #[test]
    fn a_whole_number_may_be_written_with_a_point() {
        assert_eq!(parse(json!({ "prompt": "x", "timeout_ms": 5000.0 })).unwrap().timeout_ms, Some(5000));
        assert!(parse(json!({ "prompt": "x", "timeout_ms": 0.5 })).is_err());
    }
}
