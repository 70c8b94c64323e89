//! The folder of a job: what can be followed with `tail -f` and read without asking anybody.
//!
//! | file | what it is |
//! | --- | --- |
//! | `status.json` | [`Status`], replaced as a whole whenever it changes |
//! | `output`, `error` | what the agent prints, byte for byte: links to the files of the newest run |
//! | `result.json` | [`crate::Answer`], once the job has ended; written before `status.json` says so |
//! | `runs/1`, `runs/2` … | the spool of each run; `runs/1.json` … say what each was for |
//! | `record.json` | [`Job`] as the store has it, written when the job is placed or begun, paused, requeued and ended |
//! | `pause.json` | how far the job had come, while it is paused |
//!
//! Owns these names. The store is what a promise rests on, so nothing here is fsynced. A store that was lost is rebuilt from the
//! records ([`crate::recover_store`]); what a power cut takes of them, the next desk writes again from the store.

use std::fs;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, symlink};
use std::path::{Path, PathBuf};

use model::{Job, JobId, StateName, Timestamp};
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use supervisor::{Spool, create_regular, open_regular, read_regular};

/// The job as the store has it.
pub(crate) const RECORD: &str = "record.json";
/// Says how far a paused job has come.
pub(crate) const PAUSE: &str = "pause.json";

/// Which of an agent's streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Stream {
    /// What it prints: one JSON object a line, in the vendor's own format.
    #[default]
    Output,
    /// What it writes to stderr.
    Error,
}

/// What `status.json` says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Which job.
    pub job_id: JobId,
    /// Where it stands.
    pub status: StateName,
    /// How often it was begun.
    pub attempt: u32,
    /// When it was placed, in milliseconds since 1970.
    pub created_at_ms: u64,
    /// When it was first begun.
    pub started_at_ms: Option<u64>,
    /// When it ended.
    pub completed_at_ms: Option<u64>,
    /// Until when it waits, while it is paused.
    pub paused_until_ms: Option<u64>,
    /// The process of the newest run's supervisor, which ends the run when it gets SIGTERM.
    pub pid: Option<i32>,
}

