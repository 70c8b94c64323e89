//! The parts of the home directory that a confined run sees.
//!
//! The home directory is absent: an empty directory takes its place, or Landlock has no rule for it. These parts are exposed,
//! read-only: the listed paths of the policy, known roots of toolchains, the directories of `PATH` with the installations that
//! their programs lead to, and the agent's program with its own installation and interpreter.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use model::{HomeView, PRIVATE_DIRECTORIES};
use regular_file::open_linked;

use crate::home_files::{login_profile, sanitized_files};
use crate::needed_paths::find_interpreter;
use crate::real_path::real_path;

/// Toolchains and their configuration without credentials, below the home directory.
const TOOLCHAINS: &[&str] = &[
    ".asdf",
    ".bun/bin",
    ".bun/install/global",
    ".cargo/bin",
    ".cargo/env",
    ".conda/envs",
    ".config/git/attributes",
    ".config/git/ignore",
    ".config/go",
    ".deno/bin",
    ".dotnet/tools",
    ".elan",
    ".fnm",
    ".ghcup",
    ".goenv",
    ".jenv",
    ".juliaup",
    ".linuxbrew",
    ".local/bin",
    ".local/lib",
    ".local/share/fnm",
    ".local/share/mise",
    ".local/share/pipx",
    ".local/share/pnpm",
    ".local/share/uv/python",
    ".local/share/uv/tools",
    ".local/state/fnm_multishells",
    ".nix-profile",
    ".nodenv",
    ".npm-global",
    ".nvm/alias",
    ".nvm/nvm.sh",
    ".nvm/versions",
    ".opam",
    ".pyenv",
    ".rbenv",
    ".rustup",
    ".sdkman/candidates",
    ".tool-versions",
    ".volta",
    "anaconda3",
    "go/bin",
    "mambaforge",
    "miniconda3",
    "miniforge3",
    "sdk",
];

/// Directories that contain other files than programs: the prefix of a `bin` in one is not exposed.
const SHARED_PREFIXES: &[&str] = &["", ".cache", ".cargo", ".config", ".local", ".local/share", "go"];

/// The siblings of a `bin` directory that its programs load files from.
const BESIDE_BIN: &[&str] = &["include", "lib", "lib64", "libexec", "pyvenv.cfg", "share"];

/// The maximum number of entries of one `PATH` directory that are followed.
const MAX_ENTRIES: usize = 1000;
/// The maximum number of links to a program that are followed.
const MAX_LINKS: usize = 16;

/// The home directory as a run sees it.
#[derive(Debug, Default)]
pub(crate) struct AbsentHome {
    /// The absent directories, without links: `HOME`, and the home directory in the user database.
    pub directories: Vec<PathBuf>,
    /// Their names, which may contain links.
    names: Vec<PathBuf>,
    /// The writable directories of the run, in which nothing else is exposed.
    writable: Vec<PathBuf>,
    /// The exposed parts: the path in the view, and the real path.
    pub exposed: Vec<(PathBuf, PathBuf)>,
    /// Files that are replaced by a version for the run: the path in the view, and that version.
    pub files: Vec<(PathBuf, PathBuf)>,
}

/// The inputs that decide which parts are exposed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HomeNeeds<'a> {
    pub view: &'a HomeView,
    /// The programs that start the agent, and its own.
    pub programs: &'a [&'a Path],
    pub env: &'a BTreeMap<String, String>,
    /// The directory of Switchboard's own programs.
    pub own: Option<&'a Path>,
    /// Hidden real paths, which are exposed only if the policy lists them.
    pub hidden: &'a [PathBuf],
    /// Real paths of the writable directories.
    pub writable: &'a [PathBuf],
}

impl AbsentHome {
    /// Finds the parts that a run needs.
    pub fn find(needs: HomeNeeds<'_>) -> Self {
        let names: Vec<PathBuf> =
            [Some(needs.view.directory.clone()), user_home()].into_iter().flatten().collect();
        let mut directories: Vec<PathBuf> = Vec::new();
        for directory in names.iter().filter_map(|path| real_path(path).ok()) {
            if can_be_absent(&directory) && !directories.contains(&directory) {
                directories.push(directory);
            }
        }
        let writable = needs.writable.to_vec();
        let mut home = Self { directories, names, writable, ..Self::default() };
        for path in &needs.view.exposed {
            home.expose(path, &[]);
        }
        for (place, copy) in &needs.view.copies {
            let place = place.strip_prefix(&needs.view.directory).ok().zip(home.directories.first());
            if let (Some((name, home_directory)), Ok(copy)) = (place, real_path(copy)) {
                home.files.push((home_directory.join(name), copy));
            }
        }
        home.expose_toolchains(needs);
        home.expose_programs(needs);
        home.drop_nested();
        home
    }

