//! Memory goes back to the system when it is freed.
//!
//! glibc maps a large block by itself, but takes the first that is freed for a sign that such blocks come and go, and serves the
//! next of that size from the heap of the thread. There whatever is allocated behind one keeps it from ever being given back. A
//! daemon runs for weeks, and four prompts of 8 MB would cost it 180 MB from then on. So glibc is held to the size with which it
//! begins. What a usual call needs is below it: that still comes from the heap, with no word to the kernel.

/// From which size on a block is mapped by itself: the default of glibc, which no longer moves once it is set.
#[cfg(target_env = "gnu")]
const LARGE: i32 = 128 << 10;

/// Holds the allocator to that, for the whole process. Other allocators than glibc's need not be told.
#[cfg(target_env = "gnu")]
#[expect(unsafe_code, reason = "there is no safe wrapper for mallopt")]
pub fn give_back_large_blocks() {
    // SAFETY: it sets a number under the lock of the allocator, at any time, and refuses what it does not know.
    unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE) };
}

/// Other allocators than glibc's need not be told.
#[cfg(not(target_env = "gnu"))]
pub fn give_back_large_blocks() {}

/// Returns the free pages of the heap to the system. glibc returns only those at its end, and after a thousand requests that waited at
/// once, something small is always behind them.
#[cfg(target_env = "gnu")]
#[expect(unsafe_code, reason = "there is no safe wrapper for malloc_trim")]
pub fn give_back_free_pages() {
    // SAFETY: it takes the locks of the allocator, and touches only what is free.
    unsafe { libc::malloc_trim(0) };
}

/// Other allocators than glibc's need not be told.
#[cfg(not(target_env = "gnu"))]
pub fn give_back_free_pages() {}

#[cfg(test)]
#[cfg(target_env = "gnu")]
mod tests {
    use super::*;

    const BLOCK: usize = 16 << 20;

    /// In bytes: what is this process's alone.
    fn held() -> usize {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let held = status.lines().find_map(|line| line.strip_prefix("RssAnon:")?.strip_suffix("kB"));
        held.unwrap().trim().parse::<usize>().unwrap() << 10
    }

    #[test]
    fn a_large_block_is_given_back_whatever_was_allocated_behind_it() {
        give_back_large_blocks();
        // The first, from which glibc would learn.
        drop(std::hint::black_box(vec![1_u8; BLOCK]));
        let before = held();
        let block = std::hint::black_box(vec![1_u8; BLOCK]);
        let behind = std::hint::black_box(vec![1_u8; LARGE as usize / 2]);
        assert!(held() >= before + BLOCK, "the block is not there");
        drop(block);
        assert!(held() < before + BLOCK / 2, "{} bytes, before {before}", held());
        drop(behind);
    }

    #[test]
    fn free_pages_between_live_blocks_are_given_back() {
        let small = || std::hint::black_box(vec![1_u8; 1 << 10]);
        let mut blocks: Vec<Vec<u8>> = (0..BLOCK / (1 << 10)).map(|_| small()).collect();
        let last = blocks.pop();
        drop(blocks);
        let before = held();
        give_back_free_pages();
        assert!(held() + BLOCK / 2 < before, "{} bytes, before {before}", held());
        drop(last);
    }
}