impl Status {
    fn of(job: &Job, now: StateName, pid: Option<i32>) -> Self {
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
pub struct Part {
    /// The bytes.
    pub bytes: Vec<u8>,
    /// Where they begin.
    pub offset: u64,
    /// How much there is in all, so far.
    pub total: u64,
}

/// The files of one job.
#[derive(Debug, Clone)]
pub struct JobFiles {
    directory: PathBuf,
}

impl JobFiles {
    /// Those of that job, which need not be there.
    pub(crate) fn new(state: &Path, job: JobId) -> Self {
        Self { directory: jobs_directory(state).join(job.to_string()) }
    }

    /// The folder itself.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Where [`Status`] is.
    pub fn status(&self) -> PathBuf {
        self.directory.join("status.json")
    }

    /// Where the final answer will be.
    pub fn result(&self) -> PathBuf {
        self.directory.join("result.json")
    }

    /// Where that stream of the newest run is.
    pub fn stream(&self, stream: Stream) -> PathBuf {
        self.directory.join(name(stream))
    }

    pub(crate) fn create(&self) -> io::Result<()> {
        // The folder of a new job first: without it, it would be tried in vain what is in it.
        let _ = fs::DirBuilder::new().mode(0o700).create(&self.directory);
        fs::DirBuilder::new().recursive(true).mode(0o700).create(self.directory.join("runs"))
    }

    /// Whether everything is written that there is to say about a job that has ended.
    pub(crate) fn are_complete(&self) -> bool {
        let status: Option<Status> = self.read("status.json");
        status.is_some_and(|status| status.status.ended().is_some())
            && self.result().exists()
            && self.has_record()
    }

    /// Returns whether there is a record. An empty one, which a power cut may leave, is none.
    pub(crate) fn has_record(&self) -> bool {
        fs::metadata(self.directory.join(RECORD)).is_ok_and(|record| record.len() > 0)
    }

    /// Writes the record of a job that has none. Its course may write a later one at the same time, which stays.
    pub(crate) fn write_first_record(&self, job: &Job) -> io::Result<()> {
        match fs::metadata(self.directory.join(RECORD)) {
            Ok(record) if record.len() > 0 => Ok(()),
            Ok(_) => self.replace(RECORD, job),
            Err(_) => self.write_first(RECORD, job),
        }
    }

    pub(crate) fn write_status(&self, job: &Job, now: StateName, pid: Option<i32>) -> io::Result<()> {
        self.replace("status.json", &Status::of(job, now, pid))
    }

    /// Makes the folder of a job that was placed. A disk that refuses is no reason to lose the job: its course will say so.
    pub(crate) fn announce(&self, job: &Job) {
        let write = || self.write_first_status(job).and_then(|()| self.write_first_record(job));
        if let Err(error) = self.create().and_then(|()| write()) {
            tracing::warn!(job = %job.id, %error, "cannot make the folder of the job");
        }
    }

    /// Writes the status of a job that has just been placed, unless its course has already written a later one.
    fn write_first_status(&self, job: &Job) -> io::Result<()> {
        self.write_first("status.json", &Status::of(job, job.progress.state.name(), None))
    }

    /// Writes a file unless it is there already.
    fn write_first(&self, name: &str, content: &impl Serialize) -> io::Result<()> {
        let first = self.write_beside(&format!("placed-{name}"), content)?;
        let linked = fs::hard_link(&first, self.directory.join(name));
        fs::remove_file(first)?;
        match linked {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            linked => linked,
        }
    }

    /// Replaces a file as a whole: a reader sees the old or the new one, never half of it.
    pub(crate) fn replace(&self, name: &str, content: &impl Serialize) -> io::Result<()> {
        let temporary = self.write_beside(name, content)?;
        fs::rename(temporary, self.directory.join(name))
    }

    /// Writes what a file is to say under a name at which nobody looks.
    fn write_beside(&self, name: &str, content: &impl Serialize) -> io::Result<PathBuf> {
        let temporary = format!(".{}", name.replace('/', "-"));
        self.write(&temporary, content)?;
        Ok(self.directory.join(temporary))
    }

    /// Writes a file at which nobody looks yet.
    pub(crate) fn write(&self, name: &str, content: &impl Serialize) -> io::Result<()> {
        let mut text = serde_json::to_vec(content)?;
        text.push(b'\n');
        create_regular(&self.directory.join(name))?.write_all(&text)
    }

    /// What such a file says; none when it is not there or cannot be understood.
    pub(crate) fn read<T: DeserializeOwned>(&self, name: &str) -> Option<T> {
        serde_json::from_slice(&read_regular(&self.directory.join(name)).ok()?).ok()
    }

    pub(crate) fn remove(&self, name: &str) {
        // One that is not there need not be removed.
        let _ = fs::remove_file(self.directory.join(name));
    }

    pub(crate) fn run(&self, number: u32) -> PathBuf {
        self.directory.join("runs").join(number.to_string())
    }

    /// The numbers of the runs so far, in their order.
    pub(crate) fn runs(&self) -> Vec<u32> {
        let entries = fs::read_dir(self.directory.join("runs")).into_iter().flatten().flatten();
        let mut numbers: Vec<u32> =
            entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
        numbers.sort_unstable();
        numbers
    }

    /// What each run printed, in their order; none when there is no more than one, which `output` leads to.
    pub(crate) fn outputs(&self) -> Vec<PathBuf> {
        // Runs are numbered from one, so the second is looked for first: nearly all jobs have none.
        let runs = if self.run(2).exists() { self.runs() } else { Vec::new() };
        runs.into_iter().map(|run| Spool::at(self.run(run)).output()).collect()
    }

    /// Lets `output` and `error` lead to the newest run, if there is one.
    pub(crate) fn link_newest_run(&self) -> io::Result<()> {
        let Some(newest) = self.newest_run() else { return Ok(()) };
        let led = |stream| fs::read_link(self.stream(stream)).is_ok_and(|to| to == place_of(newest, stream));
        if [Stream::Output, Stream::Error].into_iter().all(led) { Ok(()) } else { self.link_run(newest) }
    }

    /// Lets `output` and `error` lead to that run.
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

    /// A part of what all runs printed, one after the other.
    pub(crate) fn read_part(&self, stream: Stream, offset: u64, limit: usize) -> io::Result<Part> {
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
                // Not past the size that counts: the file may be growing.
                file.take(room.min(size - begin)).read_to_end(&mut bytes)?;
            }
            total += size;
        }
        Ok(Part { bytes, offset: offset.min(total), total })
    }

