//! The order of dependencies that ARCHITECTURE.md draws, checked against the manifests.
#![forbid(unsafe_code)]

use rgaps_workspace_tests::{Package, Workspace};

/// The layers, the lowest first. A crate depends only on crates of earlier layers.
const LAYERS: [&[&str]; 28] = [
    &["layout"],
    &["sync"],
    &["dmaplane"],
    &["pool"],
    &["cuda"],
    &["device"],
    &["topic"],
    &["verbs"],
    &["gpu-verbs"],
    &["connection"],
    &["transport"],
    &["routing"],
    &["session"],
    &["mps"],
    &["engine"],
    &["client"],
    &["ros2"],
    &["rgaps"],
    &["recording"],
    &["view"],
    &["bridge"],
    &["links"],
    &["kernels"],
    &["bench"],
    &["remoting"],
    &["interpose"],
    &["rgapsd", "cli", "capi", "python"],
    // Last: what is shipped holds no comparisons.
    &["compare"],
];

/// Pairs that the order would allow and the architecture does not: the first never depends on the
/// second, directly or through others.
const STRANGERS: [(&str, &str); 20] = [
    ("dmaplane", "layout"),
    ("topic", "pool"),
    ("topic", "cuda"),
    ("verbs", "pool"),
    ("verbs", "cuda"),
    ("verbs", "topic"),
    ("gpu-verbs", "topic"),
    ("transport", "topic"),
    ("transport", "pool"),
    ("routing", "transport"),
    ("remoting", "transport"),
    ("mps", "topic"),
    ("mps", "pool"),
    ("capi", "engine"),
    ("python", "engine"),
    ("links", "engine"),
    ("rgapsd", "links"),
    ("rgaps", "transport"),
    ("rgaps", "engine"),
    ("links", "rgaps"),
];

/// Nothing here runs futures, but Zenoh does, which only the process with the links has: all others have threads, epoll
/// and futexes only.
const ASYNC_RUNTIMES: [&str; 5] = ["tokio", "async-std", "smol", "async-executor", "glommio"];

fn layer(folder: &str) -> Option<usize> {
    LAYERS.iter().position(|crates| crates.contains(&folder))
}

#[test]
fn every_crate_has_its_layer() {
    let workspace = Workspace::load();
    let crates = workspace.crates();
    for (folder, _) in &crates {
        assert!(
            layer(folder).is_some(),
            "crates/{folder} has no layer: see ARCHITECTURE.md"
        );
    }
    let expected: usize = LAYERS.iter().map(|layer| layer.len()).sum();
    assert_eq!(
        crates.len(),
        expected,
        "a crate of the architecture is missing"
    );
}

#[test]
fn crates_depend_on_earlier_layers_only() {
    let workspace = Workspace::load();
    let crates = workspace.crates();
    let folder_of = |name: &str| {
        crates
            .iter()
            .find(|(_, package)| package.name == name)
            .map(|(f, _)| f)
    };
    let mut seen = 0;
    for (folder, package) in &crates {
        for dependency in package
            .dependencies
            .iter()
            .filter(|d| d.kind.as_deref() != Some("dev"))
        {
            let Some(on) = folder_of(&dependency.name) else {
                continue;
            };
            seen += 1;
            assert!(
                layer(on) < layer(folder),
                "crates/{folder} must not depend on crates/{on}"
            );
        }
    }
    assert!(
        seen >= crates.len() - 1,
        "only {seen} dependencies were recognised among our crates"
    );
}

#[test]
fn strangers_do_not_know_each_other() {
    let workspace = Workspace::load();
    let crates = workspace.crates();
    let package = |wanted: &str| {
        crates
            .iter()
            .find(|(folder, _)| folder == wanted)
            .unwrap()
            .1
    };
    for (one, other) in STRANGERS {
        let (one_package, other_package) = (package(one), package(other));
        let reaches = workspace
            .closure(one_package)
            .iter()
            .any(|p| p.id == other_package.id);
        assert!(!reaches, "crates/{one} reaches crates/{other}");
    }
}

#[test]
fn no_async_runtime_is_linked() {
    let workspace = Workspace::load();
    for (folder, package) in workspace.crates() {
        if folder == "links" || folder == "bridge" {
            continue;
        }
        let linked: Vec<_> = workspace
            .closure(package)
            .into_iter()
            .filter(|found| ASYNC_RUNTIMES.contains(&found.name.as_str()))
            .map(|found: &Package| found.name.as_str())
            .collect();
        assert!(linked.is_empty(), "crates/{folder} links {linked:?}");
    }
}

/// Functions of the way between two hosts, and their files, as ARCHITECTURE.md lists them.
#[test]
fn every_function_on_the_way_between_hosts_is_where_the_table_says() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let read = |file: &str| std::fs::read_to_string(root.join(file)).unwrap_or_default();
    let mut steps = 0;
    for row in read("ARCHITECTURE.md").lines() {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let [_, step, function, file, ..] = cells[..] else {
            continue;
        };
        if !file.ends_with(".rs`") {
            continue;
        }
        let (function, file) = (function.trim_matches('`'), file.trim_matches('`'));
        let is_there = [format!("fn {function}("), format!("fn {function}<")]
            .iter()
            .any(|text| read(&format!("crates/{file}")).contains(text));
        assert!(is_there, "step {step}: {function} is not in crates/{file}");
        steps += usize::from(step.parse::<u32>().is_ok());
    }
    assert!((1..=25).contains(&steps), "{steps} steps");
}
