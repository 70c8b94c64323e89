//! Files of a run that were replaced by something that would block its reader.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use calls::JobStatus;
use model::JobId;
use rustix::fs::{CWD, FileType, Mode, mknodat};

use crate::scene::{Scene, close, ended, until_it_says};
use crate::tests;

tests![
    status_replaced_by_a_fifo_fails_the_job,
    status_replaced_by_a_directory_fails_the_job,
    status_replaced_by_a_device_fails_the_job,
    output_replaced_by_a_fifo_fails_the_job,
    output_replaced_by_a_directory_fails_the_job,
    error_replaced_by_a_fifo_fails_the_job,
    run_replaced_by_a_fifo_fails_the_job,
    files_of_the_job_replaced_by_fifos_keep_nobody_waiting,
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

/// Replaces a file of a run that is under way while no daemon is there; the next one fails the job and can be stopped.
fn replaced_file_fails_its_job(name: &'static str, kind: Kind) {
    Scene::play(async move |scene| {
        let desk = scene.open().await;
        let job = desk.submit(scene.order("spawn setsid\nsay here\nhang")).await.unwrap().job;
        until_it_says(&desk, job, "here").await;
        desk.close(calls::ShutdownMode::Detach).await;
        replace(&folder(scene, job).join(name), kind);
        let desk = scene.open().await;
        let answer = ended(&desk, job).await;
        assert_eq!((answer.status, answer.error.unwrap().kind.as_str()), (JobStatus::Failed, "spool_failed"));
        close(&desk).await;
    });
}

fn folder(scene: &Scene, job: JobId) -> std::path::PathBuf {
    scene.state().join("jobs").join(job.to_string())
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

fn files_of_the_job_replaced_by_fifos_keep_nobody_waiting() {
    Scene::play(async |scene| {
        let desk = scene.open().await;
        let job = desk.submit(scene.order("say here\ndelay 300ms\nanswer done")).await.unwrap().job;
        until_it_says(&desk, job, "here").await;
        for name in [".status.json", "status.json", "result.json", ".result.json", "pause.json", "output"] {
            replace(&folder(scene, job).join(name), Kind::Fifo);
        }
        assert_eq!(ended(&desk, job).await.status, JobStatus::Completed);
        close(&desk).await;
    });
}
