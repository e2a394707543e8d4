//! A certificate authority for tests, and `[links]` of hosts with its certificates.

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use std::path::{Path, PathBuf};

pub struct Authority {
    pub issuer: CertifiedIssuer<'static, KeyPair>,
    pub dir: tempfile::TempDir,
}

impl Authority {
    pub fn new() -> Authority {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("ca.pem"), issuer.pem()).unwrap();
        Authority { issuer, dir }
    }

    pub fn ca(&self) -> PathBuf {
        self.dir.path().join("ca.pem")
    }

    /// A certificate for a host of this name at 127.0.0.1, and its key.
    pub fn certify(&self, host: &str) -> (PathBuf, PathBuf) {
        let key = KeyPair::generate().unwrap();
        let names = [host.to_owned(), "127.0.0.1".to_owned()];
        let params = CertificateParams::new(names).unwrap();
        let signed = params.signed_by(&key, &self.issuer).unwrap();
        let [certificate, secret] =
            ["pem", "key"].map(|end| self.dir.path().join(format!("{host}.{end}")));
        std::fs::write(&certificate, signed.pem()).unwrap();
        std::fs::write(&secret, key.serialize_pem()).unwrap();
        (certificate, secret)
    }
}

pub fn files(ca: &Path, (certificate, key): &(PathBuf, PathBuf)) -> String {
    format!(
        "[links.tls]\nca = \"{}\"\ncertificate = \"{}\"\nkey = \"{}\"\n",
        ca.display(),
        certificate.display(),
        key.display()
    )
}

/// The text of `[links]` for a host whose control plane listens at port `own`, and dials port `other`.
pub fn links(name: &str, protocol: &str, own: u16, other: u16, more: &str) -> String {
    links_to(name, protocol, own, &[other], more)
}

/// The text of `[links]` for a host whose control plane listens at port `own`, and dials the `others`.
pub fn links_to(name: &str, protocol: &str, own: u16, others: &[u16], more: &str) -> String {
    let others = others.iter();
    let connect: Vec<_> = others
        .map(|other| format!("\"{protocol}/127.0.0.1:{other}\""))
        .collect();
    format!(
        "host = \"{name}\"\nlisten = \"127.0.0.1:0\"\ncontrol = [\"{protocol}/127.0.0.1:{own}\"]\n\
         connect = [{}]\n{more}",
        connect.join(", ")
    )
}
