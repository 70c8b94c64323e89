//! The directory of a job: files that can be read, or followed with `tail -f`, without the daemon.
//!
//! | file | content |
//! | --- | --- |
//! | `status.json` | [`StatusFile`], replaced as a whole whenever it changes |
//! | `output`, `error` | stdout and stderr of the agent: links to the files of the newest run |
//! | `result.json` | [`crate::Answer`], once the job has ended; written before `status.json` reports the end |
//! | `runs/1`, `runs/2` … | the spool of each run; `runs/1.json` … are their records |
//! | `runs/setup`, `runs/verify-1` … | the spools of commands: the setup of a checkout, the verification after a run |
//! | `record.json` | [`Job`] as in the store, written when the job waits or has run for 50 ms, is detached from, pauses, is requeued or ends |
//! | `pause.json` | the progress of a paused job |
//! | `changes/` | the record of the changes in the git worktree (see `changes`) |
//! | `checkout.json` | the description of the private checkout in which the job works (see `checkouts`) |
//! | `protected/` | copies of the files that a verification restores first, and the contents that it replaced |
//! | `overlaps.json` | the jobs that worked in the same worktree at the same time |
//!
//! Owns these names. The store is authoritative, so nothing here is fsynced. A lost store is rebuilt from the records
//! ([`crate::recover_store`]); records lost in a power cut are written again from the store by the next service.

use std::fs;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, symlink};
use std::path::{Path, PathBuf};

use model::{Job, JobId, StateName, Timestamp};
use regular_file::{create_regular, name_culprit, open_regular, read_regular};
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use supervisor::Spool;

/// The job as in the store.
pub(crate) const RECORD: &str = "record.json";
/// The progress of a paused job.
pub(crate) const PAUSE: &str = "pause.json";

/// A stream of an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Stream {
    /// Stdout: one JSON object per line, in the vendor's own format.
    #[default]
    Output,
    /// Stderr.
    Error,
}

/// The content of `status.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatusFile {
    /// The job.
    pub job_id: JobId,
    /// Its state.
    pub status: StateName,
    /// The number of attempts so far.
    pub attempt: u32,
    /// The time of its submission, in milliseconds since 1970.
    pub created_at_ms: u64,
    /// The start of its first attempt.
    pub started_at_ms: Option<u64>,
    /// The time of its end.
    pub completed_at_ms: Option<u64>,
    /// The end of its pause.
    pub paused_until_ms: Option<u64>,
    /// The process of the newest run's supervisor; SIGTERM stops the run.
    pub pid: Option<i32>,
}

impl StatusFile {
    fn new(job: &Job, now: StateName, pid: Option<i32>) -> Self {
        let millis = |at: Option<Timestamp>| at.map(Timestamp::as_millis);
        let paused_until = match job.progress.state {
            model::JobState::Paused { until } => Some(until),
            _ => None,
        };
        Self {
            job_id: job.id,
            status: now,
            attempt: job.progress.attempt.number(),
            created_at_ms: job.created_at.as_millis(),
            started_at_ms: millis(job.started_at),
            completed_at_ms: millis(job.completed_at),
            paused_until_ms: millis(paused_until),
            pid,
        }
    }
}

/// A part of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutputPart {
    /// The bytes.
    pub bytes: Vec<u8>,
    /// The offset of the first byte.
    pub offset: u64,
    /// The size of the stream so far.
    pub total: u64,
}

/// The files of one job.
#[derive(Debug, Clone)]
pub struct JobFiles {
    directory: PathBuf,
}

impl JobFiles {
    /// Returns the files of a job, which need not exist.
    pub(crate) fn new(state: &Path, job: JobId) -> Self {
        Self { directory: jobs_directory(state).join(job.to_string()) }
    }

    /// Returns the files of another job of the same service.
    pub(crate) fn of_job(&self, job: JobId) -> Self {
        Self { directory: self.directory.with_file_name(job.to_string()) }
    }

    /// Returns the directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns the path of [`StatusFile`].
    pub fn status(&self) -> PathBuf {
        self.directory.join("status.json")
    }

    /// Returns the path of the final answer.
    pub fn result(&self) -> PathBuf {
        self.directory.join("result.json")
    }

