//! A scripted model API on loopback: lets tests run the real agent CLIs with no network and no account.
//!
//! One [`ModelApi`] speaks the APIs of the vendors on one port, answers by a [`Script`], and keeps every request,
//! so that a test can say what reached the model. It judges nothing: what a CLI makes of an answer is for the test
//! to see.
//!
//! ```no_run
//! # async fn example(home: &std::path::Path) -> std::io::Result<()> {
//! use model_api::{ModelApi, Script};
//!
//! let api = ModelApi::start(Script::text("hello")).await;
//! let environment = api.claude_env(home)?;
//! // … run the real `claude -p` with exactly that environment …
//! assert_eq!(api.turns()[0].prompt().as_deref(), Some("say hello"));
//! # Ok(())
//! # }
//! ```

mod answer;
mod anthropic;
mod chat;
pub mod cli;
mod gemini;
mod home;
pub mod mcp_echo;
mod obey;
mod openai;
mod request;
mod script;
mod server;

pub use home::Environment;
pub use request::{ApiVendor, ConversationRole, ModelRequest, Part, Purpose};
pub use script::{Block, Call, Ending, ModelTurn, ModelUsage, Reply, Script};
pub use server::ModelApi;
