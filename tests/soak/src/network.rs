//! A network namespace for each host, and a cable between every two of them.
//!
//! A host has one address, on its loopback device, and a route to each other host over the cable between the two. So a
//! cable that is pulled leaves the way over the third host.

use std::process::Command;

/// The namespaces and cables; gone when it is dropped.
pub struct Network {
    namespaces: Vec<String>,
    cables: Vec<(usize, usize)>,
}

fn ip(arguments: &str) -> Result<(), String> {
    let output = Command::new("ip")
        .args(arguments.split(' '))
        .output()
        .map_err(|error| format!("the program 'ip' cannot be run: {error}"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!(
            "ip {arguments}: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        )),
    }
}

/// A host's address.
pub fn address(host: usize) -> String {
    format!("10.213.78.{}", host + 1)
}

fn device(from: usize, to: usize) -> String {
    format!("cable{from}{to}")
}

impl Network {
    /// The error says why that cannot be here.
    pub fn lay(hosts: usize) -> Result<Network, String> {
        let pid = std::process::id();
        let pairs = (0..hosts).flat_map(|a| (a + 1..hosts).map(move |b| (a, b)));
        let network = Network {
            namespaces: (0..hosts)
                .map(|at| format!("rgaps-soak-{pid}-{at}"))
                .collect(),
            cables: pairs.collect(),
        };
        for (at, name) in network.namespaces.iter().enumerate() {
            ip(&format!("netns add {name}"))?;
            ip(&format!("-n {name} link set lo up"))?;
            ip(&format!("-n {name} addr add {}/32 dev lo", address(at)))?;
        }
        for cable in 0..network.cables.len() {
            let (a, b) = network.cables[cable];
            let (name_a, name_b) = (&network.namespaces[a], &network.namespaces[b]);
            let (end_a, end_b) = (device(a, b), device(b, a));
            ip(&format!(
                "link add {end_a} netns {name_a} type veth peer name {end_b} netns {name_b}"
            ))?;
            network.plug_in(cable)?;
        }
        Ok(network)
    }

    pub fn namespace(&self, host: usize) -> &str {
        &self.namespaces[host]
    }

    pub fn cables(&self) -> usize {
        self.cables.len()
    }

    /// What a cable is called in the log.
    pub fn cable_name(&self, cable: usize) -> String {
        let (a, b) = self.cables[cable];
        format!("between host-{a} and host-{b}")
    }

    pub fn pull(&self, cable: usize) -> Result<(), String> {
        let (a, b) = self.cables[cable];
        ip(&format!(
            "-n {} link set {} down",
            self.namespaces[b],
            device(b, a)
        ))
    }

    pub fn plug_in(&self, cable: usize) -> Result<(), String> {
        let (a, b) = self.cables[cable];
        for (from, to) in [(a, b), (b, a)] {
            let (name, end) = (&self.namespaces[from], device(from, to));
            ip(&format!("-n {name} link set {end} up"))?;
            // A device that is down has no routes.
            let (there, here) = (address(to), address(from));
            ip(&format!(
                "-n {name} route replace {there}/32 dev {end} src {here}"
            ))?;
        }
        Ok(())
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for name in &self.namespaces {
            let _ = ip(&format!("netns del {name}"));
        }
    }
}