    /// Returns the path of a stream of the newest run.
    pub fn stream(&self, stream: Stream) -> PathBuf {
        self.directory.join(name(stream))
    }

    pub(crate) fn create(&self) -> io::Result<()> {
        // The directory of a new job is missing, so it is created before its content.
        let _ = fs::DirBuilder::new().mode(0o700).create(&self.directory);
        regular_file::create_private_directory(&self.directory.join("runs"))
    }

    /// Returns whether all files of an ended job are written.
    pub(crate) fn are_complete(&self) -> bool {
        let status: Option<StatusFile> = self.read("status.json");
        status.is_some_and(|status| status.status.ended().is_some())
            && self.result().exists()
            && self.has_record()
    }

    /// Returns whether there is a record. A power cut may leave an empty one, which does not count.
    pub(crate) fn has_record(&self) -> bool {
        fs::metadata(self.directory.join(RECORD)).is_ok_and(|record| record.len() > 0)
    }

    /// Writes the record of a job that has none. A runner may write a later one at the same time, which wins.
    pub(crate) fn write_first_record(&self, job: &Job) -> io::Result<()> {
        match fs::metadata(self.directory.join(RECORD)) {
            Ok(record) if record.len() > 0 => Ok(()),
            Ok(_) => self.replace(RECORD, job),
            Err(_) => self.write_first(RECORD, job),
        }
    }

    pub(crate) fn write_status(&self, job: &Job, now: StateName, pid: Option<i32>) -> io::Result<()> {
        self.replace("status.json", &StatusFile::new(job, now, pid))
    }

    /// Creates the directory of a submitted job. Errors are only logged: the runner reports them again.
    pub(crate) fn announce(&self, job: &Job) {
        let write = || self.write_first_status(job).and_then(|()| self.write_first_record(job));
        if let Err(error) = self.create().and_then(|()| write()) {
            tracing::warn!(job = %job.id, %error, "cannot create the directory of the job");
        }
    }

    /// Writes the status of a submitted job, unless its runner has already written a later one.
    fn write_first_status(&self, job: &Job) -> io::Result<()> {
        self.write_first("status.json", &StatusFile::new(job, job.progress.state.name(), None))
    }

    /// Writes a file unless it exists.
    fn write_first(&self, name: &str, content: &impl Serialize) -> io::Result<()> {
        let first = self.write_beside(&format!("placed-{name}"), content)?;
        let linked = fs::hard_link(&first, self.directory.join(name));
        fs::remove_file(first)?;
        match linked {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            linked => linked,
        }
    }

    /// Replaces a file atomically.
    pub(crate) fn replace(&self, name: &str, content: &impl Serialize) -> io::Result<()> {
        let temporary = self.write_beside(name, content)?;
        fs::rename(temporary, self.directory.join(name))
    }

    /// Writes the next content of a file under a temporary name.
    fn write_beside(&self, name: &str, content: &impl Serialize) -> io::Result<PathBuf> {
        let temporary = format!(".{}", name.replace('/', "-"));
        self.write(&temporary, content)?;
        Ok(self.directory.join(temporary))
    }

    /// Writes a file that has no readers yet.
    pub(crate) fn write(&self, name: &str, content: &impl Serialize) -> io::Result<()> {
        let mut text = serde_json::to_vec(content)?;
        text.push(b'\n');
        create_regular(&self.directory.join(name))?.write_all(&text)
    }

    /// Reads a file; none if it is missing or damaged.
    pub(crate) fn read<T: DeserializeOwned>(&self, name: &str) -> Option<T> {
        serde_json::from_slice(&read_regular(&self.directory.join(name)).ok()?).ok()
    }

    pub(crate) fn remove(&self, name: &str) {
        // A missing file is fine.
        let _ = fs::remove_file(self.directory.join(name));
    }

    pub(crate) fn run(&self, number: u32) -> PathBuf {
        self.directory.join("runs").join(number.to_string())
    }

    /// Returns the numbers of the runs in ascending order.
    pub(crate) fn runs(&self) -> Vec<u32> {
        let entries = fs::read_dir(self.directory.join("runs")).into_iter().flatten().flatten();
        let mut numbers: Vec<u32> =
            entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
        numbers.sort_unstable();
        numbers
    }

