//! Prepares a command for its start in a sandbox: arguments, descriptors, mounts, rules and environment.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use model::{
    AgentState, Confined, Confinement, Network, PRIVATE_DIRECTORIES as PRIVATE, Requirement, RootAccess,
};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::pipe::{PipeFlags, pipe_with};

use crate::bubblewrap;
use crate::caches;
use crate::cgroup::Cgroup;
use crate::home::{AbsentHome, HomeNeeds};
use crate::landlock;
use crate::launcher::LAUNCHER_ARGUMENT;
use crate::launcher_protocol::{AppliedRules, Rules, SandboxSpec};
use crate::layout::Layout;
use crate::layout_builder::{HiddenPath, LayoutInputs, build_layout, resolve_hidden};
use crate::mechanisms::{Mechanisms, Tier, VerifiedSandbox};
use crate::mount_plan::{Mount, plan_mounts};
use crate::needed_paths::find_needed_paths;
use crate::nested_repositories::NestedRepositories;
use crate::proxy::Proxy;
use crate::proxy_listener;
use crate::quarantine::Quarantine;
use crate::real_path::real_path;
use crate::rejection::SandboxRejection;
use crate::report::ReportInputs;
use crate::state_view::StateView;
use crate::writable_roots::HeldRoots;

/// Temporary directories of the machine, which a run without namespaces shares with others.
const SHARED_TEMPORARY: [&str; 2] = ["/tmp", "/var/tmp"];

/// Devices that every program may write to without mounts. They are the same as in a sandbox with mounts: access to the device of a
/// disk would be access to every file on it.
const SHARED_DEVICES: [&str; 9] = [
    "/dev/null",
    "/dev/zero",
    "/dev/full",
    "/dev/random",
    "/dev/urandom",
    "/dev/tty",
    "/dev/ptmx",
    "/dev/pts",
    "/dev/shm",
];

/// Switchboard's programs, which are installed in one directory.
const OWN_PROGRAMS: [&str; 5] =
    ["switchboard", "switchboard-supervisor", "file-tools", "terminal-host", "rehearsal"];

/// A command to run in a sandbox.
#[derive(Debug)]
pub struct SandboxedCommand<'a> {
    /// The policy.
    pub confinement: &'a Confinement,
    /// The program.
    pub program: &'a Path,
    /// Its arguments.
    pub args: &'a [String],
    /// Its whole environment.
    pub env: BTreeMap<String, String>,
    /// Its working directory.
    pub cwd: &'a Path,
    /// The repositories in its workspaces, found before the missing paths of other runs were read.
    pub repositories: &'a NestedRepositories,
    /// The missing paths of other active runs: files found there are not the user's. `None` if they are unknown.
    pub others: Option<&'a [Quarantine]>,
    /// A directory of the run for its copies, and for its temporary files if it has no private `/tmp` and cannot share the machine's.
    /// Created if needed.
    pub temporary: Option<&'a Path>,
    /// The open executable that is started again as the launcher; its `main` calls [`crate::run_if_requested`].
    pub executable: BorrowedFd<'a>,
}

/// A sandbox that is ready for its command to be spawned.
#[derive(Debug)]
pub struct PreparedSandbox {
    /// The program to spawn. Its environment must be empty except for the run's id.
    pub program: PathBuf,
    /// The arguments of the program.
    pub args: Vec<OsString>,
    /// The tier that confines it.
    pub tier: Tier,
    /// The pipe of [`crate::LauncherEvent`]s.
    pub events: OwnedFd,
    /// Descriptors that the process inherits; drop them after the spawn.
    pub inherited: Inherited,
    /// The protected paths that do not exist; must be durable before the process starts.
    pub quarantine: Quarantine,
    /// The open directories that the process may write to.
    pub held_roots: HeldRoots,
    /// The cgroup of the run, if one is delegated. The process must enter it before it calls exec.
    pub cgroup: Option<Cgroup>,
    /// The supervisor's end of the channel over which the proxy's listener is sent.
    proxy_channel: Option<OwnedFd>,
    verified: VerifiedSandbox,
    confinement: Confinement,
    mechanisms: Mechanisms,
    unprotected: Vec<PathBuf>,
    knows_others: bool,
    shares_temporary: bool,
    git_read_only: Option<String>,
    exposed: Vec<PathBuf>,
}

/// Descriptors without `FD_CLOEXEC` for one process. Until they are dropped, any other spawned process inherits them, too.
#[derive(Debug, Default)]
pub struct Inherited(Vec<OwnedFd>);

