//! `switchboard config`: prints the effective settings or the reference of all keys.

use std::process::ExitCode;

use protocol::{ProcessEnvironment, SwitchboardHome};

use crate::config::{EffectiveSettings, as_json, as_toml, misspelled_variables, reference};
use crate::drift::ConfigDrift;
use crate::failure::CommandFailure;
use crate::{cli, output};

/// Prints the effective settings with their sources, or the reference.
pub fn run(args: &cli::ShowConfig) -> Result<ExitCode, CommandFailure> {
    if args.reference {
        output::print(&reference());
        return Ok(ExitCode::SUCCESS);
    }
    let environment = ProcessEnvironment::current();
    let home = SwitchboardHome::from_environment(&environment)?;
    for (misspelled, known) in misspelled_variables(&environment) {
        output::aside(&format!("note: unknown variable {misspelled}; did you mean {known}?"));
    }
    let settings = EffectiveSettings::read(Some(&home), &environment, &[])?;
    let drift = ConfigDrift::find(&home, &environment);
    if args.json {
        let mut json = as_json(&home, &settings);
        if let Some(drift) = &drift {
            json["config_drift"] = serde_json::to_value(drift)?;
        }
        output::line(&serde_json::to_string_pretty(&json)?);
    } else {
        output::print(&as_toml(&home, &settings));
    }
    if let Some(drift) = drift {
        drift.print();
    }
    Ok(ExitCode::SUCCESS)
}
