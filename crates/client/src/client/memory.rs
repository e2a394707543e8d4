//! The conductor's commands for leases, and for pools, their segments and mappings.

use super::mapping::PoolMapping;
use super::worker::{unexpected, unknown_zone, Worker};
use super::zone_records::{check_lease, subtract, Arena, PoolBook};
use super::ClientError;
use rgaps_layout::Domain;
use rgaps_pool::Access;
use rgaps_session::{
    Answer, Member, PoolGrant, Range, Request, ZoneId, LINKS_CLIENT, MAX_PACKET_FDS, MAX_RANGES,
};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

impl Worker {
    pub(super) fn lease(
        &mut self,
        publisher: Member,
        pool: u32,
        bytes: u64,
    ) -> Result<Vec<Range>, ClientError> {
        let request = Request::Lease {
            publisher,
            pool,
            bytes,
        };
        let (answer, _) = self.ask(&request)?;
        let Answer::Leased { ranges } = answer else {
            return Err(unexpected("a lease", &answer));
        };
        let book = self.zone(publisher.zone)?;
        let known = book.members.get_mut(&publisher);
        let Some(leases) = known.and_then(|member| member.leases.get_mut(&pool)) else {
            return Err(ClientError::Protocol("it leased to nobody".to_owned()));
        };
        let Some(known) = book.pools.get(&pool) else {
            return Err(ClientError::Protocol("it leased of no pool".to_owned()));
        };
        check_lease(&ranges, bytes, known.grant.cap_bytes)?;
        leases.extend_from_slice(&ranges);
        let end = ranges.iter().map(|range| range.offset + range.bytes).max();
        // The pool may have grown for this very lease.
        if end.is_some_and(|end| !known.is_written_to(end)) {
            if let Err(error) = self.fetch_segments(publisher.zone, pool, true) {
                self.return_ranges(publisher, pool, ranges)?;
                return Err(error);
            }
        }
        Ok(ranges)
    }

    /// Records that a publisher also writes in another pool.
    pub(super) fn write_in(&mut self, publisher: Member, pool: u32) -> Result<(), ClientError> {
        if let Some(member) = self.zone(publisher.zone)?.members.get_mut(&publisher) {
            member.leases.entry(pool).or_default();
        }
        Ok(())
    }

    /// Sets the arenas from which `give_back_unused` takes a publisher's free memory.
    pub(super) fn set_arena(&mut self, publisher: Member, arena: Weak<dyn Arena>) {
        let book = self.zones.get_mut(&publisher.zone);
        if let Some(member) = book.and_then(|book| book.members.get_mut(&publisher)) {
            member.arena = Some(arena);
        }
    }

    /// Returns the free leased memory of this process's publishers in a pool that is full.
    pub(super) fn give_back_unused(&mut self, zone: ZoneId, pool: u32) -> Result<(), ClientError> {
        let arenas: Vec<(Member, Arc<dyn Arena>)> =
            self.zones.get(&zone).map_or_else(Vec::new, |book| {
                let publishers = book.members.iter();
                let publishers = publishers.filter(|(_, m)| m.leases.contains_key(&pool));
                let arenas = publishers.map(|(id, m)| (*id, m.arena.as_ref()));
                arenas
                    .filter_map(|(id, arena)| Some((id, arena?.upgrade()?)))
                    .collect()
            });
        for (publisher, arena) in arenas {
            self.return_ranges(publisher, pool, arena.take_free(pool))?;
        }
        Ok(())
    }

    pub(super) fn return_ranges(
        &mut self,
        publisher: Member,
        pool: u32,
        ranges: Vec<Range>,
    ) -> Result<(), ClientError> {
        let known = self.zone(publisher.zone)?.members.get_mut(&publisher);
        let Some(leases) = known.and_then(|member| member.leases.get_mut(&pool)) else {
            return Ok(());
        };
        for range in &ranges {
            subtract(leases, *range);
        }
        for ranges in ranges.chunks(MAX_RANGES) {
            self.give_up(&Request::Return {
                publisher,
                pool,
                ranges: ranges.to_vec(),
            })?;
        }
        Ok(())
    }

    pub(super) fn pool_grant(&mut self, zone: ZoneId, pool: u32) -> Result<PoolGrant, ClientError> {
        if let Some(known) = self.zone(zone)?.pools.get(&pool) {
            return Ok(known.grant);
        }
        let answer = match self.ask(&Request::Pool { zone, pool }) {
            Ok((answer, _)) => answer,
            // A notice of the daemon may have described the pool before it died.
            Err(error) => {
                let known = self.zone(zone)?.pools.get(&pool);
                return known.map(|book| book.grant).ok_or(error);
            }
        };
        let Answer::Pool(grant) = answer else {
            return Err(unexpected("a question about a pool", &answer));
        };
        if grant.pool != pool {
            return Err(ClientError::Protocol(
                "it describes another pool".to_owned(),
            ));
        }
        self.zone(zone)?.pool(&grant);
        Ok(grant)
    }

