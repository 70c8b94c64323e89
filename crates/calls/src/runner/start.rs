//! Starts the next run of a job.

use std::path::Path;

use agents::{Launch, RunSequence};
use model::{CallSpec, ExpectedSession, JobEnd, SessionChoice, Totals};
use store::{JobFilter, PageRequest};
use supervisor::{PreparedRun, Run, StartError};

use super::messages::{cannot_start, cannot_store, cannot_write, launch_failure, supervisor_gone};
use super::{CurrentRun, Disposition, JobRunner, failed};
use crate::decide;
use crate::files::PAUSE;
use crate::launcher::CannotLaunch;
use crate::run_record::RunRecord;

impl JobRunner<'_> {
    /// Starts the next run: locks, slot, snapshot, launch, record, spool, process.
    pub(super) async fn start(&mut self, sequence: &RunSequence) -> Result<CurrentRun, Disposition> {
        if let Some(last) = &mut self.last_run {
            last.is_newest = false;
        }
        self.acquire_locks(sequence).await?;
        self.acquire_slot(sequence).await?;
        if self.context.records.were_moved() {
            return Err(Disposition::Detached);
        }
        let has_files = self.flush.is_none();
        self.prepare_checkout(sequence).await?;
        self.set_up_checkout(sequence).await?;
        self.save_protected().await?;
        if self.worktree.is_none() && self.last_run.is_none() {
            if let Some(checkout) = &self.checkout {
                let worktrees = &self.context.worktrees;
                self.worktree = Some(worktrees.enter(&checkout.directory, self.job.id, &self.files));
            } else if self.checked_setup.as_ref().is_none_or(|setup| setup.workspace.has_repository) {
                // Not for a job that starts right after its submit, which has found no repository.
                let was_started = has_files && self.files.newest_run().is_some();
                self.snapshot = self.change_recorder().start_before(&self.job.order.call, was_started);
            }
        }
        let last = if has_files { self.files.runs().pop() } else { None };
        let number = last.map_or(1, |last| last + 1);
        let directory = self.files.run(number);
        let launch = self.plan_launch(sequence.spec(), &directory).await;
        let Launch { plan, session, model, .. } = launch.map_err(|error| failed(launch_failure(&error)))?;
        if let ExpectedSession::Assigned(id) = &session {
            self.lock_session(id);
        }
        let before = self.totals_before(sequence).await;
        let record = RunRecord::new(sequence.clone(), session, model, before, &self.claim);
        self.write_record(number, &record).map_err(|error| failed(cannot_write(&error)))?;
        let prepared = agent_run::prepare(&self.context.settings.supervisor, &directory, plan);
        let prepared = prepared.map_err(|error| failed(cannot_start(&error, error.hint())))?;
        self.flush_row().await?;
        self.await_snapshot().await;
        if self.context.shutdown.is_detaching() {
            return Err(Disposition::Detached);
        }
        if let Some(reason) = self.active.stop_reason() {
            return Err(self.leave(decide::between_runs(reason, sequence), sequence));
        }
        if has_files {
            // Not before this point: if the run is discarded, the next service continues from this file.
            self.files.remove(PAUSE);
        }
        let run = self.start_prepared(prepared, &directory).await?;
        if let Some(session) = record.session.known() {
            self.lock_session(session);
        }
        Ok(CurrentRun { number, run, record, started_at: self.context.store.now() })
    }

    /// Starts a prepared run. One that was started is found even if the reply of its supervisor was lost.
    pub(super) async fn start_prepared(
        &self,
        prepared: PreparedRun<'_>,
        directory: &Path,
    ) -> Result<Run, Disposition> {
        let started = tokio::select! {
            // A run that has started must be known before the service detaches from it.
            biased;
            started = prepared.start() => started,
            // The next service finds the run if it was started.
            () = self.context.shutdown.detaching() => return Err(Disposition::Detached),
        };
        match started {
            Ok(run) => Ok(run),
            // The supervisor may be running all the same.
            Err(error @ (StartError::Listen(_) | StartError::Attach(_))) => {
                let found = self.find_run(directory).await?;
                found.ok_or_else(|| failed(cannot_start(&error, error.hint())))
            }
            Err(error @ StartError::GaveUp { .. }) => {
                let end = JobEnd::failed(supervisor_gone(&error));
                Err(Disposition::Interrupted(Box::new(end)))
            }
            Err(error) => Err(failed(cannot_start(&error, error.hint()))),
        }
    }

    /// Plans the launch of the next run, in the private checkout if the job has one.
    pub(super) async fn plan_launch(
        &mut self,
        spec: &CallSpec,
        directory: &Path,
    ) -> Result<Launch, CannotLaunch> {
        let (job, launcher) = (self.job.id, &self.context.launcher);
        let Some(checkout) = &self.checkout else {
            let checked = self.checked_setup.take().map(|setup| *setup);
            return launcher.launch(job, spec, directory, checked, None).await;
        };
        // The setup of the trial launch is about the worktree of the user.
        launcher.launch(job, &checkout.relocate_call(spec), directory, None, Some(checkout.access())).await
    }

    /// Writes the record of a run before its directory exists.
    fn write_record(&self, number: u32, record: &RunRecord) -> std::io::Result<()> {
        self.files.create()?;
        self.files.write(&RunRecord::file_name(number), record)
    }

    /// Waits until the job's row is durable: a power cut must not leave an agent's work without its job.
    pub(super) async fn flush_row(&mut self) -> Result<(), Disposition> {
        let Some(flush) = self.flush.take() else { return Ok(()) };
        flush.flushed().await.map_err(|error| failed(cannot_store(&error)))
    }

    /// Returns the vendor's totals of the session before this run.
    async fn totals_before(&self, sequence: &RunSequence) -> Option<Totals> {
        if sequence.combined_outcome().is_some() {
            return sequence.totals_before();
        }
        let SessionChoice::Resume(session) = &sequence.spec().session else { return None };
        let store = &self.context.store;
        let filter = JobFilter { session: Some(session.clone()), ..JobFilter::default() };
        let page = store.list(&filter, PageRequest { limit: 10, before: None }).await.ok()?;
        let earlier = page.jobs.iter().find(|job| job.completed_at.is_some() && job.id != self.job.id)?;
        store.get(earlier.id).await.ok()??.outcome?.session_totals
    }
}
