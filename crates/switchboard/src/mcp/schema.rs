//! JSON schemas of the tools, from the types that are read and written.
//!
//! Owns their plain form: everything in one place (no `$ref`), no formats that only Rust has (`uint32`), and a parameter that
//! may be left out is not also one that may be null.

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value};

/// The schema of parameters.
pub(crate) fn of_input<T: JsonSchema>() -> Map<String, Value> {
    let mut schema = plain::<T>();
    if let Some(Value::Object(properties)) = schema.get_mut("properties") {
        properties.values_mut().for_each(without_null);
    }
    // A parameterless tool has no properties, and clients expect the word all the same.
    schema.entry("properties").or_insert_with(|| Value::Object(Map::new()));
    schema.insert("additionalProperties".to_owned(), Value::Bool(false));
    schema
}

/// The schema of an answer.
pub(crate) fn of_output<T: JsonSchema>() -> Map<String, Value> {
    plain::<T>()
}

/// Changes what is said about one parameter.
pub(crate) fn describe(schema: &mut Map<String, Value>, parameter: &str, description: &str) {
    schema["properties"][parameter]["description"] = Value::from(description);
}

fn plain<T: JsonSchema>() -> Map<String, Value> {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.inline_subschemas = true;
        settings.meta_schema = None;
    });
    let mut schema = settings.into_generator().into_root_schema_for::<T>().to_value();
    tidy(&mut schema);
    let Value::Object(mut schema) = schema else { return Map::new() };
    for noise in ["title", "description"] {
        schema.remove(noise);
    }
    schema
}

/// Takes out what only Rust understands. `format` is a keyword where its value is a text, and may be a property elsewhere.
fn tidy(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            if fields.get("format").is_some_and(Value::is_string) {
                fields.remove("format");
            }
            fields.values_mut().for_each(tidy);
        }
        Value::Array(items) => items.iter_mut().for_each(tidy),
        _ => {}
    }
}

/// `["string", "null"]` is `"string"`: what is null is left out.
fn without_null(property: &mut Value) {
    let Some(Value::Array(types)) = property.get_mut("type") else { return };
    types.retain(|name| name != "null");
    if let [only] = types.as_slice() {
        property["type"] = only.clone();
    }
    if property.get("default").is_some_and(Value::is_null)
        && let Some(fields) = property.as_object_mut()
    {
        fields.remove("default");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(JsonSchema)]
    #[expect(dead_code, reason = "only its schema is looked at")]
    struct Example {
        /// How many.
        count: Option<u32>,
        name: String,
    }

    #[test]
    fn a_schema_is_plain() {
        let schema = Value::Object(of_input::<Example>());
        assert_eq!(
            schema,
            serde_json::json!({
                "type": "object",
                "properties": {
                    "count": { "type": "integer", "description": "How many.", "minimum": 0 },
                    "name": { "type": "string" },
                },
                "required": ["name"],
                "additionalProperties": false,
            })
        );
    }
}
