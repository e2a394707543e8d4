//! Checks host memory: segments as the configuration wants them, huge pages, NUMA, the address space.

use super::{cause, Check};
use crate::{providers, units};
use rgaps::Config;
use rgaps_layout::{CONTROL_BYTES, SEGMENT_UNIT_BYTES};
use rgaps_pool::{
    create_sealed_memfd, Access, HostConfig, HostSource, HugePages, PoolError, Provider,
    SegmentSource, SharedMap,
};
use rgaps_session::NumaChoice;
use std::os::fd::AsFd;

pub fn checks(config: &Config) -> Vec<Check> {
    let mut checks = vec![segment()];
    let providers = providers::ALL.iter();
    checks.extend(providers.map(|one| provider(config, *one)));
    checks.extend([address_space(), cap(config), huge_pages(), numa(config)]);
    checks
}

/// Creates a segment of the smallest size. The caller drops it at once.
fn try_segment(config: HostConfig) -> Result<rgaps_pool::Segment, PoolError> {
    HostSource::new(config).create(SEGMENT_UNIT_BYTES)
}

fn segment() -> Check {
    match try_segment(HostConfig::default()) {
        Ok(_) => Check::ok(
            "shared memory",
            "sealed memfd; rgaps uses nothing in /dev/shm",
        ),
        Err(error) => Check::fail(
            "shared memory",
            error.to_string(),
            "allow the system call memfd_create (a sandbox may forbid it)",
        ),
    }
}

/// Checks one provider of host memory, and says whether the configuration uses it.
fn provider(config: &Config, provider: Provider) -> Check {
    let wanted = providers::configured(config.pool.host.provider);
    let name = format!("provider {}", provider.name());
    let cost = providers::cost(provider);
    match providers::try_provider(provider) {
        Ok(()) if provider == wanted => Check::ok(&name, format!("in use: {cost}")),
        Ok(()) => {
            let key = format!("pool.host.provider = \"{}\" uses it", provider.name());
            Check::ok(&name, format!("works here; {key}: {cost}"))
        }
        Err(error) if provider == wanted => {
            let text = error.to_string();
            let advice = text.split_once("; ").map_or("", |(_, advice)| advice);
            Check::fail(&name, format!("configured, but {}", cause(&error)), advice)
        }
        Err(error) => Check::ok(
            &name,
            format!("not here, and not needed ({})", cause(&error)),
        ),
    }
}

/// Checks the address space. Every client maps the whole control segment, of which little is ever touched.
fn address_space() -> Check {
    const NAME: &str = "address space";
    let mapped = create_sealed_memfd("rgaps-doctor", CONTROL_BYTES)
        .and_then(|fd| SharedMap::new(fd.as_fd(), CONTROL_BYTES, Access::ReadWrite));
    match mapped {
        Ok(_) => Check::ok(
            NAME,
            format!("{} can be mapped", units::bytes(CONTROL_BYTES)),
        ),
        Err(error) => Check::fail(
            NAME,
            error.to_string(),
            "raise ulimit -v; vm.overcommit_memory=2 needs a higher vm.overcommit_ratio",
        ),
    }
}

fn cap(config: &Config) -> Check {
    let host = &config.pool.host;
    let cap = units::bytes(host.cap_bytes());
    let from = match host.cap {
        Some(_) => "as configured",
        None => "half of the memory; pool.host.cap sets another limit",
    };
    Check::ok("host pool", format!("may grow to {cap} ({from})"))
}

fn huge_pages() -> Check {
    const NAME: &str = "huge pages";
    let wanted = HostConfig {
        huge_pages: HugePages::Require,
        ..HostConfig::default()
    };
    match try_segment(wanted) {
        Ok(_) => Check::ok(
            NAME,
            "some are free; pool.host.hugepages = \"try\" uses them",
        ),
        Err(error) => Check::lack(
            NAME,
            format!("none are free ({})", cause(&error)),
            "only useful if messages are large and TLB misses matter: set sysctl vm.nr_hugepages=N (2 MiB \
             each), then pool.host.hugepages = \"try\"",
        ),
    }
}

fn numa(config: &Config) -> Check {
    const NAME: &str = "NUMA";
    let online = std::fs::read_to_string("/sys/devices/system/node/online");
    let Ok(online) = online else {
        return Check::ok(NAME, "one node");
    };
    let online = online.trim();
    // `NumaChoice` may leave the node to the daemon. Any node shows whether binding works, so this takes node 0.
    let node = match config.pool.host.numa_node {
        Some(NumaChoice::Node(node)) => node,
        _ => 0,
    };
    let wanted = HostConfig {
        numa_node: Some(node),
        ..HostConfig::default()
    };
    match try_segment(wanted) {
        Ok(segment) => match segment.placement.numa {
            Some(numa) if numa.sampled > 0 && numa.on_node == numa.sampled => Check::ok(
                NAME,
                format!("nodes {online}; memory requested on node {node} is there"),
            ),
            _ => Check::lack(
                NAME,
                format!(
                    "nodes {online}; cannot verify that memory requested on node {node} is there"
                ),
                segment.placement.warnings.join("; "),
            ),
        },
        Err(error) => Check::lack(NAME, error.to_string(), "free memory on that node"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_advice_about_huge_pages_stands_once() {
        let check = huge_pages();
        let text = format!("{} {:?}", check.found, check.advice);
        assert!(text.matches("nr_hugepages").count() <= 1, "{text}");
    }
}
