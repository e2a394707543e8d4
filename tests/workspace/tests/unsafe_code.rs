//! Unsafe code stays in the crates that are about memory, the driver or a foreign interface, and in
//! few files of others.
#![forbid(unsafe_code)]

use rgaps_workspace_tests::{root, Package, Workspace};
use std::path::{Path, PathBuf};

/// Crates that may hold unsafe code anywhere, and what for.
const UNSAFE_CRATES: [(&str, &str); 12] = [
    ("sync", "futex and 16-byte atomics in shared memory"),
    ("dmaplane", "the calls of a kernel module"),
    ("pool", "memory mappings"),
    ("cuda", "the driver's C interface"),
    (
        "verbs",
        "libibverbs's C interface, memory that devices write",
    ),
    ("kernels", "launching on addresses of a GPU"),
    ("topic", "structures in shared memory"),
    ("client", "payloads in shared memory as slices"),
    ("capi", "a C interface"),
    (
        "remoting",
        "the driver's C interface, memory of a client's program",
    ),
    ("interpose", "CUDA's C interface, memory of a program"),
    ("python", "the buffer protocol, DLPack and Arrow"),
];

/// Files of other crates that may, and what for.
const UNSAFE_FILES: [(&str, &str, &str); 18] = [
    (
        "transport",
        "machine/buffer.rs",
        "receive buffers that several lanes fill at once",
    ),
    ("device", "topic.rs", "words that kernels share"),
    ("device", "memory.rs", "words that kernels share"),
    ("device", "publisher.rs", "the address of a message"),
    ("device", "tensor.rs", "kernels on memory of a GPU"),
    ("gpu-verbs", "memory.rs", "words that kernels write"),
    ("gpu-verbs", "mlx5.rs", "a library that is looked for"),
    ("links", "rails.rs", "memory that network cards write"),
    ("session", "socket.rs", "socket options that rustix has not"),
    (
        "session",
        "launch.rs",
        "detaching a daemon between fork and exec",
    ),
    ("session", "ready.rs", "a descriptor that the parent named"),
    ("engine", "registry.rs", "records in shared memory"),
    ("engine", "control.rs", "the control segment"),
    (
        "bench",
        "bar.rs",
        "memory of a GPU that the module dmaplane pins",
    ),
    ("bench", "board.rs", "words in shared memory"),
    ("bench", "gpu.rs", "kernels and copies on a GPU"),
    ("bench", "handover.rs", "numbers that streams write"),
    ("compare", "locks.rs", "a semaphore in shared memory"),
];