    /// Returns the spool of a command. Its name is not a number.
    pub(crate) fn command(&self, name: &str) -> PathBuf {
        self.directory.join("runs").join(name)
    }

    /// Returns the spools of the commands.
    pub(crate) fn commands(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.directory.join("runs")).into_iter().flatten().flatten();
        let is_command = |entry: &fs::DirEntry| {
            let name = entry.file_name();
            name == "setup" || name.to_string_lossy().starts_with("verify-")
        };
        entries.filter(is_command).map(|entry| entry.path()).collect()
    }

    /// Returns the outputs of all runs in order; none if `output` links to the only one.
    pub(crate) fn outputs(&self) -> Vec<PathBuf> {
        // The second run is checked first: nearly all jobs have one run.
        let runs = if self.run(2).exists() { self.runs() } else { Vec::new() };
        runs.into_iter().map(|run| Spool::at(self.run(run)).output()).collect()
    }

    /// Links `output` and `error` to the newest run, which is searched unless the caller knows it.
    pub(crate) fn link_newest_run(&self, known: Option<u32>) -> io::Result<()> {
        let Some(newest) = known.or_else(|| self.newest_run()) else { return Ok(()) };
        let led = |stream| fs::read_link(self.stream(stream)).is_ok_and(|to| to == place_of(newest, stream));
        if [Stream::Output, Stream::Error].into_iter().all(led) { Ok(()) } else { self.link_run(newest) }
    }

    /// Links `output` and `error` to a run.
    pub(crate) fn link_run(&self, run: u32) -> io::Result<()> {
        for stream in [Stream::Output, Stream::Error] {
            let (target, link) = (place_of(run, stream), self.stream(stream));
            match symlink(&target, &link) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    let next = self.directory.join(format!(".{}", name(stream)));
                    let _ = fs::remove_file(&next);
                    symlink(&target, &next)?;
                    fs::rename(next, link)?;
                }
                linked => linked?,
            }
        }
        Ok(())
    }

    /// Reads a part of the concatenated output of all runs.
    pub(crate) fn read_part(&self, stream: Stream, offset: u64, limit: usize) -> io::Result<OutputPart> {
        let (mut bytes, mut total) = (Vec::new(), 0);
        for run in self.runs() {
            let spool = Spool::at(self.run(run));
            let path = match stream {
                Stream::Output => spool.output(),
                Stream::Error => spool.error(),
            };
            let mut file = match open_regular(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                file => file?,
            };
            let size = file.metadata()?.len();
            let begin = offset.saturating_sub(total);
            if begin < size && bytes.len() < limit {
                file.seek(SeekFrom::Start(begin))?;
                let room = (limit - bytes.len()) as u64;
                // Not beyond the size read before, since the file may be growing.
                file.take(room.min(size - begin)).read_to_end(&mut bytes)?;
            }
            total += size;
        }
        Ok(OutputPart { bytes, offset: offset.min(total), total })
    }

    /// Returns the newest run that was started. A run that could not be started has no status.
    pub(crate) fn newest_run(&self) -> Option<u32> {
        self.runs().into_iter().rfind(|run| !matches!(Spool::at(self.run(*run)).status(), Ok(None)))
    }

    /// Reads the end of a run's stderr; empty if the file is missing.
    pub(crate) fn error_tail(&self, run: u32, limit: u64) -> io::Result<Vec<u8>> {
        let mut file = match open_regular(&Spool::at(self.run(run)).error()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            file => file?,
        };
        let size = file.metadata()?.len();
        file.seek(SeekFrom::Start(size.saturating_sub(limit)))?;
        let mut bytes = Vec::new();
        file.take(limit).read_to_end(&mut bytes)?;
        Ok(bytes)
    }
}

/// Creates a directory that only the user can read.
pub(crate) fn create_private(directory: &Path) -> io::Result<()> {
    regular_file::create_private_directory(directory)
}

