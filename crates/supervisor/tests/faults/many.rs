//! Concurrent runs.

use model::{End, Exit, RunPlan, TreeEnd};
use supervisor::Supervisor;

use crate::harness::{Harness, read_to_end};

testkit::tests![concurrent_runs_do_not_mix];

fn concurrent_runs_do_not_mix() {
    Harness::run_test_in_each_mode(async |harness: &Harness| {
        let supervisor = Supervisor::this_program().unwrap();
        let one = async |number: usize| {
            let kind = ["same-group", "setsid", "daemon"][number % 3];
            let plan: RunPlan =
                harness.agent(&format!("spawn {kind}\nflood stdout 100KB\nanswer I am {number}"));
            let spool = harness.directory().join(format!("spool-{number}"));
            let run = supervisor.start(&spool, &plan).await.unwrap();
            let (output, _, report) = read_to_end(&run).await;
            assert_eq!((&report.end, report.exit), (&End::Exited, Some(Exit::Code(0))), "{report:?}");
            assert_eq!((report.tree, report.descendants_ended), (TreeEnd::ProvenEmpty, 1));
            assert!(output.ends_with(format!("I am {number}\n").as_bytes()));
        };
        let mut all: Vec<_> = (0..64).map(|number| Box::pin(one(number))).collect();
        std::future::poll_fn(|context| {
            all.retain_mut(|run| run.as_mut().poll(context).is_pending());
            if all.is_empty() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
        })
        .await;
        assert_eq!(harness.descendants().len(), 64);
    });
}
