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

/// Removes parameters.
pub(crate) fn remove_parameters(schema: &mut Map<String, Value>, parameters: &[&str]) {
    if let Some(Value::Object(properties)) = schema.get_mut("properties") {
        properties.retain(|name, _| !parameters.contains(&name.as_str()));
    }
}

/// Adds the parameters `T`.
pub(crate) fn add_parameters<T: JsonSchema>(schema: &mut Map<String, Value>) {
    let mut added = input_schema::<T>();
    for part in ["properties", "required"] {
        match (schema.get_mut(part), added.remove(part)) {
            (Some(Value::Object(all)), Some(Value::Object(more))) => all.extend(more),
            (Some(Value::Array(all)), Some(Value::Array(more))) => all.extend(more),
            _ => {}
        }
    }
}

fn plain_schema<T: JsonSchema>() -> Map<String, Value> {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.inline_subschemas = true;
        settings.meta_schema = None;
    });
    let mut schema = settings.into_generator().into_root_schema_for::<T>().to_value();
    remove_rust_formats(&mut schema);
    let Value::Object(mut schema) = schema else { return Map::new() };
    merge_variants(&mut schema);
    for noise in ["title", "description"] {
        schema.remove(noise);
    }
    schema
}

/// Turns one of several objects into an object with the properties of all: clients expect an object. A property is required if all of them
/// require it.
fn merge_variants(schema: &mut Map<String, Value>) {
    let Some(Value::Array(variants)) = schema.remove("anyOf") else { return };
    let required = |variant: &Value| variant["required"].as_array().cloned().unwrap_or_default();
    let (mut properties, mut in_all) = (Map::new(), variants.first().map(required).unwrap_or_default());
    for variant in &variants {
        let names = required(variant);
        in_all.retain(|name| names.contains(name));
        for (name, property) in variant["properties"].as_object().into_iter().flatten() {
            properties.entry(name).or_insert_with(|| property.clone());
        }
    }
    schema.insert("type".to_owned(), Value::from("object"));
    schema.insert("properties".to_owned(), Value::Object(properties));
    schema.insert("required".to_owned(), Value::Array(in_all));
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

    #[derive(JsonSchema)]
    #[serde(untagged)]
    #[expect(dead_code, reason = "only its schema is used")]
    enum Either {
        One(Example),
        Other { name: String, size: bool },
    }

    #[test]
    fn one_of_several_objects_is_an_object() {
        let schema = Value::Object(output_schema::<Either>());
        assert_eq!(
            (&schema["type"], &schema["required"]),
            (&Value::from("object"), &serde_json::json!(["name"]))
        );
        let names: Vec<&String> = schema["properties"].as_object().unwrap().keys().collect();
        assert_eq!(names, ["count", "name", "size"], "{schema}");
    }

    #[test]
    fn added_parameters_keep_what_is_required() {
        #[derive(JsonSchema)]
        #[expect(dead_code, reason = "only its schema is used")]
        struct More {
            size: u32,
            color: Option<String>,
        }
        let mut schema = input_schema::<Example>();
        remove_parameters(&mut schema, &["count"]);
        add_parameters::<More>(&mut schema);
        let names: Vec<&String> = schema["properties"].as_object().unwrap().keys().collect();
        assert_eq!(names, ["color", "name", "size"]);
        assert_eq!(schema["required"], serde_json::json!(["name", "size"]));
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
