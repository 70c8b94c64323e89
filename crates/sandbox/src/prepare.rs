//! Making a process ready to be started in a sandbox.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::DirBuilder;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use model::exact_path::show_path;
use model::{
    AgentState, Confined, Confinement, Escape, Network, PRIVATE_DIRECTORIES as PRIVATE, Requirement,
    RootAccess,
};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::pipe::{PipeFlags, pipe_with};

use crate::bubblewrap;
use crate::caches;
use crate::cgroup::Cgroup;
use crate::description::{Applied, Description, Rules};
use crate::door;
use crate::home::{AbsentHome, HomeNeeds};
use crate::inside::INSIDE;
use crate::landlock;
use crate::layout::{Around, Layout, Mount};
use crate::machine::{Machine, Tier};
use crate::mount_plan::plan_mounts;
use crate::needed::needed;
use crate::nested::NestedRepositories;
use crate::proof::Settled;
use crate::proxy::Proxy;
use crate::quarantine::{HeldRoots, Quarantine};
use crate::real::Real;
use crate::report::Facts;
use crate::repositories::MAX_DIRECTORIES;
use crate::state::StateView;

/// Temporary directories of the machine, which a run without namespaces shares with others.
const SHARED_TEMPORARY: [&str; 2] = ["/tmp", "/var/tmp"];

/// What every program may write where there are no mounts of its own: the devices that a sandbox with mounts has
/// too. No others: a disk holds every file, and root needs no more than its number to open it.
const SHARED: [&str; 9] = [
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
const OWN_PROGRAMS: [&str; 4] = ["switchboard", "switchboard-supervisor", "file-tools", "rehearsal"];

/// What is to run in the sandbox.
#[derive(Debug)]
pub struct Job<'a> {
    /// Within what.
    pub confinement: &'a Confinement,
    /// The program, its arguments, its whole environment, and its folder.
    pub program: &'a Path,
    /// Its arguments.
    pub args: &'a [String],
    /// Its whole environment.
    pub env: BTreeMap<String, String>,
    /// Its folder.
    pub cwd: &'a Path,
    /// The repositories in its workspaces, found before the missing paths of other runs were read.
    pub repositories: &'a NestedRepositories,
    /// The missing paths of other active runs: whatever is found there is not the user's. None where they are not known.
    pub others: Option<&'a [Quarantine]>,
    /// A directory for its temporary files, where it has no `/tmp` of its own and cannot share the machine's. Created when needed.
    pub temporary: Option<&'a Path>,
    /// The executable that is started again as the one inside, opened; its `main` calls [`crate::run_if_asked`].
    pub executable: BorrowedFd<'a>,
}

/// A process that is ready to be started.
#[derive(Debug)]
pub struct Prepared {
    /// What to start, with what arguments. Its environment is to be empty but for what identifies the run.
    pub program: PathBuf,
    /// The arguments.
    pub args: Vec<OsString>,
    /// How it is confined.
    pub tier: Tier,
    /// What it says; see [`crate::Word`].
    pub words: OwnedFd,
    /// Open files that the process inherits; to be dropped once it is started.
    pub inherited: Inherited,
    /// The protected paths that do not exist, which is to be written down before the process starts.
    pub quarantine: Quarantine,
    /// The directories that the process may write.
    pub held_roots: HeldRoots,
    /// What counts, bounds and kills it as a whole, where that is delegated. The process is to enter it before it becomes anything.
    pub cgroup: Option<Cgroup>,
    /// Where the door to named hosts is handed out.
    line: Option<OwnedFd>,
    settled: Settled,
    confinement: Confinement,
    machine: Machine,
    unprotected: Vec<PathBuf>,
    knows_others: bool,
    shares_temporary: bool,
    git_read_only: Option<String>,
    exposed: Vec<PathBuf>,
}

/// Open files for one process. Until they are dropped, any other process that is started has them too.
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