    /// The pool's mapping for this access and CPU or GPU, with all segments that exist.
    pub(super) fn pool_mapping(
        &mut self,
        zone: ZoneId,
        grant: &PoolGrant,
        access: Access,
        at: Domain,
    ) -> Result<Arc<PoolMapping>, ClientError> {
        let known = self.zone(zone)?.pool(grant).mapping(access, at).cloned();
        let is_new = known.is_none();
        let mapping = match known {
            // A mapping for writing may lack segments that arrived, read-only, while this process had no publisher in the pool.
            Some(mapping) if access == Access::ReadOnly => return Ok(mapping),
            _ => self.reserve_pool(zone, grant, access, at)?,
        };
        let fetched = self.fetch_segments(zone, grant.pool, access == Access::ReadWrite);
        if fetched.is_err() && is_new && at != grant.domain {
            // Remove it: a mapping that cannot be extended would make every later fetch for this pool fail.
            self.zone(zone)?.pool(grant).remove_mapping(&mapping);
        }
        fetched.map(|()| mapping)
    }

    /// The pool's mapping for this access and CPU or GPU. A new one has addresses reserved and nothing mapped.
    pub(super) fn reserve_pool(
        &mut self,
        zone: ZoneId,
        grant: &PoolGrant,
        access: Access,
        at: Domain,
    ) -> Result<Arc<PoolMapping>, ClientError> {
        let Some(zone_book) = self.zones.get_mut(&zone) else {
            return Err(unknown_zone(zone));
        };
        let book = zone_book.pool(grant);
        if let Some(mapping) = book.mapping(access, at) {
            return Ok(mapping.clone());
        }
        let cuda = self.config.pool.cuda.enabled;
        let watch = self.watch.clone();
        if grant.domain == Domain::Host && (at != Domain::Host || watch.is_some()) {
            // Before a driver or a card registers the pages: from then on the daemon must not move them.
            let request = Request::Pin {
                zone,
                pool: grant.pool,
            };
            self.ask(&request)?;
        }
        let Some(zone_book) = self.zones.get_mut(&zone) else {
            return Err(unknown_zone(zone));
        };
        let book = zone_book.pool(grant);
        let guard = self.guard.clone();
        let driver = &mut self.driver;
        let mapping = PoolMapping::new(&book.grant, at, access, driver, cuda, guard, watch)?;
        let mapping = Arc::new(mapping);
        book.add_mapping(mapping.clone());
        Ok(mapping)
    }

    /// Records and maps segments that the daemon sent in a notice. False: the caller must fetch segments, because some are missing.
    pub(super) fn enter_grown(
        &mut self,
        zone: ZoneId,
        pool: u32,
        from: u32,
        bytes: &[u64],
        fds: Vec<OwnedFd>,
        writable: bool,
    ) -> Result<bool, ClientError> {
        let known = self.zones.get_mut(&zone);
        let Some(book) = known.and_then(|book| book.pools.get_mut(&pool)) else {
            return Ok(true);
        };
        let known = book.first_wanted(false);
        if bytes.is_empty() || from != known {
            return Ok(!bytes.is_empty() && from as usize + bytes.len() <= known as usize);
        }
        book.enter(from, bytes, fds, writable)?;
        book.extend_mappings()?;
        // A full packet may not have had all segments.
        Ok(bytes.len() < MAX_PACKET_FDS)
    }

    /// Maps the segments by which a pool has grown, also for writing if this process publishes in it.
    pub(super) fn sync_pool(&mut self, zone: ZoneId, pool: u32) -> Result<(), ClientError> {
        let zone_book = self.zone(zone)?;
        let to_write = zone_book.publishes_in(pool)
            && zone_book.pools.get(&pool).is_some_and(PoolBook::is_written);
        self.fetch_segments(zone, pool, to_write)
    }

    /// Fetches and maps the segments of a pool that this process does not have, or with `to_write` has only for reading.
    fn fetch_segments(
        &mut self,
        zone: ZoneId,
        pool: u32,
        to_write: bool,
    ) -> Result<(), ClientError> {
        let is_links = self.watch.is_some() && self.name == LINKS_CLIENT;
        loop {
            let zone_book = self.zone(zone)?;
            let publishes = zone_book.publishes_in(pool);
            // Some network cards register only memory that can be written.
            let writable = publishes || is_links;
            let Some(book) = zone_book.pools.get_mut(&pool) else {
                return Err(ClientError::Protocol(format!(
                    "it never granted pool {pool}"
                )));
            };
            if to_write && !publishes {
                return Err(ClientError::Protocol(format!(
                    "only publishers of pool {pool} may write it"
                )));
            }
            // Also maps segments that an earlier attempt fetched and could not map.
            book.extend_mappings()?;
            let from = book.first_wanted(to_write);
            let request = Request::Segments {
                zone,
                pool,
                from,
                writable,
            };
            let (answer, fds) = self.ask(&request)?;
            let Answer::Segments { bytes } = answer else {
                return Err(unexpected("a request for segments", &answer));
            };
            if bytes.is_empty() {
                return Ok(());
            }
            let Some(book) = self.zone(zone)?.pools.get_mut(&pool) else {
                return Err(ClientError::Protocol(format!("pool {pool} is gone")));
            };
            book.enter(from, &bytes, fds, writable)?;
        }
    }
}