    /// Writes the replaced files to a directory of the run: configuration without credentials, and a profile.
    pub fn write_files(&mut self, directory: &Path, env: &BTreeMap<String, String>) -> io::Result<()> {
        let Some(home) = self.directories.first().cloned() else { return Ok(()) };
        let profile = env.get("PATH").map(|search_path| login_profile(search_path));
        for (number, (name, text)) in sanitized_files(&home).into_iter().chain(profile).enumerate() {
            let at = home.join(name);
            if self.exposed.iter().any(|(exposed, _)| at.starts_with(exposed)) {
                continue;
            }
            fs::create_dir_all(directory)?;
            let copy = directory.join(number.to_string());
            fs::write(&copy, text)?;
            self.files.push((at, copy));
        }
        Ok(())
    }

    /// Writes a home directory of links for a run without namespaces: programs look for their files in `HOME` and would fail on a file that
    /// exists but cannot be read. `roots` are linked, too.
    pub fn write_links(&self, directory: &Path, roots: &[&Path]) -> io::Result<()> {
        fs::create_dir_all(directory)?;
        let Some(home) = self.directories.first() else { return Ok(()) };
        let roots = roots.iter().map(|root| (root.to_path_buf(), root.to_path_buf()));
        for (at, target) in self.exposed.iter().chain(&self.files).cloned().chain(roots) {
            let Ok(relative) = at.strip_prefix(home) else { continue };
            let link = directory.join(relative);
            if let Some(above) = link.parent() {
                fs::create_dir_all(above)?;
            }
            match symlink(target, link) {
                // A parent directory is linked already.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                linked => linked?,
            }
        }
        Ok(())
    }

    /// Returns whether a path lies in an absent directory.
    pub fn contains(&self, path: &Path) -> bool {
        self.directories.iter().any(|home| path.starts_with(home) && path != home)
    }

    fn expose_toolchains(&mut self, needs: HomeNeeds<'_>) {
        for home in self.directories.clone() {
            for name in TOOLCHAINS {
                self.expose(&home.join(name), needs.hidden);
            }
        }
        // Cargo finds it from a workspace below and fails if it cannot read it.
        for home in self.directories.clone() {
            let config = home.join(".cargo/config.toml");
            let has_secret =
                |text: String| ["token", "secret", "password"].iter().any(|word| text.contains(word));
            if open_linked(&config).and_then(io::read_to_string).is_ok_and(|text| !has_secret(text)) {
                self.expose(&config, needs.hidden);
            }
        }
        if let Some(rustup) = needs.env.get("RUSTUP_HOME") {
            self.expose(Path::new(rustup), needs.hidden);
        }
    }

    fn expose_programs(&mut self, needs: HomeNeeds<'_>) {
        let search_path = needs.env.get("PATH").map_or("", String::as_str);
        for directory in std::env::split_paths(search_path).filter(|directory| directory.is_absolute()) {
            self.expose_program_directory(&directory, needs.hidden);
        }
        let mut programs: Vec<PathBuf> = needs.programs.iter().map(|program| program.to_path_buf()).collect();
        programs.extend(needs.programs.iter().filter_map(|program| find_interpreter(program, search_path)));
        for path in
            programs.iter().filter(|program| is_executable(program)).flat_map(|program| follow_links(program))
        {
            let directory = path.parent().map(Path::to_owned).unwrap_or_default();
            // A link stays a link: some programs locate their files relative to it.
            let part = match self.find_installation(&path) {
                // A directory that contains the home directory is not exposed; the program alone is.
                part if part == path && !self.is_shared(&directory) && !self.is_above_home(&directory) => {
                    directory
                }
                part => part,
            };
            self.expose(&part, needs.hidden);
        }
        for script in &needs.view.programs {
            if let Some(script) = self.resolve_without_links(script) {
                let part = self.find_project(&script);
                self.expose(&part, needs.hidden);
            }
        }
        if let Some(own) = needs.own {
            self.expose(own, needs.hidden);
        }
    }

    /// Exposes a directory of `PATH`. Agents may have written to one in a project of the user, so links are followed in known locations
    /// only: elsewhere an agent may have chosen their targets.
    fn expose_program_directory(&mut self, directory: &Path, hidden: &[PathBuf]) {
        let Ok(real) = real_path(directory) else { return };
        if !self.contains(&real) {
            return;
        }
        if self.is_trusted(&real) {
            self.expose(&real, hidden);
            self.follow_entries(&real, hidden);
            return;
        }
        let Some(directory) = self.resolve_without_links(directory) else { return };
        self.expose(&directory, hidden);
        if let Some(modules) = find_outermost_modules(&directory) {
            self.expose(modules, hidden);
        }
        if let Some(prefix) = find_prefix(&directory).filter(|prefix| !self.is_shared(prefix)) {
            for name in BESIDE_BIN {
                if let Some(path) = self.resolve_without_links(&prefix.join(name)) {
                    self.expose(&path, hidden);
                }
            }
        }
    }

