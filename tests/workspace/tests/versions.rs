//! What two processes have to agree on changes its version number when it changes.
#![forbid(unsafe_code)]

use rgaps_workspace_tests::root;
use std::path::Path;

/// Sources, the constant that is their version, that version, and a checksum of the code (without
/// comments and white space) that has it.
const AGREED: [(&str, &str, &str, u64); 2] = [
    (
        "crates/session/src/message.rs",
        "PROTOCOL_VERSION",
        "12",
        0x3a2a_eaad_bb12_df4b,
    ),
    (
        "crates/layout/src",
        "LAYOUT_VERSION",
        "7",
        0x8842_34b4_c132_ea17,
    ),
];

/// The code of a file, or of all files of a folder in order of their names.
fn code(path: &Path) -> String {
    if path.is_dir() {
        let entries = std::fs::read_dir(path).expect("the folder is there");
        let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
        files.sort();
        return files.iter().map(|file| code(file)).collect();
    }
    let text = std::fs::read_to_string(path).expect("the file can be read");
    let lines = text.lines().map(str::trim);
    let code = lines.filter(|line| !line.starts_with("//"));
    code.flat_map(str::split_whitespace).collect()
}

/// FNV-1a.
fn checksum(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |sum, byte| {
        (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[test]
fn what_is_agreed_on_has_the_version_that_was_recorded() {
    for (sources, constant, version, recorded) in AGREED {
        let code = code(&root().join(sources));
        let declared = format!("pubconst{constant}:u32={version};");
        assert!(
            code.contains(&declared),
            "{sources}: {constant} is not {version}, as recorded here"
        );
        let found = checksum(&code);
        assert_eq!(
            found,
            recorded,
            "{sources} has changed: if processes of the old and the new build could misunderstand \
             one another, raise {constant}; then record it and {found:#018x} in {}",
            file!()
        );
    }
}