    /// The newest run that was ever begun: of one that could not be there is no status.
    pub(crate) fn newest_run(&self) -> Option<u32> {
        self.runs().into_iter().rfind(|run| !matches!(Spool::at(self.run(*run)).status(), Ok(None)))
    }

    /// The end of what a run wrote to stderr; nothing when it is missing.
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
    fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)
}

/// Replaces a file as a whole and fsyncs it and its directory.
pub(crate) fn replace_durably(directory: &Path, name: &str, content: &impl Serialize) -> io::Result<()> {
    let next = directory.join(format!(".{name}"));
    let mut file = create_regular(&next)?;
    file.write_all(&serde_json::to_vec(content)?)?;
    file.sync_all()?;
    fs::rename(next, directory.join(name))?;
    fs::File::open(directory)?.sync_all()
}

/// The folder of all jobs' folders.
pub(crate) fn jobs_directory(state: &Path) -> PathBuf {
    state.join("jobs")
}

/// Returns the jobs that have a directory, the oldest first.
pub(crate) fn job_directories(state: &Path) -> io::Result<Vec<JobId>> {
    let entries = match fs::read_dir(jobs_directory(state)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut ids: Vec<JobId> =
        entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect();
    ids.sort_unstable();
    Ok(ids)
}

/// Where a stream of a run is, seen from the folder of the job.
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
    fn the_runs_of_a_job_read_as_one_stream() {
        let (_state, files) = files();
        for (run, text) in [(1, "first "), (2, "second "), (10, "tenth")] {
            fs::create_dir(files.run(run)).unwrap();
            fs::write(files.run(run).join("output"), text).unwrap();
        }
        let part = |offset, limit| files.read_part(Stream::Output, offset, limit).unwrap();
        assert_eq!(part(0, 100).bytes, b"first second tenth");
        assert_eq!(part(4, 6), Part { bytes: b"t seco".to_vec(), offset: 4, total: 18 });
        assert_eq!(part(99, 6), Part { bytes: Vec::new(), offset: 18, total: 18 });
        assert_eq!(files.read_part(Stream::Error, 0, 9).unwrap().total, 0);
    }

    #[test]
    fn the_first_status_takes_no_later_one_back() {
        let (_state, files) = files();
        let call = model::CallSpec::new(model::AgentKind::Rehearsal, "x", "/");
        let order = model::NewJob::new(call, "call", model::Placement::Host("here".into()));
        let job = Job::new(JobId::new(Timestamp::from_millis(1), [0; 10]), order, Timestamp::from_millis(1));
        let told = || serde_json::from_slice::<Status>(&fs::read(files.status()).unwrap()).unwrap().status;
        files.write_first_status(&job).unwrap();
        assert_eq!(told(), StateName::Queued);
        files.write_status(&job, StateName::Completed, None).unwrap();
        files.write_first_status(&job).unwrap();
        assert_eq!(told(), StateName::Completed);
    }

    #[test]
    fn the_links_lead_to_the_newest_run() {
        let (_state, files) = files();
        for run in [1, 2] {
            fs::create_dir(files.run(run)).unwrap();
            for file in ["error", "status.json"] {
                fs::write(files.run(run).join(file), format!("run {run}")).unwrap();
            }
            files.link_newest_run().unwrap();
            assert_eq!(fs::read_to_string(files.stream(Stream::Error)).unwrap(), format!("run {run}"));
            assert_eq!(files.error_tail(run, 3).unwrap(), format!("n {run}").as_bytes());
        }
        fs::remove_file(files.stream(Stream::Output)).unwrap();
        // A third that could not be begun.
        fs::create_dir(files.run(3)).unwrap();
        fs::write(files.run(3).join("output"), "").unwrap();
        files.link_newest_run().unwrap();
        assert_eq!(fs::read_link(files.stream(Stream::Output)).unwrap(), Path::new("runs/2/output"));
    }
}