/// Prepares a process.
pub fn prepare(job: &Job<'_>, settled: Settled) -> Result<Prepared, Refusal> {
    let confinement = job.confinement;
    let machine = settled.machine.clone();
    let namespaces = settled.tier == Tier::Namespaces;
    let own = executable_directory(job.executable);
    let absent = find_home(job, own.as_deref())?;
    let mut needed = needed(job.program, &job.env, own.as_deref());
    if let Some(absent) = &absent {
        needed.retain(|path| !absent.contains(path) && !absent.directories.contains(path));
    }
    let home = job.env.get("HOME").map(Path::new);
    let own_programs = own_programs(job.executable);
    let state = build_state(job, settled.tier)?;
    let around = Around {
        needed: &needed,
        own_programs: &own_programs,
        home,
        xdg_config: job.env.get("XDG_CONFIG_HOME").map(Path::new).filter(|path| path.is_absolute()),
        state: state.as_ref(),
        absent: absent.as_ref(),
        others: job.others.unwrap_or_default(),
        tier: settled.tier,
        repositories: job.repositories,
        copies: job.temporary.filter(|_| namespaces),
    };
    let mut layout = Layout::of(confinement, around).map_err(Refusal::Layout)?;
    refuse_gaps(job, &layout)?;
    let mut inherited = Inherited::default();
    let (words, speaker) = pipe_with(PipeFlags::CLOEXEC).map_err(refused)?;
    let executable = inherited
        .add(job.executable.try_clone_to_owned().map_err(Refusal::Files)?)
        .map_err(Refusal::Files)?;
    let speaker = inherited.add(speaker).map_err(Refusal::Files)?;
    let (line, door) = match confinement.network {
        Network::Hosts(_) if namespaces => {
            let (line, its_end) = door::line().map_err(Refusal::Files)?;
            (Some(line), Some(inherited.add(its_end).map_err(Refusal::Files)?))
        }
        _ => (None, None),
    };
    let temporary = if namespaces { Temporary::Own } else { Temporary::of_rules(job, &layout) };
    if let Temporary::Directory(directory) = &temporary {
        DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(Refusal::Files)?;
    }
    let homes = absent.as_ref().map_or(&[][..], |absent| &absent.directories);
    let description = describe(job, &layout, homes, settled.tier, &temporary).map_err(Refusal::Layout)?;
    let mut description = Description { door, ..description };
    if let (Some(absent), Tier::Rules) = (&absent, settled.tier) {
        let linked = link_home(job, absent, &mut description.env).map_err(Refusal::Files)?;
        description.rules.read.extend(linked);
    }
    if let (Some(view), Some(state)) = (&state, &confinement.state) {
        allow_state(view, state, settled.tier, &mut description);
        let kept = layout.quarantine.keep_plain(&view.kept, &view.private, job.others.unwrap_or_default());
        kept.map_err(Refusal::Files)?;
    }
    if let Temporary::Directory(directory) = &temporary {
        // The agent was told of a `/tmp` of its own.
        let named = description.env.values_mut().filter(|value| *value == "/tmp");
        named.for_each(|value| *value = directory.display().to_string());
    }
    set_caches(job, namespaces, &mut description).map_err(Refusal::Files)?;
    if machine.holds_writes(settled.tier) {
        description.env.extend(confinement.env_if_held.clone());
    }
    let description = description.to_file().map_err(Refusal::Files)?;
    let description = inherited.add(description).map_err(Refusal::Files)?;
    let again = PathBuf::from(format!("/proc/self/fd/{executable}"));
    let inside = [INSIDE.to_owned(), description.to_string(), speaker.to_string()].map(OsString::from);
    let (program, args) = match machine.bubblewrap.clone().filter(|_| namespaces) {
        Some(bubblewrap) => {
            let start = bubblewrap::arguments(&confinement.network).into_iter().chain(["--"]);
            let start = start.map(OsString::from).chain([again.into_os_string()]);
            (bubblewrap, start.chain(inside).collect())
        }
        None => (again, inside.to_vec()),
    };
    // Where it cannot be made after all, the report says so.
    let place = machine.cgroup.as_ref().filter(|place| place.is_worth_it(confinement.bounds, namespaces));
    let cgroup = place.and_then(|place| place.make(confinement.bounds).ok());
    let machine = Machine { cgroup: machine.cgroup.clone().filter(|_| cgroup.is_some()), ..machine };
    let Layout { unprotected, quarantine, held_roots, git_read_only, exposed, .. } = layout;
    let confinement = confinement.clone();
    Ok(Prepared {
        program,
        args,
        tier: settled.tier,
        words,
        inherited,
        quarantine,
        held_roots,
        cgroup,
        line,
        settled,
        confinement,
        machine,
        unprotected,
        knows_others: job.others.is_some(),
        shares_temporary: matches!(temporary, Temporary::Shared),
        git_read_only,
        exposed,
    })
}

