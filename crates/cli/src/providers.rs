//! Providers of host pools: which of them work on this machine, found out by creating a segment of each, and what each costs.

use rgaps_layout::SEGMENT_UNIT_BYTES;
use rgaps_pool::{HostConfig, HostSource, PoolError, Provider, Segment, SegmentSource};
use rgaps_session::HostProvider;

/// All providers.
pub const ALL: [Provider; 3] = [Provider::Memfd, Provider::Udmabuf, Provider::Dmaplane];

/// The provider that a configuration names.
pub fn configured(provider: HostProvider) -> Provider {
    match provider {
        HostProvider::Memfd => Provider::Memfd,
        HostProvider::Udmabuf => Provider::Udmabuf,
        HostProvider::Dmaplane => Provider::Dmaplane,
    }
}

/// Creates a segment of the smallest size and drops it.
pub fn try_provider(provider: Provider) -> Result<(), PoolError> {
    segment(provider).map(drop)
}

/// Creates a segment of the smallest size.
pub fn segment(provider: Provider) -> Result<Segment, PoolError> {
    let config = HostConfig {
        provider,
        ..HostConfig::default()
    };
    HostSource::new(config).create(SEGMENT_UNIT_BYTES)
}

/// A sentence on the cost and the use of a provider.
pub fn cost(provider: Provider) -> &'static str {
    match provider {
        Provider::Memfd => {
            "memory is taken when messages need it and given back; subscribers cannot write it"
        }
        Provider::Udmabuf => {
            "segments are dma-bufs, for devices; their memory is taken when the pool grows and stays, and every member could \
             write it"
        }
        Provider::Dmaplane => {
            "segments are dma-bufs in large blocks, with a quota that the kernel keeps; their memory is taken when the pool \
             grows and stays, and every member could write it"
        }
    }
}
