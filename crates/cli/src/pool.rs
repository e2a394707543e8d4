//! `pool`.

use crate::args::Common;
use crate::output::{table, Output};
use crate::{session, units};
use rgaps::PoolRow;
use serde::Serialize;

#[derive(Serialize)]
struct Pool<'a> {
    domain: String,
    access: &'a str,
    zone: String,
    cap_bytes: u64,
    segment_bytes: u64,
    segments: u32,
    leased_bytes: u64,
    pages: &'a str,
    numa_node: Option<u32>,
    numa_percent: Option<u32>,
    copied_messages: u64,
    copied_bytes: u64,
    warnings: &'a [String],
}

impl<'a> From<&'a PoolRow> for Pool<'a> {
    fn from(row: &'a PoolRow) -> Self {
        Pool {
            domain: row.domain.to_string(),
            access: &row.access,
            zone: format!("{:032x}", row.zone),
            cap_bytes: row.cap_bytes,
            segment_bytes: row.segment_bytes,
            segments: row.segments,
            leased_bytes: row.leased_bytes,
            pages: &row.pages,
            numa_node: row.numa.map(|(node, _)| node),
            numa_percent: row.numa.map(|(_, percent)| percent),
            copied_messages: row.copied_messages,
            copied_bytes: row.copied_bytes,
            warnings: &row.warnings,
        }
    }
}

pub fn pool(common: &Common, output: &mut Output) -> anyhow::Result<()> {
    let rows = session::look(common)?.pools()?;
    let pools: Vec<Pool<'_>> = rows.iter().map(Pool::from).collect();
    output.put(&pools, |to| {
        let cells: Vec<_> = pools.iter().map(cells).collect();
        let heads = [
            "DOMAIN", "ACCESS", "LEASED", "SEGMENTS", "CAP", "COPIED", "PAGES", "NUMA",
        ];
        table(to, &heads, &cells)?;
        for pool in &pools {
            for warning in pool.warnings {
                writeln!(to, "warning: {}: {warning}", pool.domain)?;
            }
        }
        Ok(())
    })
}

fn cells(pool: &Pool<'_>) -> Vec<String> {
    let numa = match (pool.numa_node, pool.numa_percent) {
        (Some(node), Some(percent)) => format!("node {node}: {percent} %"),
        _ => "-".to_owned(),
    };
    vec![
        pool.domain.clone(),
        pool.access.to_owned(),
        units::bytes(pool.leased_bytes),
        pool.segments.to_string(),
        units::bytes(pool.cap_bytes),
        format!(
            "{}, {}",
            pool.copied_messages,
            units::bytes(pool.copied_bytes)
        ),
        pool.pages.to_owned(),
        numa,
    ]
}
