//! Tracks the background tasks of an agent.
//!
//! Bounded memory. Knows no format: the vendor's parser reports starts and exits.

use model::{BackgroundStatus, BackgroundTask};

/// The limit of tracked tasks. Completed ones are replaced first.
const MAX_TASKS: usize = 100;

/// The background tasks of a run.
#[derive(Debug, Default)]
pub struct TaskTracker {
    tasks: Vec<Task>,
    /// The ids in the latest list of live tasks.
    listed: Vec<String>,
}

#[derive(Debug)]
struct Task {
    id: String,
    description: String,
    /// The tool call that started the command.
    tool_use_id: Option<String>,
    /// The agent continues while the task runs. A foreground task exits with its tool call.
    in_background: bool,
    /// The model itself requested the stop, so its exit is intended.
    stop_requested: bool,
    end: Option<TaskEnd>,
    /// The task exited after the agent's latest result, so no answer takes it into account.
    ended_after_answer: bool,
}

/// The exit status of a task, as the agent reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TaskEnd {
    Completed,
    Failed,
    Stopped,
    /// Still running when the agent's last turn ended; the agent does not wait for it.
    Abandoned,
    Unknown,
}

impl Task {
    fn is_running(&self) -> bool {
        self.in_background && self.end.is_none()
    }

    /// Returns the status of a task that did not complete.
    fn status(&self) -> Option<BackgroundStatus> {
        match self.end {
            _ if !self.in_background => None,
            Some(TaskEnd::Completed) => None,
            Some(TaskEnd::Stopped) if self.stop_requested => None,
            Some(TaskEnd::Stopped) => Some(BackgroundStatus::Stopped),
            Some(TaskEnd::Failed) => Some(BackgroundStatus::Failed),
            Some(TaskEnd::Unknown) => Some(BackgroundStatus::Unknown),
            Some(TaskEnd::Abandoned) | None => Some(BackgroundStatus::Killed),
        }
    }

    /// Returns whether work was cut short. A task that failed by itself is the agent's responsibility, once the agent knows.
    fn was_cut_short(&self) -> bool {
        match self.status() {
            None => false,
            Some(BackgroundStatus::Failed) => self.ended_after_answer,
            Some(_) => true,
        }
    }
}

impl TaskTracker {
    /// Returns the descriptions of the running tasks, oldest first.
    pub fn running(&self) -> impl Iterator<Item = &str> {
        self.tasks.iter().filter(|task| task.is_running()).map(|task| task.description.as_str())
    }

    /// Returns the tasks that did not complete, after the end of the run.
    pub fn not_completed(&self) -> Vec<BackgroundTask> {
        let task = |task: &Task| {
            Some(BackgroundTask { description: task.description.clone(), status: task.status()? })
        };
        self.tasks.iter().filter_map(task).collect()
    }

    /// Returns whether a task was cut short, after the end of the run.
    pub fn is_cut_short(&self) -> bool {
        self.tasks.iter().any(Task::was_cut_short)
    }

    /// Returns whether a task was cut short after the agent's latest result.
    pub fn is_cut_short_after_answer(&self) -> bool {
        self.tasks.iter().any(|task| task.was_cut_short() && (task.end.is_none() || task.ended_after_answer))
    }

    pub(super) fn held_bytes(&self) -> usize {
        let tasks = self.tasks.iter().map(|task| {
            let tool_use = task.tool_use_id.as_ref().map_or(0, String::capacity);
            task.id.capacity() + task.description.capacity() + tool_use
        });
        tasks.chain(self.listed.iter().map(String::capacity)).sum()
    }

    /// Records the start of a task. It is in the background unless the agent reports otherwise.
    pub(super) fn started(&mut self, id: &str, description: String, in_background: Option<bool>) {
        let known = self.find(id).is_some();
        if !known && !self.has_room() {
            return;
        }
        match self.find(id) {
            Some(task) => {
                task.in_background |= in_background.unwrap_or(true);
                task.description = description;
            }
            None => self.tasks.push(Task {
                id: id.to_owned(),
                description,
                tool_use_id: None,
                in_background: in_background.unwrap_or(true),
                stop_requested: false,
                end: None,
                ended_after_answer: false,
            }),
        }
    }

    /// Records the tool call that started the command of a task.
    pub(super) fn started_by(&mut self, id: &str, tool_use_id: &str) {
        if let Some(task) = self.find(id) {
            task.tool_use_id = Some(tool_use_id.to_owned());
        }
    }

    /// Returns whether the command of a tool call is running in the background.
    pub(super) fn is_command_running(&self, tool_use_id: &str) -> bool {
        let mut running = self.tasks.iter().filter(|task| task.is_running());
        running.any(|task| task.tool_use_id.as_deref() == Some(tool_use_id))
    }

    /// Returns the description of a task that has not exited.
    pub(super) fn open_description(&self, id: &str) -> Option<&str> {
        let task = self.tasks.iter().find(|task| task.id == id && task.end.is_none())?;
        Some(&task.description)
    }

    /// Records that a task was moved to the background.
    pub(super) fn moved_to_background(&mut self, id: &str) {
        if let Some(task) = self.find(id) {
            task.in_background = true;
        }
    }

    /// Records the exit of a task.
    pub(super) fn ended(&mut self, id: &str, end: TaskEnd) {
        let Some(task) = self.find(id) else { return };
        match task.end {
            // Agents report an exit twice, as a status and as a notification; the first one counts.
            Some(known) if known != TaskEnd::Unknown => {}
            _ => {
                task.ended_after_answer |= task.end.is_none();
                task.end = Some(end);
            }
        }
    }

