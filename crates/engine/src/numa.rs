//! The NUMA nodes of devices, as the kernel reports them.

use nix::ifaddrs::getifaddrs;
use std::net::IpAddr;
use std::path::Path;

/// Where sysfs is mounted.
pub(crate) const SYS: &str = "/sys";

/// The node of the network card with this address.
pub(crate) fn of_address(sys: &Path, address: IpAddr) -> Result<u32, String> {
    let card = card(address)?;
    let folder = sys.join("class/net").join(&card).join("device");
    if !folder.exists() {
        return Err(format!(
            "network interface '{card}' with the address {address} is not a network card"
        ));
    }
    node(sys, &folder, &format!("network card '{card}'"))
}

/// The node of the device with this address on the PCI bus, as `0000:3b:00.0`.
pub(crate) fn of_pci(sys: &Path, pci_address: &str) -> Result<u32, String> {
    let folder = sys
        .join("bus/pci/devices")
        .join(pci_address.to_ascii_lowercase());
    node(sys, &folder, &format!("the device {pci_address}"))
}

fn card(address: IpAddr) -> Result<String, String> {
    let all =
        getifaddrs().map_err(|error| format!("listing the network interfaces failed: {error}"))?;
    let found = all.into_iter().find(|interface| {
        let storage = interface.address.as_ref();
        storage.is_some_and(|storage| {
            let four = storage.as_sockaddr_in().map(|four| IpAddr::V4(four.ip()));
            let six = || storage.as_sockaddr_in6().map(|six| IpAddr::V6(six.ip()));
            four.or_else(six) == Some(address)
        })
    });
    found
        .map(|interface| interface.interface_name)
        .ok_or_else(|| format!("no network interface has the address {address}"))
}

fn node(sys: &Path, folder: &Path, what: &str) -> Result<u32, String> {
    let text = std::fs::read_to_string(folder.join("numa_node"));
    let reported = text.ok().and_then(|text| text.trim().parse::<i64>().ok());
    // -1: the device has no node.
    if let Some(node) = reported.and_then(|node| u32::try_from(node).ok()) {
        return Ok(node);
    }
    let online = std::fs::read_to_string(sys.join("devices/system/node/online"));
    match online.unwrap_or_default().trim() {
        // The machine has only this node.
        "0" => Ok(0),
        _ => Err(format!(
            "the kernel does not report the NUMA node of {what}"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sysfs with these files.
    fn sys(files: &[(&str, &str)]) -> tempfile::TempDir {
        let sys = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = sys.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        sys
    }

    const LOOPBACK: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    #[test]
    fn a_card_is_found_by_its_address() {
        // The loopback is a card here.
        let near = sys(&[("class/net/lo/device/numa_node", "1\n")]);
        assert_eq!(of_address(near.path(), LOOPBACK), Ok(1));
        let unknown = "203.0.113.9".parse().unwrap();
        let why = of_address(near.path(), unknown).unwrap_err();
        assert!(why.contains("no network interface has"), "{why}");
        let why = of_address(sys(&[]).path(), LOOPBACK).unwrap_err();
        assert!(
            why.contains("'lo'") && why.contains("not a network card"),
            "{why}"
        );
    }

    #[test]
    fn a_device_that_is_near_no_node_is_near_the_only_one() {
        const DEVICE: &str = "bus/pci/devices/0000:3b:00.0/numa_node";
        const ONLINE: &str = "devices/system/node/online";
        let of = |files: &[(&str, &str)]| of_pci(sys(files).path(), "0000:3B:00.0");
        assert_eq!(of(&[(DEVICE, "1\n"), (ONLINE, "0-1\n")]), Ok(1));
        assert_eq!(of(&[(DEVICE, "-1\n"), (ONLINE, "0\n")]), Ok(0));
        for files in [&[(DEVICE, "-1\n"), (ONLINE, "0-1\n")][..], &[]] {
            let why = of(files).unwrap_err();
            assert!(why.contains("the device 0000:3B:00.0"), "{why}");
        }
    }
}
