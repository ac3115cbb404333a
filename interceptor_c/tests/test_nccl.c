/* NCCL without peers: communicators, collectives, groups, messages and the values they leave. */
#include <pthread.h>

#include "library_test.h"
#include "types_nccl.h"

ncclResult_t ncclGetVersion(int *);
ncclResult_t ncclGetUniqueId(ncclUniqueId *);
ncclResult_t ncclCommInitRank(ncclComm_t *, int, ncclUniqueId, int);
ncclResult_t ncclCommInitRankConfig(ncclComm_t *, int, ncclUniqueId, int, ncclConfig_t *);
ncclResult_t ncclCommInitRankScalable(ncclComm_t *, int, int, int, ncclUniqueId *, ncclConfig_t *);
ncclResult_t ncclCommSplit(ncclComm_t, int, int, ncclComm_t *, ncclConfig_t *);
ncclResult_t ncclCommShrink(ncclComm_t, int *, int, ncclComm_t *, ncclConfig_t *, int);
ncclResult_t ncclCommDestroy(ncclComm_t);
ncclResult_t ncclCommFinalize(ncclComm_t);
ncclResult_t ncclCommCount(ncclComm_t, int *);
ncclResult_t ncclCommUserRank(ncclComm_t, int *);
ncclResult_t ncclCommGetAsyncError(ncclComm_t, ncclResult_t *);
ncclResult_t ncclAllReduce(const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t,
                           cudaStream_t);
ncclResult_t ncclAllGather(const void *, void *, size_t, ncclDataType_t, ncclComm_t, cudaStream_t);
ncclResult_t ncclReduceScatter(const void *, void *, size_t, ncclDataType_t, ncclRedOp_t,
                               ncclComm_t, cudaStream_t);
ncclResult_t ncclBroadcast(const void *, void *, size_t, ncclDataType_t, int, ncclComm_t,
                           cudaStream_t);
ncclResult_t ncclSend(const void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t);
ncclResult_t ncclRecv(void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t);
ncclResult_t ncclGroupStart(void);
ncclResult_t ncclGroupEnd(void);
ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t *, void *, ncclDataType_t, int, ncclComm_t);
ncclResult_t ncclRedOpDestroy(ncclRedOp_t, ncclComm_t);
ncclResult_t ncclMemAlloc(void **, size_t);
ncclResult_t ncclMemFree(void *);
cudaError_t cudaMalloc(void **, size_t);
cudaError_t cudaFree(void *);
cudaError_t cudaMemcpy(void *, const void *, size_t, int);

enum { HOST_TO_DEVICE = 1, DEVICE_TO_HOST = 2 };

static struct us_communicator described(uint32_t definition, char name[64]) {
    size_t bytes;
    char *payload = definition_of(US_DEFINITION_COMMUNICATOR, definition, &bytes);
    struct us_communicator communicator;
    CHECK(bytes >= sizeof communicator && bytes < sizeof communicator + 64);
    memcpy(&communicator, payload, sizeof communicator);
    memset(name, 0, 64);
    memcpy(name, payload + sizeof communicator, bytes - sizeof communicator);
    free(payload);
    return communicator;
}

