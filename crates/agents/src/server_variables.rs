//! The variables of MCP servers that are named rather than given: `${NAME}` stands for the value of a variable, which is never stored.

use std::borrow::Cow;
use std::collections::BTreeSet;

use model::{CallSpec, McpServer};

use crate::LaunchError;

/// Returns the names of the variables that the servers of a call refer to.
pub fn named_variables(call: &CallSpec) -> BTreeSet<String> {
    let values = call.mcp_servers.iter().flat_map(|server| server.env.values());
    let mut names = BTreeSet::new();
    for value in values {
        // Without an error, since every name has a value.
        let _ = replace(value, |name| {
            names.insert(name.to_owned());
            Some(String::new())
        });
    }
    names
}

/// Returns the call with the values of the variables that its servers refer to.
pub fn resolve_variables(
    call: &CallSpec,
    value: impl Fn(&str) -> Option<String>,
) -> Result<Cow<'_, CallSpec>, LaunchError> {
    if named_variables(call).is_empty() {
        return Ok(Cow::Borrowed(call));
    }
    let mcp_servers = call.mcp_servers.iter().map(|server| resolve_server(server, &value));
    Ok(Cow::Owned(CallSpec { mcp_servers: mcp_servers.collect::<Result<_, _>>()?, ..call.clone() }))
}

fn resolve_server(
    server: &McpServer,
    value: impl Fn(&str) -> Option<String>,
) -> Result<McpServer, LaunchError> {
    let mut resolved = server.clone();
    for text in resolved.env.values_mut() {
        *text = replace(text, &value).map_err(|variable| LaunchError::UnknownVariable {
            server: server.name.clone(),
            variable: variable.to_owned(),
        })?;
    }
    Ok(resolved)
}

/// Replaces each `${NAME}`. Fails with the first name without a value. Text that is no such reference stays.
fn replace(text: &str, mut value: impl FnMut(&str) -> Option<String>) -> Result<String, &str> {
    let mut replaced = String::new();
    let mut rest = text;
    while let Some(start) = rest.find("${") {
        let (before, reference) = rest.split_at(start);
        replaced.push_str(before);
        let name = reference[2..].split_once('}').map(|(name, _)| name).filter(|name| is_name(name));
        if let Some(name) = name {
            replaced.push_str(&value(name).ok_or(name)?);
            rest = &reference[name.len() + 3..];
        } else {
            replaced.push_str("${");
            rest = &reference[2..];
        }
    }
    replaced.push_str(rest);
    Ok(replaced)
}

fn is_name(text: &str) -> bool {
    !text.is_empty()
        && !text.starts_with(|first: char| first.is_ascii_digit())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use model::AgentKind;

    use super::*;

    fn call(value: &str) -> CallSpec {
        let env = BTreeMap::from([("TOKEN".to_owned(), value.to_owned())]);
        let server = McpServer { name: "s".to_owned(), command: "c".to_owned(), args: Vec::new(), env };
        CallSpec { mcp_servers: vec![server], ..CallSpec::new(AgentKind::Claude, "x", "/") }
    }

    #[test]
    fn references_are_replaced_by_their_values() {
        for (text, expected) in [
            ("${A}", "1"),
            ("x ${A}${B} y", "x 12 y"),
            ("$A ${} ${0} ${A", "$A ${} ${0} ${A"),
            ("${A-b}", "${A-b}"),
            ("plain", "plain"),
        ] {
            let value = |name: &str| match name {
                "A" => Some("1".to_owned()),
                "B" => Some("2".to_owned()),
                _ => None,
            };
            let call = call(text);
            assert_eq!(resolve_variables(&call, value).unwrap().mcp_servers[0].env["TOKEN"], expected);
        }
    }

    #[test]
    fn value_is_not_replaced_again() {
        let call = call("${A}");
        let resolved = resolve_variables(&call, |_| Some("${B}".to_owned())).unwrap();
        assert_eq!(resolved.mcp_servers[0].env["TOKEN"], "${B}");
    }

    #[test]
    fn unknown_variable_is_named() {
        let call = call("${A} ${B}");
        assert_eq!(named_variables(&call), ["A", "B"].map(str::to_owned).into());
        let error = resolve_variables(&call, |name| (name == "A").then(String::new)).unwrap_err();
        assert_eq!(error.to_string(), "variable `B` of MCP server `s` is not set");
    }
}
