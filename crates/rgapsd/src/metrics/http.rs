//! The part of HTTP/1.1 that serving one page takes: a request's head of at most [`MAX_HEAD_BYTES`], one answer, and the end of the
//! connection.

/// Most bytes of a request's head.
pub const MAX_HEAD_BYTES: usize = 4096;
/// The media type of the page.
const TEXT: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// What a request asks for.
#[derive(Debug, PartialEq, Eq)]
pub enum Wants {
    /// Unknown: its head has not arrived as a whole.
    More,
    /// The page.
    Metrics {
        /// Whether it asks for the text, too (GET), or for the head alone (HEAD).
        body: bool,
    },
    /// Something that is not served. The status to answer with.
    Other(&'static str),
}

/// Parses the bytes of a request that have arrived so far.
pub fn wants(head: &[u8]) -> Wants {
    let line = match head.iter().position(|byte| *byte == b'\n') {
        Some(end) => &head[..end],
        None if head.len() >= MAX_HEAD_BYTES => {
            return Wants::Other("431 Request Header Fields Too Large")
        }
        None => return Wants::More,
    };
    let bad = Wants::Other("400 Bad Request");
    let Ok(line) = std::str::from_utf8(line) else {
        return bad;
    };
    let mut words = line.trim_end_matches('\r').split(' ');
    let (Some(method), Some(target), Some(version), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return bad;
    };
    if !version.starts_with("HTTP/1.") {
        return bad;
    }
    // Read the whole head before answering: closing a connection with unread bytes resets it, and the client loses the answer.
    let whole = head.windows(4).any(|four| four == b"\r\n\r\n")
        || head.windows(2).any(|two| two == b"\n\n");
    if !whole {
        return match head.len() < MAX_HEAD_BYTES {
            true => Wants::More,
            false => Wants::Other("431 Request Header Fields Too Large"),
        };
    }
    let body = match method {
        "GET" => true,
        "HEAD" => false,
        _ => return Wants::Other("405 Method Not Allowed"),
    };
    match target.split('?').next() {
        Some("/metrics") => Wants::Metrics { body },
        _ => Wants::Other("404 Not Found"),
    }
}

/// The answer with the page.
pub fn page(text: &str, body: bool) -> Vec<u8> {
    let mut answer = head("200 OK", TEXT, text.len());
    if body {
        answer.extend(text.as_bytes());
    }
    answer
}

/// The answer with an error status.
pub fn refusal(status: &'static str) -> Vec<u8> {
    let text = format!("{status}: figures are at /metrics\n");
    let mut answer = head(status, "text/plain; charset=utf-8", text.len());
    answer.extend(text.as_bytes());
    answer
}

fn head(status: &str, kind: &str, bytes: usize) -> Vec<u8> {
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {bytes}\r\nConnection: close\r\n\r\n"
    )
    .into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_asked_for_with_get_or_head() {
        let get = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n";
        assert_eq!(wants(get), Wants::Metrics { body: true });
        for part in 0..get.len() {
            assert_eq!(wants(&get[..part]), Wants::More, "{part}");
        }
        let bare = b"HEAD /metrics?x=1 HTTP/1.0\n\n";
        assert_eq!(wants(bare), Wants::Metrics { body: false });
    }

    #[test]
    fn everything_else_is_refused() {
        for (head, status) in [
            (&b"GET / HTTP/1.1\r\n\r\n"[..], "404"),
            (b"GET /metricsx HTTP/1.1\r\n\r\n", "404"),
            (b"POST /metrics HTTP/1.1\r\n\r\n", "405"),
            (b"GET /metrics SPDY\r\n\r\n", "400"),
            (b"GET  /metrics HTTP/1.1\r\n\r\n", "400"),
            (b"\n", "400"),
            (b"\xff\xfe\x00\n", "400"),
            (&[b'x'; MAX_HEAD_BYTES], "431"),
        ] {
            match wants(head) {
                Wants::Other(says) => assert!(says.starts_with(status), "{says} {status}"),
                other => panic!("{other:?} {status}"),
            }
        }
        let mut endless = b"GET /metrics HTTP/1.1\r\n".to_vec();
        endless.resize(MAX_HEAD_BYTES, b'x');
        assert!(matches!(wants(&endless), Wants::Other(_)));
    }
}
