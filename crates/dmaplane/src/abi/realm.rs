//! The records of `dmaplane_pool_uapi.h`: memory with a quota.

records! {
    "dmaplane_pool_",
    /// `struct dmaplane_pool_version`.
    Version = "version", 32 {
        version: u32,
        buffers_max: u32,
        features: u64,
        bytes_max: u64,
        reserved: u64,
    }
    /// `struct dmaplane_pool_quota`.
    Quota = "quota", 16 {
        bytes: u64,
        reserved: u64,
    }
    /// `struct dmaplane_pool_realm`.
    Realm = "realm", 56 {
        quota_bytes: u64,
        used_bytes: u64,
        buffers: u32,
        reserved0: u32,
        reserved: [u64; 4],
    }
    /// `struct dmaplane_pool_alloc`.
    Alloc = "alloc", 56 {
        size: u64,
        node: i32,
        flags: u32,
        fd: i32,
        actual_node: i32,
        nodes: u64,
        block_bytes: u64,
        reserved: [u64; 2],
    }
    /// `struct dmaplane_pool_revoke`.
    Revoke = "revoke", 24 {
        fd: i32,
        flags: u32,
        importers: u32,
        reserved0: u32,
        reserved: u64,
    }
    /// `struct dmaplane_pool_info`.
    Info = "info", 64 {
        fd: i32,
        state: u32,
        size: u64,
        node: i32,
        actual_node: i32,
        nodes: u64,
        block_bytes: u64,
        importers: u32,
        mappings: u32,
        reserved: [u64; 2],
    }
    /// `struct dmaplane_pool_adopt`.
    Adopt = "adopt", 16 {
        fd: i32,
        reserved0: u32,
        reserved: u64,
    }
}
