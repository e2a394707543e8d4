// What kernels do: arithmetic, memory, barriers, warps, atomics.
#include "case.h"

__global__ void integers(int *v, unsigned *u, int a, int b, unsigned c, unsigned d) {
    v[0] = a + b, v[1] = a - b, v[2] = a * b, v[3] = a / b, v[4] = a % b, v[5] = a << 3, v[6] = a >> 1, v[7] = abs(a);
    v[8] = min(a, b), v[9] = max(a, b), v[10] = -a, v[11] = ~a, v[12] = a & b, v[13] = a | b, v[14] = a ^ b;
    u[0] = c + d, u[1] = c - d, u[2] = c * d, u[3] = c / d, u[4] = c % d, u[5] = c >> 5, u[6] = __popc(c), u[7] = __clz(d);
    u[8] = __umulhi(c, d), u[9] = __brev(c), u[10] = min(c, d), u[11] = max(c, d), u[12] = __ffs(d);
}
__global__ void longs(long long *v, long long a, long long b) {
    v[0] = a + b, v[1] = a * b, v[2] = a / b, v[3] = a % b, v[4] = a >> 7, v[5] = a << 9, v[6] = a < b, v[7] = __mul64hi(a, b);
}
__global__ void reals(float *f, double *d, float a, float b, double x, double y) {
    f[0] = a + b, f[1] = a - b, f[2] = a * b, f[3] = fmaf(a, b, 1), f[4] = fabsf(a), f[5] = fminf(a, b), f[6] = fmaxf(a, b);
    f[7] = floorf(a), f[8] = ceilf(a), f[9] = truncf(a), f[10] = rintf(a), f[11] = sqrtf(b), f[12] = a / b;
    d[0] = x + y, d[1] = x * y, d[2] = __fma_rn(x, y, 1.0), d[3] = sqrt(y), d[4] = floor(x), d[5] = fabs(x), d[6] = x - y;
}
__global__ void convert(int *v, float f, double d, unsigned u, int i, char c) {
    v[0] = (int)f, v[1] = (int)d, v[2] = (int)(float)u, v[3] = (int)(double)i, v[4] = (unsigned char)i, v[5] = (short)i, v[6] = c;
    v[7] = __float_as_int(f), v[8] = (int)(unsigned)d, v[9] = __float2int_rn(f), v[10] = (int)(f * 1e20f);
}
__global__ void sum_of_block(const int *from, int *to, int count) {
    __shared__ int shared[256];
    int all = 0;
    for (int i = blockIdx.x * 256 + threadIdx.x; i < count; i += gridDim.x * 256) all += from[i];
    shared[threadIdx.x] = all;
    __syncthreads();
    for (int half = 128; half > 0; half /= 2) {
        if (threadIdx.x < half) shared[threadIdx.x] += shared[threadIdx.x + half];
        __syncthreads();
    }
    if (threadIdx.x == 0) atomicAdd(to, shared[0]);
}
__global__ void sum_of_warps(const int *from, int *to) {
    int value = from[threadIdx.x];
    for (int by = 16; by > 0; by /= 2) value += __shfl_down_sync(0xffffffff, value, by);
    if (threadIdx.x % 32 == 0) to[threadIdx.x / 32] = value;
}
__global__ void shuffles(int *to) {
    int lane = threadIdx.x;
    to[lane] = __shfl_sync(0xffffffff, lane * 10, 5);
    to[32 + lane] = __shfl_up_sync(0xffffffff, lane, 3);
    to[64 + lane] = __shfl_xor_sync(0xffffffff, lane, 6);
    to[96 + lane] = __shfl_down_sync(0xffffffff, lane, 2, 8);
    to[128 + lane] = __ballot_sync(0xffffffff, lane % 3 == 0);
    to[160 + lane] = __any_sync(0xffffffff, lane == 9) * 2 + __all_sync(0xffffffff, lane < 32);
}
__global__ void atomics(int *v, unsigned *u, float *f, unsigned long long *w) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    atomicAdd(v, 1), atomicSub(v + 1, 2), atomicMin(v + 2, -i), atomicMax(v + 3, i), atomicOr(v + 4, 1 << i % 31);
    atomicAnd(v + 5, ~(1 << i % 31)), atomicXor(v + 6, i), atomicInc(u, 9), atomicAdd(f, 0.5f), atomicAdd(w, 1ull << 33);
    int old = v[7], seen;
    do {
        seen = old;
        old = atomicCAS(v + 7, seen, seen + 3);
    } while (old != seen);
}
__global__ void histogram(const unsigned char *from, int count, int *to) {
    __shared__ int bins[16];
    if (threadIdx.x < 16) bins[threadIdx.x] = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < count; i += blockDim.x) atomicAdd(&bins[from[i] & 15], 1);
    __syncthreads();
    if (threadIdx.x < 16) to[threadIdx.x] = bins[threadIdx.x];
}
__global__ void transpose(const float *from, float *to, int n) {
    __shared__ float tile[16][17];
    int x = blockIdx.x * 16 + threadIdx.x, y = blockIdx.y * 16 + threadIdx.y;
    tile[threadIdx.y][threadIdx.x] = from[y * n + x];
    __syncthreads();
    to[(blockIdx.x * 16 + threadIdx.y) * n + blockIdx.y * 16 + threadIdx.x] = tile[threadIdx.x][threadIdx.y];
}
__global__ void stencil(const int *from, int *to, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i > 0 && i < n - 1) to[i] = from[i - 1] + 2 * from[i] + from[i + 1];
}
__global__ void prefix(int *values) {
    __shared__ int shared[2][128];
    int at = 0, i = threadIdx.x;
    shared[0][i] = values[i];
    __syncthreads();
    for (int by = 1; by < 128; by *= 2) {
        shared[1 - at][i] = shared[at][i] + (i >= by ? shared[at][i - by] : 0);
        at = 1 - at;
        __syncthreads();
    }
    values[i] = shared[at][i];
}
__global__ void vectors(const float4 *from, float4 *to, const int2 *pairs, int *sums) {
    int i = threadIdx.x;
    float4 v = from[i];
    to[i] = make_float4(v.w, v.z, v.y, v.x);
    sums[i] = pairs[i].x + pairs[i].y;
}
__global__ void collatz(int *steps, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    unsigned value = i + 1;
    int taken = 0;
    while (value != 1) {
        value = value & 1 ? 3 * value + 1 : value / 2;
        taken++;
    }
    steps[i] = taken;
}
__global__ void local_array(int *to, int index) {
    int values[16];
    for (int i = 0; i < 16; i++) values[i] = i * i + threadIdx.x;
    to[threadIdx.x] = values[(index + threadIdx.x) & 15];
}
__global__ void bytes(unsigned char *c, short *s, const signed char *from) {
    int i = threadIdx.x;
    c[i] = c[i] + 200, s[i] = s[i] - from[i];
}
__global__ void switches(int *to) {
    switch (threadIdx.x % 5) {
    case 0: to[threadIdx.x] = 100; break;
    case 1: to[threadIdx.x] = 7; break;
    case 2: to[threadIdx.x] = -3;
    case 3: to[threadIdx.x] += 50; break;
    default: to[threadIdx.x] = 1;
    }
}