impl Inherited {
    fn add(&mut self, file: OwnedFd) -> io::Result<i32> {
        fcntl_setfd(&file, FdFlags::empty())?;
        let number = file.as_raw_fd();
        self.0.push(file);
        Ok(number)
    }
}

/// Prepares a sandbox for a command.
pub fn prepare(
    command: &SandboxedCommand<'_>,
    verified: VerifiedSandbox,
) -> Result<PreparedSandbox, SandboxRejection> {
    let confinement = command.confinement;
    let mechanisms = verified.mechanisms.clone();
    let namespaces = verified.tier == Tier::Namespaces;
    let own = executable_directory(command.executable);
    let hidden = resolve_hidden(&confinement.hidden).map_err(SandboxRejection::Layout)?;
    let absent = find_home(command, own.as_deref(), &hidden)?;
    let mut needed = find_needed_paths(&programs(command), &command.env, own.as_deref());
    if let Some(absent) = &absent {
        needed.retain(|path| !absent.contains(path) && !absent.directories.contains(path));
    }
    let home = command.env.get("HOME").map(Path::new);
    let own_programs = own_programs(command.executable);
    let states = build_states(command, verified.tier, &hidden)?;
    let inputs = LayoutInputs {
        hidden: &hidden,
        needed: &needed,
        own_programs: &own_programs,
        home,
        xdg_config: command.env.get("XDG_CONFIG_HOME").map(Path::new).filter(|path| path.is_absolute()),
        states: &states,
        absent: absent.as_ref(),
        others: command.others.unwrap_or_default(),
        tier: verified.tier,
        repositories: command.repositories,
        copies: command.temporary.filter(|_| namespaces),
    };
    let mut layout = build_layout(confinement, inputs).map_err(SandboxRejection::Layout)?;
    reject_gaps(command, &layout)?;
    let mut inherited = Inherited::default();
    let (events, event_sink) =
        pipe_with(PipeFlags::CLOEXEC).map_err(|error| SandboxRejection::Files(error.into()))?;
    let executable = inherited
        .add(command.executable.try_clone_to_owned().map_err(SandboxRejection::Files)?)
        .map_err(SandboxRejection::Files)?;
    let event_sink = inherited.add(event_sink).map_err(SandboxRejection::Files)?;
    let (proxy_channel, launcher_end) = match confinement.network {
        Network::Hosts(_) if namespaces => {
            let (channel, launcher_end) =
                proxy_listener::create_channel().map_err(SandboxRejection::Files)?;
            (Some(channel), Some(inherited.add(launcher_end).map_err(SandboxRejection::Files)?))
        }
        _ => (None, None),
    };
    let temporary = TemporaryFiles::select(verified.tier, command, &layout);
    if let TemporaryFiles::Directory(directory) = &temporary {
        regular_file::create_private_directory(directory).map_err(SandboxRejection::Files)?;
    }
    let homes = absent.as_ref().map_or(&[][..], |absent| &absent.directories);
    let spec =
        build_spec(command, &layout, homes, verified.tier, &temporary).map_err(SandboxRejection::Layout)?;
    let mut spec = SandboxSpec { proxy_channel: launcher_end, ..spec };
    if let (Some(absent), Tier::Rules) = (&absent, verified.tier) {
        let linked = link_home(command, absent, &mut spec.env).map_err(SandboxRejection::Files)?;
        spec.rules.read.extend(linked);
    }
    for (view, state) in states.iter().zip(&confinement.states) {
        allow_state(view, state, verified.tier, &mut spec);
        let kept =
            layout.quarantine.watch_kept_state(&view.kept, &view.private, command.others.unwrap_or_default());
        kept.map_err(SandboxRejection::Files)?;
    }
    if let TemporaryFiles::Directory(directory) = &temporary {
        // The agent's environment names a private `/tmp`.
        let named = spec.env.values_mut().filter(|value| *value == "/tmp");
        named.for_each(|value| *value = directory.display().to_string());
    }
    set_caches(command, namespaces, &mut spec).map_err(SandboxRejection::Files)?;
    if mechanisms.enforces_writes(verified.tier) {
        spec.env.extend(confinement.env_if_held.clone());
    }
    let spec = spec.to_file().map_err(SandboxRejection::Files)?;
    let spec = inherited.add(spec).map_err(SandboxRejection::Files)?;
    let bubblewrap = mechanisms.bubblewrap.clone().filter(|_| namespaces);
    let (program, args) = launcher_command(bubblewrap, &confinement.network, [executable, spec, event_sink]);
    // If it cannot be created after all, the report says so.
    let delegated =
        mechanisms.cgroup.as_ref().filter(|cgroup| cgroup.is_needed(confinement.bounds, namespaces));
    let cgroup = delegated.and_then(|delegated| delegated.create(confinement.bounds).ok());
    let mechanisms =
        Mechanisms { cgroup: mechanisms.cgroup.clone().filter(|_| cgroup.is_some()), ..mechanisms };
    let Layout { unprotected, quarantine, held_roots, git_read_only, exposed, .. } = layout;
    let confinement = confinement.clone();
    Ok(PreparedSandbox {
        program,
        args,
        tier: verified.tier,
        events,
        inherited,
        quarantine,
        held_roots,
        cgroup,
        proxy_channel,
        verified,
        confinement,
        mechanisms,
        unprotected,
        knows_others: command.others.is_some(),
        shares_temporary: matches!(temporary, TemporaryFiles::Shared),
        git_read_only,
        exposed,
    })
}

