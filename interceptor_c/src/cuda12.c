/*
 * Functions of the CUDA 12 runtime whose names or parameters CUDA 13 does not have any more.
 * Headers of CUDA 12 map cudaGetDeviceProperties and cudaStreamGetCaptureInfo to their _v2.
 */
#include <stdio.h>
#include <string.h>

#include "core.h"

/* cudaDeviceProp of CUDA 12 from totalGlobalMem on: each field's attribute and size. Sizes are
   size_t where the attribute's value is an int. */
static const struct {
    short attribute; /* 0: totalGlobalMem */
    short bytes;
} fields[] = {
    {0, 8},   {8, 8},   {12, 4},  {10, 4},  {11, 8},  {1, 4},   {2, 4},   {3, 4},   {4, 4},
    {5, 4},   {6, 4},   {7, 4},   {13, 4},  {9, 8},   {75, 4},  {76, 4},  {14, 8},  {51, 8},
    {15, 4},  {16, 4},  {17, 4},  {18, 4},  {19, 4},  {20, 4},
    /* textures and surfaces */
    {21, 4},  {77, 4},  {69, 4},  {22, 4},  {23, 4},  {73, 4},  {74, 4},  {70, 4},  {71, 4},
    {72, 4},  {45, 4},  {46, 4},  {24, 4},  {25, 4},  {26, 4},  {47, 4},  {48, 4},  {49, 4},
    {52, 4},  {42, 4},  {43, 4},  {27, 4},  {28, 4},  {29, 4},  {53, 4},  {54, 4},  {55, 4},
    {56, 4},  {57, 4},  {58, 4},  {59, 4},  {60, 4},  {61, 4},  {62, 4},  {63, 4},  {64, 4},
    {65, 4},  {66, 4},  {67, 4},  {68, 4},
    {30, 8},  {31, 4},  {32, 4},  {33, 4},  {34, 4},  {50, 4},  {35, 4},  {40, 4},  {41, 4},
    {36, 4},  {37, 4},  {38, 4},  {108, 4}, {39, 4},  {78, 4},  {79, 4},  {80, 4},  {81, 8},
    {82, 4},  {83, 4},  {84, 4},  {85, 4},  {86, 4},  {87, 4},  {88, 4},  {89, 4},  {90, 4},
    {91, 4},  {95, 4},  {96, 4},  {97, 8},  {100, 4}, {101, 4}, {106, 4}, {109, 4}, {111, 8},
    {99, 4},  {112, 4}, {113, 4}, {114, 4}, {115, 4}, {116, 4}, {117, 4}, {118, 4}, {119, 4},
    {121, 4}, {125, 4}, {120, 4}, {129, 4},
};

enum {
    PROPERTIES_BYTES = 1032,
    UUID_OFFSET = 256,
    TOTAL_MEMORY_OFFSET = 288,
};

US_EXPORT cudaError_t cudaGetDeviceProperties_v2(char *properties, int device) {
    if (device < 0 || device >= us_device_count())
        return us_error(cudaErrorInvalidDevice);
    if (!properties)
        return us_error(cudaErrorInvalidValue);
    memset(properties, 0, PROPERTIES_BYTES);
    snprintf(properties, UUID_OFFSET, "%s", us_device()->name);
    us_device_uuid(us_physical_device(device), (unsigned char *)properties + UUID_OFFSET);
    size_t offset = TOTAL_MEMORY_OFFSET;
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        int value = 0;
        if (fields[i].attribute)
            us_device_attribute(fields[i].attribute, device, &value);
        uint64_t wide = fields[i].attribute ? (uint64_t)value : us_device()->memory_bytes;
        size_t bytes = (size_t)fields[i].bytes;
        offset = (offset + bytes - 1) / bytes * bytes;
        memcpy(properties + offset, &wide, bytes); /* little endian: the low half of `wide` */
        offset += bytes;
    }
    return cudaSuccess;
}
