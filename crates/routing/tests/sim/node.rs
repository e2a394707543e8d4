//! One host: what its user would do with the crate.
use rgaps_routing::{HostId, Life, Path, PathTable, Time};

/// What crosses a cable.
pub enum Frame {
    Paths(Vec<Path>),
}

pub struct Node {
    pub life: Life,
    pub paths: PathTable,
}

/// Frames and where they go.
pub type Out = Vec<(HostId, Frame)>;

impl Node {
    pub fn new(life: Life) -> Node {
        Node {
            life,
            paths: PathTable::new(life),
        }
    }

    pub fn frame(&mut self, from: Life, frame: Frame, now: Time, _out: &mut Out) {
        match frame {
            Frame::Paths(paths) => self
                .paths
                .advertised(from, paths, now)
                .expect("hosts keep the rules"),
        }
    }

    /// Neighbours whose links it has withdrawn.
    pub fn take_ended(&mut self) -> Vec<Life> {
        self.paths.take_ended()
    }

    pub fn poll(&mut self, now: Time, out: &mut Out) {
        self.paths.tick(now);
        let neighbours: Vec<Life> = self.paths.neighbours().collect();
        for neighbour in neighbours {
            let paths = self.paths.advertisement(neighbour.host);
            out.extend(paths.map(|paths| (neighbour.host, Frame::Paths(paths))));
        }
    }
}