/// Replaces a file atomically, and fsyncs it and its directory.
pub(crate) fn replace_durably(directory: &Path, name: &str, content: &impl Serialize) -> io::Result<()> {
    let next = directory.join(format!(".{name}"));
    let mut file = create_regular(&next)?;
    file.write_all(&serde_json::to_vec(content)?)?;
    file.sync_all()?;
    let path = directory.join(name);
    fs::rename(next, &path).map_err(|error| name_culprit(&path, error))?;
    fs::File::open(directory)?.sync_all()
}

/// Returns the parent directory of all job directories.
pub(crate) fn jobs_directory(state: &Path) -> PathBuf {
    state.join("jobs")
}

/// Returns the jobs that have a directory, the oldest first.
pub(crate) fn job_directories(state: &Path) -> io::Result<Vec<JobId>> {
    let jobs = jobs_directory(state);
    let entries = match fs::read_dir(&jobs) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(|error| name_culprit(&jobs, error))?,
    };
    let mut ids: Vec<JobId> =
        entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect();
    ids.sort_unstable();
    Ok(ids)
}

/// Returns the path of a run's stream relative to the job's directory.
fn place_of(run: u32, stream: Stream) -> PathBuf {
    PathBuf::from("runs").join(run.to_string()).join(name(stream))
}

fn name(stream: Stream) -> &'static str {
    match stream {
        Stream::Output => "output",
        Stream::Error => "error",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files() -> (tempfile::TempDir, JobFiles) {
        let state = tempfile::tempdir().unwrap();
        let files = JobFiles::new(state.path(), JobId::new(Timestamp::from_millis(1), [0; 10]));
        files.create().unwrap();
        (state, files)
    }

    #[test]
    fn runs_of_a_job_read_as_one_stream() {
        let (_state, files) = files();
        for (run, text) in [(1, "first "), (2, "second "), (10, "tenth")] {
            fs::create_dir(files.run(run)).unwrap();
            fs::write(files.run(run).join("output"), text).unwrap();
        }
        let part = |offset, limit| files.read_part(Stream::Output, offset, limit).unwrap();
        assert_eq!(part(0, 100).bytes, b"first second tenth");
        assert_eq!(part(4, 6), OutputPart { bytes: b"t seco".to_vec(), offset: 4, total: 18 });
        assert_eq!(part(99, 6), OutputPart { bytes: Vec::new(), offset: 18, total: 18 });
        assert_eq!(files.read_part(Stream::Error, 0, 9).unwrap().total, 0);
    }

    #[test]
    fn first_status_does_not_replace_a_later_one() {
        let (_state, files) = files();
        let call = model::CallSpec::new(model::AgentKind::Rehearsal, "x", "/");
        let order = model::NewJob::new(call, "call", model::Placement::Host("here".into()));
        let job = Job::new(JobId::new(Timestamp::from_millis(1), [0; 10]), order, Timestamp::from_millis(1));
        let told =
            || serde_json::from_slice::<StatusFile>(&fs::read(files.status()).unwrap()).unwrap().status;
        files.write_first_status(&job).unwrap();
        assert_eq!(told(), StateName::Queued);
        files.write_status(&job, StateName::Completed, None).unwrap();
        files.write_first_status(&job).unwrap();
        assert_eq!(told(), StateName::Completed);
    }

    #[test]
    fn links_point_at_the_newest_run() {
        let (_state, files) = files();
        for run in [1, 2] {
            fs::create_dir(files.run(run)).unwrap();
            for file in ["error", "status.json"] {
                fs::write(files.run(run).join(file), format!("run {run}")).unwrap();
            }
            files.link_newest_run(None).unwrap();
            assert_eq!(fs::read_to_string(files.stream(Stream::Error)).unwrap(), format!("run {run}"));
            assert_eq!(files.error_tail(run, 3).unwrap(), format!("n {run}").as_bytes());
        }
        fs::remove_file(files.stream(Stream::Output)).unwrap();
        // A third run that could not be started.
        fs::create_dir(files.run(3)).unwrap();
        fs::write(files.run(3).join("output"), "").unwrap();
        files.link_newest_run(None).unwrap();
        assert_eq!(fs::read_link(files.stream(Stream::Output)).unwrap(), Path::new("runs/2/output"));
    }
}
