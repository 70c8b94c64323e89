//! Token counts, which the agents report in different places and with different meanings.

use model::Usage;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The meaning of an agent's token counts, as measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UsageReport {
    /// None that is right, or not measured: left out rather than reported wrong.
    #[default]
    Unknown,
    /// The reply to a prompt counts the prompt.
    PerPrompt,
    /// The reply to a prompt counts the process so far.
    PerProcess,
    /// Each update with a count is one request to the model.
    PerRequest,
}

/// Returns the counts of a JSON object, if it has any.
pub(super) fn read(counts: &Value) -> Option<Usage> {
    let count = |names: &[&str]| names.iter().find_map(|name| counts[*name].as_u64());
    let input = count(&["inputTokens", "input_tokens"])?;
    let output = count(&["outputTokens", "output_tokens"])?;
    let cached = count(&["cachedReadTokens", "cachedInputTokens", "cached_input_tokens"]).unwrap_or(0);
    let written = count(&["cachedWriteTokens", "cacheWriteInputTokens"]).unwrap_or(0);
    let reasoning = count(&["thoughtTokens", "reasoningOutputTokens"]).unwrap_or(0);
    // Some agents count tokens of a cache beside the input, and reasoning beside the output: the total tells.
    let total = count(&["totalTokens", "total_tokens"]).unwrap_or(input.saturating_add(output));
    let beside = total.saturating_sub(input.saturating_add(output));
    let cache = cached.saturating_add(written);
    let (input, output) = match beside {
        0 => (input, output),
        more if more == cache => (input.saturating_add(cache), output),
        more if more == reasoning => (input, output.saturating_add(reasoning)),
        more if more == cache.saturating_add(reasoning) => {
            (input.saturating_add(cache), output.saturating_add(reasoning))
        }
        _ => (input, output),
    };
    Some(Usage { input, output, cached, reasoning })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn cache_and_reasoning_are_added_where_the_total_counts_them() {
        let usage = |input, output, cached, reasoning| Some(Usage { input, output, cached, reasoning });
        let table = [
            (json!({"inputTokens": 100, "outputTokens": 7, "totalTokens": 107}), usage(100, 7, 0, 0)),
            (
                json!({"inputTokens": 100, "outputTokens": 7, "cachedReadTokens": 40, "totalTokens": 107}),
                usage(100, 7, 40, 0),
            ),
            (
                json!({"inputTokens": 60, "outputTokens": 7, "cachedReadTokens": 40, "totalTokens": 107}),
                usage(100, 7, 40, 0),
            ),
            (
                json!({"inputTokens": 60, "outputTokens": 7, "thoughtTokens": 3, "totalTokens": 70}),
                usage(60, 10, 0, 3),
            ),
            (json!({"input_tokens": 10, "output_tokens": 5}), usage(10, 5, 0, 0)),
            (json!({"inputTokens": 10}), None),
            (json!(null), None),
        ];
        for (counts, expected) in table {
            assert_eq!(read(&counts), expected, "{counts}");
        }
    }
}
