//! Where standard error takes nothing, the links' process still ends with its exit code.

use std::fs::File;
use std::process::{Command, Stdio};

#[test]
fn links_without_a_daemon_end_with_their_exit_code_where_standard_error_is_full() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("rgaps.toml");
    std::fs::write(
        &config,
        "autostart = false\n[links]\nhost = \"h\"\nenabled = true\n",
    )
    .unwrap();
    let (reader, unread) = std::io::pipe().unwrap();
    drop(reader);
    let full = File::options().write(true).open("/dev/full").unwrap();
    for stderr in [Stdio::null(), full.into(), unread.into()] {
        let mut links = Command::new(env!("CARGO_BIN_EXE_rgaps-links"));
        links.arg("--config").arg(&config).stderr(stderr);
        links.env("RGAPS_SOCKET", folder.path().join("r.sock"));
        links.env("RUST_LOG", "trace");
        assert_eq!(links.status().unwrap().code(), Some(1));
    }
}