    /// Exposes the installations that links and first lines of scripts in a directory lead to.
    fn follow_entries(&mut self, directory: &Path, hidden: &[PathBuf]) {
        for entry in fs::read_dir(directory).into_iter().flatten().flatten().take(MAX_ENTRIES) {
            let path = entry.path();
            let is_link = entry.file_type().is_ok_and(|kind| kind.is_symlink());
            let mut parts = if is_link { follow_links(&path) } else { Vec::new() };
            let target = parts.last().unwrap_or(&path).clone();
            if let Some(interpreter) = absolute_interpreter(&target) {
                parts.extend(follow_links(&interpreter));
            }
            let is_part = |part: &&PathBuf| **part != path && is_executable(part);
            for part in parts.iter().filter(is_part) {
                let part = self.find_installation(part);
                self.expose(&part, hidden);
            }
        }
    }

    /// Returns whether a directory is a known location of programs, in which no agent works.
    fn is_trusted(&self, directory: &Path) -> bool {
        let is_known = |home: &PathBuf| {
            let mut known = TOOLCHAINS.iter().chain(&["bin"]).map(|name| home.join(name));
            known.any(|known| directory.starts_with(known))
        };
        self.directories.iter().any(is_known)
    }

    /// Returns the real path in the home directory, or `None` if the path below the home directory contains a link.
    fn resolve_without_links(&self, path: &Path) -> Option<PathBuf> {
        let relative =
            self.names.iter().chain(&self.directories).filter_map(|home| path.strip_prefix(home).ok());
        let mut paths = relative.flat_map(|path| self.directories.iter().map(move |home| home.join(path)));
        paths.find(|path| real_path(path).is_ok_and(|real| real == *path))
    }

    /// Exposes a path of the home directory under its given name and under its real path.
    fn expose(&mut self, path: &Path, hidden: &[PathBuf]) {
        let Ok(real) = real_path(path) else { return };
        let is_writable = self.writable.iter().any(|root| real.starts_with(root));
        if self.is_above_home(&real) || is_writable || hidden.iter().any(|hidden| real.starts_with(hidden)) {
            return;
        }
        // The link itself is absent, too.
        let named = path.parent().and_then(|above| Some(real_path(above).ok()?.join(path.file_name()?)));
        for name in [Some(real.clone()), named].into_iter().flatten() {
            let is_writable = self.writable.iter().any(|root| name.starts_with(root));
            if self.contains(&name) && !is_writable && !self.exposed.iter().any(|(known, _)| *known == name) {
                self.exposed.push((name, real.clone()));
            }
        }
    }

    /// Returns whether a directory contains a home directory.
    fn is_above_home(&self, directory: &Path) -> bool {
        self.directories.iter().any(|home| home.starts_with(directory))
    }

    /// Removes parts that are visible inside of another part.
    fn drop_nested(&mut self) {
        self.exposed.sort();
        let mut kept: Vec<(PathBuf, PathBuf)> = Vec::new();
        for (name, real) in std::mem::take(&mut self.exposed) {
            // A link in an exposed directory is visible already, as a link.
            let is_visible =
                |(above, above_real): &(PathBuf, PathBuf)| above == above_real && name.starts_with(above);
            if !kept.iter().any(is_visible) {
                kept.push((name, real));
            }
        }
        self.exposed = kept;
    }

    /// Returns the installation of a program: the outermost `node_modules`, or the prefix of its `bin`; else the program alone.
    fn find_installation(&self, program: &Path) -> PathBuf {
        if let Some(modules) = find_outermost_modules(program) {
            return modules.to_owned();
        }
        let prefix = program.parent().and_then(find_prefix);
        match prefix {
            Some(prefix) if !self.is_shared(prefix) && self.depth(prefix) >= 2 => prefix.to_owned(),
            _ => program.to_owned(),
        }
    }

    /// Returns the project of a script by its manifest, else its installation.
    fn find_project(&self, script: &Path) -> PathBuf {
        let above = script.ancestors().skip(1).take(4).filter(|above| !self.is_shared(above));
        let is_project =
            |above: &&Path| ["package.json", "pyproject.toml"].iter().any(|name| above.join(name).is_file());
        above
            .filter(|above| self.contains(above))
            .find(is_project)
            .map_or_else(|| self.find_installation(script), Path::to_owned)
    }

