//! Simulates daemons that share one database, event by event: queries wait in a queue before the server, and take effect when
//! they are answered. Time is simulated, randomness is seeded: the same calibration gives the same result.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};

use crate::random::SeededRandom;

use super::costs::Calibration;

/// The claim strategy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClaimStrategy {
    /// One queue for all; a notified daemon claims after a jitter, unless the job is claimed by then. As built.
    Shared,
    /// One queue per machine, polled by that machine only. As built.
    Homes,
    /// One queue for all; a notified daemon claims immediately. The earlier design.
    Rush,
}

/// The result within the measured time.
#[derive(Debug, Default, Clone)]
pub struct SimulationOutcome {
    /// Jobs placed and ended, a second.
    pub placed: f64,
    /// Likewise.
    pub ended: f64,
    /// Seconds from submission to start, sorted.
    pub waits: Vec<f64>,
    /// The utilization of the server.
    pub busy: f64,
    /// The share of heartbeats and empty polls.
    pub idle_share: f64,
    /// Takes that came too late, of all.
    pub conflicts: f64,
    /// The longest time that a heartbeat took, in seconds.
    pub slowest_renewal: f64,
    /// Daemons that were given up although they lived.
    pub given_up: usize,
    /// Jobs that were begun a second time for it.
    pub begun_again: usize,
}

type Id = usize;

#[derive(Debug, Clone, Copy, PartialEq)]
enum Question {
    Place(Id),
    Look,
    Take(Id),
    Read(Id),
    Finish(Id, u32),
    Rescue,
    Renew,
    Changes,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Event {
    Arrive,
    Ask(Id, Question, f64),
    Answered(Id, Question, f64),
    Beat(Id),
    LookAgain(Id),
    LookForChanges(Id),
    /// The claim jitter of a notified daemon has expired.
    LookFor(Id, Id),
    Retry(Id),
    JobEnds(Id, Id, u32),
    StallOver,
}

struct Due {
    at: f64,
    number: u64,
    event: Event,
}

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}
impl Eq for Due {}
impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Due {
    /// The earliest is the greatest, so that the heap gives it first; of two at once, the one that was planned first.
    fn cmp(&self, other: &Self) -> Ordering {
        other.at.total_cmp(&self.at).then(other.number.cmp(&self.number))
    }
}

#[derive(Debug, Default, Clone)]
struct Daemon {
    expires_at: f64,
    /// When its last heartbeat began.
    beat_at: f64,
    running: BTreeSet<Id>,
    /// A claim is under way; one at a time.
    claiming: bool,
    /// It was notified meanwhile.
    look: bool,
    seen: VecDeque<Id>,
    pause: f64,
}

#[derive(Debug, Clone, Copy)]
struct Job {
    placed_at: f64,
    attempt: u32,
    owner: Option<Id>,
    queued: bool,
}

/// Everything.
pub struct World<'a> {
    calibration: &'a Calibration,
    manner: ClaimStrategy,
    random: SeededRandom,
    now: f64,
    events: BinaryHeap<Due>,
    numbered: u64,
    line: VecDeque<(Id, Question, f64)>,
    in_service: usize,
    stalled: bool,
    daemons: Vec<Daemon>,
    jobs: Vec<Job>,
    queues: BTreeMap<Id, BTreeSet<Id>>,
    outcome: SimulationOutcome,
    takes: f64,
    work: f64,
    in_vain: f64,
}