/// How a SAFETY comment begins that names no fact of its own. One that begins with what our caller promises names the fact if it
/// has [`PROMISE_WORDS_MIN`] words at least: "our caller promises the range" does not say what may be done with it, or for how long.
const REFERENCES: [&str; 12] = [
    "as above",
    "as before",
    "as below",
    "as for",
    "as in",
    "as said",
    "as the caller",
    "see ",
    "the same",
    "passed on",
    "the caller's",
    "the caller vouches",
];
const PROMISE: &str = "our caller";
const PROMISE_WORDS_MIN: usize = 10;

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("the crate has sources") {
        let path = entry.expect("the folder can be read").path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// Whether code, not comments, has the keyword. (`forbid(unsafe_code)` is another word.)
fn has_unsafe(source: &str) -> bool {
    let code = source
        .lines()
        .map(|line| line.split("//").next().unwrap_or_default());
    code.flat_map(|line| line.split(|c: char| !c.is_alphanumeric() && c != '_'))
        .any(|word| word == "unsafe")
}

fn files_with_unsafe(package: &Package) -> Vec<PathBuf> {
    let folder = package.manifest_path.with_file_name("src");
    let mut files = Vec::new();
    sources(&folder, &mut files);
    files.retain(|file| has_unsafe(&std::fs::read_to_string(file).expect("sources are text")));
    files
        .iter()
        .map(|file| file.strip_prefix(&folder).expect("it lies there").into())
        .collect()
}

#[test]
fn unsafe_code_is_where_it_may_be() {
    for (folder, package) in Workspace::load().crates() {
        if UNSAFE_CRATES.iter().any(|(name, _)| *name == folder) {
            continue;
        }
        for file in files_with_unsafe(package) {
            let listed = UNSAFE_FILES
                .iter()
                .any(|(name, path, _)| *name == folder && Path::new(path) == file);
            assert!(
                listed,
                "crates/{folder}/src/{} must do without unsafe",
                file.display()
            );
        }
    }
}

#[test]
fn what_may_hold_unsafe_code_does() {
    let workspace = Workspace::load();
    let crates = workspace.crates();
    let files = |folder: &str| {
        let found = crates.iter().find(|(name, _)| name == folder);
        files_with_unsafe(
            found
                .unwrap_or_else(|| panic!("there is no crates/{folder}"))
                .1,
        )
    };
    for (folder, _) in UNSAFE_CRATES {
        assert!(
            !files(folder).is_empty(),
            "crates/{folder} has no unsafe code: take it off the list"
        );
    }
    for (folder, path, _) in UNSAFE_FILES {
        assert!(
            files(folder).iter().any(|file| file == Path::new(path)),
            "crates/{folder}/src/{path} has no unsafe code: take it off the list"
        );
    }
}

/// Crates of ARCHITECTURE.md's table, and what its last column says of their unsafe code.
fn crates_in_the_table(architecture: &str) -> Vec<(String, String)> {
    let rows = architecture
        .lines()
        .skip_while(|line| !line.starts_with("| crate |"))
        .skip(2);
    let rows = rows.take_while(|line| line.starts_with('|'));
    let mut found = Vec::new();
    for row in rows {
        let cells: Vec<&str> = row.trim_matches('|').split(" | ").map(str::trim).collect();
        let says = cells.last().expect("a row has cells");
        let names = cells[0]
            .split(',')
            .map(|name| name.trim().trim_matches('`'));
        found.extend(names.map(|name| (name.to_owned(), says.to_string())));
    }
    found
}

#[test]
fn the_table_of_crates_says_where_unsafe_code_is() {
    let text = std::fs::read_to_string(root().join("ARCHITECTURE.md")).expect("it can be read");
    let mut table = crates_in_the_table(&text);
    for (folder, package) in Workspace::load().crates() {
        let is_listed = UNSAFE_CRATES.iter().any(|(name, _)| *name == folder);
        let expected = match files_with_unsafe(package).len() {
            0 => "no".to_owned(),
            _ if is_listed => "yes".to_owned(),
            1 => "one file".to_owned(),
            more => format!(
                "{} files",
                ["two", "three", "four", "five", "six"][more - 2]
            ),
        };
        let row = table.iter().position(|(name, _)| *name == folder);
        let row = row.unwrap_or_else(|| panic!("ARCHITECTURE.md's table lacks crates/{folder}"));
        let (_, says) = table.remove(row);
        assert_eq!(
            says, expected,
            "what ARCHITECTURE.md says of unsafe code in crates/{folder}"
        );
    }
    assert!(
        table.is_empty(),
        "ARCHITECTURE.md names crates that are not there: {table:?}"
    );
}

#[test]
fn crates_without_unsafe_code_forbid_it() {
    for (folder, package) in Workspace::load().crates() {
        if !files_with_unsafe(package).is_empty() {
            continue;
        }
        let shipped = package.targets.iter().filter(|target| {
            !["test", "bench", "example", "custom-build"]
                .iter()
                .any(|kind| target.is(kind))
        });
        for target in shipped {
            let source = std::fs::read_to_string(&target.src_path).expect("sources are text");
            // From here on the compiler does the work.
            let forbidden = source
                .lines()
                .any(|line| line.trim() == "#![forbid(unsafe_code)]");
            assert!(
                forbidden,
                "crates/{folder}: {} does not forbid it",
                target.src_path.display()
            );
        }
    }
}

/// SAFETY comments, each with the number of its first line, and with all of its lines in one.
fn safety_comments(source: &str) -> Vec<(usize, String)> {
    let lines: Vec<&str> = source.lines().collect();
    let comments = lines.iter().enumerate().filter_map(|(at, line)| {
        let (_, first) = line.split_once("// SAFETY: ")?;
        let more = lines[at + 1..].iter();
        let more = more.map_while(|line| line.trim().strip_prefix("// "));
        let text: Vec<&str> = std::iter::once(first).chain(more).collect();
        Some((at + 1, text.join(" ").to_lowercase()))
    });
    comments.collect()
}

/// SAFETY comments that name no fact.
fn references(source: &str) -> Vec<(usize, String)> {
    let mut comments = safety_comments(source);
    comments.retain(|(_, fact)| {
        let is_reference = REFERENCES.iter().any(|begin| fact.starts_with(begin));
        let is_short = fact.split_whitespace().count() < PROMISE_WORDS_MIN;
        is_reference || (fact.starts_with(PROMISE) && is_short)
    });
    comments
}

#[test]
fn safety_comments_name_a_fact() {
    for (folder, package) in Workspace::load().crates() {
        let root = package.manifest_path.with_file_name("src");
        for file in files_with_unsafe(package) {
            let source = std::fs::read_to_string(root.join(&file)).expect("sources are text");
            let found = references(&source);
            assert!(
                found.is_empty(),
                "crates/{folder}/src/{}: say what holds here, who makes it so and what keeps it so, not where else to \
                 look: {found:?}",
                file.display()
            );
        }
    }
    assert_eq!(references("    // SAFETY: As above.\n").len(), 1);
    assert_eq!(
        references("// SAFETY: our caller promises\n// the range.\n").len(),
        1
    );
    assert_eq!(references("// SAFETY: in bounds, as was checked.\n"), []);
    let promise =
        "// SAFETY: our caller promises that the range\n// may be read until this returns.\n";
    assert_eq!(references(promise), []);
}

#[test]
fn the_keyword_is_found_in_code_only() {
    assert!(has_unsafe("let x = unsafe { y };"));
    assert!(has_unsafe("pub unsafe fn f();"));
    assert!(!has_unsafe("// unsafe"));
    assert!(!has_unsafe("#![forbid(unsafe_code)]"));
}