CASE(arithmetic_of_integers) {
    int *v = on_device(std::vector<int>(15));
    unsigned *u = on_device(std::vector<unsigned>(13));
    integers<<<1, 1>>>(v, u, -1234567, 89, 4000000000u, 12345678u);
    auto got = from_device(v, 15);
    int a = -1234567, b = 89;
    int wanted[] = {a + b, a - b, a * b, a / b, a % b, (int)((unsigned)a << 3), a >> 1, -a, a, b, -a, ~a, a & b, a | b, a ^ b};
    for (int i = 0; i < 15; i++) EXPECT(got[i] == wanted[i]);
    for (unsigned value : from_device(u, 13)) SAY("%u", value);
    EXPECT(from_device(u, 13)[8] == (unsigned)(4000000000ull * 12345678 >> 32));
}
CASE(arithmetic_of_long_integers) {
    long long *v = on_device(std::vector<long long>(8)), a = -123456789012345, b = 987654321;
    longs<<<1, 1>>>(v, a, b);
    auto got = from_device(v, 8);
    long long wanted[] = {a + b, (long long)((unsigned long long)a * b), a / b, a % b, a >> 7, (long long)((unsigned long long)a << 9), 1,
                          (long long)((__int128)a * b >> 64)};
    for (int i = 0; i < 8; i++) EXPECT(got[i] == wanted[i]);
}
CASE(arithmetic_of_reals) {
    float *f = on_device(std::vector<float>(13));
    double *d = on_device(std::vector<double>(7));
    reals<<<1, 1>>>(f, d, -2.625f, 9.0f, -1.7, 16.0);
    float wanted[] = {6.375f, -11.625f, -23.625f, -22.625f, 2.625f, -2.625f, 9, -3, -2, -2, -3, 3};
    auto got = from_device(f, 13);
    for (int i = 0; i < 12; i++) EXPECT(got[i] == wanted[i]);
    SAY("%08x", checksum(&got[12], 4));
    auto doubles = from_device(d, 7);
    EXPECT(doubles[0] == -1.7 + 16.0 && doubles[1] == -1.7 * 16.0 && doubles[3] == 4 && doubles[4] == -2 && doubles[5] == 1.7);
}
CASE(conversions) {
    int *v = on_device(std::vector<int>(11));
    convert<<<1, 1>>>(v, -3.75f, 123456.9, 3000000000u, 70000, -5);
    auto got = from_device(v, 11);
    for (int value : got) SAY("%d", value);
    EXPECT(got[0] == -3 && got[1] == 123456 && got[4] == 112 && got[5] == 4464 && got[6] == -5 && got[9] == -4);
}
CASE(reduction_in_shared_memory) {
    int *from = on_device(numbers(5000)), *to = on_device(std::vector<int>(1));
    sum_of_block<<<4, 256>>>(from, to, 5000);
    EXPECT(from_device(to, 1)[0] == 4999 * 2500);
}
CASE(reduction_by_shuffles) {
    int *from = on_device(numbers(128)), *to = on_device(std::vector<int>(4));
    sum_of_warps<<<1, 128>>>(from, to);
    auto got = from_device(to, 4);
    for (int warp = 0; warp < 4; warp++) EXPECT(got[warp] == 32 * 32 * warp + 496);
}
CASE(all_shuffles) {
    int *to = on_device(std::vector<int>(192));
    shuffles<<<1, 32>>>(to);
    auto got = from_device(to, 192);
    for (int lane = 0; lane < 32; lane++) {
        EXPECT(got[lane] == 50 && got[32 + lane] == (lane < 3 ? lane : lane - 3) && got[64 + lane] == (lane ^ 6));
        EXPECT(got[96 + lane] == (lane % 8 < 6 ? lane + 2 : lane) && got[128 + lane] == 0x49249249 && got[160 + lane] == 3);
    }
}
CASE(all_atomics) {
    int *v = on_device(std::vector<int>{0, 0, 0, 0, 0, -1, 0, 0});
    unsigned *u = on_device(std::vector<unsigned>(1));
    float *f = on_device(std::vector<float>(1));
    auto *w = on_device(std::vector<unsigned long long>(1));
    atomics<<<4, 64>>>(v, u, f, w);
    int wanted[] = {256, -512, -255, 255, 0x7fffffff, (int)0x80000000, 0, 768};
    auto got = from_device(v, 8);
    for (int i = 0; i < 8; i++) EXPECT(got[i] == wanted[i]);
    EXPECT(from_device(u, 1)[0] == 256 % 10 && from_device(f, 1)[0] == 128 && from_device(w, 1)[0] == 256ull << 33);
}
CASE(histogram_in_shared_memory) {
    std::vector<unsigned char> from(3000);
    std::vector<int> wanted(16);
    for (size_t i = 0; i < from.size(); i++) wanted[(from[i] = i * i + i / 7) & 15]++;
    int *to = on_device(std::vector<int>(16));
    histogram<<<1, 128>>>(on_device(from), 3000, to);
    EXPECT(from_device(to, 16) == wanted);
}
CASE(transposition) {
    const int n = 48;
    std::vector<float> from(n * n);
    for (int i = 0; i < n * n; i++) from[i] = i * 0.5f;
    float *to = on_device(std::vector<float>(n * n));
    transpose<<<dim3(3, 3), dim3(16, 16)>>>(on_device(from), to, n);
    auto got = from_device(to, n * n);
    for (int i = 0; i < n * n; i++) EXPECT(got[i % n * n + i / n] == from[i]);
}
CASE(a_stencil) {
    auto from = numbers(300, 5);
    int *to = on_device(std::vector<int>(300));
    stencil<<<3, 100>>>(on_device(from), to, 300);
    auto got = from_device(to, 300);
    for (int i = 1; i < 299; i++) EXPECT(got[i] == 4 * from[i]);
}
CASE(a_prefix_sum) {
    int *values = on_device(numbers(128, 1));
    prefix<<<1, 128>>>(values);
    auto got = from_device(values, 128);
    for (int i = 0; i < 128; i++) EXPECT(got[i] == (i + 1) * (i + 2) / 2);
}
CASE(vectors_are_loaded_whole) {
    std::vector<float> from(64);
    for (int i = 0; i < 64; i++) from[i] = i;
    float *to = on_device(std::vector<float>(64));
    int *sums = on_device(std::vector<int>(16));
    vectors<<<1, 16>>>((float4 *)on_device(from), (float4 *)to, (int2 *)on_device(numbers(32)), sums);
    auto got = from_device(to, 64);
    for (int i = 0; i < 64; i++) EXPECT(got[i] == i / 4 * 4 + 3 - i % 4);
    for (int i = 0; i < 16; i++) EXPECT(from_device(sums, 16)[i] == 4 * i + 1);
}
CASE(loops_of_different_lengths) {
    int *to = on_device(std::vector<int>(200));
    collatz<<<2, 128>>>(to, 200);
    auto got = from_device(to, 200);
    EXPECT(got[0] == 0 && got[26] == 111 && got[96] == 118 && got[199] == 26);
}
CASE(arrays_of_a_thread) {
    int *to = on_device(std::vector<int>(32));
    local_array<<<1, 32>>>(to, 5);
    auto got = from_device(to, 32);
    for (int i = 0; i < 32; i++) EXPECT(got[i] == ((i + 5) & 15) * ((i + 5) & 15) + i);
}
CASE(small_types) {
    auto *c = on_device(std::vector<unsigned char>(16, 100));
    auto *s = on_device(std::vector<short>(16, -32000));
    bytes<<<1, 16>>>(c, s, on_device(std::vector<signed char>(16, -100)));
    EXPECT(from_device(c, 16)[3] == 44 && from_device(s, 16)[3] == -31900);
}
CASE(branches) {
    int *to = on_device(std::vector<int>(20));
    switches<<<1, 20>>>(to);
    int wanted[] = {100, 7, 47, 50, 1};
    auto got = from_device(to, 20);
    for (int i = 0; i < 20; i++) EXPECT(got[i] == wanted[i % 5]);
}
