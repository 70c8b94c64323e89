//! The escape attempts of an agent, as a program. It prints the result of each attempt as one line of JSON for all.
//!
//! `Ok` is a success for the attacker. The real effect is verified outside ([`crate::escapes`]).
#![expect(
    unsafe_code,
    clippy::undocumented_unsafe_blocks,
    reason = "who wants out asks the kernel directly, and minds nothing"
)]

use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::os::unix::net::{SocketAddr, UnixStream};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};

/// The first argument that turns this binary into the attacker.
pub const TRY: &str = "--try-to-break-out";

/// The targets of the attempts.
#[derive(Debug, Serialize, Deserialize)]
pub struct Targets {
    pub workspace: PathBuf,
    pub outside: PathBuf,
    pub key: PathBuf,
    /// A hidden file of the workspace.
    pub sealed: Option<PathBuf>,
    pub database: PathBuf,
    pub state: PathBuf,
    pub victim: i32,
    pub socket: PathBuf,
    pub abstract_socket: String,
    pub port: u16,
    pub spool: PathBuf,
}

/// The attempts and their errors; `None` if an attempt succeeded.
pub type Results = BTreeMap<String, Option<String>>;

pub fn run_if_asked() -> Option<ExitCode> {
    let mut args = std::env::args().skip(1);
    if args.next()? != TRY {
        return None;
    }
    let targets: Targets = serde_json::from_str(&args.next()?).ok()?;
    let results: Results = TRIES
        .iter()
        .map(|(name, attempt)| ((*name).to_owned(), attempt(&targets).err().map(|error| error.to_string())))
        .collect();
    println!("{}", serde_json::to_string(&results).unwrap());
    Some(ExitCode::SUCCESS)
}

type Try = fn(&Targets) -> io::Result<()>;

