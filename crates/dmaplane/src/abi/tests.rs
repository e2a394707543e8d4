//! Compiles the module's headers, and compares sizes, offsets and numbers with those of this crate.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

type Record = (&'static str, usize, &'static [(&'static str, usize)]);

/// The folder of the headers; `None` if there is none, as in a package from crates.io.
fn headers(name: &str) -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../kernel/dmaplane");
    let there = folder.join(name).exists();
    if !there {
        println!("left out: there is no {}", folder.join(name).display());
    }
    there.then_some(folder)
}

/// Compares records and numbers with those of a header.
fn compare(header: &str, records: &[Record], numbers: &[(&str, u64)]) {
    let Some(folder) = headers(header) else {
        return;
    };
    let mut lines = String::new();
    let mut ours = String::new();
    let mut say = |expression: &str, value: u64| {
        writeln!(
            lines,
            "printf(\"%s %llu\\n\", \"{expression}\", (unsigned long long)({expression}));"
        )
        .unwrap();
        writeln!(ours, "{expression} {value}").unwrap();
    };
    for (record, bytes, fields) in records {
        say(&format!("sizeof(struct {record})"), *bytes as u64);
        for (field, offset) in *fields {
            say(
                &format!("offsetof(struct {record}, {field})"),
                *offset as u64,
            );
        }
    }
    for (name, value) in numbers {
        say(name, *value);
    }
    let place = tempfile::tempdir().unwrap();
    let (source, program) = (place.path().join("abi.c"), place.path().join("abi"));
    let text = format!(
        "#include <stddef.h>\n#include <stdio.h>\n#include \"{header}\"\nint main(void) {{\n{lines}return 0;\n}}\n"
    );
    std::fs::write(&source, text).unwrap();
    let compiled = Command::new("cc")
        .args(["-Wall", "-Werror", "-I"])
        .arg(folder)
        .arg(&source)
        .arg("-o")
        .arg(&program)
        .output()
        .expect("a C compiler");
    let said = String::from_utf8_lossy(&compiled.stderr);
    assert!(compiled.status.success(), "{said}");
    let theirs = Command::new(&program).output().unwrap();
    assert_eq!(String::from_utf8(theirs.stdout).unwrap(), ours);
}

fn numbers(calls: &[(&'static str, rustix::ioctl::Opcode)]) -> Vec<(&'static str, u64)> {
    calls
        .iter()
        .map(|(name, number)| (*name, u64::from(*number)))
        .collect()
}

#[test]
fn the_papers_interface_is_that_of_its_header() {
    let mut all = numbers(crate::device::CALLS);
    all.extend(numbers(crate::device::WRITTEN_OUT));
    assert_eq!(all.len(), 41);
    compare("dmaplane_uapi.h", super::device::RECORDS, &all);
}

#[test]
fn the_interface_of_pools_is_that_of_its_header() {
    let mut all = numbers(crate::realm::CALLS);
    all.extend(crate::realm::CONSTANTS);
    compare("dmaplane_pool_uapi.h", super::realm::RECORDS, &all);
}
