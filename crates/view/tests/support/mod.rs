//! A server on a daemon of its own, and clients of it.
#![allow(dead_code)] // each test file uses a part of it

use rgaps_testkit::{Daemon, LIMIT};
use rgaps_view::{Options, Server};
use serde_json::{json, Value};
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use tungstenite::client::IntoClientRequest as _;
use tungstenite::handshake::client::Response;
use tungstenite::protocol::CloseFrame;
use tungstenite::{Error, Message, WebSocket};

pub struct View {
    pub server: Server,
    pub daemon: Daemon,
}

impl View {
    pub fn start() -> View {
        View::with(Options::default())
    }

    pub fn with(options: Options) -> View {
        View::on(Daemon::start(), options)
    }

    /// Starts a server on any free port.
    pub fn on(daemon: Daemon, mut options: Options) -> View {
        options.listen.set_port(0);
        // Fast, since tests wait for messages.
        options.rate = 100.0;
        let server = Server::start(daemon.node("view"), options).unwrap();
        View { server, daemon }
    }

    pub fn address(&self) -> SocketAddr {
        self.server.address()
    }

    pub fn client(&self) -> Client {
        Client::connect(self.address(), "/", &[]).unwrap()
    }

    /// The data of the page.
    pub fn state(&self) -> Value {
        let answer = get(self.address(), "/state.json", &[]);
        assert_eq!(answer.status, 200, "{}", answer.text());
        serde_json::from_slice(&answer.body).unwrap()
    }
}

pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// Sends a GET request. `headers`: in addition to Host, or with another Host.
pub fn get(address: SocketAddr, path: &str, headers: &[(&str, &str)]) -> Answer {
    let mut head = format!("GET {path} HTTP/1.1\r\n");
    if !headers.iter().any(|(name, _)| *name == "Host") {
        head += &format!("Host: {address}\r\n");
    }
    for (name, value) in headers {
        head += &format!("{name}: {value}\r\n");
    }
    send(address, &format!("{head}\r\n"))
}

pub fn send(address: SocketAddr, request: &str) -> Answer {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut all = Vec::new();
    stream.read_to_end(&mut all).unwrap();
    let end = all.windows(4).position(|four| four == b"\r\n\r\n").unwrap();
    let body = all.split_off(end + 4);
    let head = String::from_utf8(all).unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Answer { status, head, body }
}

/// A client of the Foxglove protocol.
pub struct Client(pub WebSocket<TcpStream>);

impl Client {
    pub fn connect(
        address: SocketAddr,
        path: &str,
        headers: &[(&str, &str)],
    ) -> Result<Client, Box<Response>> {
        let url = format!("ws://{address}{path}");
        let mut request = url.into_client_request().unwrap();
        let all = request.headers_mut();
        all.insert("Sec-WebSocket-Protocol", "foxglove.sdk.v1".parse().unwrap());
        for (name, value) in headers {
            let name = tungstenite::http::HeaderName::try_from(*name).unwrap();
            all.insert(name, value.parse().unwrap());
        }
        let stream = TcpStream::connect(address).unwrap();
        match tungstenite::client(request, stream) {
            Ok((socket, _)) => {
                // Set only after the handshake: tungstenite does not resume a handshake if a stop of this process interrupts a timed read.
                socket.get_ref().set_read_timeout(Some(LIMIT)).unwrap();
                Ok(Client(socket))
            }
            Err(tungstenite::HandshakeError::Failure(Error::Http(response))) => Err(response),
            Err(error) => panic!("{error}"),
        }
    }

    pub fn say(&mut self, said: &Value) {
        self.0.send(Message::text(said.to_string())).unwrap();
    }

    pub fn subscribe(&mut self, id: u32, channel: &Value) {
        self.say(
            &json!({"op": "subscribe", "subscriptions": [{"id": id, "channelId": channel["id"]}]}),
        );
    }

    /// Reads the next message. A timed read ends early if this process is stopped and continued, so this reads again.
    fn read(&mut self) -> Message {
        loop {
            match self.0.read() {
                Err(Error::Io(error)) if error.kind() == ErrorKind::Interrupted => {}
                read => return read.unwrap(),
            }
        }
    }

    /// Waits for the next text with this op.
    pub fn text(&mut self, op: &str) -> Value {
        loop {
            if let Message::Text(text) = self.read() {
                let said: Value = serde_json::from_str(&text).unwrap();
                if said["op"] == op {
                    return said;
                }
            }
        }
    }

    /// Waits until a topic is announced.
    pub fn channel(&mut self, topic: &str) -> Value {
        loop {
            let said = self.text("advertise");
            let mut channels = said["channels"].as_array().unwrap().iter();
            if let Some(channel) = channels.find(|channel| channel["topic"] == topic) {
                return channel.clone();
            }
        }
    }

    /// Waits for the next message. Returns its subscription and its bytes.
    pub fn message(&mut self) -> (u32, Vec<u8>) {
        loop {
            if let Message::Binary(frame) = self.read() {
                assert_eq!(frame[0], 1);
                let id = u32::from_le_bytes(frame[1..5].try_into().unwrap());
                return (id, frame[13..].to_vec());
            }
        }
    }

    /// Waits until the server closes the connection. Returns its close frame.
    pub fn end(&mut self) -> CloseFrame {
        loop {
            if let Message::Close(frame) = self.read() {
                return frame.unwrap();
            }
        }
    }
}