    /// Records the end of the agent's last turn: the agent does not wait for running tasks.
    pub(super) fn abandoned(&mut self) {
        for task in self.tasks.iter_mut().filter(|task| task.end.is_none()) {
            task.in_background = true;
            task.end = Some(TaskEnd::Abandoned);
        }
    }

    /// Compares with a complete list of the live tasks. A task that is missing from it has exited, even without a status.
    pub(super) fn listed(&mut self, live: &[(String, String)]) {
        for (id, description) in live {
            self.started(id, description.clone(), Some(true));
        }
        let live: Vec<String> = live.iter().take(MAX_TASKS).map(|(id, _)| id.clone()).collect();
        let was_live = std::mem::replace(&mut self.listed, live);
        for task in self.tasks.iter_mut().filter(|task| task.end.is_none()) {
            if was_live.contains(&task.id) && !self.listed.contains(&task.id) {
                task.end = Some(TaskEnd::Unknown);
                task.ended_after_answer = true;
            }
        }
    }

    /// Records that the model requested to stop the tasks in this tool input.
    pub(super) fn stop_requested(&mut self, input: &[u8]) {
        for task in &mut self.tasks {
            if !task.id.is_empty() && memchr::memmem::find(input, task.id.as_bytes()).is_some() {
                task.stop_requested = true;
            }
        }
    }

    /// Records a result of the agent: it knows of every exit so far.
    pub(super) fn answered(&mut self) {
        for task in &mut self.tasks {
            task.ended_after_answer = false;
        }
    }

    fn find(&mut self, id: &str) -> Option<&mut Task> {
        self.tasks.iter_mut().find(|task| task.id == id)
    }

    fn has_room(&mut self) -> bool {
        if self.tasks.len() >= MAX_TASKS {
            self.tasks.retain(|task| task.is_running() || task.status().is_some());
        }
        self.tasks.len() < MAX_TASKS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tracker(tasks: &[(&str, Option<TaskEnd>)]) -> TaskTracker {
        let mut tracker = TaskTracker::default();
        for (id, end) in tasks {
            tracker.started(id, format!("task {id}"), None);
            if let Some(end) = end {
                tracker.ended(id, *end);
            }
        }
        tracker
    }

    fn statuses(tracker: &TaskTracker) -> Vec<&'static str> {
        tracker.not_completed().iter().map(|task| task.status.name()).collect()
    }

    #[test]
    fn task_ends_map_to_statuses() {
        let ends = [
            (None, Some("killed")),
            (Some(TaskEnd::Completed), None),
            (Some(TaskEnd::Stopped), Some("stopped")),
            (Some(TaskEnd::Failed), Some("failed")),
            (Some(TaskEnd::Unknown), Some("unknown")),
        ];
        for (end, status) in ends {
            let tracker = tracker(&[("a", end)]);
            assert_eq!(statuses(&tracker).first().copied(), status, "{end:?}");
            assert_eq!(tracker.running().count(), usize::from(end.is_none()), "{end:?}");
            assert_eq!(tracker.is_cut_short(), status.is_some(), "{end:?}");
        }
    }

    #[test]
    fn known_task_failure_is_not_cut_short() {
        let mut tracker = tracker(&[("a", Some(TaskEnd::Failed))]);
        tracker.answered();
        assert_eq!((statuses(&tracker), tracker.is_cut_short()), (vec!["failed"], false));
    }

    #[test]
    fn task_stopped_by_model_is_not_reported() {
        let mut tracker = tracker(&[("a1", None), ("b2", None)]);
        tracker.stop_requested(br#"{"task_id":"a1"}"#);
        tracker.ended("a1", TaskEnd::Stopped);
        tracker.ended("b2", TaskEnd::Stopped);
        assert_eq!(tracker.not_completed()[0].description, "task b2");
        assert_eq!(tracker.not_completed().len(), 1);
    }

    #[test]
    fn task_missing_from_list_has_exited() {
        let mut tracker = TaskTracker::default();
        tracker.listed(&[("a".to_owned(), "build".to_owned())]);
        assert_eq!(tracker.running().collect::<Vec<_>>(), ["build"]);
        tracker.listed(&[]);
        assert_eq!(statuses(&tracker), ["unknown"]);
        tracker.ended("a", TaskEnd::Completed);
        assert!(tracker.not_completed().is_empty());
    }

    #[test]
    fn abandoned_task_counts_as_killed() {
        let mut tracker = TaskTracker::default();
        tracker.started("a", "sleep 60".to_owned(), Some(false));
        tracker.started("b", "make".to_owned(), Some(false));
        tracker.ended("b", TaskEnd::Completed);
        tracker.abandoned();
        assert_eq!((statuses(&tracker), tracker.running().count()), (vec!["killed"], 0));
        assert!(tracker.is_cut_short() && !tracker.is_cut_short_after_answer());
    }

    #[test]
    fn foreground_task_is_not_waited_for() {
        let mut tracker = TaskTracker::default();
        tracker.started("a", "search".to_owned(), Some(false));
        assert_eq!((tracker.running().count(), tracker.is_cut_short()), (0, false));
        tracker.moved_to_background("a");
        assert_eq!(tracker.running().collect::<Vec<_>>(), ["search"]);
    }

    #[test]
    fn tracked_tasks_are_bounded() {
        let mut tracker = TaskTracker::default();
        for number in 0..10 * MAX_TASKS {
            tracker.started(&number.to_string(), "t".to_owned(), None);
            tracker.ended(&number.to_string(), TaskEnd::Completed);
        }
        assert!(tracker.tasks.len() <= MAX_TASKS);
        tracker.started("last", "t".to_owned(), None);
        assert_eq!(tracker.running().count(), 1);
    }
}
