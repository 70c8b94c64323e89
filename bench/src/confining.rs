//! The cost of a sandbox, compared with the same run without a policy.

use std::fs;
use std::path::Path;
use std::time::Duration;

use model::{
    AgentState, CallPolicy, Confinement, KeptPath, Policy, PolicyContext, Preset, Requirement, RunPlan,
    SandboxReport,
};
use supervisor::Supervisor;

use crate::Failure;
use crate::cost::{Cost, Meter};
use crate::executables::Executables;
use crate::interruption::Interruption;
use crate::report::{Baseline, Row, Target, Unit};
use crate::spread::Spread;

/// The amount of work.
#[derive(Debug)]
pub struct ConfiningScale {
    rounds: u32,
    runs: u32,
}

impl ConfiningScale {
    /// For figures to be quoted.
    pub const FULL: Self = Self { rounds: 7, runs: 40 };
    /// To see that everything still works.
    pub const QUICK: Self = Self { rounds: 1, runs: 5 };

    /// Describes the method for the reader of the table.
    pub fn method(&self) -> String {
        format!(
            "- rounds: {}, in each of which the three alternate with {} runs each; median (min–max)\n\
             - a run: `rehearsal --as plain` with a short prompt under the supervisor, from the start to its report\n\
             - baseline: the same without a policy\n\
             - CPU time covers all processes of a run and the waiting process; it is comparable on a busy machine\n\
             - the sandbox self-test ran before; its cost is a separate row",
            self.rounds, self.runs
        )
    }
}

/// Takes the figures.
pub async fn measure(
    executables: &Executables,
    work: &Path,
    scale: &ConfiningScale,
    mut interruption: Interruption,
) -> Result<Vec<Row>, Failure> {
    let scene = Scene { supervisor: Supervisor::at(&executables.supervisor), work: work.canonicalize()? };
    fs::create_dir_all(scene.work.join("home/shop"))?;
    let plan = RunPlan {
        args: vec!["--as".to_owned(), "plain".to_owned()],
        input: b"Say hello.\n@rehearse answer Hello.\n".to_vec(),
        ..RunPlan::new(&executables.rehearsal, scene.work.join("home/shop"))
    };
    let wrapped = scene.confinement(true)?;
    let confined = |confinement: &Confinement| RunPlan {
        policy: Policy::Confined(Box::new(confinement.clone())),
        ..plan.clone()
    };
    let plans = [plan.clone(), confined(&wrapped), confined(&scene.confinement(false)?)];
    let unkept = confined(&Confinement { proofs: None, ..wrapped });
    let mut taken: [Vec<Cost>; 3] = Default::default();
    for plan in &plans {
        scene.run(plan, 2, &mut interruption).await?;
    }
    for _ in 0..scale.rounds {
        for (samples, plan) in taken.iter_mut().zip(&plans) {
            samples.push(scene.run(plan, scale.runs, &mut interruption).await?);
        }
    }
    let proof = scene.run(&unkept, scale.runs.min(10), &mut interruption).await?;
    let [without, namespaces, rules] = taken;
    let mut rows = rows("bubblewrap, Landlock and seccomp", &without, &namespaces, 25.0);
    rows.extend(self::rows("Landlock and seccomp alone", &without, &rules, 3.0));
    rows.push(Row {
        what: "one run with sandbox self-test".to_owned(),
        unit: Unit::Milliseconds,
        baseline: None,
        ours: Spread::of([milliseconds(proof.wall)]),
        target: None,
    });
    Ok(rows)
}

/// Returns the rows of one way of confining.
fn rows(what: &str, without: &[Cost], ours: &[Cost], bound: f64) -> Vec<Row> {
    let pair = |figure: &str, of: fn(&Cost) -> f64, bound: Option<f64>| {
        let (without, ours): (Vec<f64>, Vec<f64>) =
            (without.iter().map(of).collect(), ours.iter().map(of).collect());
        let added = ours.iter().zip(&without).map(|(ours, without)| ours - without);
        [
            Row {
                what: format!("one run, {what}{figure}"),
                unit: Unit::Milliseconds,
                baseline: Some(Baseline::of("no policy", &without, &ours)),
                ours: Spread::of(ours.iter().copied()),
                target: None,
            },
            Row {
                what: format!("added by {what}{figure}"),
                unit: Unit::Milliseconds,
                baseline: None,
                ours: Spread::of(added),
                target: bound.map(Target::Below),
            },
        ]
    };
    let wall = pair("", |cost| milliseconds(cost.wall), Some(bound));
    wall.into_iter().chain(pair(": processor's time", |cost| milliseconds(cost.cpu), None)).collect()
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

struct Scene {
    supervisor: Supervisor,
    work: std::path::PathBuf,
}

impl Scene {
    fn confinement(&self, namespaces: bool) -> Result<Confinement, Failure> {
        let home = self.work.join("home");
        let ground = PolicyContext {
            workspaces: vec![home.join("shop")],
            states: vec![AgentState {
                directory: home.join(".agent"),
                variable: None,
                kept: vec![KeptPath::Directory("sessions".into())],
                discarded: Vec::new(),
            }],
            own: vec![self.work.join("state")],
            proofs: Some(self.work.join("state/proofs")),
            home: Some(home),
            ..PolicyContext::default()
        };
        let requirement = if namespaces { Requirement::Require } else { Requirement::BestEffort };
        let policy = CallPolicy { requirement, ..Preset::Workspace.into() };
        match policy.confine(&ground)? {
            Policy::Confined(confinement) => Ok(Confinement { namespaces, ..*confinement }),
            Policy::Off => Err("there is no policy to measure".into()),
        }
    }

    /// The cost of one run, on average.
    async fn run(&self, plan: &RunPlan, runs: u32, interruption: &mut Interruption) -> Result<Cost, Failure> {
        // Kept until the bench ends: removing many files would be paid for by the next round.
        let directory = tempfile::TempDir::new_in(&self.work)?.keep();
        let meter = Meter::start()?;
        for number in 0..runs {
            interruption.check()?;
            let run = self.supervisor.start(&directory.join(number.to_string()), plan).await?;
            let report = run.wait().await?;
            let confined = matches!(report.sandbox, Some(SandboxReport::Confined(_)));
            // A run that failed fast, or was not confined, must not pass for a fast one.
            if report.output_bytes == 0 || confined != (plan.policy != Policy::Off) {
                return Err(format!("unexpected end of a run: {report:?}").into());
            }
        }
        Ok(meter.stop()? / runs)
    }
}
