//! Returns freed memory to the kernel.
//!
//! glibc serves large blocks with `mmap`, but raises `M_MMAP_THRESHOLD` when the first of them is freed and serves later ones from the heap,
//! where any allocation behind a block pins it. A daemon runs for weeks, and four prompts of 8 MB would cost it 180 MB. A fixed threshold
//! disables that adjustment. The allocations of an ordinary call are below it and still come from the heap without a system call.

/// The threshold: the initial value of glibc, which stays fixed once it is set.
#[cfg(target_env = "gnu")]
const MMAP_THRESHOLD_BYTES: i32 = 128 << 10;

/// Fixes `M_MMAP_THRESHOLD` for the whole process.
#[cfg(target_env = "gnu")]
#[expect(unsafe_code, reason = "there is no safe wrapper for mallopt")]
pub fn fix_mmap_threshold() {
    // SAFETY: `mallopt` takes the allocator's lock and rejects unknown parameters.
    unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES) };
}

/// Does nothing: only glibc needs this.
#[cfg(not(target_env = "gnu"))]
pub fn fix_mmap_threshold() {}

/// Returns the free pages of the heap to the kernel. By itself, glibc returns only those at its end, which small allocations pin after a
/// burst of requests.
#[cfg(target_env = "gnu")]
#[expect(unsafe_code, reason = "there is no safe wrapper for malloc_trim")]
pub fn trim_heap() {
    // SAFETY: `malloc_trim` takes the allocator's locks and touches only free pages.
    unsafe { libc::malloc_trim(0) };
}

/// Does nothing: only glibc needs this.
#[cfg(not(target_env = "gnu"))]
pub fn trim_heap() {}

#[cfg(test)]
#[cfg(target_env = "gnu")]
mod tests {
    use super::*;

    const BLOCK: usize = 16 << 20;

    /// Returns the anonymous resident memory in bytes.
    fn rss_anon() -> usize {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let value = status.lines().find_map(|line| line.strip_prefix("RssAnon:")?.strip_suffix("kB"));
        value.unwrap().trim().parse::<usize>().unwrap() << 10
    }

    #[test]
    fn freed_large_block_is_returned_despite_later_alloc() {
        fix_mmap_threshold();
        // The first one would raise the threshold.
        drop(std::hint::black_box(vec![1_u8; BLOCK]));
        let before = rss_anon();
        let block = std::hint::black_box(vec![1_u8; BLOCK]);
        let behind = std::hint::black_box(vec![1_u8; MMAP_THRESHOLD_BYTES as usize / 2]);
        assert!(rss_anon() >= before + BLOCK, "the block is not there");
        drop(block);
        assert!(rss_anon() < before + BLOCK / 2, "{} bytes, before {before}", rss_anon());
        drop(behind);
    }

    #[test]
    fn free_pages_between_live_blocks_are_returned() {
        let small = || std::hint::black_box(vec![1_u8; 1 << 10]);
        let mut blocks: Vec<Vec<u8>> = (0..BLOCK / (1 << 10)).map(|_| small()).collect();
        let last = blocks.pop();
        drop(blocks);
        let before = rss_anon();
        trim_heap();
        assert!(rss_anon() + BLOCK / 2 < before, "{} bytes, before {before}", rss_anon());
        drop(last);
    }
}
