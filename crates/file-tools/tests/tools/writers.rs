//! Concurrent writers, and writers that are killed.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::thread;

use crate::desk::{Desk, Told, numbered};

crate::tests![
    a_reader_sees_one_write_or_another_and_never_a_mix,
    patches_at_the_same_time_all_count,
    of_many_creators_one_wins,
    moves_to_one_name_lose_no_file,
    a_writer_that_is_killed_leaves_the_old_file_or_the_new_one,
    a_folder_that_lets_nobody_write_is_told,
    content_over_the_limit_is_refused,
];

fn a_reader_sees_one_write_or_another_and_never_a_mix() {
    let desk = Desk::new();
    let content = |writer: usize| format!("{writer}").repeat(300_000);
    desk.put("shared", content(0));
    thread::scope(|scope| {
        let writers: Vec<_> = (1..=4)
            .map(|writer| {
                let (desk, content) = (&desk, content(writer));
                scope.spawn(move || {
                    for _ in 0..5 {
                        desk.feed(&["write", "shared"], content.as_bytes()).answer();
                    }
                })
            })
            .collect();
        while !writers.iter().all(thread::ScopedJoinHandle::is_finished) {
            let bytes = fs::read(desk.at("shared")).unwrap();
            assert_eq!(bytes.len(), 300_000);
            assert!(bytes.iter().all(|byte| *byte == bytes[0]), "a mix of two writes");
        }
    });
    assert_eq!(desk.inventory().len(), 3, "no draft is left: {:?}", desk.inventory());
}

fn patches_at_the_same_time_all_count() {
    let desk = Desk::new();
    desk.put("shared", numbered(12, '[', ']'));
    thread::scope(|scope| {
        for line in 0..12 {
            let desk = &desk;
            scope.spawn(move || {
                let (find, replace) = (format!("[{line}]"), format!("<{line}>"));
                desk.run(["patch", "shared", "--find", &find, "--replace", &replace]).answer();
            });
        }
    });
    assert_eq!(desk.text("shared"), numbered(12, '<', '>'));
}

fn of_many_creators_one_wins() {
    let desk = Desk::new();
    let told: Vec<(usize, Told)> = thread::scope(|scope| {
        let creators: Vec<_> = (0..8)
            .map(|number| {
                let desk = &desk;
                scope.spawn(move || {
                    (number, desk.run(["create", "new/one", "--content", &number.to_string()]))
                })
            })
            .collect();
        creators.into_iter().map(|creator| creator.join().unwrap()).collect()
    });
    let (winners, losers): (Vec<_>, Vec<_>) =
        told.into_iter().partition(|(_, told)| told.output.status.success());
    assert_eq!(winners.len(), 1);
    assert_eq!(desk.text("new/one"), winners[0].0.to_string());
    assert!(losers.iter().all(|(_, told)| told.refused() == "already_exists"));
}

fn moves_to_one_name_lose_no_file() {
    let desk = Desk::new();
    let names: Vec<String> = (0..8).map(|number| format!("from-{number}")).collect();
    for name in &names {
        desk.put(name, name);
    }
    thread::scope(|scope| {
        for name in &names {
            let desk = &desk;
            scope.spawn(move || desk.run(["move", name, "to"]));
        }
    });
    let mut left: BTreeSet<String> = names.iter().filter(|name| desk.at(name).exists()).cloned().collect();
    assert_eq!(left.len(), 7);
    left.insert(desk.text("to"));
    assert_eq!(left, names.into_iter().collect());
}

fn a_writer_that_is_killed_leaves_the_old_file_or_the_new_one() {
    let desk = Desk::new();
    let (old, new) = ("o".repeat(2_000_000), "n".repeat(3_000_000));
    fs::write(desk.outside().join("new"), &new).unwrap();
    for round in 0..12_u32 {
        desk.put("big", &old);
        let content = fs::File::open(desk.outside().join("new")).unwrap();
        let mut child = desk
            .command(["write", "big"])
            .stdin(content)
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        // At some point during the write: as long as this many `stat` calls take.
        (0..round * 200).for_each(|_| drop(fs::metadata(desk.at("big"))));
        let _ = child.kill();
        child.wait().unwrap();
        let text = desk.text("big");
        assert!(text == old || text == new, "{} bytes in round {round}", text.len());
    }
    desk.run(["write", "big", "--content", "afterwards"]).answer();
    assert_eq!(desk.text("big"), "afterwards", "the dead hold no lock");
}

fn a_folder_that_lets_nobody_write_is_told() {
    let desk = Desk::new();
    desk.put("closed/x", "old");
    fs::set_permissions(desk.at("closed"), fs::Permissions::from_mode(0o500)).unwrap();
    let told = desk.run(["write", "closed/x", "--content", "new"]);
    fs::set_permissions(desk.at("closed"), fs::Permissions::from_mode(0o700)).unwrap();
    if rustix::process::geteuid().is_root() {
        told.answer();
    } else {
        assert_eq!(told.refused(), "write_failed");
        assert_eq!(desk.text("closed/x"), "old");
    }
}

fn content_over_the_limit_is_refused() {
    let desk = Desk::new();
    let before = desk.inventory();
    assert_eq!(desk.feed(&["write", "big"], &vec![b'x'; 64 * 1024 * 1024 + 1]).refused(), "too_large");
    assert_eq!(desk.inventory(), before);
}
