//! What crates.io asks of a package, and what a stranger needs of it. `make check` packs the same packages.
#![forbid(unsafe_code)]

use rgaps_workspace_tests::{root, Package, Workspace};
use std::collections::HashSet;
use std::path::PathBuf;
use std::process::Command;
use std::sync::LazyLock;

/// Of crates.io.
const KEYWORDS_MAX: usize = 5;
const KEYWORD_CHARS_MAX: usize = 20;
const CATEGORIES_MAX: usize = 5;

/// Members that are never published: tests, and the extension module, which the wheel carries.
fn is_published(package: &Package) -> bool {
    package.publish.as_deref() != Some(&[])
}

fn published(workspace: &Workspace) -> Vec<&Package> {
    workspace
        .members()
        .filter(|package| is_published(package))
        .collect()
}

/// What packages of crates.io lack, one line each.
fn lacks(package: &Package) -> Vec<String> {
    let mut lacks = Vec::new();
    let mut require = |holds: bool, what: &str| {
        if !holds {
            lacks.push(format!("{}: {what}", package.name));
        }
    };
    let folder = package.manifest_path.parent().expect("a folder");
    let text = |text: &Option<String>| text.as_ref().is_some_and(|text| !text.trim().is_empty());
    require(text(&package.description), "no description");
    require(text(&package.license), "no license");
    require(text(&package.repository), "no repository");
    let readme = package.readme.as_ref();
    require(
        readme.is_some_and(|readme| folder.join(readme).is_file()),
        "no readme, or one that does not exist",
    );
    let keywords = &package.keywords;
    require(
        !keywords.is_empty() && keywords.len() <= KEYWORDS_MAX,
        "no keywords, or too many",
    );
    let is_keyword = |word: &String| {
        let allowed = |char: char| char.is_ascii_alphanumeric() || "_-+".contains(char);
        word.starts_with(|first: char| first.is_ascii_alphanumeric())
            && word.len() <= KEYWORD_CHARS_MAX
            && word.chars().all(allowed)
    };
    require(
        keywords.iter().all(is_keyword),
        "a keyword that crates.io refuses",
    );
    require(
        !package.categories.is_empty() && package.categories.len() <= CATEGORIES_MAX,
        "no categories, or too many",
    );
    lacks
}

#[test]
fn every_published_package_has_what_crates_io_demands() {
    let workspace = Workspace::load();
    let packages = published(&workspace);
    assert!(packages.len() >= 15, "only {} packages", packages.len());
    let lacks: Vec<String> = packages.iter().flat_map(|package| lacks(package)).collect();
    assert!(lacks.is_empty(), "{}", lacks.join("\n"));
}

#[test]
fn a_package_without_metadata_is_noticed() {
    let workspace = Workspace::load();
    let tests = workspace
        .members()
        .find(|package| package.name == "rgaps-workspace-tests");
    let lacks = lacks(tests.expect("this package"));
    assert!(
        lacks
            .iter()
            .any(|line| line.ends_with("no keywords, or too many")),
        "{lacks:?}"
    );
    assert!(
        lacks.iter().any(|line| line.contains("no readme")),
        "{lacks:?}"
    );
}

/// A dependency on a path alone is left out of a package: fine where only tests need it.
#[test]
fn what_published_packages_depend_on_is_published_and_has_a_version() {
    let workspace = Workspace::load();
    let packages = published(&workspace);
    let names: HashSet<&str> = packages.iter().map(|package| &*package.name).collect();
    let members: HashSet<&str> = workspace.members().map(|package| &*package.name).collect();
    for package in &packages {
        for dependency in &package.dependencies {
            let (name, from) = (&dependency.name, &package.name);
            if !members.contains(&**name) {
                continue;
            }
            let has_version = dependency.req != "*";
            let only_tests = dependency.kind.as_deref() == Some("dev");
            assert!(
                has_version || only_tests,
                "{from} depends on {name} without a version"
            );
            assert!(
                !has_version || names.contains(&**name),
                "{from} depends on {name}, which is not published"
            );
        }
    }
}

/// A published package, its folder, and the files that `cargo package` would pack.
struct Packed {
    name: String,
    folder: PathBuf,
    files: Vec<String>,
}

static PACKED: LazyLock<Vec<Packed>> = LazyLock::new(|| {
    let workspace = Workspace::load();
    let pack = |package: &&Package| Packed {
        name: package.name.clone(),
        folder: package.manifest_path.parent().expect("a folder").to_owned(),
        files: files(package),
    };
    published(&workspace).iter().map(pack).collect()
});

fn files(package: &Package) -> Vec<String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.current_dir(root()).args([
        "package",
        "--list",
        "--allow-dirty",
        "--offline",
        "-p",
        &package.name,
    ]);
    let output = command.output().expect("cargo can be started");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "cargo package --list: {errors}");
    let list = String::from_utf8(output.stdout).expect("paths are UTF-8");
    list.lines().map(str::to_owned).collect()
}

#[test]
fn every_package_carries_licences_and_readme_and_no_tests() {
    for Packed { name, files, .. } in &*PACKED {
        for wanted in ["Cargo.toml", "README.md", "LICENSE-APACHE", "LICENSE-MIT"] {
            assert!(
                files.iter().any(|file| file == wanted),
                "{name} lacks {wanted}"
            );
        }
        let stray = files.iter().find(|file| {
            let folder = file.split('/').next().unwrap_or_default();
            file.contains('/') && !["src", "include", "examples"].contains(&folder)
        });
        assert_eq!(stray, None, "{name} carries a stray file");
        let has_examples = files.iter().any(|file| file.starts_with("examples/"));
        assert!(has_examples || name != "rgaps", "{name} lacks its examples");
    }
}

/// A package that reads a file of another folder builds here and nowhere else.
#[test]
fn no_published_source_includes_a_file_outside_its_package() {
    for Packed {
        name,
        folder,
        files,
    } in &*PACKED
    {
        for file in files.iter().filter(|file| file.ends_with(".rs")) {
            let source = std::fs::read_to_string(folder.join(file)).expect("it is there");
            let outside = format!("(\"{}", "../".repeat(file.matches('/').count() + 1));
            let line = source
                .lines()
                .find(|line| line.contains("include") && line.contains(&outside));
            assert_eq!(line, None, "{name}, {file}");
        }
    }
}
