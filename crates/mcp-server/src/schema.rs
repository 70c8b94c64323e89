//! JSON schemas of the tools, derived from their Rust types.
//!
//! Owns the plain form that hosts expect: no `$ref`, no formats specific to Rust (`uint32`), and no `null` type for optional parameters.

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value};

/// Returns the schema of a tool's parameters.
pub(crate) fn input_schema<T: JsonSchema>() -> Map<String, Value> {
    let mut schema = plain_schema::<T>();
    if let Some(Value::Object(properties)) = schema.get_mut("properties") {
        properties.values_mut().for_each(remove_null);
    }
    // Clients expect the key even if the tool has no parameters.
    schema.entry("properties").or_insert_with(|| Value::Object(Map::new()));
    schema.insert("additionalProperties".to_owned(), Value::Bool(false));
    schema
}

/// Returns the schema of a tool's structured content.
pub(crate) fn output_schema<T: JsonSchema>() -> Map<String, Value> {
    plain_schema::<T>()
}

/// Replaces the description of a parameter.
pub(crate) fn describe(schema: &mut Map<String, Value>, parameter: &str, description: &str) {
    schema["properties"][parameter]["description"] = Value::from(description);
}

fn plain_schema<T: JsonSchema>() -> Map<String, Value> {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.inline_subschemas = true;
        settings.meta_schema = None;
    });
    let mut schema = settings.into_generator().into_root_schema_for::<T>().to_value();
    remove_rust_formats(&mut schema);
    let Value::Object(mut schema) = schema else { return Map::new() };
    for noise in ["title", "description"] {
        schema.remove(noise);
    }
    schema
}

/// Removes `format`, which is specific to Rust. Only with a string value is it the keyword; otherwise it is a property name.
fn remove_rust_formats(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            if fields.get("format").is_some_and(Value::is_string) {
                fields.remove("format");
            }
            fields.values_mut().for_each(remove_rust_formats);
        }
        Value::Array(items) => items.iter_mut().for_each(remove_rust_formats),
        _ => {}
    }
}

/// Turns `["string", "null"]` into `"string"`: callers omit an optional parameter.
fn remove_null(property: &mut Value) {
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
    #[expect(dead_code, reason = "only its schema is used")]
    struct Example {
        /// Number of items.
        count: Option<u32>,
        name: String,
    }

    #[test]
    fn schema_is_plain() {
        let schema = Value::Object(input_schema::<Example>());
        assert_eq!(
            schema,
            serde_json::json!({
                "type": "object",
                "properties": {
                    "count": { "type": "integer", "description": "Number of items.", "minimum": 0 },
                    "name": { "type": "string" },
                },
                "required": ["name"],
                "additionalProperties": false,
            })
        );
    }
}
