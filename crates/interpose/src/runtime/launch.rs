//! Launches, and questions about kernels.

use super::{runtime, runtime_on_stream, stream_of};
use crate::abi::{Dim3, FunctionAttributes, In, LaunchConfig, Out};
use crate::kernels::{attribute, Kernel};
use crate::launch::{attributes, launch, occupancy, Launch};
use crate::{session, thread};
use rgaps_remoting::{Call, Code};
use std::ffi::{c_int, c_uint};

const THREADS_MAX: i32 = 0;
const SHARED_BYTES: i32 = 1;
const DYNAMIC_SHARED_BYTES_MAX: i32 = 8;
const CARVEOUT: i32 = 9;

#[export_name = "rgaps_rt___cudaPushCallConfiguration"]
extern "C" fn push_call_configuration(
    grid: Dim3,
    block: Dim3,
    shared_bytes: usize,
    stream: usize,
) -> c_uint {
    let pushed = thread::push(thread::Configuration {
        grid: grid.all(),
        block: block.all(),
        shared_bytes,
        stream,
    });
    pushed.is_err().into()
}

runtime! {
    fn __cudaPopCallConfiguration(
        grid: Out<Dim3>, block: Out<Dim3>, shared_bytes: Out<usize>, stream: Out<usize>
    ) {
        let popped = thread::pop()?;
        let dim = |[x, y, z]: [u32; 3]| Dim3 { x, y, z };
        grid.put(dim(popped.grid))?;
        block.put(dim(popped.block))?;
        shared_bytes.put(popped.shared_bytes)?;
        stream.put(popped.stream)
    }

    fn cudaFuncGetAttributes(to: Out<FunctionAttributes>, function: usize) {
        to.check()?;
        let info = Kernel::of(function)?.info()?;
        let of = |number| attribute(info, number);
        to.put(FunctionAttributes {
            shared_bytes: of(SHARED_BYTES) as usize,
            constant_bytes: of(2) as usize,
            local_bytes: of(3) as usize,
            threads_max: of(THREADS_MAX),
            registers: of(4),
            ptx_version: of(5),
            binary_version: of(6),
            cache_mode: of(7),
            dynamic_shared_bytes_max: of(DYNAMIC_SHARED_BYTES_MAX),
            carveout: of(CARVEOUT),
            cluster_must_be_set: of(10),
            cluster: [of(11), of(12), of(13)],
            non_portable_cluster: of(14),
            cluster_policy: of(15),
            reserved: [0; 16],
        })
    }

    fn cudaFuncSetAttribute(function: usize, attribute: c_int, value: c_int) {
        let kernel = Kernel::of(function)?;
        kernel.info()?;
        session::call(&Call::KernelSet { kernel: kernel.id(), attribute, value }, &[])?;
        kernel.forget_info();
        Ok(())
    }

    fn cudaFuncSetCacheConfig(function: usize, _configuration: c_int) {
        Kernel::of(function).map(drop)
    }

    fn cudaFuncSetSharedMemConfig(function: usize, _configuration: c_int) {
        Kernel::of(function).map(drop)
    }

    fn cudaFuncGetParamInfo(function: usize, position: usize, offset: Out<usize>, bytes: Out<usize>) {
        let info = Kernel::of(function)?.info()?;
        let (at, size) = info.parameters.get(position).ok_or(Code::INVALID_VALUE)?;
        offset.put(*at as usize)?;
        bytes.put_if_wanted(*size as usize);
        Ok(())
    }

    fn cudaOccupancyMaxActiveBlocksPerMultiprocessor(
        blocks: Out<c_int>, function: usize, block_threads: c_int, shared_bytes: usize
    ) {
        blocks.check()?;
        blocks.put(occupancy(function, block_threads, shared_bytes, 0)?)
    }

    fn cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        blocks: Out<c_int>, function: usize, block_threads: c_int, shared_bytes: usize, flags: c_uint
    ) {
        blocks.check()?;
        blocks.put(occupancy(function, block_threads, shared_bytes, flags)?)
    }

    fn cudaOccupancyAvailableDynamicSMemPerBlock(
        bytes: Out<usize>, function: usize, blocks: c_int, block_threads: c_int
    ) {
        bytes.check()?;
        let kernel = Kernel::of(function)?;
        kernel.info()?;
        let call = Call::OccupancyShared { kernel: kernel.id(), blocks, block_threads };
        bytes.put(session::number(&call)? as usize)
    }
}

runtime_on_stream! {
    fn __cudaLaunchKernel "_ptsz" (
        default; kernel: usize, grid: Dim3, block: Dim3, arguments: In<*const u8>, shared_bytes: usize, stream: usize
    ) {
        let stream = stream_of(stream, default);
        let wanted = Launch { grid: grid.all(), block: block.all(), shared_bytes, stream, cooperative: false };
        launch(kernel, &wanted, arguments, &[])
    }

    fn cudaLaunchKernel "_ptsz" (
        default; function: usize, grid: Dim3, block: Dim3, arguments: In<*const u8>, shared_bytes: usize, stream: usize
    ) {
        let stream = stream_of(stream, default);
        let wanted = Launch { grid: grid.all(), block: block.all(), shared_bytes, stream, cooperative: false };
        launch(function, &wanted, arguments, &[])
    }

    fn cudaLaunchCooperativeKernel "_ptsz" (
        default; function: usize, grid: Dim3, block: Dim3, arguments: In<*const u8>, shared_bytes: usize, stream: usize
    ) {
        let stream = stream_of(stream, default);
        let wanted = Launch { grid: grid.all(), block: block.all(), shared_bytes, stream, cooperative: true };
        launch(function, &wanted, arguments, &[])
    }

    fn cudaLaunchKernelExC "_ptsz" (
        default; config: In<LaunchConfig>, function: usize, arguments: In<*const u8>
    ) {
        let config = config.get()?;
        let wanted = Launch {
            grid: config.grid.all(),
            block: config.block.all(),
            shared_bytes: config.shared_bytes,
            stream: stream_of(config.stream, default),
            cooperative: false,
        };
        // SAFETY: by the contract of `cudaLaunchKernelExC`, `config.attributes` has `config.attribute_count` attributes, which the
        // program keeps as they are until its call returns; `launch` does not keep them longer.
        let attributes = unsafe { attributes(config.attributes, config.attribute_count) }?;
        launch(function, &wanted, arguments, attributes)
    }
}
