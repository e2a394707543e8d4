//! The part of HTTP/1.1 that the page needs: one request without a body per connection, and its answer.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Most bytes of a request's head.
const HEAD_MAX: usize = 16 << 10;
/// Most header lines of a request.
const HEADERS_MAX: usize = 64;
/// Limit on the time for a request, and on each write of an answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Time between two looks whether the server stops.
const SLICE: Duration = Duration::from_millis(50);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    Ok = 200,
    NoContent = 204,
    BadRequest = 400,
    Unauthorized = 401,
    Forbidden = 403,
    NotFound = 404,
    MethodNotAllowed = 405,
    Unavailable = 503,
}

impl Status {
    fn phrase(self) -> &'static str {
        match self {
            Status::Ok => "OK",
            Status::NoContent => "No Content",
            Status::BadRequest => "Bad Request",
            Status::Unauthorized => "Unauthorized",
            Status::Forbidden => "Forbidden",
            Status::NotFound => "Not Found",
            Status::MethodNotAllowed => "Method Not Allowed",
            Status::Unavailable => "Service Unavailable",
        }
    }
}

/// A request without its body.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) method: String,
    pub(crate) path: String,
    query: Vec<(String, String)>,
    /// Names in lower case.
    headers: Vec<(String, String)>,
}

impl Request {
    /// Reads a request. Also returns the bytes that came behind it. The error is a text for the client.
    pub(crate) fn read(
        stream: &mut TcpStream,
        stop: &AtomicBool,
    ) -> Result<(Request, Vec<u8>), &'static str> {
        let _ = stream.set_read_timeout(Some(SLICE));
        let until = Instant::now() + PATIENCE;
        let mut bytes = Vec::new();
        let mut part = [0; 2048];
        while !stop.load(Ordering::Relaxed) {
            match stream.read(&mut part) {
                Ok(0) => return Err("the request is cut"),
                Ok(count) => bytes.extend_from_slice(&part[..count]),
                Err(error) if is_for_later(&error) => {}
                Err(_) => return Err("the request is cut"),
            }
            if let Some((request, length)) = Request::parse(&bytes)? {
                return Ok((request, bytes.split_off(length)));
            }
            if bytes.len() > HEAD_MAX || Instant::now() >= until {
                return Err("the request is too long or came too slowly");
            }
        }
        Err("the server ends")
    }

    /// Parses the request at the start of `bytes`. Also returns its length. None: it is not whole yet.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Option<(Request, usize)>, &'static str> {
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut parsed = httparse::Request::new(&mut headers);
        let length = match parsed.parse(bytes) {
            Ok(httparse::Status::Complete(length)) => length,
            Ok(httparse::Status::Partial) => return Ok(None),
            Err(_) => return Err("this is no HTTP request"),
        };
        let target = parsed.path.unwrap_or_default();
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let pairs = query.split('&').filter(|pair| !pair.is_empty());
        let headers = parsed.headers.iter().map(|header| {
            let value = String::from_utf8_lossy(header.value).trim().to_owned();
            (header.name.to_ascii_lowercase(), value)
        });
        let request = Request {
            method: parsed.method.unwrap_or_default().to_owned(),
            path: path.to_owned(),
            query: pairs
                .map(|pair| {
                    let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
                    (decoded(name), decoded(value))
                })
                .collect(),
            headers: headers.collect(),
        };
        Ok(Some((request, length)))
    }

    /// The value of a header. None: the request has none of this name, or several.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut found = self.headers.iter().filter(|(known, _)| known == name);
        let (_, value) = found.next()?;
        found.next().is_none().then_some(value)
    }

    pub(crate) fn query(&self, name: &str) -> Option<&str> {
        let mut pairs = self.query.iter();
        let (_, value) = pairs.find(|(known, _)| known == name)?;
        Some(value)
    }

    /// The key of a request to upgrade to WebSocket. None: the request is no upgrade.
    pub(crate) fn websocket_key(&self) -> Option<&str> {
        let upgrade = self.header("upgrade")?;
        let is_wanted = upgrade.eq_ignore_ascii_case("websocket");
        is_wanted
            .then(|| self.header("sec-websocket-key"))
            .flatten()
    }
}

/// Whether the error only means that no bytes have come, or that there is no room for bytes, yet.
pub(crate) fn is_for_later(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    matches!(error.kind(), WouldBlock | TimedOut | Interrupted)
}

/// Decodes the percent signs of a part of a query.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        rest = tail;
        let digits = tail.get(..2).and_then(|two| std::str::from_utf8(two).ok());
        let byte = digits.and_then(|two| u8::from_str_radix(two, 16).ok());
        bytes.push(match (first, byte) {
            (b'%', Some(byte)) => {
                rest = &tail[2..];
                byte
            }
            (b'+', _) => b' ',
            (first, _) => *first,
        });
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Sends an answer and shuts the connection down for writing.
pub(crate) fn answer(mut stream: &TcpStream, status: Status, content_type: &str, body: &[u8]) {
    // With these headers, browsers let the page load only files of this server, and let no other site embed it or read answers.
    let head = format!(
        "HTTP/1.1 {} {}\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\nConnection: close\r\nCache-Control: no-store\r\n\
         X-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\nCross-Origin-Resource-Policy: same-origin\r\n\
         Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
         connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n\r\n",
        status as u16,
        status.phrase(),
        body.len()
    );
    let _ = stream.set_write_timeout(Some(PATIENCE));
    // If the client has gone, the answer is lost, which harms nobody.
    let _ = stream
        .write_all(head.as_bytes())
        .and_then(|()| stream.write_all(body))
        .and_then(|()| stream.shutdown(std::net::Shutdown::Write));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_decoded() {
        let head = b"GET /thumbnail?topic=camera%2Ffront+1%&x HTTP/1.1\r\nHost: a\r\n\r\nrest";
        let (request, length) = Request::parse(head).unwrap().unwrap();
        assert_eq!((&*request.path, length), ("/thumbnail", head.len() - 4));
        assert_eq!(request.query("topic"), Some("camera/front 1%"));
        assert_eq!(request.query("x"), Some(""));
        assert_eq!(request.query("y"), None);
    }

    #[test]
    fn a_request_is_whole_or_wrong() {
        assert!(Request::parse(b"GET / HTTP/1.1\r\nHost").unwrap().is_none());
        assert!(Request::parse(b"\x16\x03\x01\x02\x00\r\n\r\n").is_err());
        let twice = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: evil\r\n\r\n";
        let (request, _) = Request::parse(twice).unwrap().unwrap();
        assert_eq!(request.header("host"), None);
    }
}
