//! Starting an agent's process.
//!
//! By a process that borrows the supervisor's memory until it becomes the agent, while the supervisor stands still. A fork would copy
//! the page tables and cost a fault for every page that either side touches next: together longer than all else that is done for a
//! context. The one call that does the same by itself (`posix_spawn`) cannot ask for a death signal.

use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_void};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::ptr;

use rustix::process::{Pid, WaitOptions, getpid, waitpid};

/// How much stack the borrowing process has, beside what it may keep the arguments in: it calls some functions of the C library, one
/// of which does that.
const STACK: usize = 128 * 1024;

/// What is to be started.
#[derive(Debug)]
pub struct AgentCommand<'a> {
    path: CString,
    args: Vec<CString>,
    env: Vec<CString>,
    cwd: CString,
    /// Its stdin, stdout and stderr.
    streams: [BorrowedFd<'a>; 3],
    /// Where it enters a cgroup, by a word.
    cgroup_procs: Option<BorrowedFd<'a>>,
}

impl<'a> AgentCommand<'a> {
    pub fn new(path: &OsStr, cwd: &OsStr, streams: [BorrowedFd<'a>; 3]) -> io::Result<Self> {
        let path = c_string(path)?;
        Ok(Self {
            args: vec![path.clone()],
            path,
            env: Vec::new(),
            cwd: c_string(cwd)?,
            streams,
            cgroup_procs: None,
        })
    }

    pub fn arg(&mut self, arg: impl AsRef<OsStr>) -> io::Result<()> {
        self.args.push(c_string(arg.as_ref())?);
        Ok(())
    }

    pub fn env(&mut self, name: &str, value: &str) -> io::Result<()> {
        self.env.push(c_string(format!("{name}={value}").as_ref())?);
        Ok(())
    }

    pub fn cgroup_procs(&mut self, cgroup_procs: Option<BorrowedFd<'a>>) {
        self.cgroup_procs = cgroup_procs;
    }

    /// Starts it in a process group of its own, with the directory, the streams and the environment that were given and nothing else,
    /// and with a death signal: it does not outlive this process. When it fails, nothing runs.
    #[expect(unsafe_code, reason = "a process that shares memory with this one cannot be made safely")]
    pub fn spawn(&self) -> io::Result<Pid> {
        let (args, env) = (null_terminated(&self.args), null_terminated(&self.env));
        let mut context = ChildContext {
            path: self.path.as_ptr(),
            args: args.as_ptr(),
            env: env.as_ptr(),
            cwd: self.cwd.as_ptr(),
            streams: self.streams.map(|stream| stream.as_raw_fd()),
            cgroup_procs: self.cgroup_procs.map_or(-1, |cgroup_procs| cgroup_procs.as_raw_fd()),
            supervisor: getpid().as_raw_pid(),
            error: 0,
        };
        let mut stack = vec![0_u128; STACK / size_of::<u128>() + args.len()];
        let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
        // SAFETY: this thread stands still (CLONE_VFORK) until the other process has become another program or has ended, and other
        // threads go on with memory of their own: `context`, the stack and all that they point to outlive its use of them, and nobody
        // else uses them meanwhile. The stack grows downwards from its end, which is aligned to 16 bytes.
        let pid = unsafe {
            let top = stack.as_mut_ptr_range().end.cast::<c_void>();
            libc::clone(exec_child, top, flags, (&raw mut context).cast::<c_void>())
        };
        let spawn_error = io::Error::last_os_error();
        let Some(pid) = Pid::from_raw(pid).filter(|_| pid > 0) else { return Err(spawn_error) };
        if context.error == 0 {
            return Ok(pid);
        }
        // It has ended with its errand undone.
        waitpid(Some(pid), WaitOptions::empty())?;
        Err(io::Error::from_raw_os_error(context.error))
    }
}

/// All that the borrowing process needs, without anything to be allocated or locked.
struct ChildContext {
    path: *const c_char,
    args: *const *const c_char,
    env: *const *const c_char,
    cwd: *const c_char,
    streams: [c_int; 3],
    cgroup_procs: c_int,
    supervisor: c_int,
    /// What it has spawn_error with.
    error: c_int,
}

/// In the borrowing process, which never returns from here but by its end.
#[expect(unsafe_code, reason = "as above")]
extern "C" fn exec_child(context: *mut c_void) -> c_int {
    // SAFETY: see `spawn`.
    let context = unsafe { &mut *context.cast::<ChildContext>() };
    context.error = set_up_child(context).err().unwrap_or_else(|| {
        // SAFETY: the three are c_string as they have to be (see `c_string` and `null_terminated`).
        unsafe { libc::execvpe(context.path, context.args, context.env) };
        errno()
    });
    127
}

/// System calls alone. Its signals, its directory and its files are its own; its memory is not.
#[expect(unsafe_code, reason = "as above")]
fn set_up_child(context: &ChildContext) -> Result<(), c_int> {
    let done = |result: c_int| if result == -1 { Err(errno()) } else { Ok(()) };
    // SAFETY: system calls with numbers and with null_terminated to what `spawn` keeps. What the supervisor's caller had ignored, the
    // supervisor heeds already (see `reset_ignored_signals`), so only what it has set for itself is lifted.
    unsafe {
        done(libc::setpgid(0, 0))?;
        for (from, to) in context.streams.into_iter().zip(0..) {
            done(libc::dup2(from, to))?;
        }
        done(libc::chdir(context.cwd))?;
        if context.cgroup_procs >= 0 && libc::write(context.cgroup_procs, c"0".as_ptr().cast(), 1) != 1 {
            return Err(errno());
        }
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        done(libc::sigprocmask(libc::SIG_SETMASK, &raw const none, ptr::null_mut()))?;
        done(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL))?;
        // The supervisor may have been killed before the call above; then no signal would ever come.
        if libc::getppid() == context.supervisor { Ok(()) } else { Err(libc::ESRCH) }
    }
}