static void communicators(void) {
    ncclUniqueId id, other;
    ncclComm_t first, second, third;
    char name[64];
    CHECK(ncclGetUniqueId(&id) == 0 && ncclGetUniqueId(&other) == 0);
    CHECK(memcmp(&id, &other, sizeof id) != 0);
    CHECK(ncclGetUniqueId(NULL) == ncclInvalidArgument);
    CHECK(ncclCommInitRank(&first, 4, id, 2) == 0);
    struct us_record record = last_of(US_API_COMMUNICATOR_INIT);
    struct us_communicator a = described(record.definition, name);
    CHECK(a.rank == 2 && a.size == 4 && a.parent == 0 && name[0] == '\0');

    /* Another member sees the same identity, whichever function made it; another id differs. */
    ncclConfig_t config = {.size = sizeof config, .blocking = 0, .commName = "pipeline"};
    CHECK(ncclCommInitRankConfig(&second, 4, id, 3, &config) == 0);
    struct us_communicator b =
        described(last_of(US_API_COMMUNICATOR_INIT).definition, name);
    CHECK(b.rank == 3 && memcmp(a.unique_id, b.unique_id, sizeof a.unique_id) == 0);
    CHECK(strcmp(name, "pipeline") == 0);
    CHECK(ncclCommInitRankScalable(&third, 4, 0, 1, &other, NULL) == 0);
    struct us_communicator c =
        described(last_of(US_API_COMMUNICATOR_INIT).definition, name);
    CHECK(memcmp(a.unique_id, c.unique_id, sizeof a.unique_id) != 0);
    CHECK(ncclCommDestroy(third) == 0);

    int value;
    ncclResult_t error = -1;
    CHECK(ncclCommCount(first, &value) == 0 && value == 4);
    CHECK(ncclCommUserRank(first, &value) == 0 && value == 2);
    CHECK(ncclCommGetAsyncError(first, &error) == 0 && error == ncclSuccess);
    CHECK(ncclCommInitRank(&third, 4, id, 4) == ncclInvalidArgument);
    CHECK(ncclCommCount(NULL, &value) == ncclInvalidArgument);
    CHECK(ncclCommCount(first, NULL) == ncclInvalidArgument);
    CHECK(ncclGetVersion(&value) == 0 && value == 23007);

    /* A split: equal on both members, different by color and by number of the split. */
    ncclComm_t child_a, child_b, later, none = first;
    CHECK(ncclCommSplit(first, 0, 1, &child_a, NULL) == 0);
    record = last_of(US_API_COMMUNICATOR_SPLIT);
    struct us_communicator split_a = described(record.definition, name);
    CHECK(split_a.size == -1 && split_a.rank == 1 && split_a.color == 0 && split_a.key == 1);
    CHECK(split_a.parent == record.a && record.c == 1);
    CHECK(ncclCommSplit(second, 0, 0, &child_b, NULL) == 0);
    struct us_communicator split_b =
        described(last_of(US_API_COMMUNICATOR_SPLIT).definition, name);
    CHECK(memcmp(split_a.unique_id, split_b.unique_id, sizeof a.unique_id) == 0);
    CHECK(ncclCommSplit(first, -1, 0, &none, NULL) == 0 && none == NULL);
    CHECK(ncclCommSplit(first, 0, 1, &later, NULL) == 0);
    struct us_communicator split_c =
        described(last_of(US_API_COMMUNICATOR_SPLIT).definition, name);
    CHECK(memcmp(split_a.unique_id, split_c.unique_id, sizeof a.unique_id) != 0);
    /* A child outlives its parent. */
    size_t destroyed = count_of(US_API_COMMUNICATOR_DESTROY);
    CHECK(ncclCommFinalize(first) == 0 && ncclCommDestroy(first) == 0);
    CHECK(ncclCommDestroy(child_a) == 0 && ncclCommDestroy(later) == 0);
    CHECK(count_of(US_API_COMMUNICATOR_DESTROY) == destroyed + 3);

    int excluded[] = {1, 0};
    ncclComm_t shrunk;
    CHECK(ncclCommShrink(second, excluded, 2, &shrunk, NULL, 0) == 0);
    CHECK(ncclCommCount(shrunk, &value) == 0 && value == 2);
    CHECK(ncclCommUserRank(shrunk, &value) == 0 && value == 1);
    CHECK(ncclCommDestroy(shrunk) == 0 && ncclCommDestroy(second) == 0);
    CHECK(ncclCommDestroy(child_b) == 0);
    CHECK(ncclCommDestroy(NULL) == 0);
}

