//! Concurrent writers, and writers that are killed.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::thread;

use crate::harness::{CommandResult, Harness, numbered};

crate::tests![
    concurrent_reader_never_sees_a_partial_write,
    concurrent_patches_are_all_applied,
    one_of_many_concurrent_creators_wins,
    concurrent_moves_to_one_name_lose_no_file,
    killed_writer_leaves_the_old_or_the_new_file,
    unwritable_directory_is_reported,
    oversized_content_is_rejected,
];

fn concurrent_reader_never_sees_a_partial_write() {
    let harness = Harness::new();
    let content = |writer: usize| format!("{writer}").repeat(300_000);
    harness.put("shared", content(0));
    thread::scope(|scope| {
        let writers: Vec<_> = (1..=4)
            .map(|writer| {
                let (harness, content) = (&harness, content(writer));
                scope.spawn(move || {
                    for _ in 0..5 {
                        harness.feed(&["write", "shared"], content.as_bytes()).answer();
                    }
                })
            })
            .collect();
        while !writers.iter().all(thread::ScopedJoinHandle::is_finished) {
            let bytes = fs::read(harness.at("shared")).unwrap();
            assert_eq!(bytes.len(), 300_000);
            assert!(bytes.iter().all(|byte| *byte == bytes[0]), "a mix of two writes");
        }
    });
    assert_eq!(harness.inventory().len(), 3, "no draft is left: {:?}", harness.inventory());
}

fn concurrent_patches_are_all_applied() {
    let harness = Harness::new();
    harness.put("shared", numbered(12, '[', ']'));
    thread::scope(|scope| {
        for line in 0..12 {
            let harness = &harness;
            scope.spawn(move || {
                let (find, replace) = (format!("[{line}]"), format!("<{line}>"));
                harness.run(["patch", "shared", "--find", &find, "--replace", &replace]).answer();
            });
        }
    });
    assert_eq!(harness.text("shared"), numbered(12, '<', '>'));
}

fn one_of_many_concurrent_creators_wins() {
    let harness = Harness::new();
    let told: Vec<(usize, CommandResult)> = thread::scope(|scope| {
        let creators: Vec<_> = (0..8)
            .map(|number| {
                let harness = &harness;
                scope.spawn(move || {
                    (number, harness.run(["create", "new/one", "--content", &number.to_string()]))
                })
            })
            .collect();
        creators.into_iter().map(|creator| creator.join().unwrap()).collect()
    });
    let (winners, losers): (Vec<_>, Vec<_>) =
        told.into_iter().partition(|(_, told)| told.output.status.success());
    assert_eq!(winners.len(), 1);
    assert_eq!(harness.text("new/one"), winners[0].0.to_string());
    assert!(losers.iter().all(|(_, told)| told.refused() == "already_exists"));
}

fn concurrent_moves_to_one_name_lose_no_file() {
    let harness = Harness::new();
    let names: Vec<String> = (0..8).map(|number| format!("from-{number}")).collect();
    for name in &names {
        harness.put(name, name);
    }
    thread::scope(|scope| {
        for name in &names {
            let harness = &harness;
            scope.spawn(move || harness.run(["move", name, "to"]));
        }
    });
    let mut left: BTreeSet<String> = names.iter().filter(|name| harness.at(name).exists()).cloned().collect();
    assert_eq!(left.len(), 7);
    left.insert(harness.text("to"));
    assert_eq!(left, names.into_iter().collect());
}

fn killed_writer_leaves_the_old_or_the_new_file() {
    let harness = Harness::new();
    let (old, new) = ("o".repeat(2_000_000), "n".repeat(3_000_000));
    fs::write(harness.outside().join("new"), &new).unwrap();
    for round in 0..12_u32 {
        harness.put("big", &old);
        let content = fs::File::open(harness.outside().join("new")).unwrap();
        let mut child = harness
            .command(["write", "big"])
            .stdin(content)
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        // At some point during the write: as long as this many `stat` calls take.
        (0..round * 200).for_each(|_| drop(fs::metadata(harness.at("big"))));
        let _ = child.kill();
        child.wait().unwrap();
        let text = harness.text("big");
        assert!(text == old || text == new, "{} bytes in round {round}", text.len());
    }
    harness.run(["write", "big", "--content", "afterwards"]).answer();
    assert_eq!(harness.text("big"), "afterwards", "the dead hold no lock");
}

fn unwritable_directory_is_reported() {
    let harness = Harness::new();
    harness.put("closed/x", "old");
    fs::set_permissions(harness.at("closed"), fs::Permissions::from_mode(0o500)).unwrap();
    let told = harness.run(["write", "closed/x", "--content", "new"]);
    fs::set_permissions(harness.at("closed"), fs::Permissions::from_mode(0o700)).unwrap();
    if rustix::process::geteuid().is_root() {
        told.answer();
    } else {
        assert_eq!(told.refused(), "write_failed");
        assert_eq!(harness.text("closed/x"), "old");
    }
}

fn oversized_content_is_rejected() {
    let harness = Harness::new();
    let before = harness.inventory();
    assert_eq!(harness.feed(&["write", "big"], &vec![b'x'; 64 * 1024 * 1024 + 1]).refused(), "too_large");
    assert_eq!(harness.inventory(), before);
}
