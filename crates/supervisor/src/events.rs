//! Streams the output of a run.
//!
//! Reads the files of the spool as they grow, so it works for runs of this program, of another program, and for ended
//! runs.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use model::RunReport;
use regular_file::open_regular;
use tokio::io::unix::AsyncFd;
use tokio::time::{Instant, sleep, sleep_until};

use crate::handle::{Run, WaitError};
use crate::os::InotifyWatch;
use crate::readiness::register_readable;

/// The maximum size of an event, and the initial buffer size: most agents print little.
const CHUNK: usize = 64 * 1024;
const FIRST_CHUNK: usize = 8 * 1024;
/// The poll interval without an inotify watch.
const POLL_INTERVAL: Duration = Duration::from_millis(25);

/// An event of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RunEvent {
    /// Bytes of stdout, split at any position, even within a line or a character.
    Output(Vec<u8>),
    /// Bytes of stderr.
    Error(Vec<u8>),
    /// The run has ended. This is the last event.
    Ended(RunReport),
}

/// Read positions in the two streams. Store them to resume after a restart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Offsets {
    /// The position in `output`.
    pub output: u64,
    /// The position in `error`.
    pub error: u64,
}

/// The events of a run, in order. Buffers one chunk at most.
#[derive(Debug)]
pub struct Events {
    run: Run,
    watch_mode: WatchMode,
    output: FileReader,
    error: FileReader,
    buffer: Vec<u8>,
    report: Option<RunReport>,
    end_reported: bool,
}

/// The method of detecting that a file has grown.
#[derive(Debug)]
enum WatchMode {
    /// Poll once at this time, then watch. Creating and closing a watch costs more than a run that ends before.
    NotBefore(Instant),
    Inotify(AsyncFd<InotifyWatch>),
    /// Poll: the user has no inotify watch left.
    Poll,
}

#[derive(Debug)]
struct FileReader {
    file: File,
    offset: u64,
}

impl Run {
    /// Streams the output of the agent from the given offsets on, and finally the report of the run.
    pub fn events(&self, from: Offsets) -> io::Result<Events> {
        Events::new(self.clone(), from)
    }
}

impl Events {
    fn new(run: Run, from: Offsets) -> io::Result<Self> {
        let spool = run.spool().clone();
        Ok(Self {
            run,
            watch_mode: WatchMode::NotBefore(Instant::now() + POLL_INTERVAL),
            output: FileReader { file: open(&spool.output())?, offset: from.output },
            error: FileReader { file: open(&spool.error())?, offset: from.error },
            buffer: vec![0; FIRST_CHUNK],
            report: None,
            end_reported: false,
        })
    }

    /// Watches the output from the first wait on: an agent that converses waits for each reply.
    #[must_use]
    pub fn watching_at_once(mut self) -> Self {
        self.watch_mode = WatchMode::NotBefore(Instant::now());
        self
    }

    /// Returns the current read positions.
    pub fn offsets(&self) -> Offsets {
        Offsets { output: self.output.offset, error: self.error.offset }
    }

    /// Returns the next event, or `None` after the last. Cancel-safe. Yields to the scheduler on every call, however
    /// much there is to read.
    pub async fn next(&mut self) -> Result<Option<RunEvent>, WaitError> {
        tokio::task::yield_now().await;
        loop {
            if let Some(event) = self.read().map_err(WaitError::Watch)? {
                return Ok(Some(event));
            }
            if let Some(report) = &self.report {
                let first_time = !std::mem::replace(&mut self.end_reported, true);
                return Ok(first_time.then(|| RunEvent::Ended(report.clone())));
            }
            // After the end the files no longer grow, so one more read returns the rest.
            let ended = tokio::select! {
                biased;
                ended = self.run.wait() => Some(ended?),
                changed = self.watch_mode.changed() => { changed.map_err(WaitError::Watch)?; None }
            };
            if ended.is_none() && matches!(self.watch_mode, WatchMode::NotBefore(_)) {
                // The next read finds bytes printed before the watch existed.
                self.watch_mode = self.watch().map_err(WaitError::Watch)?;
            }
            self.report = ended;
        }
    }

    fn watch(&self) -> io::Result<WatchMode> {
        let spool = self.run.spool();
        let watch = InotifyWatch::files(&[&spool.output(), &spool.error()])?;
        Ok(watch.map(register_readable).transpose()?.map_or(WatchMode::Poll, WatchMode::Inotify))
    }

    fn read(&mut self) -> io::Result<Option<RunEvent>> {
        let mut count = self.output.read(&mut self.buffer)?;
        let to_event = if count.is_some() { RunEvent::Output } else { RunEvent::Error };
        if count.is_none() {
            count = self.error.read(&mut self.buffer)?;
        }
        let Some(count) = count else { return Ok(None) };
        let event = to_event(self.buffer[..count].to_vec());
        if count == self.buffer.len() {
            self.buffer.resize(CHUNK, 0);
        }
        Ok(Some(event))
    }
}

impl Drop for Events {
    /// Closes the watch on a blocking thread: the kernel delays the close until an RCU grace period has passed, as long
    /// as ten short runs take.
    fn drop(&mut self) {
        let WatchMode::Inotify(watch) = std::mem::replace(&mut self.watch_mode, WatchMode::Poll) else {
            return;
        };
        let watch = watch.into_inner();
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn_blocking(|| drop(watch));
        }
    }
}

impl WatchMode {
    async fn changed(&self) -> io::Result<()> {
        match self {
            Self::NotBefore(moment) => sleep_until(*moment).await,
            Self::Poll => sleep(POLL_INTERVAL).await,
            Self::Inotify(watch) => {
                let mut ready = watch.readable().await?;
                watch.get_ref().drain()?;
                ready.clear_ready();
            }
        }
        Ok(())
    }
}

impl FileReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        let count = self.file.read_at(buffer, self.offset)?;
        self.offset += count as u64;
        Ok((count > 0).then_some(count))
    }
}

/// Opens a stream. A run that was lost before its files were created has none, and so nothing to read.
fn open(path: &Path) -> io::Result<File> {
    match open_regular(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => File::open("/dev/null"),
        other => other,
    }
}
