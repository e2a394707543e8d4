//! Unsafe code stays in the crates that are about memory, the driver or a foreign interface.
#![forbid(unsafe_code)]

use rgaps_workspace_tests::Workspace;

/// Crates that may hold unsafe code, and what for.
const MAY_BE_UNSAFE: [(&str, &str); 8] = [
    ("sync", "futex and 16-byte atomics in shared memory"),
    ("pool", "memory mappings"),
    ("cuda", "the driver's C interface"),
    ("topic", "structures in shared memory"),
    ("engine", "its registry and the control segment in shared memory"),
    ("rgaps", "payloads in shared memory as slices"),
    ("capi", "a C interface"),
    ("python", "the buffer protocol and DLPack"),
];

#[test]
fn other_crates_forbid_unsafe_code() {
    let workspace = Workspace::load();
    for (folder, package) in workspace.crates() {
        if MAY_BE_UNSAFE.iter().any(|(name, _)| *name == folder) {
            continue;
        }
        let shipped = package.targets.iter().filter(|target| {
            !target
                .kind
                .iter()
                .any(|kind| ["test", "bench", "example"].contains(&kind.as_str()))
        });
        for target in shipped {
            let source = std::fs::read_to_string(&target.src_path).expect("the source is there");
            // The compiler does the work; here we only see that it was asked to.
            let forbidden = source
                .lines()
                .any(|line| line.trim() == "#![forbid(unsafe_code)]");
            assert!(
                forbidden,
                "{} lacks #![forbid(unsafe_code)]",
                target.src_path.display()
            );
        }
    }
}