/// Refuses a policy that is required and cannot be enforced as a whole in these workspaces.
fn refuse_gaps(job: &Job<'_>, layout: &Layout) -> Result<(), Refusal> {
    if job.confinement.requirement != Requirement::Require {
        return Ok(());
    }
    if let Some(workspace) = job.repositories.unexamined.first() {
        return Err(Refusal::Unexaminable { workspace: workspace.clone() });
    }
    if layout.unprotected.is_empty() {
        Ok(())
    } else {
        Err(Refusal::Unprotectable { paths: layout.unprotected.clone() })
    }
}

/// Finds the parts of the home directory that the run sees.
fn find_home(job: &Job<'_>, own: Option<&Path>) -> Result<Option<AbsentHome>, Refusal> {
    let Some(view) = &job.confinement.home else { return Ok(None) };
    let hidden = real_paths(&job.confinement.hidden);
    let written = job.confinement.roots.iter().filter(|root| root.access != RootAccess::Read);
    let written: Vec<PathBuf> = written.filter_map(|root| Real::path(&root.path).ok()).collect();
    let (program, env) = (job.program, &job.env);
    let mut home =
        AbsentHome::find(HomeNeeds { view, program, env, own, hidden: &hidden, written: &written });
    if let Some(directory) = job.temporary {
        home.write_files(&directory.join("files"), &job.env).map_err(Refusal::Files)?;
    }
    Ok(Some(home))
}

/// Leads the programs of a run without namespaces to a home directory of links.
fn link_home(
    job: &Job<'_>,
    absent: &AbsentHome,
    env: &mut BTreeMap<String, String>,
) -> io::Result<Vec<PathBuf>> {
    let (Some(directory), Some(home)) = (job.temporary, env.get_mut("HOME")) else { return Ok(Vec::new()) };
    let directory = directory.join("home");
    let roots: Vec<&Path> = job.confinement.roots.iter().map(|root| root.path.as_path()).collect();
    absent.link(&directory, &roots)?;
    *home = directory.display().to_string();
    let copies = absent.files.iter().map(|(_, copy)| copy.as_path());
    std::iter::once(directory.as_path()).chain(copies).map(Real::path).collect()
}

fn real_paths(paths: &[PathBuf]) -> Vec<PathBuf> {
    paths.iter().filter_map(|path| Real::path(path).ok()).collect()
}

/// Builds the view of the agent's own state, in the directory of the run's temporary files.
fn build_state(job: &Job<'_>, tier: Tier) -> Result<Option<StateView>, Refusal> {
    let Some(state) = &job.confinement.state else { return Ok(None) };
    let no_directory = || Refusal::Files(io::Error::other("the run has no directory for temporary files"));
    let directory = job.temporary.ok_or_else(no_directory)?;
    let hidden = real_paths(&job.confinement.hidden);
    StateView::build(state, directory, &hidden, tier).map(Some).map_err(Refusal::Files)
}

/// Allows the paths of a view. Without namespaces, the agent's variable leads to the view.
fn allow_state(view: &StateView, state: &AgentState, tier: Tier, description: &mut Description) {
    let rules = &mut description.rules;
    if tier == Tier::Namespaces {
        rules.write.push(view.place.clone());
        return;
    }
    rules.write.push(view.private.clone());
    rules.write.extend(view.kept.iter().cloned());
    rules.read.extend(view.shown.iter().cloned());
    let variable = state.variable.as_ref().and_then(|name| description.env.get_mut(name));
    if let Some(value) = variable
        && let Some(private) = view.variable_value(state, value)
    {
        *value = private.display().to_string();
    }
}

/// Names the caches of package managers, and creates those that outlive the run or have no `/tmp` of its own.
fn set_caches(job: &Job<'_>, namespaces: bool, description: &mut Description) -> io::Result<()> {
    let Some(caches) = &job.confinement.caches else { return Ok(()) };
    let own = || if namespaces { None } else { job.temporary };
    let base = caches.directory.clone().or_else(|| Some(own()?.join("caches")));
    match base {
        Some(base) => {
            caches::create(caches, &base, &mut description.env)?;
            description.rules.write.push(Real::path(&base)?);
        }
        // Created by whoever uses them.
        None if namespaces => caches::name(caches, Path::new("/tmp/caches"), &mut description.env),
        None => {}
    }
    Ok(())
}

