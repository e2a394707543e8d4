//! Which clients may use a server: certificates of a realm, plain connections, strangers. And communicators of plug-ins.

use super::{carries, serve, works, Process};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rgaps_remoting::{Communication, ConnectError, Endpoint, ServerConnection, SessionOptions};
use rgaps_session::{Config, Environment};
use rgaps_testkit::until;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

/// The certificate authority of a realm.
struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        Self(CertifiedIssuer::self_signed(params, key).unwrap())
    }

    /// Writes the configuration of a host with a certificate, and with the lines `more`. Returns its file.
    fn configure(&self, folder: &Path, host: &str, more: &str) -> PathBuf {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new([host.to_owned()]).unwrap();
        let signed = params.signed_by(&key, &self.0).unwrap();
        let files = [
            ("ca", self.0.pem()),
            ("pem", signed.pem()),
            ("key", key.serialize_pem()),
        ];
        let [ca, certificate, key] = files.map(|(ending, text)| {
            let path = folder.join(format!("{host}.{ending}"));
            std::fs::write(&path, text).unwrap();
            path.display().to_string()
        });
        let text = format!(
            "{more}\n[links]\nhost = \"{host}\"\n[links.tls]\nca = \"{ca}\"\ncertificate = \"{certificate}\"\nkey = \"{key}\"\n"
        );
        configuration(folder, host, &text)
    }
}

fn configuration(folder: &Path, name: &str, text: &str) -> PathBuf {
    let path = folder.join(format!("{name}.toml"));
    std::fs::write(&path, text).unwrap();
    path
}

fn serve_with(file: &Path, listen: &str) -> (Process, String) {
    let options = ["--config", file.to_str().unwrap(), "--listen", listen];
    let (process, said) = serve(file.parent().unwrap(), &options);
    (process, said[0].clone())
}

fn open(file: &Path, at: &str) -> Result<Arc<ServerConnection>, ConnectError> {
    let config = Config::load_from(Some(file), &Environment::default()).unwrap();
    let at: Endpoint = at.parse().unwrap();
    ServerConnection::open(
        &Communication::of(&config),
        &at,
        "test",
        SessionOptions {
            stripes: 3,
            ..SessionOptions::default()
        },
    )
}

/// The address of a server that listens on `tls/ADDRESS`, with its certificate's name.
fn named(said: &str, name: &str) -> String {
    said.replace("tls/", &format!("tls/{name}@"))
}

#[test]
fn hosts_of_the_realm_use_the_server_and_others_are_told_why_not() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let realm = Authority::new();
    let server = realm.configure(folder, "gpu7", "[gpu]\nallow = [\"a\", \"gpu7\"]");
    let (_server, said) = serve_with(&server, "tls/127.0.0.1:0");
    assert!(said.starts_with("tls/127.0.0.1:"), "{said}");
    let at = named(&said, "gpu7");

    let client = open(&realm.configure(folder, "a", ""), &at).unwrap();
    works(&client);
    carries(&client, 6 << 20);
    assert!(!client.is_local());

    let refused = |file: &Path, at: &str| open(file, at).unwrap_err().to_string();
    let text = refused(&realm.configure(folder, "b", ""), &at);
    assert!(text.contains("gpu.allow"), "{text}");
    let text = refused(&Authority::new().configure(folder, "c", ""), &at);
    assert!(text.contains("another CA"), "{text}");
    // The client expects another name.
    let text = refused(&folder.join("a.toml"), &named(&said, "gpu8"));
    assert!(text.contains("does not name the host"), "{text}");
    let text = refused(&folder.join("a.toml"), &said);
    assert!(text.contains("NAME@127.0.0.1"), "{text}");
    let text = refused(&folder.join("a.toml"), &said.replace("tls/", "tcp/"));
    assert!(text.contains("links.tls"), "{text}");
    works(&client);
}

#[test]
fn a_server_that_speaks_no_tls_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let plain = configuration(folder.path(), "plain", "");
    let (_server, said) = serve_with(&plain, "127.0.0.1:0");
    let realm = Authority::new().configure(folder.path(), "a", "");
    let text = open(&realm, &format!("tls/{said}"))
        .unwrap_err()
        .to_string();
    assert!(text.contains("does not speak TLS"), "{text}");
    // Connections within this host need no encryption.
    works(&open(&realm, &said).unwrap());
}

#[test]
fn a_server_is_not_open_to_networks_unless_it_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let plain = configuration(folder.path(), "plain", "");
    let mut command = Command::new(env!("CARGO_BIN_EXE_rgaps"));
    command.args(["gpu", "serve", "--listen", "0.0.0.0:0", "--config"]);
    command.arg(&plain);
    command.env("RGAPS_CUDA_LIBRARY", rgaps_test_driver::library());
    let done = command.output().unwrap();
    let text = String::from_utf8_lossy(&done.stderr);
    assert!(
        !done.status.success() && text.contains("links.tls") && text.contains("links.insecure"),
        "{text}"
    );
}

#[test]
fn strangers_that_say_nothing_keep_no_client_out() {
    let folder = tempfile::tempdir().unwrap();
    let realm = Authority::new();
    let server = realm.configure(folder.path(), "gpu7", "");
    let (_server, said) = serve_with(&server, "tls/127.0.0.1:0");
    let address = said.trim_start_matches("tls/");
    let strangers: Vec<_> = (0..300)
        .map(|_| TcpStream::connect(address).unwrap())
        .collect();
    // The server ends the oldest strangers to make room, which may take a moment.
    let at = named(&said, "gpu7");
    until("a client comes in", || open(&server, &at).is_ok());
    works(&open(&server, &at).unwrap());
    drop(strangers);
}

#[test]
fn a_communicator_of_a_plug_in_carries_a_session() {
    let folder = tempfile::tempdir().unwrap();
    let library = folder.path().join("abstract.so");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", "-I"]);
    compiler.arg(root.join("crates/capi/include")).arg("-o");
    compiler.arg(&library);
    let source = root.join("examples/communicator/abstract.c");
    assert!(compiler.arg(source).status().unwrap().success());
    let text = format!("[gpu.communicators]\nabstract = \"{}\"", library.display());
    let file = configuration(folder.path(), "plugin", &text);
    let name = format!("abstract/rgaps-test-{}", std::process::id());
    let (_server, said) = serve_with(&file, &name);
    assert_eq!(said, name);
    let client = open(&file, &said).unwrap();
    carries(&client, 6 << 20);
    works(&open(&file, &said).unwrap());
    let error = open(&file, "other/x").unwrap_err().to_string();
    assert!(error.contains("gpu.communicators.other"), "{error}");
}
