//! Many runs at once.

use model::{End, Exit, RunPlan, TreeEnd};
use supervisor::Supervisor;

use crate::scene::{Scene, read_along};

crate::tests![concurrent_runs_do_not_mix];

fn concurrent_runs_do_not_mix() {
    Scene::play(async |scene: &Scene| {
        let supervisor = Supervisor::this_program().unwrap();
        let one = async |number: usize| {
            let kind = ["same-group", "setsid", "daemon"][number % 3];
            let plan: RunPlan =
                scene.agent(&format!("spawn {kind}\nflood stdout 100KB\nanswer I am {number}"));
            let spool = scene.folder().join(format!("spool-{number}"));
            let run = supervisor.start(&spool, &plan).await.unwrap();
            let (output, _, report) = read_along(&run).await;
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
        assert_eq!(scene.descendants().len(), 64);
    });
}