/// Returns the executable that is started again and Switchboard's programs beside it: the next run starts them outside of any sandbox.
fn own_programs(executable: BorrowedFd<'_>) -> Vec<PathBuf> {
    let Some(directory) = executable_directory(executable) else { return Vec::new() };
    let running = std::fs::read_link(format!("/proc/self/fd/{}", executable.as_raw_fd()));
    OWN_PROGRAMS.map(|name| directory.join(name)).into_iter().chain(running.ok()).collect()
}

/// Returns the directory of the executable that is started again, where Switchboard's other programs are too.
fn executable_directory(executable: BorrowedFd<'_>) -> Option<PathBuf> {
    let path = std::fs::read_link(format!("/proc/self/fd/{}", executable.as_raw_fd())).ok()?;
    path.parent().filter(|directory| directory.is_dir()).map(Path::to_owned)
}

fn refused(error: rustix::io::Errno) -> Refusal {
    Refusal::Files(error.into())
}

/// Where the temporary files of a run are.
enum Temporary {
    /// In a `/tmp` that is the sandbox's own.
    Own,
    /// Where those of all programs are.
    Shared,
    /// In a directory of the run.
    Directory(PathBuf),
    /// Nowhere.
    None,
}

impl Temporary {
    /// Without namespaces, the machine's directories are shared, unless something lies in them that must not be written or seen:
    /// Landlock takes nothing away below a directory that is allowed.
    fn of_rules(job: &Job<'_>, layout: &Layout) -> Self {
        let confinement = job.confinement;
        let read = confinement.roots.iter().filter(|root| root.access == RootAccess::Read);
        let read = read.map(|root| root.path.as_path());
        let home = job.env.get("HOME").map(Path::new);
        let kept = read.chain(layout.hidden.iter().map(PathBuf::as_path)).chain(home);
        let mut kept = kept.chain(confinement.proofs.as_deref());
        if !kept.any(|path| SHARED_TEMPORARY.iter().any(|shared| path.starts_with(shared))) {
            return Self::Shared;
        }
        job.temporary.map_or(Self::None, |directory| Self::Directory(directory.to_owned()))
    }

    fn writable(&self) -> Vec<PathBuf> {
        match self {
            Self::Own => PRIVATE.map(PathBuf::from).to_vec(),
            Self::Shared => SHARED_TEMPORARY.map(PathBuf::from).to_vec(),
            Self::Directory(directory) => vec![directory.clone()],
            Self::None => Vec::new(),
        }
    }
}

fn describe(
    job: &Job<'_>,
    layout: &Layout,
    homes: &[PathBuf],
    tier: Tier,
    temporary: &Temporary,
) -> io::Result<Description> {
    let confinement = job.confinement;
    let namespaces = tier == Tier::Namespaces;
    // Nothing in /proc belongs to every program: it holds the settings of the kernel, which root could change.
    let common: Vec<&str> = if namespaces { vec!["/dev"] } else { SHARED.to_vec() };
    let common = common.into_iter().map(PathBuf::from).chain(temporary.writable());
    // No agent can write to a directory above them, so they lead to the same targets inside.
    let common = common.filter_map(|path| Real::path(&path).ok());
    Ok(Description {
        program: job.program.to_owned(),
        args: job.args.to_vec(),
        env: job.env.clone(),
        cwd: job.cwd.to_owned(),
        mounts: namespaces.then(|| plan_mounts(&layout.mounts)).transpose()?,
        door: None,
        rules: Rules {
            read: readable(layout, homes, tier),
            // Hidden directories are empty there.
            list: namespaces.then(|| PathBuf::from("/")).into_iter().collect(),
            write: layout.write.iter().cloned().chain(common).collect(),
            roots: layout.quarantine.roots().to_vec(),
            unix_sockets: confinement.unix_sockets,
            internet: namespaces || confinement.network == Network::Full,
            bounds: confinement.bounds,
            required: confinement.requirement == Requirement::Require,
        },
    })
}

