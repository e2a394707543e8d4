//! Decides which requests may have data.
//!
//! A browser lets scripts of every web site send requests to 127.0.0.1, and open WebSockets there. So the server checks:
//!
//! - `Host`, if the server listens at loopback: must be a name of loopback. A site that makes its own name resolve to 127.0.0.1
//!   (DNS rebinding) sends that name.
//! - `Origin`, without a token: the site of the script that sends the request must be the server's own page or an allowed one.
//!   Programs other than browsers send none.
//! - The token, if there is one, in the query (`?token=`) or in the header `Authorization: Bearer`.
//!
//! Other users of this host can connect to 127.0.0.1, too. So without a token the process at the other end must belong to the
//! server's user, or to root.

use crate::http::{Request, Status};
use crate::options::{is_loopback, Options};
use std::net::IpAddr;

const ROOT: u32 = 0;

pub(crate) struct Access {
    /// The user id of the server's process.
    user: u32,
    token: Option<String>,
    origins: Vec<String>,
    is_loopback: bool,
}

/// The answer to a refused request: its status, and the reason.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Refused(pub(crate) Status, pub(crate) &'static str);

impl Access {
    pub(crate) fn new(options: &Options) -> Access {
        Access {
            user: rustix::process::geteuid().as_raw(),
            token: options.token.clone(),
            origins: options.origins.clone(),
            is_loopback: is_loopback(options.listen.ip()),
        }
    }

    /// Checks `Host`, which is enough for the page's files: they have no data of the realm.
    pub(crate) fn check_host(&self, request: &Request) -> Result<(), Refused> {
        let host = request.header("host").unwrap_or_default();
        match self.is_loopback && !is_loopback_name(host) {
            true => Err(Refused(
                Status::Forbidden,
                "the request names another host than this one: use http://127.0.0.1 or http://localhost",
            )),
            false => Ok(()),
        }
    }

    /// Checks whether a request may have data. `owner`: finds the user of the process that sends it.
    pub(crate) fn check(
        &self,
        request: &Request,
        owner: impl FnOnce() -> Option<u32>,
    ) -> Result<(), Refused> {
        self.check_host(request)?;
        let Some(token) = &self.token else {
            self.check_origin(request)?;
            return match owner() {
                Some(ROOT) => Ok(()),
                Some(user) if user == self.user => Ok(()),
                _ => Err(Refused(
                    Status::Forbidden,
                    "without a token only the user who started 'rgaps view' may look: start it with --token-file",
                )),
            };
        };
        let header = request.header("authorization").unwrap_or_default();
        let given = request
            .query("token")
            .or(header.strip_prefix("Bearer "))
            .unwrap_or_default();
        match is_same(given, token) {
            true => Ok(()),
            false => Err(Refused(
                Status::Unauthorized,
                "the token is missing or wrong: add ?token=... to the address",
            )),
        }
    }

    fn check_origin(&self, request: &Request) -> Result<(), Refused> {
        let Some(origin) = request.header("origin") else {
            return Ok(());
        };
        let host = request.header("host").unwrap_or_default();
        let is_own = origin.strip_prefix("http://") == Some(host);
        match is_own || self.origins.iter().any(|known| known == origin) {
            true => Ok(()),
            false => Err(Refused(
                Status::Forbidden,
                "this web site may not connect: allow it with --allow-origin, or require a token",
            )),
        }
    }
}

/// Compares in constant time, so that the time does not tell where a wrong token differs.
fn is_same(given: &str, token: &str) -> bool {
    let pairs = given.bytes().zip(token.bytes());
    let difference = pairs.fold(0, |all, (one, other)| all | (one ^ other));
    given.len() == token.len() && std::hint::black_box(difference) == 0
}

