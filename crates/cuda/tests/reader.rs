//! Reading from addresses that may be a GPU's. There is only one test, since it depends on which libraries the process
//! has loaded.

use rgaps_cuda::{Context, CudaError, CudaMapping, CudaSource, CudaStream, DeviceReader, Driver};
use rgaps_pool::{Access, Mapping, SegmentSource, Stream};
use std::os::fd::AsFd;

const BYTES: usize = 100_000;
const SEGMENT_BYTES: u64 = 2 << 20;

#[test]
fn an_address_is_read_where_it_is() {
    std::env::set_var(rgaps_cuda::LIBRARY_ENV, rgaps_test_driver::library());
    std::env::set_var("RGAPS_TEST_DRIVER_DELAY_US", "5000");
    assert!(
        DeviceReader::of_process().is_none(),
        "nobody has loaded the driver yet"
    );
    let driver = Driver::load().unwrap();
    let reader = DeviceReader::of_process().expect("it is loaded now");
    let host = [3u8; BYTES];
    let read = |from: u64, stream: u64| {
        let mut to = vec![0u8; BYTES];
        // SAFETY: the test reads from memory of the host or of the GPU that has `BYTES` bytes.
        unsafe { reader.read(&mut to, from, Stream(stream)) }.map(|copied| (copied, to))
    };
    // Without a context, no address is a GPU's.
    assert!(!read(host.as_ptr() as u64, 0).unwrap().0);

    let uuid = driver.devices().unwrap()[0].uuid;
    let context = Context::retain(driver.clone(), uuid).unwrap();
    let mut source = CudaSource::new(driver.clone(), uuid).unwrap();
    let mapping = CudaMapping::new(driver, uuid, SEGMENT_BYTES, Access::ReadWrite).unwrap();
    let segment = source.create(SEGMENT_BYTES).unwrap();
    mapping.extend(segment.fd.as_fd(), SEGMENT_BYTES).unwrap();
    let stream = CudaStream::new(context).unwrap();
    let fill = |value| {
        // SAFETY: nothing else uses the mapping while the test waits for the stream.
        unsafe { stream.fill(mapping.base(), value, BYTES as u64) }.unwrap();
    };

    // A read waits for the work on the stream, on threads with and without a current context.
    fill(41);
    let (copied, bytes) = read(mapping.base(), stream.handle().0).unwrap();
    assert!(copied && bytes == [41; BYTES]);
    fill(42);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (copied, bytes) = read(mapping.base(), stream.handle().0).unwrap();
            assert!(copied && bytes == [42; BYTES]);
        });
    });

    // Host memory is not copied; a named stream is still waited for.
    fill(43);
    assert!(!read(host.as_ptr() as u64, 0).unwrap().0);
    assert!(!stream.is_idle().unwrap(), "it was not waited for");
    assert!(!read(host.as_ptr() as u64, stream.handle().0).unwrap().0);
    assert!(stream.is_idle().unwrap(), "it was waited for");

    let wrong = read(mapping.base(), 12345);
    assert!(matches!(wrong, Err(CudaError::NotAStream(12345))));
    let (copied, bytes) = read(mapping.base(), stream.handle().0).unwrap();
    assert!(
        copied && bytes == [43; BYTES],
        "after an error it works again"
    );
}