/// Returns everything beside the hidden paths and the home directory, and the exposed paths inside of those.
fn readable(layout: &Layout, homes: &[PathBuf], tier: Tier) -> Vec<PathBuf> {
    // What can be written can be read, and nothing is taken away below it.
    let is_written = |path: &&PathBuf| layout.write.iter().any(|root| path.starts_with(root));
    let devices = (tier == Tier::Rules).then(|| PathBuf::from("/dev"));
    let hidden = layout.hidden.iter().filter(|path| !is_written(path)).chain(homes).cloned().chain(devices);
    let hidden: Vec<PathBuf> = hidden.collect();
    let is_shown = |(path, mount): &&(PathBuf, Mount)| match mount {
        Mount::Read => true,
        // Without mounts, a path leads to the same file as on the machine.
        Mount::ReadFrom(source) => tier == Tier::Namespaces || path == source,
        _ => false,
    };
    let shown = layout.mounts.iter().filter(is_shown).map(|(path, _)| path);
    let shown = shown.chain(layout.exposed.iter().filter(|_| tier == Tier::Rules));
    let shown = shown.flat_map(|path| landlock::below(path, &layout.hidden));
    landlock::beside(&hidden, layout.aliased).into_iter().chain(shown).collect()
}

impl Prepared {
    /// Opens the way to named hosts, where the policy names some. To be asked once the one inside has said that the agent runs.
    pub fn proxy(&self) -> io::Result<Option<Proxy>> {
        match (&self.line, &self.confinement.network) {
            (Some(line), Network::Hosts(hosts)) => Ok(Some(Proxy::start(door::take(line.as_fd())?, hosts)?)),
            _ => Ok(None),
        }
    }

    /// What confines the process, now that it has said which rules it put on.
    pub fn report(&self, applied: Applied) -> Confined {
        Facts {
            tier: self.tier,
            applied,
            confinement: &self.confinement,
            machine: &self.machine,
            unprotected: &self.unprotected,
            knows_others: self.knows_others,
            shares_temporary: self.shares_temporary,
            git_read_only: self.git_read_only.as_deref(),
            exposed: &self.exposed,
        }
        .confined(self.settled.proof.clone())
    }
}

pub(crate) fn list_of(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| show_path(path)).collect::<Vec<_>>().join(", ")
}

/// Why nothing is run.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// The machine lacks something that the policy requires.
    #[error("the policy requires what is missing here: {}", what.join("; "))]
    Missing {
        /// What.
        what: Vec<String>,
    },
    /// Paths that cannot be protected.
    #[error("neither a link nor the workspace itself can be protected: {}", list_of(paths))]
    Unprotectable {
        /// Which.
        paths: Vec<PathBuf>,
    },
    /// A workspace cannot be searched for repositories.
    #[error("cannot examine `{}`, which has more than {MAX_DIRECTORIES} directories", workspace.display())]
    Unexaminable {
        /// The workspace.
        workspace: PathBuf,
    },
    /// Switchboard's own files lie in a directory that the agent is given, and without namespaces nothing keeps it from them.
    #[error(
        "`{}` lies in the workspace `{}`, and without namespaces the agent could reach it",
        state.display(),
        workspace.display()
    )]
    StateInWorkspace {
        /// Switchboard's own files.
        state: PathBuf,
        /// The workspace.
        workspace: PathBuf,
    },
    /// The paths of the policy cannot be looked at.
    #[error("cannot lay out the sandbox")]
    Layout(#[source] io::Error),
    /// The operating system refused an open file.
    #[error("cannot prepare the sandbox")]
    Files(#[source] io::Error),
    /// The sandbox does not hold what it says.
    #[error("the sandbox does not hold: {}", escapes.iter().map(|escape| format!("{} ({})", escape.tried, escape.said)).collect::<Vec<_>>().join("; "))]
    Escaped {
        /// What was not stopped.
        escapes: Vec<Escape>,
    },
    /// Nothing is known about whether it holds.
    #[error("the sandbox cannot be proven: {why}")]
    Unproven {
        /// Why.
        why: String,
    },
}

impl Refusal {
    /// What to do about it.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Missing { .. } => "add what is missing, or let the policy be `best-effort`",
            Self::Unprotectable { .. } => {
                "put the thing itself in the place of the link, or let the policy be `best-effort`"
            }
            Self::Unexaminable { .. } => {
                "call the agent in a smaller directory, or let the policy be `best-effort`"
            }
            Self::StateInWorkspace { .. } => {
                "install bubblewrap, work in another directory, or set SWITCHBOARD_HOME to one outside of it"
            }
            Self::Layout(_) | Self::Files(_) => "see the message of the operating system",
            Self::Escaped { .. } => "report it: nothing is run in a sandbox that does not hold",
            Self::Unproven { .. } => "run `switchboard doctor`, which says what this machine lacks",
        }
    }
}