/// Returns the program and the arguments that start the launcher, in namespaces if there is a bubblewrap. The descriptors are those of the
/// executable, the spec and the event pipe.
fn launcher_command(
    bubblewrap: Option<PathBuf>,
    network: &Network,
    [executable, spec, event_sink]: [i32; 3],
) -> (PathBuf, Vec<OsString>) {
    let executable = PathBuf::from(format!("/proc/self/fd/{executable}"));
    let launcher_args =
        [LAUNCHER_ARGUMENT.to_owned(), spec.to_string(), event_sink.to_string()].map(OsString::from);
    match bubblewrap {
        Some(bubblewrap) => {
            let start = bubblewrap::arguments(network).into_iter().chain(["--"]);
            let start = start.map(OsString::from).chain([executable.into_os_string()]);
            (bubblewrap, start.chain(launcher_args).collect())
        }
        None => (executable, launcher_args.to_vec()),
    }
}

/// Rejects a required policy that cannot be fully enforced in these workspaces.
fn reject_gaps(command: &SandboxedCommand<'_>, layout: &Layout) -> Result<(), SandboxRejection> {
    if command.confinement.requirement != Requirement::Require {
        return Ok(());
    }
    if let Some(workspace) = command.repositories.unexamined.first() {
        return Err(SandboxRejection::Unexaminable { workspace: workspace.clone() });
    }
    if layout.unprotected.is_empty() {
        Ok(())
    } else {
        Err(SandboxRejection::Unprotectable { paths: layout.unprotected.clone() })
    }
}

/// Returns the program of the command and that of the agent, if they are two.
fn programs<'a>(command: &SandboxedCommand<'a>) -> Vec<&'a Path> {
    let hosted = command.confinement.hosted_program.as_deref();
    std::iter::once(command.program).chain(hosted).collect()
}

/// Finds the parts of the home directory that are exposed to the run.
fn find_home(
    command: &SandboxedCommand<'_>,
    own: Option<&Path>,
    hidden: &[HiddenPath],
) -> Result<Option<AbsentHome>, SandboxRejection> {
    let Some(view) = &command.confinement.home else { return Ok(None) };
    let hidden = real_paths(hidden);
    let writable = command.confinement.roots.iter().filter(|root| root.access != RootAccess::Read);
    let writable: Vec<PathBuf> = writable.filter_map(|root| real_path(&root.path).ok()).collect();
    let (programs, env) = (&programs(command)[..], &command.env);
    let mut home =
        AbsentHome::find(HomeNeeds { view, programs, env, own, hidden: &hidden, writable: &writable });
    if let Some(directory) = command.temporary {
        home.write_files(&directory.join("files"), &command.env).map_err(SandboxRejection::Files)?;
    }
    Ok(Some(home))
}

/// Points `HOME` of a run without namespaces to a directory of links. Returns the paths that become readable.
fn link_home(
    command: &SandboxedCommand<'_>,
    absent: &AbsentHome,
    env: &mut BTreeMap<String, String>,
) -> io::Result<Vec<PathBuf>> {
    let (Some(directory), Some(home)) = (command.temporary, env.get_mut("HOME")) else {
        return Ok(Vec::new());
    };
    let directory = directory.join("home");
    let roots: Vec<&Path> = command.confinement.roots.iter().map(|root| root.path.as_path()).collect();
    absent.write_links(&directory, &roots)?;
    *home = directory.display().to_string();
    let copies = absent.files.iter().map(|(_, copy)| copy.as_path());
    std::iter::once(directory.as_path()).chain(copies).map(real_path).collect()
}