impl<'a> World<'a> {
    /// So many daemons, nothing running.
    pub fn new(calibration: &'a Calibration, manner: ClaimStrategy, daemons: usize, seed: u64) -> Self {
        let lease = calibration.daemon.lease;
        let daemon = Daemon { expires_at: lease, pause: calibration.daemon.first_pause, ..Daemon::default() };
        let mut world = Self {
            calibration,
            manner,
            random: SeededRandom::new(seed),
            now: 0.0,
            events: BinaryHeap::new(),
            numbered: 0,
            line: VecDeque::new(),
            in_service: 0,
            stalled: false,
            daemons: vec![daemon; daemons],
            jobs: Vec::new(),
            queues: BTreeMap::new(),
            outcome: SimulationOutcome::default(),
            takes: 0.0,
            work: 0.0,
            in_vain: 0.0,
        };
        for daemon in 0..daemons {
            // Daemons are started at different moments.
            let offset = world.random.fraction();
            world.plan(offset * lease / 3.0, Event::Beat(daemon));
            world.plan(offset * calibration.daemon.look_again, Event::LookAgain(daemon));
            world.plan(offset * calibration.daemon.look_again, Event::LookForChanges(daemon));
        }
        world.plan(0.0, Event::Arrive);
        world
    }

    /// Runs it to its end, with a stall of the server of so many seconds when the measured time begins.
    pub fn run(mut self, stall: f64) -> SimulationOutcome {
        let begin = self.calibration.work.warm_up;
        let end = begin + self.calibration.work.measured;
        let mut measured = false;
        while let Some(due) = self.events.pop() {
            if due.at > end {
                break;
            }
            self.now = due.at;
            if !measured && self.now >= begin {
                measured = true;
                self.begin_to_measure(stall);
            }
            self.happen(due.event);
        }
        self.sum_up()
    }

    fn begin_to_measure(&mut self, stall: f64) {
        self.outcome = SimulationOutcome::default();
        (self.takes, self.work, self.in_vain) = (0.0, 0.0, 0.0);
        if stall > 0.0 {
            self.stalled = true;
            self.plan(stall, Event::StallOver);
        }
    }

    fn sum_up(mut self) -> SimulationOutcome {
        let time = self.calibration.work.measured;
        #[expect(clippy::cast_precision_loss, reason = "there are few lanes")]
        let capacity = time * self.calibration.server.lanes as f64;
        let outcome = &mut self.outcome;
        outcome.placed /= time;
        outcome.ended /= time;
        outcome.busy = (self.work / capacity).min(1.0);
        outcome.idle_share = self.in_vain / self.work.max(1e-9);
        outcome.conflicts /= self.takes.max(1.0);
        // Those that still wait have waited so long, at least.
        outcome.waits.extend(self.jobs.iter().filter(|job| job.queued).map(|job| self.now - job.placed_at));
        outcome.waits.sort_by(f64::total_cmp);
        self.outcome
    }

