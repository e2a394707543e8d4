//! A proxy on loopback whose connections fail: they are reset after a seeded number of bytes, carry no more bytes, or are slow.
use rgaps_testkit::Random;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

struct Faults {
    closing: AtomicBool,
    /// Connections carry no bytes, and do not end.
    blackhole: AtomicBool,
    /// The pause between two pieces.
    slow_us: AtomicU64,
    /// A connection is reset after at most so many bytes; 0: never.
    reset_bytes: AtomicU64,
    connections: Mutex<Vec<TcpStream>>,
    random: Mutex<Random>,
    carried: AtomicU64,
    resets: AtomicU64,
}

pub struct Proxy {
    pub address: SocketAddr,
    faults: Arc<Faults>,
}

impl Proxy {
    pub fn new(to: SocketAddr, seed: u64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let faults = Arc::new(Faults::new(seed));
        let shared = Arc::clone(&faults);
        std::thread::spawn(move || {
            for from in listener.incoming() {
                if shared.closing.load(SeqCst) {
                    return;
                }
                let (Ok(from), Ok(to)) = (from, TcpStream::connect(to)) else {
                    continue;
                };
                shared.carry_both(from, to);
            }
        });
        Self { address, faults }
    }

    pub fn blackhole(&self, on: bool) {
        self.faults.blackhole.store(on, SeqCst);
    }

    pub fn slow_us(&self, us: u64) {
        self.faults.slow_us.store(us, SeqCst);
    }

    pub fn reset_after(&self, bytes: u64) {
        self.faults.reset_bytes.store(bytes, SeqCst);
    }

    /// Resets all connections now.
    pub fn reset_all(&self) {
        for connection in self.faults.connections.lock().unwrap().drain(..) {
            reset(&connection);
        }
    }

    pub fn carried(&self) -> u64 {
        self.faults.carried.load(SeqCst)
    }

    pub fn resets(&self) -> u64 {
        self.faults.resets.load(SeqCst)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.faults.closing.store(true, SeqCst);
        self.reset_all();
        let _ = TcpStream::connect(self.address);
    }
}

/// Resets a connection: bytes in flight are lost, and both ends get an error.
fn reset(connection: &TcpStream) {
    let _ = rustix::net::sockopt::set_socket_linger(connection, Some(Duration::ZERO));
    let _ = connection.shutdown(Shutdown::Both);
}

impl Faults {
    fn new(seed: u64) -> Self {
        Self {
            closing: AtomicBool::default(),
            blackhole: AtomicBool::default(),
            slow_us: AtomicU64::default(),
            reset_bytes: AtomicU64::default(),
            connections: Mutex::default(),
            random: Mutex::new(Random::new(seed)),
            carried: AtomicU64::default(),
            resets: AtomicU64::default(),
        }
    }

    fn below(&self, end: u64) -> u64 {
        self.random.lock().unwrap().below(end)
    }

    fn carry_both(self: &Arc<Self>, from: TcpStream, to: TcpStream) {
        for connection in [&from, &to] {
            connection.set_nodelay(true).unwrap();
            let clone = connection.try_clone().unwrap();
            self.connections.lock().unwrap().push(clone);
        }
        let ends = [
            (from.try_clone().unwrap(), to.try_clone().unwrap()),
            (to, from),
        ];
        for (from, to) in ends {
            let faults = Arc::clone(self);
            std::thread::spawn(move || faults.carry(from, to));
        }
    }

    fn carry(&self, mut from: TcpStream, mut to: TcpStream) {
        let most = self.reset_bytes.load(SeqCst);
        let mut left = if most == 0 {
            u64::MAX
        } else {
            self.below(most)
        };
        let mut piece = vec![0; 64 << 10];
        loop {
            let read = match from.read(&mut piece) {
                Ok(0) | Err(_) => break,
                Ok(read) => read,
            };
            while self.blackhole.load(SeqCst) && !self.closing.load(SeqCst) {
                std::thread::sleep(Duration::from_millis(5));
            }
            std::thread::sleep(Duration::from_micros(self.slow_us.load(SeqCst)));
            let carried = (read as u64).min(left) as usize;
            if to.write_all(&piece[..carried]).is_err() {
                break;
            }
            self.carried.fetch_add(carried as u64, SeqCst);
            left -= carried as u64;
            if left == 0 {
                self.resets.fetch_add(1, SeqCst);
                break;
            }
        }
        reset(&from);
        reset(&to);
    }
}
