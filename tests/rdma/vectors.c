/*
 * Writes vectors.h: what the functions and structures of rdma-core's public header give for the entries that model.cpp compares. It
 * also checks at compile time what the model's card and the header take for granted. tools/rdma/check.sh runs it where
 * <infiniband/mlx5dv.h> is (libibverbs-dev), and compares.
 */
#include <endian.h>
#include <infiniband/mlx5dv.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

_Static_assert(sizeof(struct mlx5_cqe64) == 64 && sizeof(struct mlx5_err_cqe) == 64, "a completion");
_Static_assert(offsetof(struct mlx5_cqe64, imm_inval_pkey) == 36 && offsetof(struct mlx5_cqe64, byte_cnt) == 44, "received");
_Static_assert(offsetof(struct mlx5_cqe64, sop_drop_qpn) == 56 && offsetof(struct mlx5_cqe64, wqe_counter) == 60, "sent");
_Static_assert(offsetof(struct mlx5_cqe64, op_own) == 63 && offsetof(struct mlx5_err_cqe, op_own) == 63, "the owner");
_Static_assert(offsetof(struct mlx5_err_cqe, vendor_err_synd) == 54 && offsetof(struct mlx5_err_cqe, syndrome) == 55, "failed");
_Static_assert(MLX5_CQE_REQ == 0 && MLX5_CQE_RESP_WR_IMM == 1 && MLX5_CQE_REQ_ERR == 13 && MLX5_CQE_RESP_ERR == 14, "opcodes");
_Static_assert(MLX5_CQE_INVALID == 15 && MLX5_CQE_OWNER_MASK == 1, "opcodes");
_Static_assert(MLX5_CQE_SYNDROME_LOCAL_LENGTH_ERR == 0x01 && MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR == 0x02, "syndromes");
_Static_assert(MLX5_CQE_SYNDROME_LOCAL_PROT_ERR == 0x04 && MLX5_CQE_SYNDROME_WR_FLUSH_ERR == 0x05, "syndromes");
_Static_assert(MLX5_CQE_SYNDROME_REMOTE_INVAL_REQ_ERR == 0x12 && MLX5_CQE_SYNDROME_REMOTE_ACCESS_ERR == 0x13, "syndromes");
_Static_assert(MLX5_CQE_SYNDROME_REMOTE_OP_ERR == 0x14 && MLX5_CQE_SYNDROME_TRANSPORT_RETRY_EXC_ERR == 0x15, "syndromes");
_Static_assert(MLX5_CQE_SYNDROME_RNR_RETRY_EXC_ERR == 0x16 && MLX5_INVALID_LKEY == 0x100, "syndromes, receives");
_Static_assert(MLX5_RCV_DBR == 0 && MLX5_SND_DBR == 1, "the doorbell record");

enum { qpn = 0xabcd };
static unsigned char entry[64];
static int used;

static void begin(uint16_t index, uint8_t opcode, uint8_t signals, uint8_t units, uint32_t immediate) {
    memset(entry, 0, sizeof entry);
    mlx5dv_set_ctrl_seg((struct mlx5_wqe_ctrl_seg *)entry, index, opcode, 0, qpn, signals, units, 0, htobe32(immediate));
    used = units * 16;
}

static void remote(void) {
    struct mlx5_wqe_raddr_seg *segment = (void *)(entry + 16);
    segment->raddr = htobe64(0x1122334455667788);
    segment->rkey = htobe32(0xc0ffee);
}

static void end(const char *call) {
    printf("{%s, \"", call);
    for (int at = 0; at < used; ++at) printf("%s%02x", at && at % 4 == 0 ? " " : "", entry[at]);
    printf("\"},\n");
}

static void data(int at, uint32_t bytes) {
    mlx5dv_set_data_seg((struct mlx5_wqe_data_seg *)(entry + at), bytes, 0xbeef01, 0x7f0000001000);
}

static void atomic(uint64_t swap_add, uint64_t compare) {
    struct mlx5_wqe_atomic_seg *segment = (void *)(entry + 32);
    segment->swap_add = htobe64(swap_add);
    segment->compare = htobe64(compare);
    data(48, 8);
}

int main(void) {
    const uint8_t always = MLX5_WQE_CTRL_CQ_UPDATE;
    begin(0x1234, MLX5_OPCODE_RDMA_WRITE, always, 3, 0), remote(), data(32, 4096);
    end("move(0x1234, rdma_write, qpn, true, 0, local, remote, 4096)");
    begin(0xffff, MLX5_OPCODE_RDMA_WRITE, 0, 3, 0), remote(), data(32, 1);
    end("move(0x7ffff, rdma_write, qpn, false, 0, local, remote, 1)");
    begin(1, MLX5_OPCODE_RDMA_WRITE_IMM, always, 3, 0x01020304), remote(), data(32, 4096);
    end("move(1, rdma_write_immediate, qpn, true, 0x01020304, local, remote, 4096)");
    begin(2, MLX5_OPCODE_RDMA_READ, always, 3, 0), remote(), data(32, 64);
    end("move(2, rdma_read, qpn, true, 0, local, remote, 64)");
    begin(3, MLX5_OPCODE_ATOMIC_FA, always, 4, 0), remote(), atomic(0x0102030405060708, 0);
    end("atomic(3, fetch_add, qpn, true, 0x0102030405060708, 0, local, remote)");
    begin(4, MLX5_OPCODE_ATOMIC_CS, 0, 4, 0), remote(), atomic(0x0102030405060708, 0x1112131415161718);
    end("atomic(4, compare_swap, qpn, false, 0x0102030405060708, 0x1112131415161718, local, remote)");
    begin(5, MLX5_OPCODE_RDMA_WRITE, always, 3, 0), remote();
    struct mlx5_wqe_inl_data_seg *inlined = (void *)(entry + 32);
    inlined->byte_count = htobe32(8 | MLX5_INLINE_SEG);
    const uint64_t value = 0x0102030405060708;
    memcpy(inlined + 1, &value, 8);
    end("word(5, qpn, true, 0x0102030405060708, remote)");
    begin(6, MLX5_OPCODE_NOP, always, 1, 0);
    end("bare(6, qpn)");
    return 0;
}
