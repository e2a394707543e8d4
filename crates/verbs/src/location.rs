//! Where devices are in a machine, and how far from each other, read from sysfs.

use crate::ports::{names, word};
use std::fmt;
use std::fs;
use std::path::{Component, Path, PathBuf};

/// Where sysfs is mounted.
const SYSFS: &str = "/sys";
/// NVIDIA's vendor number.
const NVIDIA: &str = "0x10de";
/// The beginning of the PCI classes of GPUs (display controllers).
const DISPLAY_CLASS: &str = "0x03";

/// Where a device is in the machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Location {
    /// Its canonical path in sysfs, which names the PCI bridges above it, from the root down.
    pub pci_path: Option<PathBuf>,
    /// The NUMA node that it is near, if the kernel knows it.
    pub numa_node: Option<u32>,
}

/// How far two devices are from each other. The variants are ordered, the nearest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Distance {
    /// Below the same PCI bridge, so many steps of the bus apart: their transfers need not pass the processor.
    Bridge(u32),
    /// Below the same host bridge of a processor.
    HostBridge,
    /// Near the same NUMA node.
    Node,
    /// Near different NUMA nodes.
    Far,
    /// The kernel does not know.
    Unknown,
}

impl fmt::Display for Distance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bridge(steps) => write!(f, "below the same PCI bridge, {steps} steps apart"),
            Self::HostBridge => f.write_str("below the same PCI host bridge"),
            Self::Node => f.write_str("near the same NUMA node"),
            Self::Far => f.write_str("near another NUMA node"),
            Self::Unknown => f.write_str("at an unknown distance"),
        }
    }
}

impl Location {
    /// The location of the device with this PCI address, as `0000:3b:00.0`.
    pub fn of_pci(address: &str) -> Self {
        Self::read(Path::new(SYSFS), address)
    }

    /// The locations of all NVIDIA GPUs that the kernel shows. Their driver need not be loaded.
    pub fn gpus() -> Vec<Self> {
        gpus(Path::new(SYSFS))
    }

    /// How far another device is from this one.
    pub fn distance(&self, other: &Self) -> Distance {
        let common = self.pci_path.as_ref().zip(other.pci_path.as_ref());
        if let Some(distance) = common.and_then(|(one, two)| on_bus(one, two)) {
            return distance;
        }
        match self.numa_node.zip(other.numa_node) {
            Some((one, two)) if one == two => Distance::Node,
            Some(_) => Distance::Far,
            None => Distance::Unknown,
        }
    }

    fn read(sysfs: &Path, address: &str) -> Self {
        let folder = sysfs
            .join("bus/pci/devices")
            .join(address.to_ascii_lowercase());
        Self {
            pci_path: fs::canonicalize(&folder).ok(),
            numa_node: word(&folder.join("numa_node")).and_then(|node| node.parse().ok()),
        }
    }
}

fn gpus(sysfs: &Path) -> Vec<Location> {
    let folder = sysfs.join("bus/pci/devices");
    let is_gpu = |address: &String| {
        let says = |file, start| {
            let said = word(&folder.join(address).join(file));
            said.is_some_and(|said| said.starts_with(start))
        };
        says("vendor", NVIDIA) && says("class", DISPLAY_CLASS)
    };
    let addresses = names(&folder).into_iter().filter(is_gpu);
    addresses
        .map(|address| Location::read(sysfs, &address))
        .collect()
}

/// The part of a sysfs path from the host bridge (`pci0000:17`) down to the device.
fn bus_path(path: &Path) -> Vec<Component<'_>> {
    let is_host_bridge = |part: &Component<'_>| {
        let name = part.as_os_str().to_string_lossy();
        name.strip_prefix("pci")
            .is_some_and(|rest| rest.contains(':'))
    };
    path.components()
        .skip_while(|part| !is_host_bridge(part))
        .collect()
}