    fn plan(&mut self, after: f64, event: Event) {
        self.numbered += 1;
        self.events.push(Due { at: self.now + after, number: self.numbered, event });
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Arrive => self.arrive(),
            Event::Ask(daemon, question, asked_at) => {
                self.line.push_back((daemon, question, asked_at));
                self.serve();
            }
            Event::Answered(daemon, question, asked_at) => {
                self.in_service -= 1;
                self.answer(daemon, question, asked_at);
                self.serve();
            }
            Event::Beat(daemon) => {
                self.daemons[daemon].beat_at = self.now;
                self.ask(daemon, Question::Rescue);
            }
            Event::LookAgain(daemon) => {
                self.look(daemon);
                self.plan(self.calibration.daemon.look_again, Event::LookAgain(daemon));
            }
            // The claim was announced, too.
            Event::LookFor(daemon, job) => {
                if self.jobs[job].queued {
                    self.look(daemon);
                }
            }
            Event::LookForChanges(daemon) => self.ask(daemon, Question::Changes),
            Event::Retry(daemon) => self.ask(daemon, Question::Look),
            Event::JobEnds(daemon, job, attempt) => self.ask(daemon, Question::Finish(job, attempt)),
            Event::StallOver => {
                self.stalled = false;
                self.serve();
            }
        }
    }

    /// Jobs come at random, through any of the daemons.
    fn arrive(&mut self) {
        let daemon = usize::try_from(self.random.below(self.daemons.len() as u64)).unwrap_or(0);
        let job = self.jobs.len();
        self.jobs.push(Job { placed_at: self.now, attempt: 0, owner: None, queued: false });
        self.ask(daemon, Question::Place(job));
        #[expect(clippy::cast_precision_loss, reason = "there are few places")]
        let places = (self.daemons.len() * self.calibration.daemon.at_once) as f64;
        let between = self.calibration.work.job_seconds / (places * self.calibration.work.load);
        let next = self.random.exponential(between);
        self.plan(next, Event::Arrive);
    }

    fn ask(&mut self, daemon: Id, question: Question) {
        let way = self.calibration.server.round_trip / 2000.0;
        self.plan(way, Event::Ask(daemon, question, self.now));
    }

    fn serve(&mut self) {
        while !self.stalled && self.in_service < self.calibration.server.lanes {
            let Some((daemon, question, asked_at)) = self.line.pop_front() else { return };
            let costs = &self.calibration.costs;
            let cost = match question {
                Question::Place(_) => costs.place,
                Question::Look => costs.look,
                Question::Take(_) => costs.take,
                Question::Read(_) => costs.read,
                Question::Finish(..) => costs.finish,
                Question::Rescue => costs.rescue,
                Question::Renew => costs.renew,
                Question::Changes => costs.changes,
            };
            // Half of it is always the same, half of it is chance.
            let takes = cost / 1000.0 * (0.5 + 0.5 * self.random.exponential(1.0));
            self.in_service += 1;
            self.work += takes;
            if matches!(question, Question::Rescue | Question::Renew | Question::Changes) {
                self.in_vain += takes;
            }
            self.plan(takes, Event::Answered(daemon, question, asked_at));
        }
    }

    fn answer(&mut self, daemon: Id, question: Question, asked_at: f64) {
        match question {
            Question::Place(job) => self.placed(daemon, job),
            Question::Look => self.looked(daemon, asked_at),
            Question::Take(job) => self.took(daemon, job),
            Question::Read(job) => self.begin(daemon, job),
            Question::Finish(job, attempt) => self.finished(daemon, job, attempt),
            Question::Rescue => {
                self.rescue();
                self.ask(daemon, Question::Renew);
            }
            Question::Renew => self.renewed(daemon, asked_at),
            Question::Changes => {
                self.plan(self.calibration.daemon.look_again, Event::LookForChanges(daemon));
            }
        }
    }

    fn queue_of(&self, daemon: Id) -> Id {
        if self.manner == ClaimStrategy::Homes { daemon } else { 0 }
    }

    fn placed(&mut self, daemon: Id, job: Id) {
        self.outcome.placed += 1.0;
        self.enqueue(daemon, job);
    }

    /// Puts a job into the queue of a daemon. It looks at once: it knows of it first.
    fn enqueue(&mut self, by: Id, job: Id) {
        self.jobs[job].queued = true;
        self.queues.entry(self.queue_of(by)).or_default().insert(job);
        self.look(by);
        let others = (0..self.daemons.len()).filter(|daemon| *daemon != by);
        match self.manner {
            ClaimStrategy::Homes => {}
            ClaimStrategy::Rush => others.for_each(|daemon| self.look(daemon)),
            ClaimStrategy::Shared => {
                for daemon in others {
                    let moment = self.random.fraction() * self.calibration.daemon.spread;
                    self.plan(moment, Event::LookFor(daemon, job));
                }
            }
        }
    }

    /// Looks for work if there is room, or as soon as the look that is under way is over.
    fn look(&mut self, daemon: Id) {
        let room = self.calibration.daemon.at_once;
        let this = &mut self.daemons[daemon];
        if this.claiming {
            this.look = true;
        } else if this.running.len() < room {
            this.claiming = true;
            this.look = false;
            this.pause = self.calibration.daemon.first_pause;
            self.ask(daemon, Question::Look);
        }
    }

    fn looked(&mut self, daemon: Id, asked_at: f64) {
        let queue = self.queue_of(daemon);
        let found = self.queues.get(&queue).into_iter().flatten().take(self.calibration.daemon.looked_at);
        let mut seen: VecDeque<Id> = found.copied().collect();
        // The oldest first; where others were faster, one at random, so that not all reach for the same again.
        let contended = self.daemons[daemon].pause > self.calibration.daemon.first_pause;
        let oldest = if contended { None } else { seen.pop_front() };
        if self.manner == ClaimStrategy::Shared && !seen.is_empty() {
            let first = usize::try_from(self.random.below(seen.len() as u64)).unwrap_or(0);
            seen.rotate_left(first);
        }
        seen.extend(oldest);
        seen.rotate_right(usize::from(oldest.is_some()));
        seen.truncate(self.calibration.daemon.tried);
        self.daemons[daemon].seen = seen;
        self.daemons[daemon].expires_at = asked_at + self.calibration.daemon.lease;
        if self.daemons[daemon].seen.is_empty() {
            self.in_vain += self.calibration.costs.look / 1000.0;
            self.claimed(daemon);
        } else {
            self.take_next(daemon);
        }
    }

    fn take_next(&mut self, daemon: Id) {
        if let Some(job) = self.daemons[daemon].seen.pop_front() {
            self.ask(daemon, Question::Take(job));
        } else {
            // All of them went to others.
            let pause = self.daemons[daemon].pause * (0.5 + self.random.fraction());
            self.daemons[daemon].pause =
                (self.daemons[daemon].pause * 2.0).min(self.calibration.daemon.longest_pause);
            self.plan(pause, Event::Retry(daemon));
        }
    }

    fn took(&mut self, daemon: Id, job: Id) {
        self.takes += 1.0;
        if !self.jobs[job].queued {
            self.outcome.conflicts += 1.0;
            self.in_vain += self.calibration.costs.take / 1000.0;
            self.take_next(daemon);
            return;
        }
        let queue = self.queue_of(daemon);
        self.queues.entry(queue).or_default().remove(&job);
        let this = &mut self.jobs[job];
        this.queued = false;
        this.attempt += 1;
        this.owner = Some(daemon);
        if this.attempt == 1 {
            self.outcome.waits.push(self.now - this.placed_at);
        }
        self.daemons[daemon].running.insert(job);
        self.ask(daemon, Question::Read(job));
    }

    fn begin(&mut self, daemon: Id, job: Id) {
        let lasts = self.random.exponential(self.calibration.work.job_seconds);
        self.plan(lasts, Event::JobEnds(daemon, job, self.jobs[job].attempt));
        self.daemons[daemon].look = true;
        self.claimed(daemon);
    }

    fn claimed(&mut self, daemon: Id) {
        self.daemons[daemon].claiming = false;
        if self.daemons[daemon].look {
            self.look(daemon);
        }
    }

    /// The word of an owner that was given up is refused.
    fn finished(&mut self, daemon: Id, job: Id, attempt: u32) {
        let this = &mut self.jobs[job];
        if this.owner == Some(daemon) && this.attempt == attempt {
            this.owner = None;
            self.outcome.ended += 1.0;
        }
        self.daemons[daemon].running.remove(&job);
        self.look(daemon);
    }

    /// Requeues the jobs of daemons whose lease has expired.
    fn rescue(&mut self) {
        for daemon in 0..self.daemons.len() {
            if self.daemons[daemon].expires_at >= self.now || self.daemons[daemon].running.is_empty() {
                continue;
            }
            self.outcome.given_up += 1;
            for job in std::mem::take(&mut self.daemons[daemon].running) {
                if self.jobs[job].owner == Some(daemon) {
                    self.jobs[job].owner = None;
                    self.outcome.begun_again += 1;
                    self.enqueue(daemon, job);
                }
            }
        }
    }

    fn renewed(&mut self, daemon: Id, asked_at: f64) {
        let lease = self.calibration.daemon.lease;
        let this = &mut self.daemons[daemon];
        this.expires_at = this.expires_at.max(asked_at + lease);
        self.outcome.slowest_renewal = self.outcome.slowest_renewal.max(self.now - this.beat_at);
        self.plan(lease / 3.0, Event::Beat(daemon));
    }
}
