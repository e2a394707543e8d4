//! Providers of host pools: which work here, and what each costs. Found out by taking a segment of each.

use rgaps_layout::SEGMENT_UNIT_BYTES;
use rgaps_pool::{HostConfig, HostSource, PoolError, Provider, Segment, SegmentSource};
use rgaps_session::HostProvider;

/// All of them.
pub const ALL: [Provider; 3] = [Provider::Memfd, Provider::Udmabuf, Provider::Dmaplane];

/// The provider that a configuration names.
pub fn configured(provider: HostProvider) -> Provider {
    match provider {
        HostProvider::Memfd => Provider::Memfd,
        HostProvider::Udmabuf => Provider::Udmabuf,
        HostProvider::Dmaplane => Provider::Dmaplane,
    }
}

/// Takes a segment, as small as they are, and gives it back.
pub fn try_provider(provider: Provider) -> Result<(), PoolError> {
    segment(provider).map(drop)
}

/// A segment, as small as they are.
pub fn segment(provider: Provider) -> Result<Segment, PoolError> {
    let config = HostConfig {
        provider,
        ..HostConfig::default()
    };
    HostSource::new(config).create(SEGMENT_UNIT_BYTES)
}

/// What a provider costs and what it is for.
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
