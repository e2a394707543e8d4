// Host memory that CUDA knows.
#include "case.h"

CASE(pinned_memory_is_memory) {
    int *address = nullptr;
    OK(cudaMallocHost(&address, 4000));
    for (int i = 0; i < 1000; i++) address[i] = i;
    EXPECT(address[999] == 999);
    OK(cudaFreeHost(address));
}
CASE(flags_are_kept) {
    void *address;
    unsigned flags = 99;
    OK(cudaHostAlloc(&address, 100, cudaHostAllocPortable));
    OK(cudaHostGetFlags(&flags, address));
    EXPECT(flags & cudaHostAllocPortable);
    OK(cudaFreeHost(address));
}
CASE(wrong_flags_of_host_memory) {
    void *address;
    GIVES(cudaErrorInvalidValue, cudaHostAlloc(&address, 100, 0x1000));
}
CASE(free_of_null) { OK(cudaFreeHost(nullptr)); }
CASE(free_of_memory_that_is_not_pinned) {
    int here;
    GIVES(cudaErrorInvalidValue, cudaFreeHost(&here));
}
CASE(pointers_to_pinned_memory) {
    char *address;
    OK(cudaMallocHost(&address, 100));
    cudaPointerAttributes of;
    OK(cudaPointerGetAttributes(&of, address + 10));
    EXPECT(of.type == cudaMemoryTypeHost && of.hostPointer == address + 10);
    OK(cudaFreeHost(address));
}
CASE(memory_of_the_program_is_registered) {
    std::vector<char> here(100000);
    OK(cudaHostRegister(here.data(), here.size(), cudaHostRegisterDefault));
    cudaPointerAttributes of;
    OK(cudaPointerGetAttributes(&of, here.data() + 5));
    EXPECT(of.type == cudaMemoryTypeHost);
    OK(cudaHostUnregister(here.data()));
}
CASE(registered_twice) {
    std::vector<char> here(100000);
    OK(cudaHostRegister(here.data(), here.size(), cudaHostRegisterDefault));
    GIVES(cudaErrorHostMemoryAlreadyRegistered, cudaHostRegister(here.data(), here.size(), cudaHostRegisterDefault));
}
CASE(unregistered_twice) {
    std::vector<char> here(100000);
    GIVES(cudaErrorHostMemoryNotRegistered, cudaHostUnregister(here.data()));
}
CASE(large_pinned_copies) {
    const size_t bytes = 40 << 20;
    unsigned char *from, *to, *address;
    OK(cudaMallocHost(&from, bytes));
    OK(cudaMallocHost(&to, bytes));
    OK(cudaMalloc(&address, bytes));
    for (size_t i = 0; i < bytes; i += 997) from[i] = i;
    OK(cudaMemcpy(address, from, bytes, cudaMemcpyHostToDevice));
    OK(cudaMemcpy(to, address, bytes, cudaMemcpyDeviceToHost));
    EXPECT(!memcmp(from, to, bytes));
}
CASE(pinned_copies_follow_the_stream) {
    // Out to pinned memory and in again from there, without a wait between.
    const int count = 50000;
    int *first = on_device(numbers(count, 7)), *second, *pinned;
    OK(cudaMalloc(&second, count * 4));
    OK(cudaMallocHost(&pinned, count * 4));
    memset(pinned, 0, count * 4);
    cudaStream_t stream;
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    OK(cudaMemcpyAsync(pinned, first, count * 4, cudaMemcpyDeviceToHost, stream));
    OK(cudaMemcpyAsync(second, pinned, count * 4, cudaMemcpyHostToDevice, stream));
    OK(cudaStreamSynchronize(stream));
    EXPECT(from_device(second, count) == numbers(count, 7));
}
CASE(an_event_proves_a_copy_to_pinned_memory) {
    const int count = 300000;
    int *address = on_device(numbers(count)), *pinned;
    OK(cudaMallocHost(&pinned, count * 4));
    cudaStream_t stream;
    cudaEvent_t event;
    OK(cudaStreamCreate(&stream));
    OK(cudaEventCreate(&event));
    for (int round = 0; round < 10; round++) {
        memset(pinned, 255, count * 4);
        OK(cudaMemcpyAsync(pinned, address, count * 4, cudaMemcpyDeviceToHost, stream));
        OK(cudaEventRecord(event, stream));
        while (cudaEventQuery(event) == cudaErrorNotReady) {}
        for (int i = 0; i < count; i += 1013) EXPECT(pinned[i] == i);
        EXPECT(pinned[count - 1] == count - 1);
    }
}
CASE(another_stream_sees_a_copy_to_pinned_memory) {
    const int count = 10000;
    int *address = on_device(numbers(count, 3)), *other, *pinned;
    OK(cudaMalloc(&other, count * 4));
    OK(cudaMallocHost(&pinned, count * 4));
    cudaStream_t one, two;
    cudaEvent_t event;
    OK(cudaStreamCreateWithFlags(&one, cudaStreamNonBlocking));
    OK(cudaStreamCreateWithFlags(&two, cudaStreamNonBlocking));
    OK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    OK(cudaMemcpyAsync(pinned, address, count * 4, cudaMemcpyDeviceToHost, one));
    OK(cudaEventRecord(event, one));
    OK(cudaStreamWaitEvent(two, event, 0));
    OK(cudaMemcpyAsync(other, pinned, count * 4, cudaMemcpyHostToDevice, two));
    OK(cudaStreamSynchronize(two));
    EXPECT(pinned[count - 1] == count + 2);
    EXPECT(from_device(other, count) == numbers(count, 3));
}
CASE(a_waited_copy_from_pinned_memory_has_read_it) {
    int *pinned, *address;
    OK(cudaMallocHost(&pinned, 1 << 20));
    OK(cudaMalloc(&address, 1 << 20));
    for (int round = 1; round < 20; round++) {
        memset(pinned, round, 1 << 20);
        OK(cudaMemcpy(address, pinned, 1 << 20, cudaMemcpyHostToDevice));
        memset(pinned, 0, 1 << 20);
        auto back = from_device((char *)address, 1 << 20);
        EXPECT(back[0] == round && back[(1 << 20) - 1] == round);
    }
}
CASE(a_part_of_pinned_memory) {
    char *pinned, *address;
    OK(cudaMallocHost(&pinned, 10000));
    OK(cudaMalloc(&address, 10000));
    for (int i = 0; i < 10000; i++) pinned[i] = i % 100;
    OK(cudaMemcpy(address, pinned + 101, 5000, cudaMemcpyHostToDevice));
    memset(pinned, 0, 10000);
    OK(cudaMemcpyAsync(pinned + 9000, address + 1, 1000, cudaMemcpyDeviceToHost, 0));
    OK(cudaDeviceSynchronize());
    EXPECT(pinned[8999] == 0 && pinned[9000] == 2 && pinned[9999] == 1001 % 100);
}
CASE(a_copy_over_the_end_of_pinned_memory) {
    // What begins in pinned memory and ends behind it is the program's own affair; where more lies there, it is copied.
    std::vector<char> here(100000, 5);
    OK(cudaHostRegister(here.data(), 50000, cudaHostRegisterDefault));
    char *address;
    OK(cudaMalloc(&address, 100000));
    OK(cudaMemcpy(address, here.data(), 40000, cudaMemcpyHostToDevice));
    auto back = from_device(address, 40000);
    EXPECT(back == std::vector<char>(40000, 5));
    OK(cudaHostUnregister(here.data()));
}
CASE(rows_of_pinned_memory) {
    const int pitch = 640, width = 500, height = 70;
    char *pinned, *back, *address;
    size_t there;
    OK(cudaMallocHost(&pinned, pitch * height));
    OK(cudaMallocHost(&back, pitch * height));
    OK(cudaMallocPitch(&address, &there, width, height));
    for (int i = 0; i < pitch * height; i++) pinned[i] = i % 127;
    memset(back, 0, pitch * height);
    cudaStream_t stream;
    OK(cudaStreamCreate(&stream));
    OK(cudaMemcpy2DAsync(address, there, pinned, pitch, width, height, cudaMemcpyHostToDevice, stream));
    OK(cudaMemcpy2DAsync(back, pitch, address, there, width, height, cudaMemcpyDeviceToHost, stream));
    OK(cudaStreamSynchronize(stream));
    for (int y = 0; y < height; y++)
        for (int x = 0; x < pitch; x++) EXPECT(back[y * pitch + x] == (x < width ? pinned[y * pitch + x] : 0));
}
CASE(many_pinned_allocations) {
    std::vector<char *> all;
    char *address;
    OK(cudaMalloc(&address, 500));
    for (int i = 0; i < 200; i++) {
        char *one;
        OK(cudaMallocHost(&one, 500 + i));
        one[499] = i;
        all.push_back(one);
    }
    for (int i = 0; i < 200; i += 2) OK(cudaFreeHost(all[i]));
    for (int i = 1; i < 200; i += 2) {
        OK(cudaMemcpy(address, all[i], 500, cudaMemcpyHostToDevice));
        EXPECT(from_device(address + 499, 1)[0] == (char)i);
        OK(cudaFreeHost(all[i]));
    }
}
CASE(pinned_memory_after_a_reset) {
    int *address;
    OK(cudaMalloc(&address, 4));
    OK(cudaDeviceReset());
    int *pinned;
    OK(cudaMallocHost(&pinned, 1 << 16));
    OK(cudaMalloc(&address, 1 << 16));
    pinned[5000] = 77;
    OK(cudaMemcpy(address, pinned, 1 << 16, cudaMemcpyHostToDevice));
    EXPECT(from_device(address + 5000, 1)[0] == 77);
}
CASE(large_copies_before_and_after_a_reset) {
    std::vector<char> values(100000, 9);
    for (int round = 0; round < 3; round++) {
        char *address = on_device(values);
        EXPECT(from_device(address, values.size()) == values);
        OK(cudaDeviceReset());
    }
}
CASE(a_kernel_may_change_what_was_copied_out) {
    // The copy is of what was there before the fill, which comes behind it on the stream.
    const size_t bytes = 8 << 20;
    char *address, *pinned;
    OK(cudaMalloc(&address, bytes));
    OK(cudaMallocHost(&pinned, bytes));
    cudaStream_t stream;
    OK(cudaStreamCreate(&stream));
    OK(cudaMemsetAsync(address, 1, bytes, stream));
    OK(cudaMemcpyAsync(pinned, address, bytes, cudaMemcpyDeviceToHost, stream));
    OK(cudaMemsetAsync(address, 2, bytes, stream));
    OK(cudaStreamSynchronize(stream));
    for (size_t i = 0; i < bytes; i += 4001) EXPECT(pinned[i] == 1);
    EXPECT(pinned[bytes - 1] == 1);
    EXPECT(from_device(address, bytes)[bytes - 1] == 2);
}
CASE(registered_memory_is_copied_to_beside_the_program) {
    const int count = 100000;
    std::vector<int> here(count, -1);
    OK(cudaHostRegister(here.data(), count * 4, cudaHostRegisterDefault));
    int *address = on_device(numbers(count));
    cudaStream_t stream;
    OK(cudaStreamCreate(&stream));
    for (int i = 0; i < 40; i++) {
        OK(cudaMemcpyAsync(here.data() + i * 2500, address + i * 2500, 10000, cudaMemcpyDeviceToHost, stream));
    }
    OK(cudaStreamSynchronize(stream));
    EXPECT(here == numbers(count));
    OK(cudaHostUnregister(here.data()));
}
CASE(memory_given_back_while_it_is_copied_to) {
    const int bytes = 4 << 20;
    char *address;
    OK(cudaMalloc(&address, bytes));
    OK(cudaMemset(address, 3, bytes));
    for (int round = 0; round < 5; round++) {
        char *pinned;
        OK(cudaMallocHost(&pinned, bytes));
        OK(cudaMemcpyAsync(pinned, address, bytes, cudaMemcpyDeviceToHost, 0));
        OK(cudaFreeHost(pinned));
    }
    std::vector<char> here(bytes);
    OK(cudaHostRegister(here.data(), bytes, cudaHostRegisterDefault));
    OK(cudaMemcpyAsync(here.data(), address, bytes, cudaMemcpyDeviceToHost, 0));
    OK(cudaHostUnregister(here.data()));
    EXPECT(here[bytes - 1] == 3);
}
CASE(a_query_proves_a_copy_to_pinned_memory) {
    const int bytes = 3 << 20;
    char *address, *pinned;
    OK(cudaMalloc(&address, bytes));
    OK(cudaMallocHost(&pinned, bytes));
    cudaStream_t stream;
    OK(cudaStreamCreate(&stream));
    for (int round = 1; round < 10; round++) {
        OK(cudaMemsetAsync(address, round, bytes, stream));
        OK(cudaMemcpyAsync(pinned, address, bytes, cudaMemcpyDeviceToHost, stream));
        while (cudaStreamQuery(stream) == cudaErrorNotReady) {}
        EXPECT(pinned[0] == round && pinned[bytes - 1] == round);
    }
}
CASE(an_event_of_another_stream_proves_a_copy) {
    const int bytes = 3 << 20;
    char *address, *pinned;
    OK(cudaMalloc(&address, bytes));
    OK(cudaMallocHost(&pinned, bytes));
    cudaStream_t one, two;
    cudaEvent_t event, last;
    OK(cudaStreamCreateWithFlags(&one, cudaStreamNonBlocking));
    OK(cudaStreamCreateWithFlags(&two, cudaStreamNonBlocking));
    OK(cudaEventCreate(&event));
    OK(cudaEventCreate(&last));
    for (int round = 1; round < 10; round++) {
        OK(cudaMemsetAsync(address, round, bytes, one));
        OK(cudaMemcpyAsync(pinned, address, bytes, cudaMemcpyDeviceToHost, one));
        OK(cudaEventRecord(event, one));
        OK(cudaStreamWaitEvent(two, event, 0));
        OK(cudaEventRecord(last, two));
        OK(cudaEventSynchronize(last));
        EXPECT(pinned[0] == round && pinned[bytes - 1] == round);
    }
}
CASE(what_came_to_pinned_memory_is_copied_from_there) {
    int *first = on_device(numbers(20000, 1)), *second, *pinned;
    OK(cudaMalloc(&second, 80000));
    OK(cudaMallocHost(&pinned, 80000));
    memset(pinned, 0, 80000);
    OK(cudaMemcpyAsync(pinned, first, 80000, cudaMemcpyDeviceToHost, 0));
    OK(cudaMemcpy(second, pinned, 80000, cudaMemcpyHostToDevice));
    EXPECT(from_device(second, 20000) == numbers(20000, 1));
}
CASE(the_program_ends_with_copies_on_their_way) {
    char *address, *pinned;
    OK(cudaMalloc(&address, 16 << 20));
    OK(cudaMallocHost(&pinned, 16 << 20));
    for (int i = 0; i < 50; i++) OK(cudaMemcpyAsync(pinned, address, 16 << 20, cudaMemcpyDeviceToHost, 0));
}