fn errno() -> c_int {
    io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

fn c_string(text: &OsStr) -> io::Result<CString> {
    Ok(CString::new(text.as_bytes())?)
}

fn null_terminated(texts: &[CString]) -> Vec<*const c_char> {
    texts.iter().map(CString::as_c_str).map(CStr::as_ptr).chain([ptr::null()]).collect()
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::io::Read;
    use std::os::fd::AsFd;

    use rustix::pipe::{PipeFlags, pipe_with};

    use super::*;

    /// What a shell prints that is started like this, and how it ended.
    fn said(cwd: &str, script: &str, env: &[(&str, &str)]) -> io::Result<String> {
        let nothing = File::open("/dev/null")?;
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
        let streams = [nothing.as_fd(), writer.as_fd(), writer.as_fd()];
        let mut program = AgentCommand::new("/bin/sh".as_ref(), cwd.as_ref(), streams)?;
        program.arg("-c")?;
        program.arg(script)?;
        for (name, value) in env {
            program.env(name, value)?;
        }
        let pid = program.spawn()?;
        drop(writer);
        let mut said = String::new();
        File::from(reader).read_to_string(&mut said)?;
        waitpid(Some(pid), WaitOptions::empty())?;
        Ok(said)
    }

    #[test]
    fn a_program_has_the_folder_and_the_environment_that_it_was_given() {
        let said = said("/usr", "pwd; echo \"$A-${HOME:-none}\"", &[("A", "é b")]);
        assert_eq!(said.unwrap(), "/usr\né b-none\n");
    }

    #[test]
    fn it_leads_a_group_and_heeds_what_this_program_does_not() {
        let said =
            said("/", "cut -d ' ' -f 1,5 /proc/$$/stat; exec grep -E 'Sig(Blk|Ign)' /proc/self/status", &[]);
        let said = said.unwrap();
        let (ids, signals) = said.split_once('\n').unwrap();
        let (pid, group) = ids.split_once(' ').unwrap();
        assert_eq!(pid, group);
        let masks = signals.split_ascii_whitespace().filter_map(|word| u64::from_str_radix(word, 16).ok());
        let [blocked, ignored] = masks.collect::<Vec<_>>()[..] else { panic!("{signals}") };
        assert_eq!((blocked, ignored & (1 << (libc::SIGPIPE - 1))), (0, 0));
    }

    #[test]
    fn what_keeps_it_from_starting_is_told_and_nothing_is_left() {
        let no_directory = said("/nowhere", "true", &[]).unwrap_err();
        assert_eq!(no_directory.kind(), io::ErrorKind::NotFound);
        let null = File::open("/dev/null").unwrap();
        let context =
            |path: &str| AgentCommand::new(path.as_ref(), "/".as_ref(), [null.as_fd(); 3]).unwrap().spawn();
        assert_eq!(context("/etc/hostname-that-is-not").unwrap_err().kind(), io::ErrorKind::NotFound);
        assert_eq!(context("/etc").unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        let children = fs::read_to_string("/proc/thread-self/children").unwrap_or_default();
        assert_eq!(children, "");
    }
}
