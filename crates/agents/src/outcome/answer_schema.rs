//! JSON Schemas of answers, with a limit on the work of a validation.
//!
//! A small schema can take exponential time: references that double, and alternatives that recurse over a deep answer, which an agent
//! chooses. It can also recurse until the stack overflows. The validator has no limit for either, so each subschema gets a keyword that
//! counts, and that unwinds the thread of the validation at a limit.

use std::cell::Cell;
use std::panic::resume_unwind;
use std::thread;

use jsonschema::{Keyword, ValidationError, Validator};
use serde_json::Value;

/// The limit of subschemas that are compiled or applied. An answer of a megabyte has half as many values.
const MAX_STEPS: u64 = 2_000_000;
/// The stack of the validation. Only its used part takes memory.
const STACK_BYTES: usize = 64 << 20;
/// The part of the stack that the validation may use between two steps.
const RESERVED_BYTES: usize = 16 << 20;
/// The number of violations in a message.
const MAX_LISTED: usize = 3;
/// The length of a violation in a message: it can quote the whole answer.
const VIOLATION_CHARS: usize = 300;
/// The keyword that counts.
const STEP: &str = "x-switchboard-step";
/// Keywords whose values contain no schema.
const VALUES: [&str; 6] = ["const", "default", "dependentRequired", "enum", "examples", "$vocabulary"];

const TOO_COMPLEX: &str = "it takes too many steps to apply";

/// Checks that a text is a schema. References to other documents are not loaded.
pub(crate) fn check_schema(schema: &str) -> Result<(), String> {
    within_limits(|| compile(schema).map(drop))?
}

/// Returns the first violations of an answer.
pub(super) fn find_violations(schema: &str, answer: &Value) -> Result<Vec<String>, String> {
    within_limits(|| {
        let validator = compile(schema)?;
        let violations = validator.iter_errors(answer).take(MAX_LISTED).map(|error| {
            let (place, problem) = (error.instance_path().to_string(), error.to_string());
            let problem: String = problem.chars().take(VIOLATION_CHARS).collect();
            if place.is_empty() { problem } else { format!("at `{place}`: {problem}") }
        });
        Ok(violations.collect())
    })?
}

fn compile(schema: &str) -> Result<Validator, String> {
    let mut schema: Value = serde_json::from_str(schema).map_err(|error| error.to_string())?;
    // `true` is a schema, too, but the agents take none.
    if !schema.is_object() {
        return Err("it is not a JSON object".to_owned());
    }
    add_steps(&mut schema);
    let options = jsonschema::options().with_keyword(STEP, |_, _, _| {
        Meter::step();
        Ok(Box::new(Step))
    });
    options.build(&schema).map_err(|error| error.to_string())
}

/// Adds the keyword to each subschema. In a map of schemas it is one more schema, which accepts everything.
fn add_steps(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            for (name, value) in &mut *fields {
                if !VALUES.contains(&name.as_str()) {
                    add_steps(value);
                }
            }
            fields.insert(STEP.to_owned(), Value::Bool(true));
        }
        Value::Array(items) => items.iter_mut().for_each(add_steps),
        _ => {}
    }
}

/// Runs a validation on a thread of its own.
fn within_limits<T: Send>(validate: impl FnOnce() -> T + Send) -> Result<T, String> {
    thread::scope(|scope| {
        let run = || {
            Meter::start();
            validate()
        };
        let thread = thread::Builder::new().stack_size(STACK_BYTES).spawn_scoped(scope, run);
        let thread = thread.map_err(|error| format!("it cannot be checked: {error}"))?;
        thread.join().map_err(|_| TOO_COMPLEX.to_owned())
    })
}

/// The keyword that counts. It accepts everything.
struct Step;

impl<'i> Keyword<'i> for Step {
    fn validate(&self, _: &'i Value) -> Result<(), ValidationError<'i>> {
        Meter::step();
        Ok(())
    }

    fn is_valid(&self, _: &'i Value) -> bool {
        Meter::step();
        true
    }
}

/// The work of the validation on this thread.
#[derive(Clone, Copy)]
struct Meter {
    steps: u64,
    /// The address of the stack at the start.
    base: usize,
}

thread_local! {
    static METER: Cell<Meter> = const { Cell::new(Meter { steps: 0, base: 0 }) };
}

impl Meter {
    fn start() {
        METER.set(Self { steps: 0, base: stack_address() });
    }