fn real_paths(hidden: &[HiddenPath]) -> Vec<PathBuf> {
    hidden.iter().map(|hidden| hidden.real.path.clone()).collect()
}

/// Builds the views of the agent's own state in the temporary directory of the run.
fn build_states(
    command: &SandboxedCommand<'_>,
    tier: Tier,
    hidden: &[HiddenPath],
) -> Result<Vec<StateView>, SandboxRejection> {
    let no_directory =
        || SandboxRejection::Files(io::Error::other("the run has no directory for temporary files"));
    let build = |(number, state): (usize, &AgentState)| {
        let directory = command.temporary.ok_or_else(no_directory)?.join(format!("agent-{number}"));
        StateView::build(state, &directory, &real_paths(hidden), tier).map_err(SandboxRejection::Files)
    };
    command.confinement.states.iter().enumerate().map(build).collect()
}

/// Allows access to the paths of a view. Without namespaces, the agent's variable is changed to the view.
fn allow_state(view: &StateView, state: &AgentState, tier: Tier, spec: &mut SandboxSpec) {
    let rules = &mut spec.rules;
    if tier == Tier::Namespaces {
        rules.write.push(view.target.clone());
        return;
    }
    rules.write.push(view.private.clone());
    rules.write.extend(view.kept.iter().cloned());
    rules.read.extend(view.shown.iter().cloned());
    let variable = state.variable.as_ref().and_then(|name| spec.env.get_mut(name));
    if let Some(value) = variable
        && let Some(private) = view.variable_value(state, value)
    {
        *value = private.display().to_string();
    }
}

/// Sets the variables of package caches, and creates the caches that outlive the run or cannot be in a private `/tmp`.
fn set_caches(command: &SandboxedCommand<'_>, namespaces: bool, spec: &mut SandboxSpec) -> io::Result<()> {
    let Some(caches) = &command.confinement.caches else { return Ok(()) };
    let own = || if namespaces { None } else { command.temporary };
    let base = caches.directory.clone().or_else(|| Some(own()?.join("caches")));
    match base {
        Some(base) => {
            caches::create_caches(caches, &base, &mut spec.env)?;
            spec.rules.write.push(real_path(&base)?);
        }
        // The package managers create them.
        None if namespaces => caches::set_cache_variables(caches, Path::new("/tmp/caches"), &mut spec.env),
        None => {}
    }
    Ok(())
}

/// Returns the launcher's executable and Switchboard's programs beside it: the next run starts them outside of any sandbox.
fn own_programs(executable: BorrowedFd<'_>) -> Vec<PathBuf> {
    let Some(directory) = executable_directory(executable) else { return Vec::new() };
    let running = std::fs::read_link(format!("/proc/self/fd/{}", executable.as_raw_fd()));
    OWN_PROGRAMS.map(|name| directory.join(name)).into_iter().chain(running.ok()).collect()
}

/// Returns the directory of the launcher's executable and of Switchboard's other programs.
fn executable_directory(executable: BorrowedFd<'_>) -> Option<PathBuf> {
    let path = std::fs::read_link(format!("/proc/self/fd/{}", executable.as_raw_fd())).ok()?;
    path.parent().filter(|directory| directory.is_dir()).map(Path::to_owned)
}

/// The location of a run's temporary files.
enum TemporaryFiles {
    /// A private `/tmp` of the sandbox.
    Private,
    /// The machine's temporary directories.
    Shared,
    /// A directory of the run.
    Directory(PathBuf),
    /// None.
    None,
}

impl TemporaryFiles {
    /// Selects the location. Without namespaces the machine's directories are shared, unless a path in them must not be written or seen:
    /// Landlock cannot revoke access below an allowed directory.
    fn select(tier: Tier, command: &SandboxedCommand<'_>, layout: &Layout) -> Self {
        if tier == Tier::Namespaces {
            return Self::Private;
        }
        let confinement = command.confinement;
        let read = confinement.roots.iter().filter(|root| root.access == RootAccess::Read);
        let read = read.map(|root| root.path.as_path());
        let home = command.env.get("HOME").map(Path::new);
        let restricted = read.chain(layout.hidden.iter().map(PathBuf::as_path)).chain(home);
        let mut restricted = restricted.chain(confinement.proofs.as_deref());
        if !restricted.any(|path| SHARED_TEMPORARY.iter().any(|shared| path.starts_with(shared))) {
            return Self::Shared;
        }
        command.temporary.map_or(Self::None, |directory| Self::Directory(directory.to_owned()))
    }

