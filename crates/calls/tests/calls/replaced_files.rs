//! Files of a run that are replaced by something that blocks its reader.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use calls::JobStatus;
use model::JobId;
use rustix::fs::{CWD, FileType, Mode, mknodat};

use crate::harness::{Harness, close, ended, wait_for_line};
use testkit::tests;

tests![
    status_replaced_by_a_fifo_fails_the_job,
    status_replaced_by_a_directory_fails_the_job,
    status_replaced_by_a_device_fails_the_job,
    output_replaced_by_a_fifo_fails_the_job,
    output_replaced_by_a_directory_fails_the_job,
    error_replaced_by_a_fifo_fails_the_job,
    run_replaced_by_a_fifo_fails_the_job,
    fifos_in_place_of_job_files_do_not_block,
];

#[derive(Clone, Copy)]
enum Kind {
    Fifo,
    Directory,
    Device,
}

fn replace(path: &Path, kind: Kind) {
    let _ = fs::remove_file(path).or_else(|_| fs::remove_dir_all(path));
    match kind {
        Kind::Fifo => mknodat(CWD, path, FileType::Fifo, Mode::RWXU, 0).unwrap(),
        Kind::Directory => fs::create_dir(path).unwrap(),
        Kind::Device => symlink("/dev/zero", path).unwrap(),
    }
}

/// Replaces a file of a live run while no daemon runs; the next one fails the job and can be closed.
fn replaced_file_fails_its_job(name: &'static str, kind: Kind) {
    Harness::run(async move |harness| {
        let service = harness.open().await;
        let job = service.submit(harness.request("spawn setsid\nsay here\nhang")).await.unwrap().job;
        wait_for_line(&service, job, "here").await;
        service.close(calls::ShutdownMode::Detach).await;
        replace(&directory(harness, job).join(name), kind);
        let service = harness.open().await;
        let answer = ended(&service, job).await;
        assert_eq!((answer.status, answer.error.unwrap().kind.as_str()), (JobStatus::Failed, "spool_failed"));
        close(&service).await;
    });
}

fn directory(harness: &Harness, job: JobId) -> std::path::PathBuf {
    harness.state().join("jobs").join(job.to_string())
}

fn status_replaced_by_a_fifo_fails_the_job() {
    replaced_file_fails_its_job("runs/1/status.json", Kind::Fifo);
}

fn status_replaced_by_a_directory_fails_the_job() {
    replaced_file_fails_its_job("runs/1/status.json", Kind::Directory);
}

fn status_replaced_by_a_device_fails_the_job() {
    replaced_file_fails_its_job("runs/1/status.json", Kind::Device);
}

fn output_replaced_by_a_fifo_fails_the_job() {
    replaced_file_fails_its_job("runs/1/output", Kind::Fifo);
}

fn output_replaced_by_a_directory_fails_the_job() {
    replaced_file_fails_its_job("runs/1/output", Kind::Directory);
}

fn error_replaced_by_a_fifo_fails_the_job() {
    replaced_file_fails_its_job("runs/1/error", Kind::Fifo);
}

fn run_replaced_by_a_fifo_fails_the_job() {
    replaced_file_fails_its_job("runs/1", Kind::Fifo);
}

fn fifos_in_place_of_job_files_do_not_block() {
    Harness::run(async |harness| {
        let service = harness.open().await;
        let job = service.submit(harness.request("say here\ndelay 300ms\nanswer done")).await.unwrap().job;
        wait_for_line(&service, job, "here").await;
        for name in [".status.json", "status.json", "result.json", ".result.json", "pause.json", "output"] {
            replace(&directory(harness, job).join(name), Kind::Fifo);
        }
        assert_eq!(ended(&service, job).await.status, JobStatus::Completed);
        close(&service).await;
    });
}
