//! A peer whose frames a test writes by hand.
use super::hosts::{KEY, LIMIT};
use rgaps_transport::machine::frame::{self, Decoded, Description, Frame, RdmaMode};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

/// A TCP connection to an endpoint.
pub struct Raw(pub TcpStream);

impl Raw {
    pub fn new(to: SocketAddr) -> Self {
        let tcp = TcpStream::connect(to).unwrap();
        tcp.set_read_timeout(Some(LIMIT)).unwrap();
        tcp.set_write_timeout(Some(LIMIT)).unwrap();
        Self(tcp)
    }

    pub fn say(&mut self, frame: &Frame) {
        let mut bytes = Vec::new();
        let length = frame.encode(&mut bytes);
        // The endpoint may have closed the connection already.
        let _ = self.0.write_all(&bytes[..length]);
    }

    /// The next frame; `None` if the connection ended.
    pub fn hear(&mut self) -> Option<Frame> {
        let (mut bytes, mut need) = (Vec::new(), 8);
        loop {
            while bytes.len() < need {
                let mut one = [0];
                match self.0.read(&mut one) {
                    Ok(0) => return None,
                    Ok(_) => bytes.push(one[0]),
                    Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {
                        return None
                    }
                    // This process was stopped and continued.
                    Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                    Err(error) => panic!("waited {LIMIT:?} for a frame: {error}"),
                }
            }
            match Frame::decode(&bytes).unwrap() {
                Decoded::Frame(frame, _) => return Some(frame),
                Decoded::Short(more) => need = more,
            }
        }
    }

    pub fn until_end(&mut self) -> Vec<Frame> {
        std::iter::from_fn(|| self.hear()).collect()
    }
}

pub fn hello() -> Frame {
    Frame::Hello(frame::Hello {
        node: 1,
        machine: 1,
        realm: 7,
        lane: 0,
        first_window: 64 << 10,
        rdma: RdmaMode::No,
        to: 2,
        key: KEY,
    })
}

pub fn reset(why: &str) -> Frame {
    let why = Description::new(why.as_bytes()).unwrap();
    Frame::Reset(frame::Reset { why })
}