    /// Returns whether a directory contains other files than programs.
    fn is_shared(&self, directory: &Path) -> bool {
        !self.contains(directory)
            || self.directories.iter().any(|home| {
                directory
                    .strip_prefix(home)
                    .is_ok_and(|path| SHARED_PREFIXES.iter().any(|shared| path == Path::new(shared)))
            })
    }

    /// Returns the number of components of a path below the home directory.
    fn depth(&self, path: &Path) -> usize {
        let relative = self.directories.iter().filter_map(|home| path.strip_prefix(home).ok());
        relative.map(|path| path.components().count()).min().unwrap_or_default()
    }
}

/// Returns whether a home directory can be absent: it contains no system files and is not a private directory of the sandbox anyway.
fn can_be_absent(directory: &Path) -> bool {
    let has_system_files = ["/bin/sh", "/etc", "/usr", "/proc", "/dev"]
        .iter()
        .any(|path| real_path(Path::new(path)).unwrap_or_else(|_| path.into()).starts_with(directory));
    directory.is_dir()
        && !has_system_files
        && !PRIVATE_DIRECTORIES.iter().any(|own| directory == Path::new(own))
}

/// Returns whether a path leads to an executable file, unlike keys and tokens.
fn is_executable(path: &Path) -> bool {
    path.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

/// Returns the home directory of this user in the user database.
fn user_home() -> Option<PathBuf> {
    let user = rustix::process::geteuid().as_raw().to_string();
    let users = fs::read_to_string("/etc/passwd").ok()?;
    let home = users.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        (fields.get(2) == Some(&user.as_str())).then(|| fields.get(5).copied())?
    })?;
    Some(PathBuf::from(home)).filter(|home| home.is_absolute())
}

/// Returns a path and the target of each link, one after another.
fn follow_links(path: &Path) -> Vec<PathBuf> {
    let mut found = vec![path.to_owned()];
    let mut last = path.to_owned();
    while let (Ok(target), true) = (last.read_link(), found.len() <= MAX_LINKS) {
        last = last.parent().unwrap_or(Path::new("/")).join(target);
        // Resolves the `..` of relative links.
        let above = last.parent().and_then(|above| real_path(above).ok());
        if let (Some(above), Some(name)) = (above, last.file_name()) {
            last = above.join(name);
        }
        found.push(last.clone());
    }
    found
}

fn find_outermost_modules(path: &Path) -> Option<&Path> {
    path.ancestors().filter(|above| above.ends_with("node_modules")).last()
}

/// Returns the installation prefix of a directory of programs.
fn find_prefix(directory: &Path) -> Option<&Path> {
    let is_bin = ["bin", "sbin", "shims"].iter().any(|name| directory.ends_with(name));
    directory.parent().filter(|_| is_bin)
}

