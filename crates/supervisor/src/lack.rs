//! Trouble of the machine, which says nothing about what was asked.

use std::io;

use rustix::io::Errno;

/// Whether the machine lacks something for now, such as descriptors, memory or room: the same question may be answered later.
pub fn is_resource_exhaustion(error: &io::Error) -> bool {
    let lacks = [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::NOBUFS, Errno::NOSPC, Errno::DQUOT];
    Errno::from_io_error(error).is_some_and(|errno| lacks.contains(&errno))
}
