//! Records the warnings of the service, so that a test can wait for a failed attempt.

use std::fmt::{self, Write as _};
use std::sync::{Mutex, Once};

use model::JobId;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

static WARNINGS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Records all warnings of this process from now on.
pub fn record_warnings() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| tracing::subscriber::set_global_default(WarningRecorder).unwrap());
}

/// Returns whether a warning with this text and this job was logged.
pub fn has_warned(job: JobId, text: &str) -> bool {
    let job = job.to_string();
    WARNINGS.lock().unwrap().iter().any(|line| line.contains(text) && line.contains(&job))
}

struct WarningRecorder;

impl Subscriber for WarningRecorder {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && *metadata.level() <= Level::WARN
    }

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(String::new());
        event.record(&mut line);
        WARNINGS.lock().unwrap().push(line.0);
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let _ = write!(self.0, "{field}={value:?} ");
    }
}
