//! The links' process in a poor environment: standard error takes nothing, stacks are small.
mod support;

use std::fs::File;
use std::process::{Command, Stdio};
use support::{bytes_of, content, hosts_started, receive, wait_for_subscribers, Host, LIMIT};

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

/// Checks that topics cross between two hosts whose daemons and links are started by this script, which gets their command lines.
fn two_hosts_carry_topics(script: &'static str) {
    let hosts = hosts_started(2, "", |name, links| {
        let within = ["/bin/bash", "-c", script, "bash"];
        let within = within.map(str::to_owned).to_vec();
        Host::start_with_pool(name, links, "cap = \"256MiB\"", within)
    });
    let nodes = [hosts[0].node("member"), hosts[1].node("member")];
    let publisher = nodes[0].publisher("topic").deadline(LIMIT);
    let publisher = publisher.create().unwrap();
    let subscriber = nodes[1].subscriber("topic").reliable().create().unwrap();
    wait_for_subscribers(&publisher, 1);
    for (number, bytes) in [0, 100, 3_000_000].into_iter().enumerate() {
        let sent = content(number as u64, bytes);
        publisher.put(&sent).unwrap();
        assert!(bytes_of(&receive(&subscriber)) == sent, "{bytes} bytes");
    }
}

#[test]
fn links_with_a_stack_limit_of_64_kib_carry_topics() {
    two_hosts_carry_topics("ulimit -s 64; exec \"$@\"");
}

#[test]
fn links_whose_log_is_on_a_full_disk_carry_topics() {
    two_hosts_carry_topics("export RUST_LOG=trace; exec \"$@\" 2>/dev/full");
}

#[test]
fn links_whose_log_nobody_reads_any_more_carry_topics() {
    two_hosts_carry_topics("export RUST_LOG=trace; exec \"$@\" 2> >(exit)");
}
