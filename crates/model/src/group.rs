//! Groups of jobs: several agents on one task.
//!
//! A group has no record of its own. Each of its jobs carries the same [`JobGroup`], so that the group survives like any job, and its state
//! follows from its jobs.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::{AgentKind, BadJobId, BadName, JobId, JobIdPrefix};

/// The smallest number of contenders.
pub const MIN_CONTENDERS: usize = 2;

/// The largest number of contenders.
pub const MAX_CONTENDERS: usize = 8;

/// The purpose of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GroupKind {
    /// The contenders solve a task in private checkouts. The reviewers, if any, are two runs of a judge.
    Race,
    /// The contenders answer a question without changing files. The reviewer writes one answer from theirs.
    Answers,
}

impl GroupKind {
    /// Returns the serialized name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Race => "race",
            Self::Answers => "answers",
        }
    }
}

/// The jobs of a group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobGroup {
    /// The purpose.
    pub kind: GroupKind,
    /// The jobs that work on the task independently of each other. The first one names the group.
    pub contenders: Vec<JobId>,
    /// The jobs that read the results of the contenders. They wait until all contenders have ended.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reviewers: Vec<JobId>,
}

/// The part of a job in its group. Positions start at zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GroupRole {
    /// Works on the task.
    Contender(usize),
    /// Reads the results of the contenders.
    Reviewer(usize),
}

impl JobGroup {
    /// Returns the id of the group. `None` for a damaged record without contenders.
    pub fn id(&self) -> Option<GroupId> {
        self.contenders.first().copied().map(GroupId)
    }

    /// Returns all jobs, the contenders first.
    pub fn jobs(&self) -> impl Iterator<Item = JobId> {
        self.contenders.iter().chain(&self.reviewers).copied()
    }

    /// Returns the role of a job; none for a retry, which is not part of the group.
    pub fn role(&self, job: JobId) -> Option<GroupRole> {
        let position = |jobs: &[JobId]| jobs.iter().position(|other| *other == job);
        let contender = position(&self.contenders).map(GroupRole::Contender);
        contender.or_else(|| position(&self.reviewers).map(GroupRole::Reviewer))
    }

    /// Returns the positions of the contenders in the order in which a reviewer sees them: shuffled by the id of the group, so that it is
    /// the same after a restart, and reversed for every second reviewer.
    pub fn shown_order(&self, reviewer: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.contenders.len()).collect();
        let seed = self.contenders.first().map_or(0, |job| job.as_uuid().as_u64_pair().1);
        let mut random = SplitMix(seed);
        // Fisher-Yates.
        for last in (1..order.len()).rev() {
            order.swap(last, random.below(last + 1));
        }
        if reviewer % 2 == 1 {
            order.reverse();
        }
        order
    }
}

/// The generator `SplitMix64`: a few well-mixed numbers from a seed.
struct SplitMix(u64);

impl SplitMix {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        let limit = u64::try_from(limit).unwrap_or(u64::MAX).max(1);
        usize::try_from(mixed % limit).unwrap_or_default()
    }
}

/// The id of a group: that of its first job, with a prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupId(JobId);

impl GroupId {
    const PREFIX: &str = "group-";

    /// Returns the first job.
    pub fn first_job(self) -> JobId {
        self.0
    }

    /// Returns the text without the prefix, if it has the form of a group id or of the start of one.
    pub fn strip_prefix(text: &str) -> Option<&str> {
        text.trim().strip_prefix(Self::PREFIX)
    }

    /// Parses the start of a group id as the start of the id of its first job. `None` if it has not the form of a group id.
    pub fn parse_prefix(text: &str) -> Option<Result<JobIdPrefix, BadJobId>> {
        Self::strip_prefix(text).map(str::parse)
    }
}

impl fmt::Display for GroupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", Self::PREFIX, self.0)
    }
}

/// An agent with a model, as callers write it: `claude` or `claude:opus`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct AgentChoice {
    /// The agent.
    pub agent: AgentKind,
    /// The model. `None`: the agent's default.
    pub model: Option<String>,
}

impl fmt::Display for AgentChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.model {
            Some(model) => write!(f, "{}:{model}", self.agent),
            None => write!(f, "{}", self.agent),
        }
    }
}

impl FromStr for AgentChoice {
    type Err = BadName;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (agent, model) = match text.trim().split_once(':') {
            Some((agent, model)) => (agent, Some(model.trim().to_owned())),
            None => (text.trim(), None),
        };
        Ok(Self { agent: agent.trim().parse()?, model: model.filter(|model| !model.is_empty()) })
    }
}

impl TryFrom<String> for AgentChoice {
    type Error = BadName;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<AgentChoice> for String {
    fn from(choice: AgentChoice) -> Self {
        choice.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Timestamp;

    fn job(number: u8) -> JobId {
        JobId::new(Timestamp::from_millis(1_700_000_000_000), [number; 10])
    }

    fn group(contenders: u8) -> JobGroup {
        let contenders = (0..contenders).map(job).collect();
        JobGroup { kind: GroupKind::Race, contenders, reviewers: vec![job(100), job(101)] }
    }

    #[test]
    fn role_follows_from_the_position() {
        let group = group(3);
        assert_eq!(group.role(job(2)), Some(GroupRole::Contender(2)));
        assert_eq!(group.role(job(101)), Some(GroupRole::Reviewer(1)));
        assert_eq!(group.role(job(9)), None);
        assert_eq!(group.jobs().count(), 5);
    }

    #[test]
    fn second_reviewer_sees_the_reversed_order() {
        for contenders in 2..=8 {
            let group = group(contenders);
            let (first, mut second) = (group.shown_order(0), group.shown_order(1));
            second.reverse();
            assert_eq!(first, second);
            let mut sorted = first;
            sorted.sort_unstable();
            assert_eq!(sorted, (0..usize::from(contenders)).collect::<Vec<_>>());
        }
    }

    #[test]
    fn shown_order_depends_on_the_group() {
        let orders: std::collections::BTreeSet<Vec<usize>> = (0..50)
            .map(|number| {
                let contenders = (number..number + 4).map(job).collect();
                JobGroup { kind: GroupKind::Race, contenders, reviewers: Vec::new() }.shown_order(0)
            })
            .collect();
        assert!(orders.len() > 10, "{} of 24 orders in 50 groups", orders.len());
    }

    #[test]
    fn group_id_is_told_from_a_job_id() {
        let id = group(2).id().unwrap();
        let text = id.to_string();
        assert_eq!(text, format!("group-{}", job(0)));
        let (first, last) = GroupId::parse_prefix(&text[..14]).unwrap().unwrap().range();
        assert!(first <= id.first_job() && id.first_job() <= last);
        assert!(GroupId::parse_prefix("group-x").unwrap().is_err());
        assert!(GroupId::parse_prefix(&job(0).to_string()).is_none());
    }

    #[test]
    fn agent_choice_round_trips_through_text() {
        for (text, agent, model) in [
            ("claude", AgentKind::Claude, None),
            ("codex:gpt-5.5", AgentKind::Codex, Some("gpt-5.5")),
            ("rehearsal:org/name:free", AgentKind::Rehearsal, Some("org/name:free")),
        ] {
            let choice: AgentChoice = text.parse().unwrap();
            assert_eq!((choice.agent, choice.model.as_deref()), (agent, model));
            assert_eq!(choice.to_string(), text);
        }
        assert_eq!(" Claude: ".parse(), Ok(AgentChoice { agent: AgentKind::Claude, model: None }));
        assert!("my gpt".parse::<AgentChoice>().is_err());
    }
}
