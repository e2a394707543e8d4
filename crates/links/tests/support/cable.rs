//! A cable between two network namespaces.
use super::{disturb, ip, Host};
use std::sync::atomic::{AtomicU32, Ordering};

/// Two network namespaces and a virtual cable between them. Dropping it removes all three.
pub struct Cable {
    names: [String; 2],
    ends: [String; 2],
}

impl Cable {
    /// Lays the cable. None where that is not possible; prints why.
    pub fn lay() -> Option<Cable> {
        let laid = Cable::try_lay();
        laid.map_err(|why| println!("left out: network namespaces are not to be had here: {why}"))
            .ok()
    }

    fn try_lay() -> Result<Cable, String> {
        static LAID: AtomicU32 = AtomicU32::new(0);
        let laid = LAID.fetch_add(1, Ordering::Relaxed);
        let pid = std::process::id();
        let cable = Cable {
            names: ["a", "b"].map(|end| format!("rgaps-{pid}-{laid}{end}")),
            ends: ["a", "b"].map(|end| format!("rg{pid}{end}{laid}")),
        };
        let [a, b] = &cable.names;
        let [end_a, end_b] = &cable.ends;
        ip(&format!("netns add {a}"))?;
        ip(&format!("netns add {b}"))?;
        ip(&format!(
            "link add {end_a} netns {a} type veth peer name {end_b} netns {b}"
        ))?;
        for (at, (name, end)) in cable.names.iter().zip(&cable.ends).enumerate() {
            let address = format!("10.213.77.{}/24", at + 1);
            ip(&format!("-n {name} addr add {address} dev {end}"))?;
            ip(&format!("-n {name} link set lo up"))?;
            ip(&format!("-n {name} link set {end} up"))?;
            // Multicast goes there, as with a default route, so that hosts find each other.
            ip(&format!("-n {name} route add 224.0.0.0/4 dev {end}"))?;
            disturb(name, end).unwrap();
        }
        Ok(cable)
    }

    pub fn pull(&self) {
        self.set("down");
    }

    pub fn plug_in(&self) {
        self.set("up");
    }

    /// Starts the host at one end, 0 or 1. `more` goes into its `[links]`.
    pub fn host(&self, at: usize, more: &str) -> Host {
        let own = at + 1;
        let links = format!(
            "host = \"host-{own}\"\nlisten = \"10.213.77.{own}:0\"\ninsecure = true\n\
             control = [\"tcp/10.213.77.{own}:7447\"]\n{more}"
        );
        Host::start_in(Some(&self.names[at]), &format!("host-{own}"), &links)
    }

    /// The line of `[links]` at one end that names the host at the other end.
    pub fn connect(&self, from: usize) -> String {
        format!("connect = [\"tcp/10.213.77.{}:7447\"]", 2 - from)
    }

    fn set(&self, state: &str) {
        let (name, end) = (&self.names[1], &self.ends[1]);
        ip(&format!("-n {name} link set {end} {state}")).unwrap();
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = ip(&format!("netns del {name}"));
        }
    }
}