    /// Counts a step, and unwinds the thread at a limit. Without the panic hook, which would print a message.
    fn step() {
        let Self { steps, base } = METER.get();
        METER.set(Self { steps: steps + 1, base });
        if steps >= MAX_STEPS || base.abs_diff(stack_address()) > STACK_BYTES - RESERVED_BYTES {
            resume_unwind(Box::new(TOO_COMPLEX));
        }
    }
}

/// Returns the address of a value on the stack.
#[inline(never)]
fn stack_address() -> usize {
    let here = 0_u8;
    std::ptr::from_ref(&here).addr()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn violations(schema: &Value, answer: &Value) -> Result<Vec<String>, String> {
        find_violations(&schema.to_string(), answer)
    }

    #[test]
    fn invalid_schema_is_rejected() {
        assert!(check_schema(r#"{"type": "object"}"#).is_ok());
        assert!(check_schema(r#"{"type": "objekt"}"#).is_err());
        assert!(check_schema("[").is_err());
        assert!(check_schema("true").is_err());
    }

    #[test]
    fn counting_changes_no_result() {
        let schema = json!({
            "type": "object", "required": ["a"], "additionalProperties": false,
            "properties": {"a": {"enum": [{"b": 1}]}, "c": {"const": {"d": {}}}, "e": {"$ref": "#"}},
            "dependentRequired": {"c": ["a"]},
        });
        assert_eq!(
            violations(&schema, &json!({"a": {"b": 1}, "c": {"d": {}}, "e": {"a": {"b": 1}}})),
            Ok(vec![])
        );
        let found = violations(&schema, &json!({"a": {"b": 2}, "x": 1})).unwrap();
        assert!(found.len() == 2 && !found.concat().contains(STEP), "{found:?}");
    }

    #[test]
    fn references_that_double_are_rejected() {
        for draft in
            ["http://json-schema.org/draft-07/schema#", "https://json-schema.org/draft/2020-12/schema"]
        {
            let mut definitions = json!({"d0": {"type": "integer"}});
            for number in 1..40 {
                let last = json!({"$ref": format!("#/$defs/d{}", number - 1)});
                definitions[format!("d{number}")] = json!({"allOf": [last, last]});
            }
            let schema = json!({"$schema": draft, "$defs": definitions, "allOf": [{"$ref": "#/$defs/d39"}]});
            assert_eq!(violations(&schema, &json!(7)), Err(TOO_COMPLEX.to_owned()));
        }
    }

    #[test]
    fn alternatives_that_recurse_are_stopped() {
        let node = |name: &str| json!({"properties": {"a": {"$ref": "#"}, "kind": {"const": name}}, "required": ["kind"]});
        let schema = json!({"anyOf": [node("x"), node("y"), {"type": "integer"}]});
        let mut answer = json!("wrong");
        for _ in 0..60 {
            answer = json!({"kind": "z", "a": answer});
        }
        assert_eq!(violations(&schema, &answer), Err(TOO_COMPLEX.to_owned()));
    }

    #[test]
    fn references_to_themselves_do_not_overflow_the_stack() {
        for draft in
            ["http://json-schema.org/draft-07/schema#", "https://json-schema.org/draft/2020-12/schema"]
        {
            for schema in [
                json!({"$ref": "#"}),
                json!({"allOf": [{"$ref": "#"}]}),
                json!({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}),
                json!({"not": {"$ref": "#"}}),
                json!({"anyOf": [{"$ref": "#"}, {"$ref": "#"}]}),
            ] {
                let mut schema = schema;
                schema["$schema"] = draft.into();
                // Any result is fine, as long as there is one.
                let _ = violations(&schema, &json!(7));
            }
        }
    }

    #[test]
    fn long_chain_of_references_does_not_overflow_the_stack() {
        let mut definitions = json!({"d0": {"type": "integer"}});
        for number in 1..20_000 {
            definitions[format!("d{number}")] = json!({"$ref": format!("#/$defs/d{}", number - 1)});
        }
        let schema = json!({"$defs": definitions, "$ref": "#/$defs/d19999"});
        let _ = violations(&schema, &json!(7));
    }

    #[test]
    fn large_answer_is_validated() {
        let schema = json!({"type": "array", "items": {"type": "integer"}});
        let answer: Value = (0..300_000).map(Value::from).collect::<Vec<_>>().into();
        assert_eq!(violations(&schema, &answer), Ok(vec![]));
    }
}