static void collectives(ncclComm_t communicator, char *device) {
    /* All-gather replicates the shard into every slot. */
    int64_t shape[3] = {768, 3072, 0}, gathered[12];
    CHECK(cudaMemcpy(device, shape, sizeof shape, HOST_TO_DEVICE) == 0);
    CHECK(ncclAllGather(device, device + 512, 3, ncclInt64, communicator, NULL) == 0);
    CHECK(cudaMemcpy(gathered, device + 512, sizeof gathered, DEVICE_TO_HOST) == 0);
    for (size_t i = 0; i < 12; i++) CHECK(gathered[i] == shape[i % 3]);
    struct us_record record = last_of(US_API_COLLECTIVE);
    CHECK((record.a & 255) == US_ALL_GATHER && record.b == 24 && record.flags == ncclInt64);
    CHECK(record.c == (uintptr_t)device && record.d == (uintptr_t)(device + 512));

    /* The sum of four equal members; the maximum of them. */
    float value = 2.5f, result = 0;
    CHECK(cudaMemcpy(device, &value, sizeof value, HOST_TO_DEVICE) == 0);
    CHECK(ncclAllReduce(device, device + 256, 1, ncclFloat32, ncclMax, communicator, NULL) == 0);
    CHECK(cudaMemcpy(&result, device + 256, sizeof result, DEVICE_TO_HOST) == 0 && result == 2.5f);
    CHECK(ncclAllReduce(device, device, 1, ncclFloat32, ncclSum, communicator, NULL) == 0);
    CHECK(cudaMemcpy(&result, device, sizeof result, DEVICE_TO_HOST) == 0 && result == 10.0f);
    record = last_of(US_API_COLLECTIVE);
    CHECK((record.a & 255) == US_ALL_REDUCE && record.a >> 40 == ncclSum && record.b == 4);

    int64_t parts[4] = {1, 2, 3, 4}, part = 0;
    CHECK(cudaMemcpy(device, parts, sizeof parts, HOST_TO_DEVICE) == 0);
    CHECK(ncclReduceScatter(device, device + 256, 1, ncclInt64, ncclSum, communicator, NULL) == 0);
    CHECK(cudaMemcpy(&part, device + 256, sizeof part, DEVICE_TO_HOST) == 0 && part == 8);
    CHECK(ncclBroadcast(device, device, 4, ncclInt64, 3, communicator, NULL) == 0);
    record = last_of(US_API_COLLECTIVE);
    CHECK((record.a & 255) == US_BROADCAST && (record.a >> 8 & 0xffffffff) == 3);

    size_t before = count_of(US_API_COLLECTIVE);
    CHECK(ncclAllReduce(device, device, 0, ncclFloat32, ncclSum, communicator, NULL) == 0);
    CHECK(ncclAllReduce(device, device, 1, 12, ncclSum, communicator, NULL) == ncclInvalidArgument);
    CHECK(ncclAllReduce(device, device, 1, 7, 5, communicator, NULL) == ncclInvalidArgument);
    CHECK(ncclAllReduce(NULL, device, 1, 7, 0, communicator, NULL) == ncclInvalidArgument);
    CHECK(ncclAllReduce(device, device, 1, 7, 0, NULL, NULL) == ncclInvalidArgument);
    CHECK(ncclBroadcast(device, device, 1, 7, 4, communicator, NULL) == ncclInvalidArgument);
    CHECK(count_of(US_API_COLLECTIVE) == before);

    ncclRedOp_t scaled;
    float factor = 0.25f;
    CHECK(ncclRedOpCreatePreMulSum(&scaled, &factor, ncclFloat32, 1, communicator) == 0);
    CHECK(ncclAllReduce(device, device, 1, ncclFloat32, scaled, communicator, NULL) == 0);
    CHECK(last_of(US_API_COLLECTIVE).a >> 40 == ncclNumOps);
    CHECK(ncclRedOpDestroy(scaled, communicator) == 0);
    CHECK(ncclRedOpDestroy(scaled, communicator) == ncclInvalidArgument);
    CHECK(ncclRedOpDestroy(ncclSum, communicator) == ncclInvalidArgument);

    /* A size that does not fit the memory is only described, never touched. */
    CHECK(ncclAllReduce(device, device, (size_t)1 << 28, 7, 0, communicator, NULL) == 0);
    CHECK(last_of(US_API_COLLECTIVE).b == (uint64_t)1 << 30);
}

