//! The workspace as `cargo metadata` tells it, for the tests beside this file.
#![forbid(unsafe_code)]

use serde::Deserialize;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::process::Command;

/// All packages of the dependency graph and how they depend on one another.
#[derive(Deserialize)]
pub struct Workspace {
    /// Members and everything that they need, on the platforms of [`PLATFORMS`].
    pub packages: Vec<Package>,
    workspace_members: Vec<String>,
    resolve: Resolve,
}

/// One package.
#[derive(Deserialize)]
pub struct Package {
    /// Unique within the graph.
    pub id: String,
    /// As in its manifest.
    pub name: String,
    /// As in its manifest.
    pub version: String,
    /// SPDX expression of its manifest.
    pub license: Option<String>,
    /// The registry that it comes from; `None` for packages of this repository.
    pub source: Option<String>,
    /// Path of its manifest.
    pub manifest_path: PathBuf,
    /// What crates.io shows of it.
    pub description: Option<String>,
    /// Where its source is.
    pub repository: Option<String>,
    /// Relative to its manifest.
    pub readme: Option<PathBuf>,
    /// For the search of crates.io.
    pub keywords: Vec<String>,
    /// Of those that crates.io knows.
    pub categories: Vec<String>,
    /// The registries that may have it: `None` is all, an empty list is none.
    pub publish: Option<Vec<String>>,
    /// What its manifest asks for.
    pub dependencies: Vec<Dependency>,
    /// Libraries, programs, tests and so on.
    pub targets: Vec<Target>,
}

/// A dependency as a manifest declares it.
#[derive(Deserialize)]
pub struct Dependency {
    /// Name of the package that is asked for.
    pub name: String,
    /// The versions that would do: `*` without one.
    pub req: String,
    /// `None` for an ordinary one, else `dev` or `build`.
    pub kind: Option<String>,
    /// Its folder, if it is one of this repository.
    pub path: Option<PathBuf>,
}

/// Something that is compiled from a package.
#[derive(Deserialize)]
pub struct Target {
    /// `lib`, `bin`, `test`, `cdylib` and so on.
    kind: Vec<String>,
    /// Its root file.
    pub src_path: PathBuf,
}

impl Target {
    /// Whether it is of that kind.
    pub fn is(&self, kind: &str) -> bool {
        self.kind.iter().any(|own| own == kind)
    }
}

#[derive(Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Deserialize)]
struct Node {
    id: String,
    deps: Vec<NodeDependency>,
}

#[derive(Deserialize)]
struct NodeDependency {
    pkg: String,
    dep_kinds: Vec<DependencyKind>,
}

#[derive(Deserialize)]
struct DependencyKind {
    kind: Option<String>,
}

/// The platforms that rgaps is built for.
pub const PLATFORMS: [&str; 2] = ["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"];

impl Workspace {
    /// Asks cargo. Panics with cargo's words where it refuses: these are tests.
    pub fn load() -> Self {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut command = Command::new(cargo);
        command
            .current_dir(root())
            .args(["metadata", "--format-version=1", "--locked"]);
        for platform in PLATFORMS {
            command.args(["--filter-platform", platform]);
        }
        let output = command.output().expect("cargo can be started");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "cargo metadata failed: {errors}");
        serde_json::from_slice(&output.stdout).expect("cargo metadata prints the documented JSON")
    }

    /// The packages of this repository.
    pub fn members(&self) -> impl Iterator<Item = &Package> {
        self.packages
            .iter()
            .filter(|package| self.workspace_members.contains(&package.id))
    }

    /// Names of the packages that depend on a crate of that name themselves.
    pub fn dependents(&self, name: &str) -> BTreeSet<String> {
        let names: HashMap<&str, &str> = self
            .packages
            .iter()
            .map(|package| (package.id.as_str(), package.name.as_str()))
            .collect();
        let depends = |node: &&Node| node.deps.iter().any(|on| names[on.pkg.as_str()] == name);
        let users = self.resolve.nodes.iter().filter(depends);
        users
            .map(|node| names[node.id.as_str()].to_owned())
            .collect()
    }

    /// The members under `crates/`, with the names of their folders.
    pub fn crates(&self) -> Vec<(String, &Package)> {
        let folder = root().join("crates");
        let name = |package: &Package| {
            let relative = package.manifest_path.strip_prefix(&folder).ok()?;
            Some(relative.parent()?.to_str()?.to_owned())
        };
        self.members()
            .filter_map(|package| Some((name(package)?, package)))
            .collect()
    }

    /// Every package that ends up in a build of `package`, itself and build scripts' needs
    /// included, those of its tests not.
    pub fn closure(&self, package: &Package) -> Vec<&Package> {
        let nodes: HashMap<_, _> = self
            .resolve
            .nodes
            .iter()
            .map(|node| (node.id.as_str(), node))
            .collect();
        let mut found = HashSet::new();
        let mut open = vec![package.id.as_str()];
        while let Some(id) = open.pop() {
            if !found.insert(id) {
                continue;
            }
            let shipped = nodes[id].deps.iter().filter(|dependency| {
                dependency
                    .dep_kinds
                    .iter()
                    .any(|kind| kind.kind.as_deref() != Some("dev"))
            });
            open.extend(shipped.map(|dependency| dependency.pkg.as_str()));
        }
        self.packages
            .iter()
            .filter(|package| found.contains(package.id.as_str()))
            .collect()
    }
}

/// The repository's folder.
pub fn root() -> PathBuf {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    beside
        .canonicalize()
        .expect("the repository is where it was compiled")
}
