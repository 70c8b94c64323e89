//! A search over many small files, against the program that people use for it.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::Failure;
use crate::report::{Row, Target};

use super::{FilingScale, SEARCH, Tools, take_turns};

/// The program to compare with.
#[derive(Debug)]
pub enum Searcher {
    /// ripgrep, of this version.
    Ripgrep(String),
    /// The fallback.
    Grep,
}

impl Searcher {
    /// Finds the installed program.
    pub fn find() -> Self {
        let version =
            Command::new("rg").arg("--version").output().ok().filter(|output| output.status.success());
        match version {
            Some(output) => {
                let text = String::from_utf8_lossy(&output.stdout);
                Self::Ripgrep(text.lines().next().unwrap_or_default().to_owned())
            }
            None => Self::Grep,
        }
    }

    /// For the reader of the table.
    pub fn describe(&self) -> String {
        match self {
            Self::Ripgrep(version) => {
                format!(
                    "{version}, `rg --hidden --no-require-git --line-number` (hidden files and `.gitignore` as ours)"
                )
            }
            Self::Grep => "`grep -rnE`, since ripgrep is not installed; it knows no `.gitignore`".to_owned(),
        }
    }

    fn name(&self) -> &'static str {
        match self {
            Self::Ripgrep(_) => "`rg`",
            Self::Grep => "`grep -rnE`",
        }
    }

    fn command(&self, regex: &str, directory: &Path) -> Command {
        let mut command = match self {
            Self::Ripgrep(_) => {
                let mut command = Command::new("rg");
                command.args(["--hidden", "--no-require-git", "--line-number", "--no-config", regex]);
                command
            }
            Self::Grep => {
                let mut command = Command::new("grep");
                command.args(["-rnE", regex]);
                command
            }
        };
        command.arg(directory);
        command
    }
}

/// Takes the figures.
pub fn measure(tools: &Tools<'_>, searcher: &Searcher, scale: &FilingScale) -> Result<Vec<Row>, Failure> {
    lay_out(tools.workspace, scale.files)?;
    let mut rows = Vec::new();
    for (what, regex) in [
        ("a rare word", "needle_in_the_hay"),
        ("an expression without a literal", r"\b[a-z]+_[a-z]+_[0-9]{3}\b"),
    ] {
        let mut theirs = searcher.command(regex, tools.workspace);
        let mut ours = tools.command(&["search", regex, "--max", "10000"]);
        let turns = take_turns(&mut theirs, &mut ours, scale.searches, scale, |plain, told| {
            let (theirs, ours) = (plain.split(|&byte| byte == b'\n').count() - 1, count(told, b"\"line\":"));
            // Equal work, or no comparison.
            if theirs == ours && ours > 0 {
                Ok(())
            } else {
                Err(format!("{theirs} and {ours} lines found").into())
            }
        })?;
        let mut pair = turns.rows(&format!("search of {} files for {what}", scale.files), searcher.name());
        pair[0].target = Some(Target::RatioBelow(SEARCH));
        rows.extend(pair);
    }
    Ok(rows)
}

fn count(text: &[u8], what: &[u8]) -> usize {
    text.windows(what.len()).filter(|window| *window == what).count()
}

/// A tree as of a large project: directories of directories of small files, a few of them with something to find.
fn lay_out(workspace: &Path, files: u32) -> Result<(), Failure> {
    fs::write(workspace.join(".gitignore"), "*.log\n/build/\nnode_modules/\n")?;
    let mut body = String::new();
    for line in 0..16 {
        writeln!(body, "    let value_{line} = compute(input, {line}).unwrap_or_default(); // as before")?;
    }
    for file in 0..files {
        let directory = workspace.join(format!("src/{}/{}", file / 2500, file / 50));
        if file % 50 == 0 {
            fs::create_dir_all(&directory)?;
        }
        let find = match file % 1000 {
            0 => "    needle_in_the_hay();\n".to_owned(),
            1 => format!("    a_needle_{:03};\n", file / 1000),
            _ => String::new(),
        };
        fs::write(
            directory.join(format!("file_{file}.rs")),
            format!("fn function_{file}() {{\n{body}{find}}}\n"),
        )?;
    }
    Ok(())
}
