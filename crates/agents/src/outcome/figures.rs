//! Plausibility checks of the agent's figures.

use model::{MAX_COST_USD, MAX_TOKENS, Usage};

/// The plausible figures of a run.
pub(super) struct Figures {
    pub usage: Option<Usage>,
    pub cost_usd: Option<f64>,
    /// Descriptions of the implausible figures.
    pub implausible: Vec<String>,
}

impl Figures {
    /// Removes figures that cannot be true.
    pub fn check(usage: Option<Usage>, cost_usd: Option<f64>) -> Self {
        let is_cost = |cost: &f64| (0.0..=MAX_COST_USD).contains(cost);
        let is_usage = |usage: &Usage| {
            [usage.input, usage.output, usage.cached, usage.reasoning]
                .iter()
                .all(|tokens| *tokens <= MAX_TOKENS)
        };
        let cost = cost_usd.filter(|cost| !is_cost(cost)).map(|cost| format!("a cost of ${cost:e}"));
        let tokens = usage.filter(|usage| !is_usage(usage)).map(|usage| {
            let Usage { input, output, .. } = usage;
            format!("{input} tokens in and {output} out")
        });
        Self {
            usage: usage.filter(is_usage),
            cost_usd: cost_usd.filter(is_cost),
            implausible: cost.into_iter().chain(tokens).collect(),
        }
    }
}
