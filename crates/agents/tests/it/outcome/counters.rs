//! Tokens and cost of a run, from counters of a run or of its whole session.

use model::{AgentKind, FailureKind, Totals, Usage};

use super::{OLD, Run, resumed};

#[test]
fn usage_of_run_alone_needs_no_difference() {
    let stdout = r#"{"type":"result","subtype":"success","is_error":false,"result":"x","total_cost_usd":0.75,"usage":{"input_tokens":0},"model_usage_since_last_result":{"m":{"inputTokens":60,"cacheReadInputTokens":40,"outputTokens":20,"thinkingTokens":3,"costUSD":0.25}}}"#;
    let outcome = Run { session: resumed(), ..Run::of(AgentKind::Claude, stdout) }.outcome();
    assert_eq!(outcome.cost_usd, Some(0.25));
    assert_eq!(outcome.usage, Some(Usage { input: 100, output: 20, cached: 40, reasoning: 3 }));
}

#[test]
fn session_counters_yield_run_usage() {
    let usage = |input| Usage { input, output: 5, cached: 0, reasoning: 0 };
    let stdout = r#"{"type":"turn.completed","usage":{"input_tokens":30,"output_tokens":5}}"#;
    let before = Some(Totals { usage: Some(usage(10)), cost_usd: None });
    let run = Run { session: resumed(), totals_before: before, ..Run::of(AgentKind::Codex, stdout) };
    assert_eq!(run.outcome().usage, Some(Usage { input: 20, ..Usage::default() }));
    assert_eq!(run.outcome().session_totals.unwrap().usage, Some(usage(30)));
    // Unknown earlier counters leave no correct figure.
    assert_eq!(Run { totals_before: None, ..run }.outcome().usage, None);
    assert_eq!(Run::of(AgentKind::Codex, stdout).outcome().usage, Some(usage(30)));
}

#[test]
fn newer_claude_counts_cost_per_session() {
    let stdout = |version: &str| -> &'static str {
        let text = format!(
            "{{\"type\":\"system\",\"subtype\":\"init\",\"session_id\":\"{OLD}\",\"claude_code_version\":\"{version}\"}}\n\
             {{\"type\":\"result\",\"subtype\":\"success\",\"is_error\":false,\"result\":\"x\",\"session_id\":\"{OLD}\",\"total_cost_usd\":0.75}}"
        );
        text.leak()
    };
    let before = Some(Totals { usage: None, cost_usd: Some(0.5) });
    let run = |version| Run {
        session: resumed(),
        totals_before: before,
        ..Run::of(AgentKind::Claude, stdout(version))
    };
    assert_eq!(run("2.1.325").outcome().cost_usd, Some(0.25));
    assert_eq!(run("2.1.197").outcome().cost_usd, Some(0.75));
    assert_eq!(run("2.1.197").outcome().session_totals, None);
}

#[test]
fn huge_counts_do_not_panic_or_wrap() {
    const MAX: u64 = u64::MAX;
    let claude = format!(
        r#"{{"type":"result","subtype":"success","is_error":false,"result":"x","usage":{{"input_tokens":{MAX},"cache_read_input_tokens":{MAX},"cache_creation_input_tokens":{MAX}}}}}"#
    );
    let by_model = claude.replace(
        "\"usage\"",
        &format!(r#""model_usage_since_last_result":{{"a":{{"inputTokens":{MAX},"outputTokens":{MAX},"costUSD":1e308}},"b":{{"inputTokens":{MAX},"cacheReadInputTokens":1,"outputTokens":1,"costUSD":1e308}},"c":{{"costUSD":1e308}}}},"usage""#),
    );
    let gemini = format!(
        r#"{{"type":"result","status":"success","stats":{{"total_tokens":{MAX},"input_tokens":{MAX},"output_tokens":{MAX}}}}}"#
    );
    for (agent, stdout) in
        [(AgentKind::Claude, claude), (AgentKind::Claude, by_model), (AgentKind::Gemini, gemini)]
    {
        let outcome = Run::of(agent, stdout.leak()).outcome();
        assert_eq!((outcome.usage, outcome.cost_usd), (None, None), "such figures are not believed");
        assert!(outcome.notes().concat().contains("18446744073709551615 tokens in"), "{:?}", outcome.notes());
    }
    let words = r#"{"type":"turn.failed","error":{"message":"rate limit, retry after 18446744073709549568s 18446744073709549568s"}}"#;
    let retry_after = Some(std::time::Duration::MAX);
    assert_eq!(Run::of(AgentKind::Codex, words).failure().0, FailureKind::RateLimit { retry_after });
}
