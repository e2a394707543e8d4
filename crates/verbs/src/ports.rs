//! The ports of RDMA devices, their addresses and their locations, read from sysfs.

use crate::location::Location;
use std::fs;
use std::path::Path;

/// The folder with a folder for each RDMA device.
pub(crate) const SYSFS: &str = "/sys/class/infiniband";

/// A port of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// The device's name.
    pub device: String,
    /// The port's number, from 1 on.
    pub number: u8,
    /// Whether it has a link.
    pub is_up: bool,
    /// The kernel's name of its state, as `ACTIVE`.
    pub state: String,
    /// Its RoCE v2 address over IPv4, if it has one.
    pub address: Option<PortAddress>,
    /// The location of its device.
    pub location: Location,
}

/// A RoCE v2 address over IPv4.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortAddress {
    /// Its index in the port's table of GIDs.
    pub index: u8,
    /// The GID.
    pub gid: [u8; 16],
    /// The network interface that it belongs to.
    pub interface: Option<String>,
}

impl PortAddress {
    /// The IPv4 address in it.
    pub fn ip(&self) -> std::net::Ipv4Addr {
        let [.., a, b, c, d] = self.gid;
        std::net::Ipv4Addr::new(a, b, c, d)
    }
}

pub(crate) fn word(path: &Path) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

pub(crate) fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<_> = entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    names.sort();
    names
}

/// Parses a GID, as `0000:0000:0000:0000:0000:ffff:0a09:0001`.
fn gid(text: &str) -> Option<[u8; 16]> {
    let mut gid = [0; 16];
    let mut words = text.split(':');
    for pair in gid.chunks_exact_mut(2) {
        pair.copy_from_slice(&u16::from_str_radix(words.next()?, 16).ok()?.to_be_bytes());
    }
    words.next().is_none().then_some(gid)
}

fn is_ipv4(gid: &[u8; 16]) -> bool {
    gid[..12] == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff]
}

fn address(port: &Path) -> Option<PortAddress> {
    let mut indices: Vec<u8> = names(&port.join("gids"))
        .iter()
        .filter_map(|name| name.parse().ok())
        .collect();
    indices.sort_unstable();
    indices.into_iter().find_map(|index| {
        let name = index.to_string();
        let gid = gid(&word(&port.join("gids").join(&name))?)?;
        let attributes = port.join("gid_attrs");
        let kind = word(&attributes.join("types").join(&name))?;
        (kind == "RoCE v2" && is_ipv4(&gid)).then_some(())?;
        let interface = word(&attributes.join("ndevs").join(&name));
        Some(PortAddress {
            index,
            gid,
            interface,
        })
    })
}

/// All ports below `root`.
pub(crate) fn read(root: &Path) -> Vec<Port> {
    let mut found = Vec::new();
    for device in names(root) {
        let folder = root.join(&device);
        // `numa_node` is -1 if there is one node only, or none is known. Emulated devices are on no bus.
        let location = Location {
            numa_node: word(&folder.join("device/numa_node")).and_then(|node| node.parse().ok()),
            pci_path: fs::canonicalize(folder.join("device")).ok(),
        };
        for port in names(&folder.join("ports")) {
            let Ok(number) = port.parse() else {
                continue;
            };
            let port = folder.join("ports").join(port);
            let state = word(&port.join("state")).unwrap_or_default();
            found.push(Port {
                device: device.clone(),
                number,
                is_up: state.ends_with("ACTIVE"),
                // Without the number before the name.
                state: state.split(' ').next_back().unwrap_or_default().to_owned(),
                address: address(&port),
                location: location.clone(),
            });
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(root: &Path, file: &str, text: &str) {
        let path = root.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{text}\n")).unwrap();
    }

    #[test]
    fn the_ipv4_address_of_roce_v2_is_found_and_no_other() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        put(root, "mlx5_0/device/numa_node", "1");
        put(root, "mlx5_0/ports/1/state", "4: ACTIVE");
        let gids = [
            ("fe80:0000:0000:0000:5054:00ff:fe00:0001", "RoCE v2"),
            ("0000:0000:0000:0000:0000:ffff:0a09:0001", "IB/RoCE v1"),
            ("0000:0000:0000:0000:0000:ffff:0a09:0001", "RoCE v2"),
            ("0000:0000:0000:0000:0000:0000:0000:0000", ""),
        ];
        for (index, (gid, kind)) in gids.iter().enumerate() {
            put(root, &format!("mlx5_0/ports/1/gids/{index}"), gid);
            put(
                root,
                &format!("mlx5_0/ports/1/gid_attrs/types/{index}"),
                kind,
            );
            put(
                root,
                &format!("mlx5_0/ports/1/gid_attrs/ndevs/{index}"),
                "eth0",
            );
        }
        put(root, "mlx5_0/ports/2/state", "1: DOWN");
        put(root, "rxe0/ports/1/state", "4: ACTIVE");
        put(root, "rxe0/device/numa_node", "-1");
        let ports = read(root);
        let first = &ports[0];
        assert_eq!(
            (first.number, first.is_up, first.location.numa_node),
            (1, true, Some(1))
        );
        let address = first.address.as_ref().unwrap();
        assert_eq!((address.index, address.ip()), (2, [10, 9, 0, 1].into()));
        assert_eq!(address.interface.as_deref(), Some("eth0"));
        assert_eq!(
            (ports[1].number, ports[1].is_up, &ports[1].address),
            (2, false, &None)
        );
        assert_eq!((&first.state[..], &ports[1].state[..]), ("ACTIVE", "DOWN"));
        assert_eq!(
            (ports[2].device.as_str(), ports[2].location.numa_node),
            ("rxe0", None)
        );
        assert_eq!(read(Path::new("/nowhere")), []);
    }
}