pub const TRIES: &[(&str, Try)] = &[
    ("write a file outside", |t| fs::write(t.outside.join("written"), "x")),
    ("change a file outside", |t| append(&t.outside.join("file"))),
    ("truncate a file outside", |t| truncate(&t.outside.join("file"))),
    ("write through a symlink", |t| {
        let link = t.workspace.join("link");
        symlink(t.outside.join("file"), &link)?;
        append(&link)
    }),
    ("write through a new hardlink", |t| {
        let link = t.workspace.join("hardlink");
        fs::hard_link(t.outside.join("file"), &link)?;
        append(&link)
    }),
    ("rename a file of the workspace to outside", |t| {
        fs::write(t.workspace.join("moved"), "x")?;
        fs::rename(t.workspace.join("moved"), t.outside.join("moved"))
    }),
    ("remove a file outside", |t| fs::remove_file(t.outside.join("file"))),
    ("change the rights of a file outside", |t| {
        fs::set_permissions(t.outside.join("file"), Permissions::from_mode(0o777))
    }),
    ("change the times of a file outside", |t| {
        let file = File::open(t.outside.join("file"))?;
        file.set_modified(std::time::SystemTime::UNIX_EPOCH)
    }),
    ("write through /proc/self/root", |t| {
        append(&Path::new("/proc/self/root").join(t.outside.join("file").strip_prefix("/").unwrap()))
    }),
    ("write through the directory of the first process", |t| {
        append(&Path::new("/proc/1/root").join(t.outside.join("file").strip_prefix("/").unwrap()))
    }),
    ("write to the prompt through its open file", |_| append(Path::new("/proc/self/fd/0"))),
    ("write to the spool", |t| append(&t.spool.join("output"))),
    ("read a key", |t| fs::read(&t.key).map(drop)),
    ("read a hidden file of the workspace", |t| match &t.sealed {
        Some(path) => fs::read(path).map(drop),
        None => Err(io::Error::other("there is none")),
    }),
    ("find something hidden through the workspace", |t| find_hidden(t)),
    ("see that a key is there", |t| fs::metadata(&t.key).map(drop)),
    ("read the database", |t| fs::read(&t.database).map(drop)),
    ("list our own state", |t| {
        match fs::read_dir(&t.state)?.filter_map(Result::ok).find(|entry| entry.file_name() != "spool") {
            Some(_) => Ok(()),
            None => Err(io::Error::other("nothing of it is there")),
        }
    }),
    ("kill a process outside", |t| kill(t.victim)),
    ("trace a process outside", |t| {
        call(unsafe { libc::syscall(libc::SYS_ptrace, libc::PTRACE_ATTACH, t.victim, 0, 0) })
    }),
    ("read the memory of a process outside", |t| {
        OpenOptions::new().read(true).write(true).open(format!("/proc/{}/mem", t.victim)).map(drop)
    }),
    ("read memory by system call", |t| {
        let mut byte = 0_u8;
        let local = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
        let remote = local;
        call(unsafe {
            libc::syscall(libc::SYS_process_vm_readv, t.victim, &raw const local, 1, &raw const remote, 1, 0)
        })
    }),
    ("read the arguments of a process outside", |t| {
        fs::read(format!("/proc/{}/cmdline", t.victim)).map(drop)
    }),
    ("read the environment of the first process", |_| fs::read("/proc/1/environ").map(drop)),
    ("write the memory of the first process", |_| {
        OpenOptions::new().write(true).open("/proc/1/mem").map(drop)
    }),
    ("connect to an abstract socket", |t| {
        UnixStream::connect_addr(&SocketAddr::from_abstract_name(&t.abstract_socket)?).map(drop)
    }),
    ("connect to a socket in the file system", |t| UnixStream::connect(&t.socket).map(drop)),
    ("use an inherited file", |_| {
        for number in 3..256 {
            if unsafe { libc::fcntl(number, libc::F_GETFD) } >= 0 {
                return Ok(());
            }
        }
        Err(io::Error::other("there is none"))
    }),
    ("connect to a port of this machine", |t| {
        TcpStream::connect_timeout(&([127, 0, 0, 1], t.port).into(), Duration::from_secs(2)).map(drop)
    }),
    ("send a datagram", |t| UdpSocket::bind("127.0.0.1:0")?.send_to(b"x", ("127.0.0.1", t.port)).map(drop)),
    ("make a user namespace", |_| call(unsafe { libc::syscall(libc::SYS_unshare, libc::CLONE_NEWUSER) })),
    ("make a user namespace by clone3", |_| {
        let mut arguments = [0_u64; 8];
        arguments[0] = libc::CLONE_NEWUSER as u64;
        arguments[4] = libc::SIGCHLD as u64;
        let pid = unsafe { libc::syscall(libc::SYS_clone3, arguments.as_mut_ptr(), 64_usize) };
        if pid == 0 {
            unsafe { libc::_exit(0) };
        }
        call(pid)
    }),
    ("use io_uring", |_| {
        let mut parameters = [0_u8; 256];
        call(unsafe { libc::syscall(libc::SYS_io_uring_setup, 1, parameters.as_mut_ptr()) })
    }),
    ("mount something", |_| {
        let (none, tmp) = (CString::new("tmpfs")?, CString::new("/tmp")?);
        call(i64::from(unsafe {
            libc::mount(none.as_ptr(), tmp.as_ptr(), none.as_ptr(), 0, std::ptr::null())
        }))
    }),
    ("unmount what hides a key", |t| {
        let path = CString::new(t.key.parent().unwrap().to_str().unwrap())?;
        call(i64::from(unsafe { libc::umount2(path.as_ptr(), libc::MNT_DETACH) }))
    }),
    ("make the root writable again", |_| {
        let (none, root) = (CString::new("none")?, CString::new("/")?);
        call(i64::from(unsafe {
            libc::mount(
                none.as_ptr(),
                root.as_ptr(),
                std::ptr::null(),
                libc::MS_REMOUNT | libc::MS_BIND,
                std::ptr::null(),
            )
        }))
    }),
    ("type into a terminal", |_| {
        let byte = b'x';
        let refused = unsafe { libc::ioctl(0, libc::TIOCSTI, &raw const byte) };
        let error = io::Error::last_os_error();
        // Without a terminal it fails anyway: the filter must fail it with another error.
        if refused < 0 && error.raw_os_error() == Some(libc::EPERM) { Err(error) } else { Ok(()) }
    }),
    ("use the keyring", |_| call(unsafe { libc::syscall(libc::SYS_keyctl, 0, -3, 0) })),
    ("load a program into the kernel", |_| {
        let attributes = [0_u8; 128];
        call(unsafe { libc::syscall(libc::SYS_bpf, 0, attributes.as_ptr(), 128) })
    }),
    ("watch the kernel", |_| {
        let attributes = [0_u8; 128];
        call(unsafe { libc::syscall(libc::SYS_perf_event_open, attributes.as_ptr(), 0, -1, -1, 0) })
    }),
    ("handle page faults", |_| call(unsafe { libc::syscall(libc::SYS_userfaultfd, 1) })),
    ("speak to the host of a virtual machine", |_| {
        call(i64::from(unsafe { libc::socket(libc::AF_VSOCK, libc::SOCK_STREAM, 0) }))
    }),
    ("gain a capability", |_| {
        let status = fs::read_to_string("/proc/self/status")?;
        let is_none = |name: &str| {
            status.lines().any(|line| line.starts_with(name) && line.ends_with("0000000000000000"))
        };
        if is_none("CapEff:") && is_none("CapPrm:") && status.contains("NoNewPrivs:\t1") {
            Err(io::Error::other("there is none"))
        } else {
            Ok(())
        }
    }),
    ("change a setting of the kernel", |_| {
        // To its present value: any other would affect every user.
        let setting = "/proc/sys/kernel/core_pattern";
        fs::write(setting, fs::read(setting)?)
    }),
    ("open a disk, or another device that is not everybody's", |_| {
        let is_everybodys = |mode: u32| mode & 0o006 == 0o006;
        let devices = fs::read_dir("/dev").into_iter().flatten().flatten().map(|entry| entry.path());
        // The list may be hidden while the devices in it are not.
        let known =
            ["/dev/vda", "/dev/sda", "/dev/nvme0n1", "/dev/loop0", "/dev/kvm", "/dev/mem"].map(PathBuf::from);
        let own = devices.chain(known).filter(|path| {
            fs::metadata(path).is_ok_and(|found| {
                let kind = found.file_type();
                kind.is_block_device() || (kind.is_char_device() && !is_everybodys(found.mode()))
            })
        });
        let open =
            |path: PathBuf| OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path).is_ok();
        if own.into_iter().any(open) { Ok(()) } else { Err(io::Error::other("none can be opened")) }
    }),
    ("ask the kernel to reboot", |_| OpenOptions::new().write(true).open("/proc/sysrq-trigger").map(drop)),
    ("plant a hook", |t| fs::write(t.workspace.join(".git/hooks/pre-commit"), "x")),
    ("change the configuration of git", |t| append(&t.workspace.join(".git/config"))),
    ("lead git to another configuration", |t| fs::write(t.workspace.join(".git/commondir"), "../other")),
    ("rename .git away", |t| fs::rename(t.workspace.join(".git"), t.workspace.join("elsewhere"))),
    ("replace .git by a link", |t| {
        fs::remove_dir_all(t.workspace.join(".git"))?;
        symlink("elsewhere", t.workspace.join(".git"))
    }),
    ("rename the workspace away", |t| fs::rename(&t.workspace, t.workspace.with_extension("away"))),
    ("make settings of an agent that are missing", |t| {
        fs::create_dir_all(t.workspace.join(".claude"))?;
        fs::write(t.workspace.join(".claude/settings.json"), "{}")
    }),
    ("make a protected file that is missing", |t| append(&t.workspace.join(".mcp.json"))),
    ("remove a protected file", |t| fs::remove_file(t.workspace.join(".git/config"))),
    ("rename something over a protected file", |t| {
        fs::write(t.workspace.join("mine"), "x")?;
        fs::rename(t.workspace.join("mine"), t.workspace.join(".git/config"))
    }),
    ("write a file that is too long", |t| {
        // The signal that comes with it would kill this program.
        unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
        let file = File::create(t.workspace.join("long"))?;
        file.set_len(1 << 30)
    }),
    ("start more processes than allowed", |_| {
        let mut children = Vec::new();
        let mut stopped = None;
        for _ in 0..100 {
            match std::process::Command::new("/bin/sleep").arg("60").spawn() {
                Ok(child) => children.push(child),
                Err(error) => {
                    stopped = Some(error);
                    break;
                }
            }
        }
        for child in &mut children {
            child.kill()?;
            child.wait()?;
        }
        stopped.map_or(Ok(()), Err)
    }),
    ("use a hardlink that was there before", |t| append(&t.workspace.join("old-hardlink"))),
    ("read the agent's own login", |t| {
        fs::read(t.workspace.parent().unwrap().join(".agent/login")).map(drop)
    }),
    ("write the workspace", |t| fs::write(t.workspace.join("works"), "x")),
    ("write a temporary file", |_| {
        fs::write("/tmp/works", "x").and_then(|()| fs::read("/tmp/works").map(drop))
    }),
    ("write its own state", |t| fs::write(t.workspace.parent().unwrap().join(".agent/sessions/works"), "x")),
    ("read a program of the system", |_| File::open("/bin/sh")?.read(&mut [0; 4]).map(drop)),
];