    fn writable(&self) -> Vec<PathBuf> {
        match self {
            Self::Private => PRIVATE.map(PathBuf::from).to_vec(),
            Self::Shared => SHARED_TEMPORARY.map(PathBuf::from).to_vec(),
            Self::Directory(directory) => vec![directory.clone()],
            Self::None => Vec::new(),
        }
    }
}

/// Builds the spec of the launcher, without the channel of the proxy.
fn build_spec(
    command: &SandboxedCommand<'_>,
    layout: &Layout,
    homes: &[PathBuf],
    tier: Tier,
    temporary: &TemporaryFiles,
) -> io::Result<SandboxSpec> {
    let confinement = command.confinement;
    let namespaces = tier == Tier::Namespaces;
    // Not /proc: it contains kernel settings that root could change.
    let common: Vec<&str> = if namespaces { vec!["/dev"] } else { SHARED_DEVICES.to_vec() };
    let common = common.into_iter().map(PathBuf::from).chain(temporary.writable());
    // No agent can write to their parent directories, so they resolve to the same targets inside.
    let common = common.filter_map(|path| real_path(&path).ok());
    Ok(SandboxSpec {
        program: command.program.to_owned(),
        args: command.args.to_vec(),
        env: command.env.clone(),
        cwd: command.cwd.to_owned(),
        mounts: namespaces.then(|| plan_mounts(&layout.mounts)).transpose()?,
        proxy_channel: None,
        rules: Rules {
            read: find_readable(layout, homes, tier),
            // Hidden directories are empty mounts.
            list: namespaces.then(|| PathBuf::from("/")).into_iter().collect(),
            write: layout.writable.iter().cloned().chain(common).collect(),
            roots: layout.quarantine.roots().to_vec(),
            unix_sockets: confinement.unix_sockets,
            internet: namespaces || confinement.network == Network::Full,
            bounds: confinement.bounds,
            required: confinement.requirement == Requirement::Require,
        },
    })
}

/// Returns all paths except for the hidden ones and the home directory, and the exposed paths inside of those.
fn find_readable(layout: &Layout, homes: &[PathBuf], tier: Tier) -> Vec<PathBuf> {
    // Writable paths are readable, and Landlock cannot revoke access below them.
    let is_writable = |path: &&PathBuf| layout.writable.iter().any(|root| path.starts_with(root));
    let devices = (tier == Tier::Rules).then(|| PathBuf::from("/dev"));
    let hidden = layout.hidden.iter().filter(|path| !is_writable(path)).chain(homes).cloned().chain(devices);
    let hidden: Vec<PathBuf> = hidden.collect();
    let is_shown = |(path, mount): &&(PathBuf, Mount)| match mount {
        Mount::Read => true,
        // Without mounts, a path leads to the machine's file.
        Mount::ReadFrom(source) => tier == Tier::Namespaces || path == source,
        _ => false,
    };
    let shown = layout.mounts.iter().filter(is_shown).map(|(path, _)| path);
    let shown = shown.chain(layout.exposed.iter().filter(|_| tier == Tier::Rules));
    let shown = shown.flat_map(|path| landlock::paths_below(path, &layout.hidden));
    landlock::paths_beside(&hidden, layout.has_aliases).into_iter().chain(shown).collect()
}

impl PreparedSandbox {
    /// Starts the proxy if the policy names hosts. Must be called after the launcher has reported that the agent runs.
    pub fn start_proxy(&self) -> io::Result<Option<Proxy>> {
        match (&self.proxy_channel, &self.confinement.network) {
            (Some(channel), Network::Hosts(hosts)) => {
                Ok(Some(Proxy::start(proxy_listener::receive(channel.as_fd())?, hosts)?))
            }
            _ => Ok(None),
        }
    }

    /// Reports which safeguards confine the process, from the rules that the launcher applied.
    pub fn report(&self, applied: AppliedRules) -> Confined {
        ReportInputs {
            tier: self.tier,
            applied,
            confinement: &self.confinement,
            mechanisms: &self.mechanisms,
            unprotected: &self.unprotected,
            knows_others: self.knows_others,
            shares_temporary: self.shares_temporary,
            git_read_only: self.git_read_only.as_deref(),
            exposed: &self.exposed,
        }
        .build(self.verified.proof.clone())
    }
}
