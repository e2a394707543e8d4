//! `pool`.

use crate::args::Common;
use crate::doctor::cause;
use crate::output::{table, Output};
use crate::{providers, session, units};
use rgaps_pool::Provider;
use rgaps_session::report::Pool;

pub fn pool(common: &Common, output: &mut Output) -> anyhow::Result<()> {
    let rows = session::look(common)?.pools()?;
    let pools: Vec<Pool> = rows.into_iter().map(Pool::from).collect();
    output.put(&pools, |to| {
        let cells: Vec<_> = pools.iter().map(cells).collect();
        let heads = [
            "DOMAIN", "ACCESS", "LEASED", "SEGMENTS", "CAP", "COPIED", "PROVIDER", "PAGES", "NUMA",
        ];
        table(to, &heads, &cells)?;
        for pool in &pools {
            for warning in &pool.warnings {
                writeln!(to, "warning: {}: {warning}", pool.domain)?;
            }
        }
        let used = |provider: &Provider| pools.iter().any(|p| p.provider.contains(provider.name()));
        for provider in providers::ALL {
            let name = provider.name();
            match providers::try_provider(provider) {
                _ if used(&provider) => writeln!(to, "{name}: {}", providers::cost(provider))?,
                Ok(()) => writeln!(to, "{name}: not used; {}", providers::cost(provider))?,
                Err(error) => writeln!(to, "{name}: not available here ({})", cause(&error))?,
            }
        }
        Ok(())
    })
}

fn cells(pool: &Pool) -> Vec<String> {
    let numa = match (pool.numa_node, pool.numa_percent) {
        (Some(node), Some(percent)) => format!("node {node}: {percent} %"),
        _ => "-".to_owned(),
    };
    vec![
        pool.domain.clone(),
        pool.access.clone(),
        units::bytes(pool.leased_bytes),
        pool.segments.to_string(),
        units::bytes(pool.cap_bytes),
        format!(
            "{}, {}",
            pool.copied_messages,
            units::bytes(pool.copied_bytes)
        ),
        pool.provider.clone(),
        pool.pages.clone(),
        numa,
    ]
}