/// Searches everything reachable from the workspace, through links too, for files of hidden directories.
fn find_hidden(targets: &Targets) -> io::Result<()> {
    let names = [&targets.key, &targets.database].map(|path| path.file_name().unwrap());
    let mut next = vec![(targets.workspace.clone(), 0)];
    let mut seen = 0;
    while let Some((directory, depth)) = next.pop() {
        for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
            let path = entry.path();
            let Ok(found) = fs::metadata(&path) else { continue };
            if found.is_dir() && depth < 5 {
                next.push((path, depth + 1));
            } else if found.is_file() && names.contains(&entry.file_name().as_os_str()) {
                if fs::read(&path)? == b"as it was" {
                    return Ok(());
                }
            } else if found.file_type().is_socket() && path.ends_with("daemon.sock") {
                return UnixStream::connect(&path).map(drop);
            }
            seen += 1;
            if seen > 3000 {
                return Err(io::Error::other("there is too much"));
            }
        }
    }
    Err(io::Error::other("there is nothing"))
}

fn append(path: &Path) -> io::Result<()> {
    OpenOptions::new().append(true).create(true).open(path)?.write_all(b"x")
}

fn truncate(path: &Path) -> io::Result<()> {
    let path = CString::new(path.to_str().unwrap())?;
    call(i64::from(unsafe { libc::truncate(path.as_ptr(), 0) }))
}

fn kill(pid: i32) -> io::Result<()> {
    Ok(kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL)?)
}

fn call(result: i64) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