/// Whether a host, with or without a port, is a name of loopback.
fn is_loopback_name(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split_once(']').map_or("", |(name, _)| name),
        None => host.split_once(':').map_or(host, |(name, _)| name),
    };
    let address: Result<IpAddr, _> = name.parse();
    name.eq_ignore_ascii_case("localhost") || address.is_ok_and(is_loopback)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(options: Options) -> Access {
        options.check().unwrap();
        Access::new(&options)
    }

    fn request(path: &str, headers: &[(&str, &str)]) -> Request {
        let mut head = format!("GET {path} HTTP/1.1\r\n");
        for (name, value) in headers {
            head += &format!("{name}: {value}\r\n");
        }
        head += "\r\n";
        Request::parse(head.as_bytes()).unwrap().unwrap().0
    }

    fn status(access: &Access, path: &str, headers: &[(&str, &str)]) -> Option<Status> {
        let refused = access
            .check(&request(path, headers), || Some(access.user))
            .err();
        refused.map(|refused| refused.0)
    }

    #[test]
    fn on_loopback_the_host_must_be_loopback() {
        let access = access(Options::default());
        for host in [
            "127.0.0.1:8765",
            "localhost",
            "LOCALHOST:1",
            "[::1]:8765",
            "127.1.2.3",
        ] {
            assert_eq!(status(&access, "/", &[("Host", host)]), None, "{host}");
        }
        for host in [
            "evil.example:8765",
            "localhost.evil.example",
            "10.0.0.1",
            "[::2]",
            "[",
            "",
        ] {
            let refused = status(&access, "/", &[("Host", host)]);
            assert_eq!(refused, Some(Status::Forbidden), "{host}");
        }
        assert_eq!(status(&access, "/", &[]), Some(Status::Forbidden));
    }

    #[test]
    fn other_web_sites_are_refused() {
        let access = access(Options::default());
        let of = |origin| {
            let headers = [("Host", "127.0.0.1:8765"), ("Origin", origin)];
            status(&access, "/", &headers)
        };
        assert_eq!(of("http://127.0.0.1:8765"), None);
        assert_eq!(of("https://app.foxglove.dev"), None);
        for origin in [
            "http://evil.example",
            "null",
            "http://127.0.0.1:9",
            "file://",
            "",
        ] {
            assert_eq!(of(origin), Some(Status::Forbidden), "{origin}");
        }
    }

    #[test]
    fn other_users_of_the_host_are_refused() {
        let mut access = access(Options::default());
        access.user = 1000;
        let request = request("/", &[("Host", "localhost")]);
        let check = |owner| access.check(&request, || owner).is_ok();
        assert!(check(Some(1000)) && check(Some(ROOT)));
        assert!(!check(Some(1001)) && !check(None));
    }

    #[test]
    fn who_has_the_token_may_come_from_anywhere() {
        let token = "0123456789abcdef";
        let access = access(Options {
            listen: "0.0.0.0:0".parse().unwrap(),
            token: Some(token.to_owned()),
            ..Options::default()
        });
        let origin = ("Origin", "http://somewhere.example");
        let right = format!("/state.json?x=1&token={token}");
        assert_eq!(status(&access, &right, &[("Host", "robot"), origin]), None);
        let bearer = format!("Bearer {token}");
        assert_eq!(status(&access, "/", &[("Authorization", &bearer)]), None);
        for wrong in [
            "/",
            "/?token=",
            "/?token=0123456789abcdee",
            "/?token=0123456789abcdef0",
        ] {
            let refused = status(&access, wrong, &[("Host", "robot")]);
            assert_eq!(refused, Some(Status::Unauthorized), "{wrong}");
        }
    }

    #[test]
    fn a_token_is_required_where_others_reach_the_server() {
        let options = |listen: &str, token: Option<&str>| Options {
            listen: listen.parse().unwrap(),
            token: token.map(str::to_owned),
            ..Options::default()
        };
        for listen in ["0.0.0.0:1", "10.0.0.1:1", "[::]:1"] {
            assert!(options(listen, None).check().is_err(), "{listen}");
            assert!(options(listen, Some("0123456789abcdef")).check().is_ok());
        }
        assert!(options("[::1]:1", None).check().is_ok());
        assert!(options("127.0.0.1:1", Some("short")).check().is_err());
    }
}
