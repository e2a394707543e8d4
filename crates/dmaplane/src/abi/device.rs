//! The records of `dmaplane_uapi.h`: the interface of the dmaplane paper.

records! {
    "dmaplane_",
    /// `struct dmaplane_ring_entry`.
    RingEntry = "ring_entry", 16 {
        payload: u64,
        flags: u32,
        pad: u32,
    }
    /// `struct dmaplane_submit_params`.
    SubmitParams = "submit_params", 16 {
        entry: RingEntry,
    }
    /// `struct dmaplane_complete_params`.
    CompleteParams = "complete_params", 16 {
        entry: RingEntry,
    }
    /// `struct dmaplane_channel_params`.
    ChannelParams = "channel_params", 8 {
        channel_id: u32,
        pad: u32,
    }
    /// `struct dmaplane_stats`.
    Stats = "stats", 24 {
        total_submissions: u64,
        total_completions: u64,
        ring_high_watermark: u32,
        dropped_count: u32,
    }
    /// `struct dmaplane_buf_params`.
    BufParams = "buf_params", 24 {
        buf_id: u32,
        alloc_type: u32,
        size: u64,
        numa_node: i32,
        actual_numa_node: i32,
    }
    /// `struct dmaplane_mmap_info`.
    MmapInfo = "mmap_info", 24 {
        buf_id: u32,
        pad: u32,
        mmap_offset: u64,
        mmap_size: u64,
    }
    /// `struct dmaplane_buf_stats`.
    BufStats = "buf_stats", 40 {
        buffers_created: u64,
        buffers_destroyed: u64,
        numa_local_allocs: u64,
        numa_remote_allocs: u64,
        numa_anon_allocs: u64,
    }
    /// `struct dmaplane_export_dmabuf_arg`.
    ExportDmabufArg = "export_dmabuf_arg", 8 {
        buf_id: u32,
        fd: i32,
    }
    /// `struct dmaplane_dmabuf_stats`.
    DmabufStats = "dmabuf_stats", 48 {
        dmabufs_exported: u64,
        dmabufs_released: u64,
        attachments_total: u64,
        detachments_total: u64,
        maps_total: u64,
        unmaps_total: u64,
    }
    /// `struct dmaplane_rdma_setup`.
    RdmaSetup = "rdma_setup", 52 {
        ib_dev_name: [u8; 32],
        port: u32,
        cq_depth: u32,
        max_send_wr: u32,
        max_recv_wr: u32,
        status: u32,
    }
    /// `struct dmaplane_mr_params`.
    MrParams = "mr_params", 32 {
        mr_id: u32,
        buf_id: u32,
        access_flags: u32,
        lkey: u32,
        rkey: u32,
        pad: u32,
        addr: u64,
    }
    /// `struct dmaplane_loopback_params`.
    LoopbackParams = "loopback_params", 24 {
        mr_id: u32,
        size: u32,
        status: u32,
        pad: u32,
        latency_ns: u64,
    }
    /// `struct dmaplane_bench_params`.
    BenchParams = "bench_params", 56 {
        mr_id: u32,
        msg_size: u32,
        iterations: u32,
        queue_depth: u32,
        total_ns: u64,
        avg_latency_ns: u64,
        p99_latency_ns: u64,
        throughput_mbps: u64,
        mr_reg_ns: u64,
    }
    /// `struct dmaplane_rdma_stats`.
    RdmaStats = "rdma_stats", 64 {
        mrs_registered: u64,
        mrs_deregistered: u64,
        sends_posted: u64,
        recvs_posted: u64,
        completions_polled: u64,
        completion_errors: u64,
        bytes_sent: u64,
        bytes_received: u64,
    }
    /// `struct dmaplane_flow_params`.
    FlowParams = "flow_params", 16 {
        max_credits: u32,
        high_watermark: u32,
        low_watermark: u32,
        status: u32,
    }
    /// `struct dmaplane_sustained_params`.
    SustainedParams = "sustained_params", 80 {
        mr_id: u32,
        msg_size: u32,
        queue_depth: u32,
        duration_secs: u32,
        total_bytes: u64,
        total_ops: u64,
        avg_throughput_mbps: u64,
        min_window_mbps: u64,
        max_window_mbps: u64,
        stall_count: u64,
        cq_overflow_count: u64,
        status: u32,
        pad: u32,
    }
    /// `struct dmaplane_sweep_params`.
    SweepParams = "sweep_params", 808 {
        mr_id: u32,
        msg_size: u32,
        iterations: u32,
        min_qdepth: u32,
        max_qdepth: u32,
        step: u32,
        throughput_mbps: [u64; 32],
        avg_latency_ns: [u64; 32],
        p99_latency_ns: [u64; 32],
        nr_points: u32,
        saturation_qdepth: u32,
        status: u32,
        pad: u32,
    }
    /// `struct dmaplane_flow_stats`.
    FlowStats = "flow_stats", 48 {
        credit_stalls: u64,
        high_watermark_events: u64,
        low_watermark_events: u64,
        cq_overflows: u64,
        total_sustained_bytes: u64,
        total_sustained_ops: u64,
    }
    /// `struct dmaplane_numa_topo`.
    NumaTopo = "numa_topo", 456 {
        nr_nodes: u32,
        nr_cpus: u32,
        node_cpu_count: [u32; 8],
        node_online: [u32; 8],
        node_mem_total_kb: [u64; 8],
        node_mem_free_kb: [u64; 8],
        distances: [[u32; 8]; 8],
    }
    /// `struct dmaplane_numa_bench_params`.
    NumaBenchParams = "numa_bench_params", 1048 {
        buffer_size: u64,
        iterations: u32,
        pad: u32,
        bw_mbps: [[u64; 8]; 8],
        lat_ns: [[u64; 8]; 8],
        nr_nodes: u32,
        status: u32,
    }
    /// `struct dmaplane_gpu_pin_params`.
    GpuPinParams = "gpu_pin_params", 40 {
        gpu_va: u64,
        size: u64,
        handle: u32,
        gpu_numa_node: i32,
        num_pages: u32,
        pad: u32,
        bar1_consumed: u64,
    }
    /// `struct dmaplane_gpu_unpin_params`.
    GpuUnpinParams = "gpu_unpin_params", 4 {
        handle: u32,
    }
    /// `struct dmaplane_gpu_dma_params`.
    GpuDmaParams = "gpu_dma_params", 40 {
        gpu_handle: u32,
        host_handle: u32,
        offset: u64,
        size: u64,
        elapsed_ns: u64,
        throughput_mbps: u64,
    }
    /// `struct dmaplane_gpu_bench_params`.
    GpuBenchParams = "gpu_bench_params", 40 {
        gpu_handle: u32,
        host_handle: u32,
        size: u64,
        iterations: u32,
        pad: u32,
        h2g_bandwidth_mbps: u64,
        g2h_bandwidth_mbps: u64,
    }
    /// `struct dmaplane_gpu_mr_params`.
    GpuMrParams = "gpu_mr_params", 16 {
        gpu_handle: u32,
        mr_id: u32,
        lkey: u32,
        rkey: u32,
    }
    /// `struct dmaplane_gpu_loopback_params`.
    GpuLoopbackParams = "gpu_loopback_params", 32 {
        gpu_mr_id: u32,
        host_mr_id: u32,
        size: u32,
        pad: u32,
        latency_ns: u64,
        recv_bytes: u32,
        status: u32,
    }
    /// `struct dmaplane_gpu_stats`.
    GpuStats = "gpu_stats", 48 {
        pins_total: u64,
        unpins_total: u64,
        callbacks_fired: u64,
        dma_h2g_bytes: u64,
        dma_g2h_bytes: u64,
        gpu_mrs_registered: u64,
    }
    /// `struct dmaplane_hist_params`.
    HistParams = "hist_params", 192 {
        buckets: [u64; 16],
        count: u64,
        p50_ns: u64,
        p99_ns: u64,
        p999_ns: u64,
        avg_ns: u64,
        min_ns: u64,
        max_ns: u64,
        reset: u32,
        pad: u32,
    }
    /// `struct dmaplane_write_imm_params`.
    WriteImmParams = "write_imm_params", 48 {
        local_mr_id: u32,
        length: u32,
        local_offset: u64,
        remote_addr: u64,
        remote_rkey: u32,
        imm_data: u32,
        use_peer_qp: u32,
        status: u32,
        elapsed_ns: u64,
    }
    /// `struct dmaplane_post_recv_params`.
    PostRecvParams = "post_recv_params", 16 {
        mr_id: u32,
        size: u32,
        use_peer_qp: u32,
        status: u32,
    }
    /// `struct dmaplane_poll_recv_params`.
    PollRecvParams = "poll_recv_params", 32 {
        use_peer_qp: u32,
        timeout_ms: u32,
        status: u32,
        wc_flags: u32,
        imm_data: u32,
        byte_len: u32,
        elapsed_ns: u64,
    }
    /// `struct dmaplane_rdma_peer_info`.
    RdmaPeerInfo = "rdma_peer_info", 40 {
        qp_num: u32,
        lid: u16,
        pad0: u16,
        gid: [u8; 16],
        mac: [u8; 6],
        pad1: u16,
        status: u32,
        pad2: u32,
    }
    /// `struct dmaplane_rdma_remote_xfer_params`.
    RdmaRemoteXferParams = "rdma_remote_xfer_params", 32 {
        mr_id: u32,
        size: u32,
        elapsed_ns: u64,
        throughput_mbps: u64,
        status: u32,
        pad: u32,
    }
}