static void groups(ncclComm_t communicator, char *device) {
    size_t starts = count_of(US_API_GROUP_START);
    int32_t sent[4] = {10, 20, 30, 40}, received[4] = {0};
    CHECK(cudaMemcpy(device, sent, sizeof sent, HOST_TO_DEVICE) == 0);
    /* An all-to-all of four members: rank 1's message to itself comes back from everyone. */
    CHECK(ncclGroupStart() == 0 && ncclGroupStart() == 0);
    for (int peer = 0; peer < 4; peer++) {
        CHECK(ncclRecv(device + 256 + 4 * peer, 1, ncclInt32, peer, communicator, NULL) == 0);
        CHECK(ncclSend(device + 4 * peer, 1, ncclInt32, peer, communicator, NULL) == 0);
    }
    CHECK(ncclGroupEnd() == 0 && ncclGroupEnd() == 0);
    CHECK(ncclGroupEnd() == ncclInvalidUsage);
    CHECK(count_of(US_API_GROUP_START) == starts + 1);
    CHECK(count_of(US_API_GROUP_END) == starts + 1);
    CHECK(cudaMemcpy(received, device + 256, sizeof received, DEVICE_TO_HOST) == 0);
    for (size_t i = 0; i < 4; i++) CHECK(received[i] == 20);
    struct us_record record = last_of(US_API_SEND);
    CHECK(record.a == 3 && record.b == 4 && record.flags == ncclInt32);
    CHECK(last_of(US_API_RECV).d == (uintptr_t)(device + 256 + 12));
    CHECK(ncclSend(device, 1, ncclInt32, 4, communicator, NULL) == ncclInvalidArgument);

    /* A message of a peer outside a group is unknown. */
    CHECK(ncclRecv(device, 4, ncclInt32, 0, communicator, NULL) == 0);
    CHECK(cudaMemcpy(received, device, sizeof received, DEVICE_TO_HOST) == 0);
    for (size_t i = 0; i < 4; i++) CHECK(received[i] == 0);
    /* More messages than are remembered. */
    CHECK(ncclGroupStart() == 0);
    for (int i = 0; i < 5000; i++) {
        CHECK(ncclSend(device, 1, ncclInt32, 0, communicator, NULL) == 0);
    }
    CHECK(ncclGroupEnd() == 0);
}

static void *reduce_often(void *communicator) {
    ncclComm_t child;
    for (int i = 0; i < 200; i++) {
        CHECK(ncclGroupStart() == 0);
        CHECK(ncclCommSplit(communicator, 0, 0, &child, NULL) == 0);
        CHECK(ncclGroupEnd() == 0 && ncclCommDestroy(child) == 0);
    }
    return NULL;
}

int main(void) {
    open_trace();
    communicators();
    ncclUniqueId id;
    ncclComm_t communicator;
    char *device;
    CHECK(ncclGetUniqueId(&id) == 0 && ncclCommInitRank(&communicator, 4, id, 1) == 0);
    CHECK(ncclMemAlloc((void **)&device, 4096) == 0);
    collectives(communicator, device);
    groups(communicator, device);
    pthread_t threads[4];
    for (size_t i = 0; i < 4; i++) {
        CHECK(pthread_create(&threads[i], NULL, reduce_often, communicator) == 0);
    }
    for (size_t i = 0; i < 4; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    CHECK(ncclMemFree(device) == 0 && ncclCommDestroy(communicator) == 0);
    close_trace();
    return 0;
}
