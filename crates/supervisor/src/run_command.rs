//! Commands to the supervisor of a running agent, in the file `control` of the spool.
//!
//! The file is append-only, with one JSON value per line. Only complete lines are commands: a writer may have been killed
//! within one. To add a command, add a variant here and execute it in `supervision`.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;

use serde::{Deserialize, Serialize};

/// The maximum length of a line. A longer one is no command.
const MAX_LINE_BYTES: usize = 4096;

/// A command to the supervisor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "snake_case")]
pub enum RunCommand {
    /// Close the agent's stdin once it has received the rest of the input.
    CloseInput,
}

impl RunCommand {
    /// Appends the command to a control file that is open for reading and appending.
    pub fn append_to(&self, mut control: &File) -> io::Result<()> {
        let mut line = serde_json::to_vec(self)?;
        line.push(b'\n');
        if ends_within_line(control)? {
            line.insert(0, b'\n');
        }
        control.write_all(&line)
    }
}

/// Returns whether the last writer was killed, or ran out of disk space, within a line.
fn ends_within_line(control: &File) -> io::Result<bool> {
    let mut last = [b'\n'];
    if let Some(position) = control.metadata()?.len().checked_sub(1) {
        control.read_exact_at(&mut last, position)?;
    }
    Ok(last != [b'\n'])
}

/// A complete line: a command, or the text of an unknown one.
pub type ControlLine = Result<RunCommand, String>;

/// Reads the commands in a control file that may grow. Uses constant memory, whatever is in the file.
#[derive(Debug)]
pub struct CommandReader {
    control: File,
    offset: u64,
    /// Set within a line that is too long, up to its end.
    is_line_too_long: bool,
}

impl CommandReader {
    pub fn new(control: File) -> Self {
        Self { control, offset: 0, is_line_too_long: false }
    }

    pub fn control(&self) -> &File {
        &self.control
    }

    /// Reads the next complete lines, or returns `None` if there are none yet. Reads a limited number of bytes, so there
    /// may be more lines.
    pub fn read(&mut self) -> io::Result<Option<Vec<ControlLine>>> {
        let mut buffer = [0; MAX_LINE_BYTES];
        let count = self.control.read_at(&mut buffer, self.offset)?;
        let Some(end) = buffer[..count].iter().rposition(|byte| *byte == b'\n') else {
            if count < buffer.len() {
                return Ok(None);
            }
            self.offset += count as u64;
            self.is_line_too_long = true;
            return Ok(Some(vec![Err(format!("a line of more than {MAX_LINE_BYTES} bytes"))]));
        };
        self.offset += end as u64 + 1;
        let lines = buffer[..end].split(|byte| *byte == b'\n');
        let rest = usize::from(std::mem::take(&mut self.is_line_too_long));
        Ok(Some(lines.skip(rest).filter(|line| !line.is_empty()).map(parse).collect()))
    }
}

fn parse(line: &[u8]) -> ControlLine {
    serde_json::from_slice(line).map_err(|_| String::from_utf8_lossy(line).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn control() -> (File, CommandReader) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("control");
        let file = File::options().read(true).append(true).create(true).open(&path).unwrap();
        (file, CommandReader::new(File::open(&path).unwrap()))
    }

    /// Reads everything there is.
    fn read_all(reader: &mut CommandReader) -> Vec<ControlLine> {
        std::iter::from_fn(|| reader.read().unwrap()).flatten().collect()
    }

    #[test]
    fn commands_are_read_as_they_are_appended() {
        let (file, mut reader) = control();
        assert_eq!(reader.read().unwrap(), None);
        for _ in 0..2 {
            RunCommand::CloseInput.append_to(&file).unwrap();
            assert_eq!(reader.read().unwrap(), Some(vec![Ok(RunCommand::CloseInput)]));
            assert_eq!(reader.read().unwrap(), None);
        }
    }

    #[test]
    fn incomplete_line_is_not_obeyed() {
        let (mut file, mut reader) = control();
        file.write_all(br#"{"command":"close_input"}"#).unwrap();
        assert_eq!(reader.read().unwrap(), None);
        file.write_all(b"\n").unwrap();
        assert_eq!(reader.read().unwrap(), Some(vec![Ok(RunCommand::CloseInput)]));
    }

    #[test]
    fn torn_line_does_not_hide_next_command() {
        let (mut file, mut reader) = control();
        file.write_all(br#"{"command":"clo"#).unwrap();
        RunCommand::CloseInput.append_to(&file).unwrap();
        let lines = read_all(&mut reader);
        assert_eq!(lines, [Err(r#"{"command":"clo"#.to_owned()), Ok(RunCommand::CloseInput)]);
    }

    #[test]
    fn unknown_commands_are_skipped() {
        let (mut file, mut reader) = control();
        file.write_all(b"\n{\"command\":\"fly\"}\nnull\n\xff\n").unwrap();
        RunCommand::CloseInput.append_to(&file).unwrap();
        let lines = read_all(&mut reader);
        assert_eq!(lines.len(), 4, "{lines:?}");
        assert_eq!(lines[0], Err(r#"{"command":"fly"}"#.to_owned()));
        assert_eq!(lines[3], Ok(RunCommand::CloseInput));
    }

    #[test]
    fn no_part_of_a_long_line_is_a_command() {
        for length in [MAX_LINE_BYTES - 1, MAX_LINE_BYTES, MAX_LINE_BYTES + 1, 10 * MAX_LINE_BYTES] {
            let (mut file, mut reader) = control();
            file.write_all(&vec![b' '; length]).unwrap();
            file.write_all(b"{\"command\":\"close_input\"}\n").unwrap();
            assert!(read_all(&mut reader).iter().all(Result::is_err), "{length}");
            RunCommand::CloseInput.append_to(&file).unwrap();
            assert_eq!(read_all(&mut reader), [Ok(RunCommand::CloseInput)], "{length}");
        }
    }
}
