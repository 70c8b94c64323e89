//! Files that the service removes by itself.

use std::fs;
use std::time::Duration;

use calls::ShutdownMode;

use crate::harness::{Harness, LONG};

testkit::tests![caches_beyond_their_limit_are_removed];

/// The first sweep comes a minute after the start, so the clock is advanced.
fn caches_beyond_their_limit_are_removed() {
    Harness::run_with_own_clock(async |harness| {
        let cache = |name: &str| harness.state().join("caches/workspace").join(name);
        for (name, bytes) in [("npm", 3 << 20), ("cargo", 1 << 10)] {
            fs::create_dir_all(cache(name)).unwrap();
            fs::write(cache(name).join("file"), vec![1; bytes]).unwrap();
        }
        let long_ago =
            fs::FileTimes::new().set_accessed(std::time::UNIX_EPOCH).set_modified(std::time::UNIX_EPOCH);
        fs::File::open(cache("npm").join("file")).unwrap().set_times(long_ago).unwrap();
        let service = harness.open_with(|settings| settings.cache_bytes = Some(1 << 20)).await;
        tokio::time::timeout(LONG, async {
            while cache("npm").exists() {
                tokio::time::pause();
                tokio::time::advance(Duration::from_secs(1)).await;
                tokio::time::resume();
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        })
        .await
        .expect("the cache is still there");
        assert!(cache("cargo").exists());
        service.close(ShutdownMode::Detach).await;
    });
}
