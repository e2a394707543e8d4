//! Programs of other packages, which cargo builds for a test only by chance.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// `rgapsd`: what `RGAPS_DAEMON` names, or else as built with the test, now if it is old or not there.
pub fn rgapsd() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        // Where it has been built, or there is no compiler, as on a borrowed machine.
        if let Some(built) = std::env::var_os("RGAPS_DAEMON") {
            return built.into();
        }
        build("rgapsd");
        folder().join("rgapsd")
    })
}

/// `rgaps-links`: what `RGAPS_LINKS_PROGRAM` names, or else the one in the folder of the test, built if it is not there. It takes
/// minutes to build, so an old one is used, too; `make test` builds it with the workspace.
pub fn rgaps_links() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        if let Some(built) = std::env::var_os("RGAPS_LINKS_PROGRAM") {
            return built.into();
        }
        // Where there is no compiler it is beside the program `rgaps`.
        if let Some(program) = std::env::var_os("RGAPS_TEST_PROGRAM") {
            return Path::new(&program).with_file_name("rgaps-links");
        }
        let program = folder().join("rgaps-links");
        if !program.exists() {
            build("rgaps-links");
        }
        program
    })
}

/// Cargo's folder of the profile that this test was built with, such as `target/debug`.
pub fn folder() -> PathBuf {
    let own = std::env::current_exe().expect("a program knows its path");
    let deps = own.ancestors().find(|folder| folder.ends_with("deps"));
    // A program that is no test lies beside `deps`.
    let folder = deps.unwrap_or(&own).parent();
    folder.expect("a file lies in a folder").to_owned()
}

/// Builds a package's program as this test was built, into the same folder.
fn build(package: &str) {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let folder = folder();
    let mut build = Command::new(cargo);
    build.args(["build", "--quiet", "-p", package, "--target-dir"]);
    build.arg(folder.parent().expect("the target folder"));
    if folder.ends_with("release") {
        build.arg("--release");
    }
    let status = build.status().expect("cargo can be started");
    assert!(status.success(), "{package} does not build");
}