/// Returns the absolute interpreter path of a script, as Python installers write it.
fn absolute_interpreter(script: &Path) -> Option<PathBuf> {
    let mut head = [0; 256];
    let count = File::open(script).ok()?.read(&mut head).ok()?;
    let line = head[..count].strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    let path = std::str::from_utf8(line).ok()?.split_ascii_whitespace().next()?;
    Some(PathBuf::from(path)).filter(|path| path.is_absolute())
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Harness {
        directory: tempfile::TempDir,
    }

    impl Harness {
        fn new(files: &[&str]) -> Self {
            let harness = Self { directory: tempfile::tempdir().unwrap() };
            fs::create_dir(harness.path("home")).unwrap();
            for name in files {
                fs::create_dir_all(harness.path(name).parent().unwrap()).unwrap();
                fs::write(harness.path(name), "").unwrap();
                if ["/bin/", "agent", "/1.0", "cli.js"].iter().any(|part| name.contains(part)) {
                    fs::set_permissions(harness.path(name), fs::Permissions::from_mode(0o755)).unwrap();
                }
            }
            harness
        }

        fn path(&self, name: &str) -> PathBuf {
            self.directory.path().canonicalize().unwrap().join(name)
        }

        /// Returns the exposed parts relative to the home directory.
        fn exposed(&self, search_path: &[&str], program: &str) -> Vec<String> {
            let view = HomeView {
                directory: self.path("home"),
                exposed: Vec::new(),
                programs: Vec::new(),
                copies: Vec::new(),
            };
            let search_path: Vec<_> = search_path.iter().map(|name| self.path(name)).collect();
            let search_path = std::env::join_paths(search_path).unwrap().into_string().unwrap();
            let env = BTreeMap::from([("PATH".to_owned(), search_path)]);
            let program = self.path(program);
            let writable = [self.path("home/work")];
            let needs = HomeNeeds {
                view: &view,
                programs: &[&program],
                env: &env,
                own: None,
                hidden: &[],
                writable: &writable,
            };
            let home = self.path("home");
            let names = AbsentHome::find(needs).exposed.into_iter().map(|(name, _)| name);
            names.filter_map(|name| Some(name.strip_prefix(&home).ok()?.display().to_string())).collect()
        }
    }

    #[test]
    fn home_without_toolchains_exposes_nothing() {
        let harness = Harness::new(&["home/.npmrc", "home/.config/gh/hosts.yml", "home/notes"]);
        assert_eq!(harness.exposed(&[], "bin/agent"), Vec::<String>::new());
    }

    #[test]
    fn path_directory_exposes_targets_of_its_links() {
        let harness = Harness::new(&[
            "home/.local/share/tool/versions/1.0",
            "home/.local/share/kwalletd/wallet",
            "home/.nvm/versions/node/v22/bin/node",
            "home/tools/bin/x",
            "home/tools/lib/y",
            "home/tools/secret",
            "home/.local/bin/script",
        ]);
        symlink("../share/tool/versions/1.0", harness.path("home/.local/bin/tool")).unwrap();
        let exposed = harness
            .exposed(&["home/.local/bin", "home/.nvm/versions/node/v22/bin", "home/tools/bin"], "bin/agent");
        let expected =
            [".local/bin", ".local/share/tool/versions/1.0", ".nvm/versions", "tools/bin", "tools/lib"];
        assert_eq!(exposed, expected);
    }

    #[test]
    fn agent_is_exposed_with_packages_and_interpreter() {
        let harness = Harness::new(&[
            "home/agents/a/node_modules/agent/cli.js",
            "home/node/22/bin/node",
            "home/node/22/lib/x",
        ]);
        fs::write(harness.path("home/agents/a/node_modules/agent/cli.js"), "#!/usr/bin/env node\n").unwrap();
        symlink("node_modules/agent/cli.js", harness.path("home/agents/a/program")).unwrap();
        let exposed = harness.exposed(&["home/node/22/bin"], "home/agents/a/program");
        assert_eq!(exposed, ["agents/a", "node/22"]);
    }

    #[test]
    fn link_in_an_exposed_directory_stays_a_link() {
        let harness = Harness::new(&["home/agents/a/node_modules/agent/cli.js", "home/.local/bin/x"]);
        symlink("node_modules/agent/cli.js", harness.path("home/agents/a/program")).unwrap();
        symlink(harness.path("home/agents/a/program"), harness.path("home/.local/bin/agent")).unwrap();
        let exposed = harness.exposed(&["home/.local/bin"], "home/.local/bin/agent");
        assert_eq!(exposed, [".local/bin", "agents/a"]);
    }

    /// An agent that works in a project may have created links in a directory of `PATH`.
    #[test]
    fn links_in_a_project_expose_nothing() {
        let harness = Harness::new(&[
            "home/.npmrc",
            "home/.config/token",
            "home/secret/bin/deploy",
            "home/secret/key",
            "home/shop/node_modules/.bin/x",
            "home/shop/venv/bin/python",
            "home/shop/venv/lib/x",
            "home/shop/.env",
            "home/work/bin/x",
        ]);
        symlink(harness.path("home/.npmrc"), harness.path("home/shop/node_modules/.bin/a")).unwrap();
        symlink(harness.path("home/secret/bin/deploy"), harness.path("home/shop/node_modules/.bin/b"))
            .unwrap();
        symlink(harness.path("home/.config"), harness.path("home/shop/tools")).unwrap();
        symlink(harness.path("home/secret"), harness.path("home/shop/venv/share")).unwrap();
        let path = ["home/shop/node_modules/.bin", "home/shop/tools", "home/shop/venv/bin", "home/work/bin"];
        let exposed = harness.exposed(&path, "bin/agent");
        assert_eq!(exposed, ["shop/node_modules", "shop/venv/bin", "shop/venv/lib"]);
    }

    #[test]
    fn home_itself_is_never_exposed() {
        let harness = Harness::new(&["home/agent", "home/bin/x"]);
        let exposed = harness.exposed(&["home", "home/bin", ""], "home/agent");
        assert_eq!(exposed, ["agent", "bin"]);
    }

    #[test]
    fn system_directories_cannot_be_absent() {
        for path in ["/", "/usr", "/etc", "/tmp"] {
            assert!(!can_be_absent(Path::new(path)), "{path}");
        }
    }
}