fn on_bus(one: &Path, two: &Path) -> Option<Distance> {
    let (one, two) = (bus_path(one), bus_path(two));
    let common = one.iter().zip(&two).take_while(|(a, b)| a == b).count();
    let steps = one.len() + two.len() - 2 * common;
    match common {
        0 => None,
        1 => Some(Distance::HostBridge),
        _ => Some(Distance::Bridge(u32::try_from(steps).unwrap_or(u32::MAX))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// Two processors. At the first a switch with a GPU and a card, a card at another port, and a card at another host
    /// bridge; at the second a card and a GPU.
    const DEVICES: [(&str, &str, &str, &str); 6] = [
        (
            "gpu0",
            "pci0000:17/0000:17:01.0/0000:18:00.0/0000:19:00.0/0000:1a:00.0",
            "0",
            "0x10de",
        ),
        (
            "near",
            "pci0000:17/0000:17:01.0/0000:18:00.0/0000:19:01.0/0000:1b:00.0",
            "0",
            "0x15b3",
        ),
        (
            "port",
            "pci0000:17/0000:17:03.0/0000:2a:00.0",
            "0",
            "0x15b3",
        ),
        (
            "node",
            "pci0000:30/0000:30:01.0/0000:31:00.0",
            "0",
            "0x15b3",
        ),
        ("far", "pci0000:80/0000:80:01.0/0000:81:00.0", "1", "0x15b3"),
        (
            "gpu1",
            "pci0000:80/0000:80:02.0/0000:82:00.0",
            "1",
            "0x10de",
        ),
    ];

    fn machine() -> tempfile::TempDir {
        let sysfs = tempfile::tempdir().unwrap();
        let bus = sysfs.path().join("bus/pci/devices");
        fs::create_dir_all(&bus).unwrap();
        for (_, path, node, vendor) in DEVICES {
            let folder = sysfs.path().join("devices").join(path);
            fs::create_dir_all(&folder).unwrap();
            let class = match vendor {
                "0x10de" => "0x030200",
                _ => "0x020000",
            };
            for (file, text) in [("numa_node", node), ("vendor", vendor), ("class", class)] {
                fs::write(folder.join(file), format!("{text}\n")).unwrap();
            }
            symlink(&folder, bus.join(folder.file_name().unwrap())).unwrap();
        }
        sysfs
    }

    fn location(sysfs: &Path, name: &str) -> Location {
        let (_, path, ..) = DEVICES.iter().find(|(of, ..)| *of == name).unwrap();
        let address = path.rsplit('/').next().unwrap();
        Location::read(sysfs, &address.to_ascii_uppercase())
    }

    #[test]
    fn distances_are_those_of_the_bus_and_then_of_nodes() {
        let machine = machine();
        let from = |name| location(machine.path(), name);
        for (one, two, expected) in [
            ("gpu0", "near", Distance::Bridge(4)),
            ("gpu0", "port", Distance::HostBridge),
            ("gpu0", "node", Distance::Node),
            ("gpu0", "far", Distance::Far),
            ("gpu1", "far", Distance::HostBridge),
            ("gpu1", "near", Distance::Far),
        ] {
            assert_eq!(from(one).distance(&from(two)), expected, "{one} to {two}");
            assert_eq!(from(two).distance(&from(one)), expected, "{two} to {one}");
        }
        let virtual_one = Location::default();
        assert_eq!(from("gpu0").distance(&virtual_one), Distance::Unknown);
        let by_node = Location {
            numa_node: Some(0),
            ..Location::default()
        };
        assert_eq!(from("gpu0").distance(&by_node), Distance::Node);
        assert_eq!(Location::read(machine.path(), "0000:ff:00.0"), virtual_one);
    }

    #[test]
    fn gpus_are_found_without_their_driver() {
        let machine = machine();
        let expected = ["gpu0", "gpu1"].map(|name| location(machine.path(), name));
        assert_eq!(gpus(machine.path()), expected);
        assert_eq!(gpus(Path::new("/nowhere")), []);
    }
}
